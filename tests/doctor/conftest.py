"""The doctor on machines that are not there: the build room's fake driver, and copies of the pack in odd states."""

from tests.build.conftest import fake_driver_folder, gcc, make_pack  # noqa: F401  fixtures
