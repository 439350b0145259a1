"""Lines of the product by room: all, code alone, docstrings, blank ones, and functions that are long.

    python docs/tools/count_lines.py              this checkout, by folder
    python docs/tools/count_lines.py --deep 2     by rooms of these, too
    python docs/tools/count_lines.py --at COMMIT  of any commit

A line of code is one that holds a token and no part of a docstring or comment; an import is one as well.
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("frontend", "dialect", "schedules", "passes", "lowering", "runtime")
LONG = 80  # lines of a function that is reported
_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENCODING, tokenize.ENDMARKER,
}  # fmt: skip


@dataclass
class Count:
    """Counts of a room.

    Attributes:
      files, lines, code, docs, imports, blank: their numbers; `code` has no imports.
      long: functions of more than `LONG` lines.
    """

    files: int = 0
    lines: int = 0
    code: int = 0
    docs: int = 0
    imports: int = 0
    blank: int = 0
    long: int = 0

    def add(self, text: str) -> None:
        """Counts one file."""
        tree = ast.parse(text)
        docs = {
            line
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            for line in _docstring(node)
        }
        imports = {
            line
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        code = {
            line
            for token in tokens
            if token.type not in _NO_CODE
            for line in range(token.start[0], token.end[0] + 1)
        }
        self.files += 1
        self.lines += len(text.splitlines())
        self.blank += sum(not line.strip() for line in text.splitlines())
        self.docs += len(docs)
        self.imports += len(imports)
        self.code += len(code - docs - imports)
        self.long += sum(
            isinstance(node, ast.FunctionDef)
            and (node.end_lineno or node.lineno) - node.lineno >= LONG
            for node in ast.walk(tree)
        )


def _docstring(node: ast.AST) -> Iterator[int]:
    """The lines of a definition's docstring."""
    match getattr(node, "body", None):
        case [ast.Expr(value=ast.Constant(value=str())) as first, *_]:
            yield from range(first.lineno, (first.end_lineno or first.lineno) + 1)
        case _:
            pass


def sources(commit: str) -> Iterator[tuple[str, str]]:
    """Paths and texts of the product's modules: of a commit, or of this checkout if it is empty."""
    if not commit:
        for folder in FOLDERS:
            for path in sorted((ROOT / folder).rglob("*.py")):
                yield path.relative_to(ROOT).as_posix(), path.read_text()
        return
    git = ["git", "-C", str(ROOT)]
    listed = subprocess.run(
        [*git, "ls-tree", "-r", "--name-only", commit], capture_output=True, text=True, check=True
    ).stdout
    for name in listed.splitlines():
        if name.endswith(".py") and name.split("/")[0] in FOLDERS:
            show = [*git, "show", f"{commit}:{name}"]
            yield name, subprocess.run(show, capture_output=True, text=True, check=True).stdout


def counted(commit: str, deep: int) -> dict[str, Count]:
    """The counts of all rooms, by the first `deep` parts of their path."""
    rooms: dict[str, Count] = defaultdict(Count)
    for name, text in sources(commit):
        room = "/".join(name.split("/")[:-1][:deep])
        rooms[room].add(text)
        rooms["product"].add(text)
    return {
        **{room: rooms[room] for room in sorted(rooms) if room != "product"},
        "product": rooms["product"],
    }


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--deep", type=int, default=1, help="folders of a path that make a room")
    parser.add_argument(
        "--at", default="", metavar="COMMIT", help="a commit; this checkout if left out"
    )
    args = parser.parse_args()
    if args.deep < 1:
        parser.error(f"--deep must be at least 1, got {args.deep}")
    known = ["git", "-C", str(ROOT), "rev-parse", "--quiet", "--verify", f"{args.at}^{{commit}}"]
    if args.at and subprocess.run(known, capture_output=True, check=False).returncode:
        parser.error(f"--at must be a commit, got {args.at!r}")
    table = Table("room", *vars(Count()))
    for column in table.columns[1:]:
        column.justify = "right"
    for room, count in counted(args.at, args.deep).items():
        table.add_row(room, *(f"{value:,}" for value in vars(count).values()))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
