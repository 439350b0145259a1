"""Calls: of functions of the module, and of the few outside of it that a GPU's runtime has."""

from typing import Any

import numpy as np

from ...core.launch_errors import KernelFault
from ...core.state import IN_CALL, LOCAL_WINDOW, Call, WarpContext, call_of
from ...ptx.ast import Instruction
from ...ptx.emit import Emitter
from ...ptx.kinds import WARP_LANES
from ...ptx.link import CallSite
from ...ptx.program import NO_SEGMENT
from ..memory.accesses import grow_local, load_bytes
from ..registry import instruction, runtime
from .control import active_lanes, exit_lanes
from .printf import FormatError, formatted

MAX_TEXT_BYTES = 1 << 16  # of a text that a kernel prints, which may have no end


@instruction("call")
def emit_call(e: Emitter, i: Instruction) -> None:
    """Calls end a segment; `isa.translate` writes them, of what `ptx.link` has put together."""
    raise e.error("a call outside of a linked kernel")


@runtime
def enter(s: WarpContext, site: CallSite, start: int, after: int) -> int:
    """Call a function of the module: its first segment.

    Args:
      start, after: the segments where it begins, and behind the call.
    """
    registers = s.warp.registers
    here, base = s.local_base, s.local_base + site.caller_bytes
    memory = grow_local(s, base + site.frame_bytes)
    _copy(s, memory, [(here + a, base + b, count) for a, b, count in site.arguments])
    saved: dict[int, Any] = {}
    outer = call_of(s.join)
    while outer is not None:
        if outer.site.callee == site.callee:
            saved = {index: registers[index] for index in range(*site.registers)}
            break
        outer = call_of(outer.parent)
    s.set_join(Call(IN_CALL, s.mask, 0, s.join, base, site, after, here, saved))
    return start


@runtime
def return_from(s: WarpContext) -> int:
    """Return from a function: the segment behind the call."""
    call = call_of(s.join)
    assert call is not None
    site, here = call.site, call.caller_base
    memory = grow_local(s, 0)
    _copy(s, memory, [(call.base + a, here + b, count) for a, b, count in site.results])
    registers = s.warp.registers
    for index, value in call.saved.items():
        registers[index] = np.where(s.lanes, value, registers[index])
    s.set_join(call.parent)
    s.local_base = here
    return exit_lanes(s, None) if call.after == NO_SEGMENT else call.after


def _copy(s: WarpContext, memory: Any, parts: list[tuple[int, int, int]]) -> None:
    """Copy bytes of the context's lanes within local memory: (from, to, how many) each."""
    for table in (memory, s.warp.local_written):
        if table is not None:
            for source, goal, count in parts:
                table[s.lanes, goal : goal + count] = table[s.lanes, source : source + count]


@runtime
def call_outside(s: WarpContext, k: Any, site: CallSite, line: int) -> None:
    """Call a function that is not in the module.

    Raises:
      KernelFault: it is none that the machine has, or an assertion has failed.
    """
    lanes = active_lanes(s, k)
    if not lanes:
        return
    if site.refusal:
        raise _fault(s, site.refusal, "unsupported", line)
    if site.callee == "vprintf" and [count for *_, count in site.arguments] == [8, 8]:
        _print(s, site, lanes, line)
        return
    message, kind = (
        f"calls '{site.callee}', which is neither in the module nor known",
        "unsupported",
    )
    if site.callee == "__assertfail" and len(site.arguments) >= 3:
        what, file, number = (_argument(s, site, n, lanes[0]) for n in range(3))
        message = (
            f"assertion failed: {_text(s, lanes[0], what)} ({_text(s, lanes[0], file)}:{number})"
        )
        kind = "trap"
    raise _fault(s, message, kind, line)


def _print(s: WarpContext, site: CallSite, lanes: list[int], line: int) -> None:
    for lane in lanes:
        form = _text(s, lane, _argument(s, site, 0, lane))
        buffer = _argument(s, site, 1, lane)
        try:
            text, count = formatted(
                form,
                lambda at, size, lane=lane, buffer=buffer: _bytes(s, lane, buffer + at, size),
                lambda address, lane=lane: _text(s, lane, address),
            )
        except FormatError as error:
            raise _fault(s, f"printf of {form!r}: {error}", "unsupported", line) from error
        s.launch.output(text)
        for _, place, size in site.results[:1]:
            memory = grow_local(s, s.local_base + place + size)
            at = slice(s.local_base + place, s.local_base + place + size)
            memory[lane, at] = np.frombuffer(count.to_bytes(size, "little"), np.uint8)
            if s.warp.local_written is not None:
                s.warp.local_written[lane, at] = True


def _fault(s: WarpContext, message: str, kind: str, line: int) -> KernelFault:
    program = s.launch.program
    text, origin = program.line_text(line), program.origin(line)
    return KernelFault(message, kind=kind, line=line, text=text, where=s.where(), origin=origin)


def _argument(s: WarpContext, site: CallSite, number: int, lane: int) -> int:
    place, _, size = site.arguments[number]
    return int.from_bytes(_bytes(s, lane, LOCAL_WINDOW + s.local_base + place, size), "little")


def _bytes(s: WarpContext, lane: int, address: int, size: int) -> bytes:
    """Bytes at a generic address of a thread."""
    chosen = np.arange(WARP_LANES) == lane
    addresses = np.full(WARP_LANES, address & 0xFFFF_FFFF_FFFF_FFFF, np.uint64)
    return load_bytes(s, chosen, "generic", addresses, size)[lane].tobytes()


def _text(s: WarpContext, lane: int, address: int) -> str:
    text = bytearray()
    while len(text) < MAX_TEXT_BYTES:
        byte = _bytes(s, lane, address + len(text), 1)
        if byte == b"\0":
            break
        text += byte
    return text.decode(errors="replace")
