"""wgmma: matrix products of a warpgroup on sm_90a (spec-ptx 9).

An instruction is executed by the four warps of a group, each when it comes to it. The product is
formed once all four have; accumulator registers are poison from the issue to the wait_group that
covers them.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...core.state import Cta, WarpContext
from ...machine import warpmma
from ...machine.faults import Fault
from ...ptx.ast import Imm, Instruction, Register, Vec
from ...ptx.emit import BLOCKED, Emitter
from ...ptx.kinds import Lanes
from ..registry import instruction, runtime
from ..warp.collectives import emit_gather
from .memory import uniform

GROUP_WARPS = 4
A_REGISTERS = 4  # per thread, of A in registers: 64 rows of 32 bytes; spec-ptx 9


@dataclass(slots=True)
class _Operation:
    """One wgmma.mma_async of a warpgroup.

    Attributes:
      parts: by warp in the group: (A registers or None, accumulator sources), until executed. The
        sources are the operation that makes all of them, or a list in which each one is an array or
        the register of an earlier operation.
      results: uint32[4, registers, 32] when done.
    """

    op: warpmma.Wgmma
    a: int
    b: int
    scale_d: bool
    parts: dict[int, tuple[Any, Any]] = field(default_factory=dict[int, tuple[Any, Any]])
    results: Any = None


@dataclass(frozen=True, slots=True)
class _Earlier:
    """An accumulator register that an earlier operation makes, delivered to its warp or not."""

    operation: _Operation
    register: int


@dataclass(slots=True)
class _Chain:
    """Successive operations of one warp that accumulate in the same registers.

    Attributes:
      newest: the number of the last operation.
      targets: (register index, dtype) of the accumulators, as of `wgmma_issue`.
    """

    newest: int
    targets: tuple[tuple[int, Any], ...]


@dataclass(slots=True)
class Warpgroup:
    """The products that a warpgroup issued, by number; `delivered` is a bound by warp."""

    operations: dict[int, _Operation] = field(default_factory=dict[int, _Operation])
    delivered: dict[int, int] = field(default_factory=dict[int, int])

    def forget(self, rank: int, bound: int) -> None:
        """Warp `rank` has all results below `bound`; drop operations that all four have."""
        self.delivered[rank] = bound
        if len(self.delivered) == GROUP_WARPS:
            oldest = min(self.delivered.values())
            for number in [n for n in self.operations if n < oldest]:
                del self.operations[number]


@dataclass(slots=True)
class WarpState:
    """One warp's view: what it issued, what it waits for.

    Attributes:
      issued: operations so far. closed: value of `issued` at each commit, oldest first.
      pending: register index -> (chain, its register, dtype kept or None).
      chain: the last chain, as long as all its registers are pending.
      sources: (operation, register index, its value, line) of the registers of A under way.
    """

    issued: int = 0
    closed: list[int] = field(default_factory=list[int])
    pending: dict[int, tuple[_Chain, int, Any]] = field(
        default_factory=dict[int, tuple[_Chain, int, Any]]
    )
    chain: _Chain | None = None
    sources: list[tuple[int, int, Any, int]] = field(
        default_factory=list[tuple[int, int, Any, int]]
    )


def _group(s: WarpContext) -> Warpgroup:
    return _group_of(s.cta, s.warp.index // GROUP_WARPS)


def _group_of(cta: Cta, number: int) -> Warpgroup:
    group = cta.warpgroups.get(number)
    if group is None:
        group = cta.warpgroups[number] = Warpgroup()
    return group


def _state(s: WarpContext) -> WarpState:
    if s.warp.wgmma is None:
        s.warp.wgmma = WarpState()
    return s.warp.wgmma


def _key(s: WarpContext) -> tuple[Any, ...]:
    return ("wgmma", s.cta.where_rank, s.warp.index // GROUP_WARPS)


@runtime
def wgmma_issue(
    s: WarpContext,
    op: warpmma.Wgmma,
    targets: tuple[tuple[int, Any], ...],
    inputs: tuple[int, ...],
    a_descriptor: Lanes | None,
    b_descriptor: Lanes,
    scale_d: Lanes,
    *a_registers: Lanes,
) -> None:
    """wgmma.mma_async: hand this warp's part to the group.

    Args:
      targets: (register index, dtype it is kept in or None for uint32) of the accumulator.
      inputs: register indices of A.
    """
    group, state = _group(s), _state(s)
    number = state.issued
    state.issued += 1
    a = 0 if a_descriptor is None else uniform(s, a_descriptor, "the descriptor of A")
    b = uniform(s, b_descriptor, "the descriptor of B")
    scale = bool(scale_d[0])
    operation = group.operations.setdefault(number, _Operation(op, a, b, scale))
    if (operation.op, operation.a, operation.b, operation.scale_d) != (op, a, b, scale):
        raise Fault("descriptor", "the warps of a warpgroup disagree about a wgmma")
    registers = s.warp.registers
    line = s.segment.line
    state.sources += [(number, index, registers[index], line) for index in inputs]
    chain = state.chain
    if chain is not None and chain.targets == targets and _are_empty(registers, targets):
        sources: Any = group.operations[chain.newest]
        chain.newest = number
    else:
        sources = _begin_chain(s, group, state, _Chain(number, targets))
    rank = s.warp.index % GROUP_WARPS
    operation.parts[rank] = (np.array(a_registers) if a_registers else None, sources)
    key = _key(s)
    if s.launch.inspector is not None:
        s.launch.inspector.part_issued(s, key)
    if len(operation.parts) < GROUP_WARPS:
        return
    s.launch.count("mma")

    def run(payloads: list[Any]) -> None:
        for done in payloads:
            _execute(s, group.operations[done])
        s.launch.scheduler.wake(key)

    s.launch.scheduler.post(key, run, number, s, engine="tensor")


def _are_empty(registers: list[Any], targets: tuple[tuple[int, Any], ...]) -> bool:
    """Whether no instruction has written to the accumulators since the operation was issued."""
    return all(registers[index] is None for index, _ in targets)


def _begin_chain(s: WarpContext, group: Warpgroup, state: WarpState, chain: _Chain) -> list[Any]:
    """Begins a chain, and returns the accumulator sources of its first operation.

    The accumulators are not exactly those of the warp's previous operation.
    """
    registers = s.warp.registers
    sources: list[Any] = []
    for position, (index, dtype) in enumerate(chain.targets):
        before = state.pending.get(index)
        if before is not None:
            newest = before[0].newest
            if registers[index] is not None:
                _report_changes(s, state, newest + 1)
            sources.append(_Earlier(group.operations[newest], before[1]))
        else:
            value = registers[index]
            sources.append(value if dtype is None else value.view(np.uint32))
        registers[index] = None
        state.pending[index] = (chain, position, dtype)
    state.chain = chain
    return sources


def _accumulators(operation: _Operation) -> Any:
    """The accumulators of a warpgroup before the product, uint32[4, registers, 32]."""
    parts = [operation.parts[rank][1] for rank in range(GROUP_WARPS)]
    if isinstance(parts[0], _Operation) and all(part is parts[0] for part in parts):
        return parts[0].results
    return np.stack([_of_warp(part, rank) for rank, part in enumerate(parts)])


def _of_warp(part: Any, rank: int) -> Any:
    """The accumulators of a warp before the product, uint32[registers, 32]."""
    if isinstance(part, _Operation):
        return part.results[rank]
    return np.array(
        [
            source.operation.results[rank, source.register]
            if isinstance(source, _Earlier)
            else source
            for source in part
        ]
    )


def _execute(s: WarpContext, operation: _Operation) -> None:
    a: Any = operation.a
    if operation.parts[0][0] is not None:
        a = np.stack([operation.parts[rank][0] for rank in range(GROUP_WARPS)])
    operation.results = warpmma.wgmma(
        s.cta.shared,
        operation.op,
        a,
        operation.b,
        _accumulators(operation) if operation.scale_d else None,
        operation.scale_d,
        numeric=s.launch.tensor_core.numeric,
    )
    operation.parts.clear()


@runtime
def wgmma_commit(s: WarpContext) -> None:
    """wgmma.commit_group."""
    state = _state(s)
    state.closed.append(state.issued)
    if s.launch.inspector is not None:
        s.launch.inspector.group_closed(s, [0], "wgmma")


def _report_changes(s: WarpContext, state: WarpState, bound: int) -> None:
    """Report registers of products below `bound` that were written since their issue."""
    registers = s.warp.registers
    changed = [
        (i, line) for n, i, value, line in state.sources if n < bound and registers[i] is not value
    ]
    state.sources = [source for source in state.sources if source[0] >= bound]
    changed += [
        (i, 0)
        for i, (chain, _, _) in state.pending.items()
        if chain.newest < bound and registers[i] is not None
    ]
    if changed and s.launch.inspector is not None:
        names = [s.launch.program.kernel.registers[index].name for index, _ in changed]
        s.launch.inspector.registers_changed(s, changed[0][1], ", ".join(names))


@runtime
def wgmma_wait(s: WarpContext, newest: int) -> bool:
    """wgmma.wait_group: deliver what is older than the newest groups. False when blocked."""
    group, state = _group(s), _state(s)
    older = state.closed[: len(state.closed) - newest]
    if not older:
        return True
    bound = older[-1]
    operations = group.operations
    if any(operations[n].results is None for n in range(bound) if n in operations):
        s.launch.scheduler.block(s, _key(s), lambda: "waits for wgmma groups to complete")
        return False
    registers = s.warp.registers
    _report_changes(s, state, bound)
    for index, (chain, position, dtype) in list(state.pending.items()):
        if chain.newest < bound:
            row = operations[chain.newest].results[s.warp.index % GROUP_WARPS, position]
            registers[index] = row if dtype is None else row.view(dtype)
            del state.pending[index]
    if state.chain is not None and state.chain.newest < bound:
        state.chain = None
    state.closed = state.closed[len(older) :]
    group.forget(s.warp.index % GROUP_WARPS, bound)
    if s.launch.inspector is not None:
        s.launch.inspector.group_waited(s, [0], "wgmma", newest, False)
    return True


_SHAPE = re.compile(r"m64n(\d+)k(\d+)")


@instruction("wgmma.mma_async", needs="sync aligned", boundary=True)
def emit_wgmma(e: Emitter, i: Instruction) -> None:
    """wgmma.mma_async.sync.aligned.m64nNkK.D.A.B d, a, b, scale-d{, immediates}."""
    shape = next(filter(None, map(_SHAPE.fullmatch, i.parts)), None)
    if shape is None or len(i.parts) < 8:
        raise e.error(f"unknown form '{i.opcode}'")
    saturate = i.has("satfinite")
    d_format, a_format, b_format = i.parts[-3:]
    if a_format == "b1":
        raise e.error("single-bit products are not supported")
    emit_gather(e, None)
    d, a, b, scale = i.operands[:4]
    flags = [e.immediate(operand, "a scale or transpose flag") for operand in i.operands[4:]]
    in_registers = isinstance(a, Vec)
    signs = flags[:2] if len(flags) >= 2 else [1, 1]
    transposes = flags[2:]
    op = warpmma.Wgmma(
        n=int(shape.group(1)),
        d_format=d_format,
        a_format=a_format,
        b_format=b_format,
        negate_a=signs[0] == -1,
        negate_b=signs[1] == -1,
        transpose_a=bool(transposes[0]) if transposes and not in_registers else False,
        transpose_b=bool(transposes[-1]) if transposes else False,
        saturate=saturate,
    )
    if op.k != int(shape.group(2)):
        raise e.error(f"wgmma on {a_format} has k{op.k}, got k{shape.group(2)}")
    warpmma.check_wgmma(op, in_registers)
    targets: list[tuple[int, Any]] = []
    for item in e.words(d, op.d_registers):
        if not isinstance(item, Register):
            raise e.error("wgmma accumulates in registers")
        targets.append((item.index, None if e.storage[item.index] == "u32" else np.float32))
    if len(dict(targets)) < len(targets):
        raise e.error("an accumulator register is listed twice")
    name = e.bind("WGMMA", op)
    names = e.bind("TARGETS", tuple(targets))
    a_text = "None" if in_registers else e.src(a, "u64")
    items = e.words(a, A_REGISTERS) if in_registers else ()
    parts = "".join(f", {e.src(item, 'u32')}" for item in items)
    inputs = tuple(item.index for item in items if isinstance(item, Register))
    enable = e.src(Imm(bool(scale.value)) if isinstance(scale, Imm) else scale, "pred")
    with e.effect():
        e.line(
            f"wgmma_issue(s, {name}, {names}, {inputs}, {a_text}, {e.src(b, 'u64')}, "
            f"{enable}{parts})"
        )


@instruction("wgmma.fence", modifiers="sync aligned", boundary=True)
def emit_fence(e: Emitter, i: Instruction) -> None:
    """wgmma.fence.sync.aligned."""
    e.line(f"fence(s, {e.k}, {i.opcode!r})")


@instruction("wgmma.commit_group", modifiers="sync aligned", boundary=True)
def emit_commit(e: Emitter, i: Instruction) -> None:
    """wgmma.commit_group.sync.aligned."""
    emit_gather(e, None)
    with e.effect():
        e.line("wgmma_commit(s)")


@instruction("wgmma.wait_group", modifiers="sync aligned", boundary=True)
def emit_wait(e: Emitter, i: Instruction) -> None:
    """wgmma.wait_group.sync.aligned N."""
    emit_gather(e, None)
    newest = e.immediate(i.operands[0], "the group count")
    with e.effect():
        e.line(f"if not wgmma_wait(s, {newest}): return {BLOCKED}")
