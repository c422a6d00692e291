"""One set of 16k-token heads for every slow test."""

import pytest

from tests.reference.fidelity import Heads, measure


@pytest.fixture(scope="session")
def heads():
    return Heads()


@pytest.fixture(scope="session")
def errors(heads):
    """{profile: relative error of every head in percent}."""
    return measure(heads)
