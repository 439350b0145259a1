"""A chip's name stands in tables alone: everybody else asks for features and limits."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from attn_mlir.dialect.targets.limits import TARGETS
from attn_mlir.runtime.devices import base
from attn_mlir.runtime.emulator.machine.chips import CHIPS

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("dialect", "frontend", "lowering", "passes", "runtime", "schedules")
CHIP = re.compile(r"sm_\d*[af]?")
TABLES = {
    "dialect/targets/limits.py": "what each target has",
    "runtime/devices/base.py": "the targets that a GPU's kernels are looked for in",
    "runtime/devices/driver.py": "the name of a GPU's chip, from its compute capability",
    "runtime/timing/chips.py": "their rates and latencies",
    "runtime/emulator/machine/chips.py": "what each emulated chip has",
    "runtime/emulator/machine/descriptors.py": "the two forms of descriptors",
    "runtime/emulator/machine/tensorcore.py": "the form that tcgen05 reads",
    "runtime/emulator/machine/warpmma.py": "the form that wgmma reads",
}


def names(text: str) -> Iterator[str]:
    """The literals of a module that are a chip's name, or the beginning of one."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if CHIP.fullmatch(node.value):
                yield node.value


def files() -> Iterator[Path]:
    for folder in PRODUCT:
        yield from sorted((ROOT / folder).rglob("*.py"))


def test_chips_are_named_in_tables_alone() -> None:
    found = {str(path.relative_to(ROOT)) for path in files() if any(names(path.read_text()))}
    own = {name for name in found if re.match(r"lowering/sm_\w+/", name)}
    assert found - own == set(TABLES)


@pytest.mark.parametrize(
    "text", ['x = target.chip == "sm_90a"', 'target.startswith("sm_10")', 'f(chip="sm_100a")']
)
def test_a_name_is_found(text: str) -> None:
    assert list(names(text))


def test_the_tables_have_the_same_chips() -> None:
    """The runtime imports no compiler, and the emulator shares nothing with it."""
    assert base.TARGETS == tuple(TARGETS)
    assert set(base.TARGETS) <= set(CHIPS)
