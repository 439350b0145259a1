"""Mutations of PTX text: every operator plants one kind of mistake, a line at a time.

The input is compilers' output: an instruction per line, or a block `{ ...; ...; }` of several, as
inline assembly gives for the products of a warpgroup; a mutant of a block has one of its
instructions changed. A mutant has as many lines as its original, so that line numbers stay.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_STATEMENT = re.compile(
    r"^(?P<indent>\s*)(?P<guard>@!?[^\s]+\s+)?(?P<opcode>[a-z][\w.:]*)(?P<rest>[^;{}]*(\{[^{}]*\}[^;{}]*)*);\s*(//.*)?$"
)
_ADDRESS = re.compile(r"^\[(?P<base>[^\]+]+)(\+(?P<offset>-?\d+))?\]$")
ATOM_BYTES = 1024  # of the 128-byte swizzle: a shift by it keeps every alignment
BARRIER_BYTES = 8
NEGATE_A = 1 << 13  # of the instruction descriptor (PTX ISA, tcgen05.mma)
_SCALE_A = re.compile(r"(wgmma\.mma_async[^;]*?\}, (?:\{[^}]*\}|\w+), \w+, \w+, )1,")  # imm-scale-a


@dataclass(frozen=True)
class Statement:
    """One instruction: `guard` as written (with its @), operands as text."""

    guard: str
    opcode: str
    operands: tuple[str, ...]

    def text(self, operands: tuple[str, ...] | None = None) -> str:
        """The instruction as PTX, with other operands."""
        return f"{self.guard}{self.opcode} {', '.join(operands or self.operands)};"


@dataclass(frozen=True)
class Mutant:
    """A mistake: `operator` at a 1-based line, whose text becomes `text`."""

    operator: str
    line: int
    original: str
    text: str

    @property
    def name(self) -> str:
        """Names the mutant within its kernel, such as `drop-wait@2950`."""
        return f"{self.operator}@{self.line}"

    def apply(self, ptx: str) -> str:
        """The PTX with the mistake."""
        lines = ptx.split("\n")
        assert lines[self.line - 1].strip() == self.original
        lines[self.line - 1] = self.text
        return "\n".join(lines)


def parse(line: str) -> Statement | None:
    """The instruction of a line, or None."""
    match = _STATEMENT.match(line)
    if match is None:
        return None
    return Statement(match["guard"] or "", match["opcode"], tuple(_split(match["rest"])))


def _split(text: str) -> Iterator[str]:
    depth, current = 0, ""
    for character in text.strip():
        depth += (character in "[{(") - (character in "]})")
        if character == "," and depth == 0:
            yield current.strip()
            current = ""
        else:
            current += character
    if current.strip():
        yield current.strip()


def _moved(address: str, by: int) -> str:
    """The operand `[base+offset]` with `by` bytes added to its offset."""
    match = _ADDRESS.match(address)
    assert match is not None, address
    return f"[{match['base']}+{int(match['offset'] or 0) + by}]"


def _replaced(s: Statement, position: int, operand: str) -> str:
    operands = list(s.operands)
    operands[position] = operand
    return s.text(tuple(operands))


def _computed(s: Statement, position: int, operation: str, value: int, bits: int = 32) -> str:
    """The statement with one operand changed by an operation, in a scope of its own."""
    operand = s.operands[position]
    if re.fullmatch(r"-?\d+", operand):
        number = int(operand)
        changed = number ^ value if operation == "xor" else number + value
        return _replaced(s, position, str(changed))
    kind = f"b{bits}" if operation == "xor" else f"s{bits}"
    inner = _replaced(s, position, "MUTATED")
    return f"{{ .reg .b{bits} MUTATED; {operation}.{kind} MUTATED, {operand}, {value}; {inner} }}"


def _drop(s: Statement) -> str:
    return ""


def _drop_wait(s: Statement) -> str:
    return f"{s.guard}setp.eq.u32 {s.operands[0]}, 0, 0;"


def _flip_parity(s: Statement) -> str:
    return _computed(s, 2, "xor", 1)


def _other_bytes(s: Statement) -> str:
    return _computed(s, len(s.operands) - 1, "add", -16)  # with or without a result in front


def _other_count(s: Statement) -> str:
    """One arrival more: fewer would complete phases too early only for counts above one."""
    return _computed(s, 1, "add", 1)


def _smaller_count(s: Statement) -> str:
    return _computed(s, 1, "add", -1)


def _shift_first(s: Statement) -> str:
    return _replaced(s, 0, _moved(s.operands[0], ATOM_BYTES))


def _shift_second(s: Statement) -> str:
    return _replaced(s, 1, _moved(s.operands[1], ATOM_BYTES))


def _shift_word(s: Statement) -> str:
    position = 1 if s.opcode.startswith("ld") else 0
    return _replaced(s, position, _moved(s.operands[position], 128))


def _shift_b(s: Statement) -> str:
    return _computed(s, 2, "add", ATOM_BYTES >> 4, 64)


def _swap(s: Statement) -> str:
    d, a, b, *rest = s.operands
    return s.text((d, b, a, *rest))


def _column(s: Statement) -> str:
    position = 1 if s.opcode.startswith("tcgen05.ld") else 0
    return _replaced(s, position, _moved(s.operands[position], 4))


def _barrier_at(position: int) -> Callable[[Statement], str]:
    def change(s: Statement) -> str:
        return _replaced(s, position, _moved(s.operands[position], BARRIER_BYTES))

    return change


def negated(product: str, text: str) -> str:
    """What was made of a tcgen05.mma, or of a block of wgmma, with A negated.

    Args:
      product: the line of the product.
      text: what an operator made of it, or the line itself.
    """
    if "wgmma" in product:
        return _SCALE_A.sub(r"\g<1>-1,", text)
    statement = parse(product)
    assert statement is not None, product
    descriptor = statement.operands[3]
    changed = text.replace(f", {descriptor},", ", NEGATED,", 1)
    return f"{{ .reg .b32 NEGATED; xor.b32 NEGATED, {descriptor}, {NEGATE_A}; {changed} }}"


def _looser(s: Statement) -> str:
    """A wait that lets one group more be under way."""
    return _computed(s, 0, "add", 1)


def _swap_first_two(s: Statement) -> str:
    first, second, *rest = s.operands[1].strip("{}").split(", ")
    return _replaced(s, 1, f"{{{', '.join((second, first, *rest))}}}")


def _is_mma_of_descriptors(s: Statement) -> bool:
    return s.opcode.startswith(("tcgen05.mma", "wgmma.mma")) and s.operands[1][0] not in "[{"


def _is_mma_of_registers(s: Statement) -> bool:
    return s.opcode.startswith("wgmma.mma") and s.operands[1].startswith("{")


def _starts(*prefixes: str) -> Callable[[Statement], bool]:
    return lambda s: s.opcode.startswith(prefixes)


_WAIT = _starts("mbarrier.try_wait", "mbarrier.test_wait")
_TMA_LOAD = _starts("cp.async.bulk.tensor.1d.shared", *(f"cp.async.bulk.tensor.{n}d.shared" for n in range(2, 6)))  # fmt: skip
_TMA_STORE = _starts(*(f"cp.async.bulk.tensor.{n}d.global" for n in range(1, 6)))
_GROUP_WAIT = _starts("cp.async.bulk.wait_group", "wgmma.wait_group")
_PLAIN_ARRIVE = re.compile(r"mbarrier\.arrive(?!.*expect_tx)")

# operator -> (which statements, what becomes of them)
OPERATORS: dict[str, tuple[Callable[[Statement], bool], Callable[[Statement], str]]] = {
    "drop-wait": (_WAIT, _drop_wait),
    "flip-parity": (_WAIT, _flip_parity),
    "drop-fence": (
        _starts("tcgen05.fence", "fence.proxy.async", "fence.mbarrier_init", "wgmma.fence"),
        _drop,
    ),
    "drop-commit": (
        _starts("tcgen05.commit", "cp.async.bulk.commit_group", "wgmma.commit_group"),
        _drop,
    ),
    "drop-arrive": (lambda s: _PLAIN_ARRIVE.match(s.opcode) is not None, _drop),
    "drop-group-wait": (_GROUP_WAIT, _drop),
    "loose-group-wait": (_GROUP_WAIT, _looser),
    "drop-barrier": (_starts("bar.", "barrier."), _drop),
    "drop-wait-ld": (_starts("tcgen05.wait::ld"), _drop),
    "drop-wait-st": (_starts("tcgen05.wait::st"), _drop),
    "drop-load": (_TMA_LOAD, _drop),
    "drop-dealloc": (_starts("tcgen05.dealloc"), _drop),
    "expect-bytes": (lambda s: "expect_tx" in s.opcode, _other_bytes),
    "arrival-count": (_starts("mbarrier.init"), _other_count),
    "shrink-count": (_starts("mbarrier.init"), _smaller_count),
    "shift-load": (_TMA_LOAD, _shift_first),
    "shift-store": (_TMA_STORE, _shift_second),
    "shift-word": (_starts("ld.shared.b32", "st.shared.b32", "ld.shared.f32"), _shift_word),
    "shift-operand": (_starts("tcgen05.mma", "wgmma.mma"), _shift_b),
    "swap-registers": (_is_mma_of_registers, _swap_first_two),
    "swap-descriptors": (_is_mma_of_descriptors, _swap),
    "tensor-column": (_starts("tcgen05.ld", "tcgen05.st", "tcgen05.mma"), _column),
    "wrong-barrier": (lambda s: _PLAIN_ARRIVE.match(s.opcode) is not None, _barrier_at(1)),
    "wrong-commit": (_starts("tcgen05.commit"), _barrier_at(0)),
    "wrong-signal": (_TMA_LOAD, _barrier_at(2)),
}


def mutants_of(ptx: str, executed: set[int]) -> list[Mutant]:
    """All mutants of the instructions on the given lines, in text order.

    Args:
      executed: 1-based lines that the launch reaches; a mistake elsewhere shows nowhere.
    """
    found: list[Mutant] = []
    for number, line in enumerate(ptx.split("\n"), 1):
        if number not in executed:
            continue
        for before, statement, after in _statements(line):
            for operator, (applies, change) in OPERATORS.items():
                if applies(statement):
                    text = f"{before}{change(statement)}{after}"
                    found.append(Mutant(operator, number, line.strip(), text))
    return found


def _statements(line: str) -> Iterator[tuple[str, Statement, str]]:
    """The instructions of a line, with the text of its block before and after each."""
    statement = parse(line)
    if statement is not None:
        yield "", statement, ""
        return
    block = line.strip()
    if not (block.startswith("{") and block.endswith("}")):
        return
    *parts, end = block[1:].split(";")
    for number, part in enumerate(parts):
        inner = parse(f"{part};")
        if inner is not None:
            rest = "".join(f"{other};" for other in parts[number + 1 :])
            yield "{" + "".join(f"{other};" for other in parts[:number]), inner, f"{rest}{end}"
