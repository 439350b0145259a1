"""Signatures of the libraries as data: read from a package's text, which is not imported, and checked in.

    python -m attn_mlir.validation.hosts.signatures flash-attn-4 4.0.0b36 [FOLDER]

renews those of a library of this version, which lies in FOLDER or where Python looks for packages.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from inspect import Parameter
from pathlib import Path
from typing import Any

from attn_mlir.validation.hosts.packages import LIBRARIES, Library

DATA = Path(__file__).with_name("signatures.json")
REQUIRED = Parameter.empty


class Unknown:
    """A default that is no literal."""


def recorded() -> dict[str, dict[str, Any]]:
    """Of each library `version`, and `functions`: the arguments of each as text."""
    return json.loads(DATA.read_text())


def parameters_of(text: str) -> list[Parameter]:
    """The arguments of a function without `self`.

    Args:
      text: as `recorded` has them.
    """
    found: ast.FunctionDef = ast.parse(f"def f({text}): ...").body[0]  # pyright: ignore
    return [x for x in _parameters(found.args) if x.name != "self"]


def _parameters(written: ast.arguments) -> Iterator[Parameter]:
    positions = [*written.posonlyargs, *written.args]
    defaults = [None] * (len(positions) - len(written.defaults)) + list(written.defaults)
    for argument, default in zip(positions, defaults, strict=True):
        yield Parameter(argument.arg, Parameter.POSITIONAL_OR_KEYWORD, default=_value(default))
    if written.vararg is not None:
        yield Parameter(written.vararg.arg, Parameter.VAR_POSITIONAL)
    for argument, default in zip(written.kwonlyargs, written.kw_defaults, strict=True):
        yield Parameter(argument.arg, Parameter.KEYWORD_ONLY, default=_value(default))
    if written.kwarg is not None:
        yield Parameter(written.kwarg.arg, Parameter.VAR_KEYWORD)


def _value(default: ast.expr | None) -> Any:
    if default is None:
        return REQUIRED
    if isinstance(default, ast.Attribute):  # torch.bfloat16
        return ast.unparse(default)
    try:
        return ast.literal_eval(default)
    except ValueError:
        return Unknown


def read(library: Library, folders: Sequence[Path]) -> dict[str, str]:
    """The arguments of a library's functions as text, without annotations.

    Args:
      folders: that may hold its packages.

    Raises:
      FileNotFoundError: none holds a file.
      KeyError: a file has no such function.
    """
    found: dict[str, str] = {}
    for file, names in library.functions.items():
        path = next((x / file for x in folders if (x / file).is_file()), None)
        if path is None:
            raise FileNotFoundError(f"{file} is in none of {', '.join(map(str, folders))}")
        functions = dict(_functions(ast.parse(path.read_text()).body, ""))
        for name in names:
            found[name] = _text(functions[library.written.get(name, name)])
    return found


def _functions(body: Sequence[ast.stmt], inside: str) -> Iterator[tuple[str, ast.arguments]]:
    """Functions and methods; of overloads the last one counts, which is the function itself."""
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            yield from _functions(statement.body, f"{inside}{statement.name}.")
        elif isinstance(statement, ast.FunctionDef):
            yield f"{inside}{statement.name}", statement.args


def _text(arguments: ast.arguments) -> str:
    written = [arguments.vararg, arguments.kwarg, *arguments.posonlyargs, *arguments.args]
    for argument in (*written, *arguments.kwonlyargs):
        if argument is not None:
            argument.annotation = None
    return ast.unparse(arguments)


def renewed(
    data: Mapping[str, Any], name: str, version: str, folders: Sequence[Path]
) -> dict[str, Any]:
    """The data with a library's signatures read again."""
    made = {"version": version, "functions": read(LIBRARIES[name], folders)}
    return dict(sorted({**data, name: made}.items()))


def main() -> int:
    """Renews the data."""
    parser = argparse.ArgumentParser(description=inspect.cleandoc(__doc__ or "").split("\n")[0])
    parser.add_argument("library", choices=LIBRARIES)
    parser.add_argument("version")
    parser.add_argument("folder", nargs="?", type=Path, help="that holds the library's packages")
    asked = parser.parse_args()
    folders = [Path(x or ".") for x in sys.path] if asked.folder is None else [asked.folder]
    before = recorded() if DATA.exists() else {}
    made = renewed(before, asked.library, asked.version, folders)
    DATA.write_text(json.dumps(made, indent=1) + "\n")
    old = before.get(asked.library, {}).get("functions", {})
    for function, text in made[asked.library]["functions"].items():
        if old.get(function) != text:
            print(f"{function}({text})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
