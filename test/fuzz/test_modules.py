"""What the damaged modules look for is found."""

import pytest

from attn_mlir.validation.fuzz import fuzz

modules = fuzz.load("modules")


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
