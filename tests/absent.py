"""What a test does on a machine that lacks something it needs."""

import os

import pytest


def absent(what: str):
    """End the test: skipped for this reason, in CI failed, where everything must run."""
    (pytest.fail if os.environ.get("CI") else pytest.skip)(what)
