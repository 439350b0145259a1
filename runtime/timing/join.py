"""Joins a recorded PTX run with machine code: which SASS instructions a warp issued, in order.

The assembler's line table names the PTX line behind each SASS instruction. A conditional SASS
branch that was made from a PTX branch goes where the record says that the PTX branch went; which of
its sides is the PTX branch's taken one follows from the lines that only one side reaches. Events of
a line (waits, arrivals, copies) are taken in order by the SASS instructions of that line.
"""

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from attn_mlir.errors import LaunchError

from ..emulator.ptx.ast import Instruction as PtxInstruction
from ..emulator.ptx.cfg import EXIT, branch_targets, is_exit
from ..emulator.ptx.program import Program
from .record import BOTH, FIRST_TARGET, TAKEN, Kind, Slot, WarpRecord, kind_of
from .sass import Function, Instruction

ISSUE_LIMIT = 20_000_000  # SASS instructions of one warp: a walk that does not end

_COPIES = frozenset("UTMALDG UTMASTG UTMAREDG UBLKCP UBLKRED UTMAPF UBLKPF UGETNEXTWORKID".split())
_SHARED = frozenset("LDS STS LDSM STSM".split())


class JoinError(LaunchError):
    """The machine code cannot have come from the recorded PTX, or the join cannot tell how."""


@dataclass(frozen=True, slots=True)
class Issue:
    """One instruction that a warp issues.

    Attributes:
      slot: what it did, if it is of a kind that has events; None if its guard was false.
      has_slot: whether it is of such a kind.
    """

    instruction: Instruction
    slot: Slot
    has_slot: bool


@dataclass(slots=True)
class Joined:
    """Static knowledge of how one kernel's SASS follows its PTX.

    Attributes:
      decided: by block, (PTX line, whether the SASS branch is taken when the PTX branch is).
      fixed: blocks whose conditional branch never depends on the record, and where they go.
      kinds: by instruction, the PTX line and kind whose events it takes.
      meets: by block, the block where lanes that part there meet again.
    """

    function: Function
    decided: dict[int, tuple[int, bool]] = field(default_factory=dict[int, tuple[int, bool]])
    fixed: dict[int, int] = field(default_factory=dict[int, int])
    kinds: dict[Instruction, tuple[int, Kind]] = field(
        default_factory=dict[Instruction, tuple[int, Kind]]
    )
    meets: dict[int, int] = field(default_factory=dict[int, int])
    guesses: list[Instruction] = field(default_factory=list[Instruction])


def sass_kind(one: Instruction) -> Kind | None:
    """The kind of events that a SASS instruction makes."""
    match one.base:
        case "SYNCS":
            if one.suffixes[0] == "PHASECHK":
                return "wait"
            return "arrive" if one.suffixes[0] == "ARRIVE" else None
        case "ARRIVES":
            return "arrive"
        case "BAR":
            return "bar"
        case base if base.startswith("UCGABAR"):
            return "cluster"
        case base if base in _COPIES:
            return "copy"
        case base if base in _SHARED:
            return "shared"
        case "UTCBAR":
            return "commit"
        case "UTCHMMA" | "UTCQMMA" | "UTCOMMA" | "UTCIMMA":
            return "mma"
        case _:
            return None


def join(function: Function, program: Program) -> Joined:
    """Finds out how a kernel's SASS follows its PTX.

    Raises:
      JoinError: the machine code has no line table.
    """
    if not function.has_lines:
        raise JoinError(
            f"the machine code of '{function.name}' has no lines of PTX: assemble with -lineinfo"
        )
    joined = Joined(function)
    _match_kinds(joined, program.kernel.instructions)
    reach = _SassReach(function)
    ptx = _PtxReach(program)
    tagged: set[tuple[int, int]] = set()
    for block in function.blocks:
        last = block.last
        if not last.is_conditional and last.base not in ("BRX", "JMX"):
            continue
        if last.base in ("EXIT", "RET", "BRX", "JMX"):
            if last.line in ptx.branches:
                joined.decided[block.number] = (last.line, True)
            continue
        if len(block.successors) < 2:
            continue
        meet = reach.meet(block.number)
        if meet is not None:
            joined.meets[block.number] = meet
        retry = _retry(function, block.number)
        line = ptx.branch_of(last.line, tagged)
        if retry is not None:
            joined.fixed[block.number] = retry
        elif line and "DIV" not in last.suffixes:
            joined.decided[block.number] = (line, _same_way(reach, ptx, block.number, line))
        else:
            joined.guesses.append(last)
            assert block.after is not None
            joined.fixed[block.number] = block.after
    return joined


def _match_kinds(joined: Joined, code: list[PtxInstruction]) -> None:
    """Gives each SASS instruction with events its own PTX line, else the nearest."""
    lines: dict[Kind, set[int]] = {}
    for one in code:
        if (kind := kind_of(one)) is not None:
            lines.setdefault(kind, set()).add(one.line)
    strays: list[tuple[Instruction, Kind]] = []
    used: set[tuple[int, Kind]] = set()
    for one in joined.function.instructions:
        kind = sass_kind(one)
        if kind is None:
            continue
        if one.line in lines.get(kind, ()):
            joined.kinds[one] = (one.line, kind)
            used.add((one.line, kind))
        else:
            strays.append((one, kind))
    for one, kind in strays:
        free = [line for line in lines.get(kind, ()) if (line, kind) not in used]
        if free:
            line = min(free, key=lambda line: abs(line - one.line))
            joined.kinds[one] = (line, kind)


def _retry(function: Function, number: int) -> int | None:
    """Where a branch that repeats a try goes when the try succeeds; None for other branches.

    A wait on an mbarrier is tried in line, and again out of line after a sleep; registers are asked
    for until there are some.
    """
    block = function.blocks[number]
    assert block.after is not None
    if any(one.base == "USETMAXREG" for one in block.instructions[-8:]):
        if block.targets and block.targets[0] <= number:
            return block.after
    waits = [one for one in block.instructions if one.opcode.startswith("SYNCS.PHASECHK")]
    if not waits or not block.targets:
        return None
    goal = function.blocks[block.targets[0]]
    again = [one for one in _near(function, goal.number) if one.base == "NANOSLEEP"]
    return block.after if again or goal.number == number else None


def _near(function: Function, number: int) -> list[Instruction]:
    """The first instructions of a block and of the one behind it."""
    return [one for block in function.blocks[number : number + 2] for one in block.instructions[:6]]


class _SassReach:
    """Which PTX lines each side of a SASS branch reaches before the sides meet."""

    def __init__(self, function: Function):
        self.function = function
        self.edges = [block.successors for block in function.blocks]
        self.parents = post_dominators(self.edges)

    def meet(self, number: int) -> int | None:
        """The immediate post-dominator of a block, or None where lanes leave the kernel first."""
        parent = self.parents[number]
        return parent if parent != EXIT else None

    def sides(self, number: int) -> tuple[Counter[int], Counter[int]]:
        """Lines that only the taken side has, and those that only the other one has."""
        block = self.function.blocks[number]
        assert block.after is not None
        stops = {number, self.parents[number]}
        taken = reachable(self.edges, block.targets[0], stops)
        after = reachable(self.edges, block.after, stops)
        return self._lines(taken - after), self._lines(after - taken)

    def _lines(self, blocks: set[int]) -> Counter[int]:
        return Counter(one.line for at in blocks for one in self.function.blocks[at].instructions)


class _PtxReach:
    """The same for PTX branches, by line."""

    def __init__(self, program: Program):
        self.program = program
        self.code = program.kernel.instructions
        graph = program.graph
        self.edges = [
            [after for after in block.successors if after != EXIT] for block in graph.blocks
        ]
        self.branches: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        self.after = {
            one.line: after.line for one, after in zip(self.code, self.code[1:], strict=False)
        }
        for number, block in enumerate(graph.blocks):
            if block.first == block.last:
                continue
            last = self.code[block.last - 1]
            conditional = last.guard is not None and (last.parts[0] == "bra" or is_exit(last))
            if conditional or last.parts[0] == "brx":
                self.branches[last.line] = number
                inside = self.code[block.first : block.last]
                self.ends |= {one.line: last.line for one in inside if _is_plain(one)}

    def branch_of(self, line: int, tagged: set[tuple[int, int]]) -> int:
        """The PTX branch behind a SASS branch with a line, or 0.

        A branch on a uniform predicate has the line of an instruction before it in its block.

        Args:
          tagged: lines and the branches found for them; of two SASS branches with the same line
            the second one is that of the branch which follows.
        """
        if line in self.branches:
            return line
        end = self.ends.get(line, 0)
        while end and (line, end) in tagged:
            end = self.ends.get(self.after.get(end, 0), 0)
        tagged.add((line, end))
        return end

    def sides(self, line: int) -> tuple[set[int], set[int]]:
        """Lines that only the taken side has, and those that only the other one has."""
        number = self.branches[line]
        block = self.program.graph.blocks[number]
        last = self.code[block.last - 1]
        if is_exit(last):
            return set(), set()
        at = branch_targets(self.program.kernel, last)[0]
        taken_block = self.program.graph.block_at.get(at)
        after_block = self.program.graph.block_at.get(block.last)
        stops = {number, block.reconvergence}
        taken = set[int]() if taken_block is None else reachable(self.edges, taken_block, stops)
        after = set[int]() if after_block is None else reachable(self.edges, after_block, stops)
        return self._lines(taken - after), self._lines(after - taken)

    def _lines(self, blocks: set[int]) -> set[int]:
        lines: set[int] = set()
        for at in blocks:
            block = self.program.graph.blocks[at]
            lines.update(one.line for one in self.code[block.first : block.last])
        return lines


def _is_plain(one: PtxInstruction) -> bool:
    """Whether the machine code of a PTX instruction has no branch of its own: a guard makes one."""
    return one.guard is None and "alloc" not in one.opcode


def _same_way(reach: _SassReach, ptx: _PtxReach, number: int, line: int) -> bool:
    """Whether a SASS branch is taken when its PTX branch is: by the lines of their sides."""
    taken, after = reach.sides(number)
    goal, other = ptx.sides(line)

    def common(counts: Counter[int], lines: set[int]) -> int:
        return sum(count for at, count in counts.items() if at in lines)

    same = common(taken, goal) + common(after, other)
    crossed = common(taken, other) + common(after, goal)
    return same >= crossed


def reachable(edges: list[list[int]], start: int, stops: set[int]) -> set[int]:
    """Blocks that can be reached from one, it included, without passing those of `stops`."""
    if start in stops:
        return set()
    seen, pending = {start}, [start]
    while pending:
        for after in edges[pending.pop()]:
            if after not in seen and after not in stops:
                seen.add(after)
                pending.append(after)
    return seen


def post_dominators(edges: list[list[int]]) -> list[int]:
    """The immediate post-dominator of each block; EXIT where there is none.

    Blocks without successors end the kernel. Iterates over sets as bit masks.
    """
    count = len(edges)
    everything = (1 << count + 1) - 1  # bit `count` stands for the end
    sets = [everything] * count
    changed = True
    while changed:
        changed = False
        for number in range(count - 1, -1, -1):
            common = everything
            for after in edges[number]:
                common &= sets[after]
            if not edges[number]:
                common = 1 << count
            mine = common | 1 << number
            if mine != sets[number]:
                sets[number], changed = mine, True
    result: list[int] = []
    for number in range(count):
        strict = [at for at in range(count) if at != number and sets[number] >> at & 1]
        result.append(max(strict, key=lambda at: sets[at].bit_count(), default=EXIT))
    return result


class Walk:
    """The instructions that one warp issues, in order.

    Args:
      record: of the warp; it is used up.

    Attributes:
      is_cut: the record ended before the kernel did.
      unmatched: events that no instruction took, by line and kind, once the walk has ended.
    """

    def __init__(self, joined: Joined, record: WarpRecord):
        self.joined = joined
        self.outcomes = {line: deque(events) for line, events in record.outcomes.items()}
        self.slots = {key: deque(events) for key, events in record.slots.items()}
        self.is_cut = False

    @property
    def unmatched(self) -> dict[tuple[int, Kind], int]:
        """Events that no instruction has taken so far."""
        return {
            key: len(left) for key, left in self.slots.items() if any(s is not None for s in left)
        }

    def __iter__(self) -> Iterator[Issue]:
        blocks = self.joined.function.blocks
        fixed = self.joined.fixed
        kinds = self.joined.kinds
        number: int | None = 0
        sides: list[tuple[int | None, int | None]] = []  # (the other side, where both meet)
        calls: list[int] = []
        left = ISSUE_LIMIT
        while True:
            while sides and number == sides[-1][1]:
                other, meet = sides.pop()
                if other is not None:
                    sides.append((None, meet))
                    number = other
                else:
                    break
            if number is None:
                if not sides:
                    return
                other, meet = sides.pop()
                if other is not None:
                    sides.append((None, meet))
                number = other if other is not None else meet
                continue
            block = blocks[number]
            left -= len(block.instructions)
            if left < 0:
                raise JoinError(f"a warp issues more than {ISSUE_LIMIT} instructions")
            for one in block.instructions:
                key = kinds.get(one)
                if key is None:
                    yield Issue(one, None, False)
                    continue
                queue = self.slots.get(key)
                if key[1] == "wait" and not queue:
                    self.is_cut = True
                    return
                yield Issue(one, queue.popleft() if queue else None, True)
            last = block.last
            if number in fixed:
                number = fixed[number]
            elif last.base == "CALL":
                goal = self._call(last)
                if goal is None:
                    number = block.after
                else:
                    assert block.after is not None
                    calls.append(block.after)
                    number = goal
            elif last.base == "RET":
                number = calls.pop() if calls else None
            elif number in self.joined.decided:
                line, same = self.joined.decided[number]
                queue = self.outcomes.get(line)
                if not queue:
                    self.is_cut = True
                    return
                outcome = queue.popleft()
                number = self._go(number, outcome, same, sides)
            elif last.base in ("EXIT", "KILL"):
                number = block.after if last.is_conditional else None
            elif last.base in ("BRX", "JMX"):
                number = max(block.targets, key=self._recorded_from)
            else:
                number = block.targets[0] if block.targets else block.after

    def _recorded_from(self, number: int) -> int:
        """How much of the record lies behind a block: where the assembler's jump table goes."""
        blocks = self.joined.function.blocks
        behind = reachable([block.successors for block in blocks], number, set())
        keys = {
            key
            for at in behind
            for one in blocks[at].instructions
            if (key := self.joined.kinds.get(one)) is not None
        }
        mine = sum(key in self.slots for key in keys)
        return 2 * mine - len(keys)

    def _call(self, last: Instruction) -> int | None:
        for block in self.joined.function.blocks:
            if any(f"`({label})" in last.operands for label in block.labels):
                return block.number
        return None

    def _go(
        self,
        number: int,
        outcome: int,
        same: bool,
        sides: list[tuple[int | None, int | None]],
    ) -> int | None:
        block = self.joined.function.blocks[number]
        if block.last.base in ("EXIT", "RET"):
            return None if outcome == TAKEN else block.after
        if outcome >= FIRST_TARGET:
            return block.targets[min(outcome - FIRST_TARGET, len(block.targets) - 1)]
        if outcome == BOTH:
            meet = self.joined.meets.get(number)
            if block.targets[0] == meet:
                return block.after
            if block.after == meet:
                return block.targets[0]
            sides.append((block.targets[0], meet))
            return block.after
        return block.targets[0] if (outcome == TAKEN) == same else block.after
