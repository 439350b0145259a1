"""A plugin of pytest: a test that takes too long fails, so that a fault that loops for ever is noticed."""

from __future__ import annotations

import signal
from collections.abc import Generator
from types import FrameType

import pytest

SECONDS = 90  # no test of the host takes half of it


def _fail(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"the test takes more than {SECONDS} s")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Calls a test with an alarm set."""
    signal.signal(signal.SIGALRM, _fail)
    signal.alarm(SECONDS)
    try:
        return (yield)
    finally:
        signal.alarm(0)
