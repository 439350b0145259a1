"""Generates docs/reference/attn.md and ws.md, with every operation, type and attribute, from docstrings.

    python docs/tools/dialect_pages.py [--write]

Without --write it prints the names of pages that are not current, and fails if there is one. Each
entry ends with an example that is a complete module: the docstring's fragment within a function
whose arguments are the values that it uses. Tests parse and verify each, and keep the page current.
"""

import argparse
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect.attn.masks import KINDS
from attn_mlir.files import write_file

PAGES = Path(__file__).resolve().parents[1] / "reference"
DIALECTS: dict[str, Any] = {"attn": attn.DIALECT, "ws": ws.DIALECT}
WIDTH = 110  # characters of a line of an example's arguments
_EXAMPLE = re.compile(r"^Example:\s*", re.MULTILINE)
_SECTION = re.compile(r"^(Results|Operands|Attributes|Raises):$")
_ENTRY = re.compile(r"^  ([\w.]+(?:, [\w.]+)*)((?: \([^)]*\))?): (.*)")
_CONTINUED = re.compile(
    r"(?<=[,)])\n\s*(?=[a-z!])|\n\s*(?=[:{]|->)"
)  # indentation of a statement's further lines
_IN_A_MODIFIER = (
    "attn.yield",
    "attn.keep",
    "attn.slope",
    "attn.adjoint",
    "attn.row_weights",
    "attn.turns",
    "attn.sink",
    "attn.blocks",
    "attn.join",
    "attn.tile_counter",
    "attn.offsets",
)

_ATTENTION = """\
%o, %lse = "attn.mha"(%q, %q, %q, %scale) ({
^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
  BODY
}) {mask = #attn.null}
  : (tensor<?x?x16x128xbf16>, tensor<?x?x16x128xbf16>, tensor<?x?x16x128xbf16>, f32)
    -> (tensor<?x?x16x128xbf16>, tensor<?x16x?xf32>)"""
_YIELD = '\n"attn.yield"(%score) : (f32) -> ()'

_INTRODUCTION = """\
# Dialect `{name}`

Made by `python docs/tools/dialect_pages.py --write` from the docstrings; a test keeps it current and
parses every example. [tutorial.md](../tutorial.md) takes one kernel through both dialects,
[architecture.md](../architecture.md) says what each level is for; the other dialect is [{other}]({other}.md).

Operations have the generic form only: `"attn.mha"(operands) ({{ region }}) {{attributes}} : (types) -> (types)`.
"""

_FUNCTIONS = """\
## Attributes of functions

`convert-attn-to-ws` makes a kernel of a function that holds one `attn.mha` or `attn.combine`. The arguments of the
function are those of the kernel, and attributes say how a call names them:

- `attn.name`, a string, on an argument or result: the name of the tensor or scalar in the bundle.
- `attn.default`, a float, on the argument that is the scale: its value where a call gives none.

```mlir
func.func private @f(tensor<?x?x16x128xbf16> {attn.name = "q"},
                     f32 {attn.name = "scale", attn.default = 0.0883883461 : f32})
    -> (tensor<?x?x16x128xbf16> {attn.name = "o"})
```
"""


def _split_types(text: str) -> list[str]:
    """Splits at the commas that stand outside brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "<([{") - (character in ">)]}")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def _operand_types(example: str) -> dict[str, str]:
    """Types of the values that operations in generic form use, by name."""
    found: dict[str, str] = {}
    opened: list[list[str]] = []
    for line in _CONTINUED.sub(" ", example).splitlines():
        operation = re.search(r'"[\w.]+"\(([^)]*)\)', line)
        operands = _split_types(operation[1]) if operation else []
        if line.endswith("({"):
            opened.append(operands)
            continue
        if line.lstrip().startswith("})"):
            operands = opened.pop()
        if " : (" in line:
            types = line[line.rindex(" : (") + 4 : line.rindex(") -> ")]
            found |= dict(zip(operands, _split_types(types), strict=True))
    return found


def module_text(example: str) -> str:
    """An example that is not a complete module, within a function of the values that it uses."""
    if example.startswith(("func.func", '"ws.kernel"')):
        return example
    made = set(re.findall(r"^\s*(%\w+)(?:, %\w+)* =", example, re.MULTILINE))
    made |= set(re.findall(r"(%\w+):", example)) | set(re.findall(r", (%\w+) =", example))
    taken = {name: kind for name, kind in _operand_types(example).items() if name not in made}
    arguments = [f"{name}: {kind}" for name, kind in taken.items()]
    head, body = "func.func @example(", _indented(example, "  ")
    joined = ", ".join(arguments)
    if len(head) + len(joined) > WIDTH:
        joined = (",\n" + " " * len(head)).join(arguments)
    return f"{head}{joined}) {{\n{body}\n  func.return\n}}"


def example_of(op: Any) -> str:
    """The module that shows an operation: the example of its docstring, completed."""
    _, found, text = _docstring(op).partition("Example:")
    assert found, f"{op.OPERATION_NAME} has no example"
    example = inspect.cleandoc(text).strip().strip("`")
    if op.OPERATION_NAME in _IN_A_MODIFIER:
        ending = "" if op.OPERATION_NAME == "attn.yield" else _YIELD
        example = _ATTENTION.replace("BODY", _indented(example + ending, "  ").lstrip())
    return module_text(example)


def _indented(text: str, by: str) -> str:
    return "\n".join(by + line if line else line for line in text.splitlines())


def _docstring(thing: Any) -> str:
    return inspect.cleandoc(thing.__dict__.get("__doc__") or "")


def _described(text: str) -> Iterator[str]:
    """The paragraphs of a docstring as Markdown; sections become lists."""
    is_list = False
    for line in text.strip().splitlines():
        if _SECTION.match(line):
            is_list = True
            yield f"**{line[:-1]}**"
            yield ""
        elif is_list and (entry := _ENTRY.match(line)):
            names = ", ".join(f"`{name}`" for name in entry[1].split(", "))
            yield f"- {names}{entry[2]}: {entry[3]}"
        elif is_list and line.startswith("    "):
            yield f"  {line.strip()}"
        elif is_list and line.startswith("  "):
            yield f"\n{line.strip()}"
        else:
            is_list = is_list and not line
            yield line


def _entry(title: str, text: str, example: str) -> str:
    return "\n".join([f"### {title}", "", *_described(text), "", "```mlir", example, "```", ""])


def _operation(op: Any) -> str:
    text = _EXAMPLE.split(_docstring(op))[0]
    return _entry(f"`{op.OPERATION_NAME}`", text, example_of(op))


def _type(kind: Any) -> str:
    """The entry of a type, whose docstring begins with an instance: `!ws.tile<...>`: description."""
    shown, text = _shown(kind)
    return _entry(f"`!{kind.type_name}`", text, f"func.func private @example({shown})")


def _shown(kind: Any) -> tuple[str, str]:
    """The instance that a docstring begins with, and the description after it."""
    match = re.match(r"`([^`]+)`:\s+(.)(.*)", _docstring(kind), re.DOTALL)
    assert match is not None, kind
    return match[1], match[2].upper() + match[3]


def _masks() -> Iterator[str]:
    """Every mask with an example of its attribute."""
    for keyword, kind in KINDS.items():
        text = kind.example.attribute
        example = f"func.func private @example() attributes {{mask = {text}}}"
        told = _docstring(kind.mask).partition("\n\nRaises:")[0]
        yield _entry(f"`#attn.{keyword}`", told, example)


def path_of(name: str) -> Path:
    """The file of a dialect's page."""
    return PAGES / f"{name}.md"


def page(name: str) -> str:
    """The page of the dialect of that name."""
    dialect = DIALECTS[name]
    (other,) = set(DIALECTS) - {name}
    parts = [_INTRODUCTION.format(name=name, other=other)]
    home = importlib.import_module(f"attn_mlir.dialect.{name}.dialect")
    parts += [f"{paragraph}\n" for paragraph in _docstring_of_module(home)]
    parts.append("## Operations\n")
    parts += [_operation(op) for op in sorted(dialect.operations, key=_name)]
    parts.append("## Types\n")
    parts += [_type(kind) for kind in dialect.types]
    if name == "attn":
        parts.append("## Masks\n")
        parts.append(
            "Row q is a query position, column k a key position; rows are aligned at the last "
            "key, p = q + sk - sq.\n"
        )
        parts += list(_masks())
        parts.append(_FUNCTIONS)
    return "\n".join(parts)


def _name(op: Any) -> str:
    return op.OPERATION_NAME


def _docstring_of_module(module: Any) -> list[str]:
    """The paragraphs of a module's docstring without the first."""
    return inspect.cleandoc(module.__doc__ or "").split("\n\n")[1:]


def main() -> None:
    """Names the pages that are not current; `--write` renews them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="renew the pages")
    write = parser.parse_args().write
    differ = [name for name in DIALECTS if path_of(name).read_text() != page(name)]
    for name in differ:
        if write:
            write_file(path_of(name), page(name).encode())
        print(f"{'written' if write else 'differs'} docs/reference/{name}.md")
    sys.exit(bool(differ) and not write)


if __name__ == "__main__":
    main()
