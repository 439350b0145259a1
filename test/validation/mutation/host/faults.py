"""Faults in Python sources: every operator plants one kind, at one place of the syntax tree."""

from __future__ import annotations

import ast
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDERS = ("frontend", "runtime")
EXCLUDED = ("runtime/emulator",)  # has mutants of its own kind: PTX that it must tell wrong
TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
}  # fmt: skip
SHIFTED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
}  # fmt: skip
DECLARING = (
    "field",
    "TypeVar",
    "ParamSpec",
    "cast",
    "TypedDict",
)  # calls that say nothing at run time

Change = tuple[
    ast.expr | ast.stmt, str, str
]  # the node that is replaced, by which text, and what it was


@dataclass(frozen=True)
class Fault:
    """A fault in one file.

    Attributes:
      path: of the file, from the root of the repository.
      operator: a name of `OPERATORS`.
      where: the function or class around it, as a qualified name.
      original: the expression or statement, in one line.
      number: which one, of those that are alike in all of these.
      begin, end: bytes of the file that are replaced.
      line: from 1 on.
      text: in their place.
    """

    path: str
    operator: str
    where: str
    original: str
    number: int
    begin: int
    end: int
    line: int
    text: str

    @property
    def identity(self) -> str:
        """Names the fault, whatever stands above it in its file."""
        return f"{self.path} {self.where} {self.operator} {self.original} #{self.number}"

    @property
    def area(self) -> str:
        """The folder of its file."""
        return str(Path(self.path).parent)

    def apply(self, source: bytes) -> bytes:
        """The source with the fault."""
        return source[: self.begin] + self.text.encode() + source[self.end :]


def _drop_keyword(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Call):
        for keyword in _keywords(node):
            kept = [other for other in node.keywords if other is not keyword]
            call = ast.Call(node.func, node.args, kept)
            yield node, ast.unparse(call), _named(node, keyword)


def _keyword_to_none(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Call):
        for keyword in _keywords(node):
            is_none = isinstance(keyword.value, ast.Constant) and keyword.value.value is None
            if not is_none:
                yield keyword.value, "None", _named(node, keyword)


def _keywords(call: ast.Call) -> list[ast.keyword]:
    """The keywords of a call that have a name; not `strict`, which says what lengths are in any case."""
    return [keyword for keyword in call.keywords if keyword.arg not in (None, "strict")]


def _named(call: ast.Call, keyword: ast.keyword) -> str:
    return f"{ast.unparse(call.func)}({keyword.arg}={ast.unparse(keyword.value)})"


def _swap_arguments(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Call) and len(node.args) > 1 and not _takes_any_order(node):
        first, second, *others = node.args
        is_starred = any(isinstance(x, ast.Starred) for x in (first, second))
        if not is_starred and ast.unparse(first) != ast.unparse(second):
            call = ast.Call(node.func, [second, first, *others], node.keywords)
            yield node, ast.unparse(call), ast.unparse(node)


def _takes_any_order(call: ast.Call) -> bool:
    """Whether the first two arguments mean the same the other way round, or their order is that of types."""
    name = ast.unparse(call.func).rpartition(".")[2]
    return name in ("isinstance", "max", "min", "transpose", "swapaxes")


def _compared(
    table: dict[type[ast.cmpop], type[ast.cmpop]],
) -> Callable[[ast.AST], Iterator[Change]]:
    def change(node: ast.AST) -> Iterator[Change]:
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in table:
            turned = ast.Compare(node.left, [table[type(node.ops[0])]()], node.comparators)
            yield node, f"({ast.unparse(turned)})", ast.unparse(node)

    return change


def _off_by_one(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield node, str(node.value + 1), ast.unparse(node)


def _negate(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        yield node.test, f"(not ({ast.unparse(node.test)}))", ast.unparse(node.test)


def _drop_return(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Return) and node.value is not None:
        if not (isinstance(node.value, ast.Constant) and node.value.value is None):
            yield node, "return None", ast.unparse(node)


def _swap_and_or(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield node, f"({ast.unparse(ast.BoolOp(other, node.values))})", ast.unparse(node)


def _drop_raise(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Raise) and node.exc is not None:
        yield node, "pass", ast.unparse(node)


OPERATORS: dict[str, Callable[[ast.AST], Iterator[Change]]] = {
    "drop-keyword": _drop_keyword,
    "keyword-to-none": _keyword_to_none,
    "swap-arguments": _swap_arguments,
    "turn-comparison": _compared(TURNED),
    "shift-comparison": _compared(SHIFTED),
    "off-by-one": _off_by_one,
    "negate-condition": _negate,
    "drop-return": _drop_return,
    "swap-and-or": _swap_and_or,
    "drop-raise": _drop_raise,
}


def faults_of(path: str, source: bytes) -> list[Fault]:
    """All faults of a file, in the order of operators and places.

    Annotations, decorators, texts of errors and what only a type checker reads have none.
    """
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: list[Fault] = []
    counts = Counter[tuple[str, ...]]()
    places = list(_places(ast.parse(source)))
    for operator, change in OPERATORS.items():
        for where, node in places:
            for replaced, text, original in change(node):
                shown = " ".join(original.split())
                same = (operator, where, shown)
                begin, end, line = _span(replaced, starts)
                number = counts[same]
                fault = Fault(path, operator, where, shown, number, begin, end, line, text)
                found.append(fault)
                counts[same] += 1
    return found


def _span(node: ast.expr | ast.stmt, starts: list[int]) -> tuple[int, int, int]:
    """The bytes of a node in its file, and its line; `starts` are those of lines."""
    assert node.end_lineno is not None and node.end_col_offset is not None
    begin = starts[node.lineno - 1] + node.col_offset
    return begin, starts[node.end_lineno - 1] + node.end_col_offset, node.lineno


def _places(tree: ast.AST, where: str = "module") -> Iterator[tuple[str, ast.AST]]:
    """Every node that may have a fault, with the name of what is around it."""
    for child in _run(tree):
        named = isinstance(child, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef)
        inner = where
        if named:
            inner = child.name if where == "module" else f"{where}.{child.name}"
        yield inner, child
        yield from _places(child, inner)


def _run(node: ast.AST) -> Iterator[ast.AST]:
    """The children of a node that are executed and whose value matters."""
    if isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert):
        return  # texts of errors, and what tells of mistakes of our own
    skipped: list[ast.AST | None] = []
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        skipped = [*node.decorator_list, node.returns]
    elif isinstance(node, ast.ClassDef):
        skipped = [*node.decorator_list]
    elif isinstance(node, ast.arg | ast.AnnAssign):
        skipped = [node.annotation]
    for child in ast.iter_child_nodes(node):
        if not any(child is other for other in skipped) and not _only_declares(child):
            yield child


def _only_declares(node: ast.AST) -> bool:
    """Whether a node says nothing at run time."""
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    return isinstance(node, ast.Call) and ast.unparse(node.func) in DECLARING


def all_faults(root: Path) -> list[Fault]:
    """The faults of all files of the host."""
    found: list[Fault] = []
    for folder in FOLDERS:
        for file in sorted((root / folder).rglob("*.py")):
            path = str(file.relative_to(root))
            if not path.startswith(EXCLUDED):
                found += faults_of(path, file.read_bytes())
    return found


def drawn(faults: list[Fault], count: int, seed: int) -> list[Fault]:
    """So many faults, from a seed: of each operator as many, of files at random."""
    chooser = random.Random(seed)
    by_operator = {name: [x for x in faults if x.operator == name] for name in OPERATORS}
    for of_kind in by_operator.values():
        chooser.shuffle(of_kind)
    found: list[Fault] = []
    while len(found) < count and any(by_operator.values()):
        for of_kind in by_operator.values():
            if of_kind and len(found) < count:
                found.append(of_kind.pop())
    return found
