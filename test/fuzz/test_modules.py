"""A slice of the damaged modules; and that what they look for is found."""

import importlib.util
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

SLICE = 40
FILE = Path(__file__).with_name("modules.py")


def load() -> ModuleType:
    """The module of the cases, which stands beside this file and in no package."""
    spec = importlib.util.spec_from_file_location("fuzz_modules", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


modules = load()


def test_damaged_modules_are_accepted_or_refused_with_a_place():
    found = Counter(modules.attempt(number).partition(":")[0] for number in range(SLICE))
    assert found["refused"] > SLICE // 2, found


def test_cases_repeat_alone():
    assert modules.case(7) == modules.case(7) != modules.case(8)


def test_sound_modules_are_accepted():
    for stage, text in modules.texts()[:3]:
        assert modules.run(stage, text) == "accepted"


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (lambda stage, text: 1 // 0, "ZeroDivisionError"),
        (lambda stage, text: __import__("os").abort(), "SIGABRT"),
        (lambda stage, text: __import__("time").sleep(60), "SIGALRM"),
    ],
)
def test_what_goes_wrong_in_a_case_is_seen(
    monkeypatch: pytest.MonkeyPatch, what: object, message: str
):
    monkeypatch.setattr(modules, "run", what)
    monkeypatch.setattr(modules, "LIMIT_SECONDS", 1)
    with pytest.raises(RuntimeError, match=message):
        modules.attempt(0)
