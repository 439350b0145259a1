"""The page of what functions with other libraries' names take, written from their tables.

python -m attn_mlir.validation.hosts.page -o docs/reference/adapters.md
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from attn_mlir.adapters import Arguments, Neutral, arguments_of
from attn_mlir.validation.hosts.packages import LIBRARIES, METHODS
from attn_mlir.validation.hosts.signatures import recorded

TITLES = {
    "flash": "FlashAttention",
    "flash_mla": "FlashMLA",
    "flashinfer": "FlashInfer",
    "ring_flash_attn": "ring-flash-attn",
    "torch": "PyTorch",
    "diffusers.backend": "diffusers",
    "jax.dot_product": "JAX",
    "aten.operators": "PyTorch's operators, while they are activated",
}
UNNAMED = ("self", "arguments", "options")
INTRODUCTION = """\
# Arguments of other libraries

What becomes of each argument of the functions that have another library's names: it is used, or it has no effect here and
is taken at the values that ask for nothing. Any other value, and any other argument, is refused by a `SpecError` that names
it. [attention.md](../attention.md) says what the arguments mean; this page is written from the tables
`table` of `attn_mlir.flash`, `flash_mla`, `flashinfer`, `ring_flash_attn`, `diffusers`, `jax` and `aten`, and compared with the
signatures of these versions:
"""


def functions_of(name: str) -> dict[str, Callable[..., Any]]:
    """The public functions of a module of ours, and the methods of its classes that are called with arguments."""
    module: Any = importlib.import_module(f"attn_mlir.{name}")
    names: Sequence[str] = getattr(module, "__all__", ())
    if not names:
        names = [x for library in LIBRARIES.values() if library.ours == name for x in library.order]
    found: dict[str, Callable[..., Any]] = {}
    for public in names:
        member: Any = getattr(module, public)
        if not inspect.isclass(member):
            found[public] = member
            continue
        if is_dataclass(member):  # nothing that is called with a library's arguments
            continue
        for method in METHODS:
            if inspect.isfunction(made := vars(member).get(method)):
                found[f"{public}.{method}"] = made
    return found


def page() -> str:
    """The page."""
    versions = [f"- {name} {data['version']}" for name, data in recorded().items()]
    parts = [INTRODUCTION, "\n".join(versions), ""]
    for name, title in TITLES.items():
        functions = {x: arguments_of(function) for x, function in functions_of(name).items()}
        parts += [f"## {title}: `attn_mlir.{name}`", "", *_functions(functions), ""]
        parts += [*_neutral(functions), ""]
    return "\n".join(parts)


def _functions(functions: Mapping[str, Arguments]) -> Iterator[str]:
    yield "| function | uses | takes without effect |"
    yield "| --- | --- | --- |"
    for name, arguments in functions.items():
        used = [x for x, row in arguments.items() if row is None and x not in UNNAMED]
        others = [x for x, row in arguments.items() if row is not None]
        everything = "whatever it is given" if "arguments" in arguments else "-"
        yield f"| `{name}` | {_listed(used) or '-'} | {_listed(others) or everything} |"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _neutral(functions: Mapping[str, Arguments]) -> Iterator[str]:
    rows: dict[Neutral, list[str]] = {}
    for arguments in functions.values():
        for name, row in arguments.items():
            if row is not None and name not in rows.setdefault(row, []):
                rows[row].append(name)
    yield "| without effect | taken at | to ask for more |"
    yield "| --- | --- | --- |"
    for row, names in rows.items():
        values = ", ".join(f"`{value}`" for value in row.values)
        yield f"| {_listed(names)} | {values} | {row.instead} |"


def main() -> int:
    """Writes the page."""
    parser = argparse.ArgumentParser(description=inspect.cleandoc(__doc__ or "").split("\n")[0])
    parser.add_argument("-o", dest="output", metavar="FILE", help="standard output if absent")
    file = parser.parse_args().output
    if file is None:
        sys.stdout.write(page())
    else:
        Path(file).write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
