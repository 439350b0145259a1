"""Programs of `bench/` and `test/validation/` say what they take where what they measure is not installed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LATE = {"torch", "triton", "cuda", "cupy", "cutlass", "flash_attn", "transformers"}
PROGRAMS = [
    str(path.relative_to(ROOT))
    for folder in ("bench", "test/validation")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if '__name__ == "__main__"' in path.read_text()
]


def imported(path: Path) -> Iterator[str]:
    """The modules that a file imports before anything in it is called."""
    for found in ast.parse(path.read_text()).body:
        if isinstance(found, ast.Import):
            yield from (name.name for name in found.names)
        elif isinstance(found, ast.ImportFrom) and not found.level:
            yield from (f"{found.module}.{name.name}" for name in found.names)
        elif not isinstance(found, ast.FunctionDef | ast.ClassDef | ast.If):
            for call in ast.walk(found):
                match call:
                    case ast.Call(
                        func=ast.Attribute(attr="import_module"),
                        args=[ast.Constant(value=str(name)), *_],
                    ):
                        yield name
                    case _:
                        pass


def closure(path: Path, seen: set[Path]) -> Iterator[tuple[Path, str]]:
    """What a file and the files of these folders that it imports import; pairs of a file and a module."""
    if path in seen:
        return
    seen.add(path)
    for name in imported(path):
        yield path, name
        part = (
            name.removeprefix("attn_mlir.")
            .replace(".", "/")
            .replace("validation/", "test/validation/")
        )
        for place in (part, part.rpartition("/")[0]):
            file = ROOT / f"{place}.py"
            if place.startswith(("bench/", "test/validation/")) and file.is_file():
                yield from closure(file, seen)


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_needs_nothing_that_is_measured(program: str) -> None:
    found = closure(ROOT / program, set())
    assert not [(path, name) for path, name in found if name.split(".")[0] in LATE]


def test_programs_are_found() -> None:
    assert len(PROGRAMS) > 40 and "bench/products.py" in PROGRAMS
