"""Faults of the host: what each operator plants, which tests come first, and what becomes of a fault."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from attn_mlir.validation.mutation.host.copies import copies_of, failed_test
from attn_mlir.validation.mutation.host.faults import OPERATORS, Fault, drawn, faults_of
from attn_mlir.validation.mutation.host.nearest import Imports, module_of
from attn_mlir.validation.mutation.host.run import (
    CAUGHT,
    EQUIVALENT,
    MISSED,
    UNDECIDED,
    Judge,
    Outcome,
    reasons,
    report,
    score,
)

ROOT = Path(__file__).resolve().parents[2]
SOURCE = '''\
"""A text with 1 number."""
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    SIZE = 3


@decorated(option=1)
def first(a: int = 4, *, b: "x[1]" = None) -> "y[2]":
    if a < 5 and b:
        raise ValueError(f"got {a + 6}", a == 7)
    return é(a, b, c=a, strict=True)


class Second:
    def third(self):
        while self.a is None:
            return None
        assert self.a == 8
        return field(default=9)
'''
EXPECTED = {
    "drop-keyword": ["return é(a, b, strict=True)"],
    "keyword-to-none": ["return é(a, b, c=None, strict=True)"],
    "swap-arguments": ["return é(b, a, c=a, strict=True)"],
    "turn-comparison": ["if (a >= 5) and b:", "while (self.a is not None):"],
    "shift-comparison": ["if (a <= 5) and b:"],
    "off-by-one": ["a: int = 5, *", "if a < 6 and b:"],
    "negate-condition": ["if (not (a < 5 and b)):", "while (not (self.a is None)):"],
    "drop-return": ["    return None\n\n\nclass", "assert self.a == 8\n        return None"],
    "swap-and-or": ["if (a < 5 or b):"],
    "drop-raise": ["if a < 5 and b:\n        pass\n    return"],
}


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_plants_what_it_says_and_nothing_elsewhere(operator: str) -> None:
    source = SOURCE.encode()
    found = [x for x in faults_of("x.py", source) if x.operator == operator]
    assert len(found) == len(EXPECTED[operator])
    for fault, text in zip(found, EXPECTED[operator], strict=True):
        changed = fault.apply(source)
        assert text in changed.decode()
        assert changed[: fault.begin] == source[: fault.begin]
        assert changed.endswith(source[fault.end :])
        assert SOURCE.splitlines()[fault.line - 1].encode() in source[: fault.end + 200]


def test_a_fault_has_the_same_name_wherever_it_stands() -> None:
    before = faults_of("x.py", SOURCE.encode())
    moved = faults_of("x.py", b"\n\n" + SOURCE.encode())
    names = [x.identity for x in before]
    assert names == [x.identity for x in moved] and len(set(names)) == len(names)
    assert "x.py Second.third turn-comparison self.a is None #0" in names
    twice = faults_of("x.py", b"def f(a):\n    g(a > 1)\n    g(a > 1)\n")
    assert [x.number for x in twice if x.operator == "turn-comparison"] == [0, 1]


def test_every_fault_of_a_file_can_be_compiled() -> None:
    path = ROOT / "frontend" / "flash" / "kvcache.py"
    source = path.read_bytes()
    found = faults_of("frontend/flash/kvcache.py", source)
    assert len(found) > 100 and {x.operator for x in found} == set(OPERATORS) - {"shift-comparison"}
    for fault in found:
        compile(fault.apply(source), "fault", "exec")


def test_a_seed_draws_of_each_operator_as_many() -> None:
    found = faults_of("x.py", (ROOT / "frontend" / "api" / "lengths.py").read_bytes())
    chosen = drawn(found, 40, 3)
    assert chosen == drawn(found, 40, 3) != drawn(found, 40, 4)
    assert set(Counter(x.operator for x in chosen).values()) == {4}
    assert len(drawn(found, 10**6, 0)) == len(found)


@pytest.mark.long
def test_the_nearest_tests_come_first() -> None:
    imports = Imports(ROOT)
    first, tables, *_ = imports.stages("frontend/flash/kvcache.py")
    assert first[0] == "test/frontend/flash/test_flash_kvcache.py"
    assert "test/frontend/flash/test_effects_flash.py" in tables
    stages = imports.stages("runtime/file/declared.py")
    assert stages[0] == ["test/runtime/test_declared.py"]
    assert "test/runtime/test_bundle.py" in [test for stage in stages for test in stage]
    for path in ("frontend/api/attention.py", "frontend/torch.py", "runtime/file/fields.py"):
        every = [test for stage in imports.stages(path) for test in stage]
        assert every and len(every) == len(set(every))
    assert module_of("frontend/__init__.py") == "attn_mlir"
    assert module_of("runtime/devices/cuda.py") == "attn_mlir.runtime.devices.cuda"


@pytest.mark.long
def test_a_fault_is_caught_by_a_test_that_passes_without_it(tmp_path: Path) -> None:
    root, other = tmp_path / "root", tmp_path / "other"
    for name, text in {
        "frontend/__init__.py": "",
        "frontend/sums.py": "def add(a, b):\n    return a - (0 - b)\n\ndef unused(a):\n    return a\n",
        "test/frontend/test_sums.py": "from attn_mlir.sums import add\n\n"
        "def test_always_fails():\n    assert False\n\n"
        "def test_add():\n    assert add(1, 2) == 3\n",
        "test/frontend/test_later.py": "import time\nfrom attn_mlir.sums import add\n\n"
        "def test_add():\n    assert add(1, 2) == 3\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "test" / "validation").symlink_to(ROOT / "test" / "validation")
    (root / "pyproject.toml").symlink_to(ROOT / "pyproject.toml")
    other.mkdir()
    source = (root / "frontend" / "sums.py").read_bytes()
    found = {(x.where, x.operator): x for x in faults_of("frontend/sums.py", source)}
    with copies_of(root, 1) as (copy,):
        judge = Judge(Imports(root), 60)
        caught = judge(found["add", "off-by-one"], copy)
        missed = judge(found["unused", "drop-return"], copy)
        assert copy.run(["-c", "/dev/null", "test/frontend/test_later.py"], 0.01).in_time is False
    assert (caught.state, caught.test) == (CAUGHT, "test/frontend/test_later.py::test_add")
    assert (missed.state, missed.test) == (MISSED, "")
    assert (root / "frontend" / "sums.py").read_bytes() == source


@pytest.mark.parametrize(
    "name", ["test/a.py", "test/a.py::test_b", "test/a.py::B::test_c[8 bits - x]"]
)
@pytest.mark.parametrize("reason", ["", " - ValueError: a - b [c]"])
def test_the_test_that_failed_is_read(name: str, reason: str) -> None:
    assert failed_test(f"....F\nFAILED {name}{reason}\n1 failed, 4 passed in 1 s\n") == name
    assert failed_test("....\n4 passed\n") == ""


def outcome(identity: str, state: str, area: str = "frontend") -> Outcome:
    return Outcome(identity, area, "None", state, "test" if state == CAUGHT else "", 1.0)


def test_a_report_excuses_what_has_a_reason() -> None:
    known = reasons("# a comment\n\na | b #0 | says nothing\n")
    assert known == {"a | b #0": "says nothing"}
    with pytest.raises(ValueError, match="no reason is given: a"):
        reasons("a\n")
    outcomes = [
        outcome("x", CAUGHT),
        outcome("a | b #0", MISSED, "runtime"),
        outcome("y", UNDECIDED),
    ]
    assert score(outcomes, known) == 50
    text = report(outcomes, known)
    assert "| frontend | 2 | 1 | 0 | 1 |" in text and "| runtime | 1 | 0 | 1 | 0 |" in text
    assert "- y -> None (out of time)" in text and "- a | b #0: says nothing" in text


def test_excused_faults_are_still_there() -> None:
    """A reason for a fault that no longer exists is forgotten."""
    known = reasons(EQUIVALENT.read_text())
    by_path: dict[str, list[Fault]] = {}
    for identity in known:
        path = identity.partition(" ")[0]
        by_path.setdefault(path, faults_of(path, (ROOT / path).read_bytes()))
    there = {fault.identity for found in by_path.values() for fault in found}
    assert set(known) <= there
