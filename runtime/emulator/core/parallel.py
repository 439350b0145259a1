"""One launch in several processes, each of which runs every n-th cluster of the grid.

The processes are forks, so they share everything that is prepared for the launch. Mapped arrays are
moved to shared memory during the launch and back at its end, also after a failure. Clusters are
distributed beforehand and not on demand, so that a seed always gives the same run. Kernels whose
CTAs may communicate through global memory are not divided: their atomics would need one order over
all processes, and a CTA that waits for another one would look like a deadlock.
"""

import ctypes
import mmap
import os
import pickle
import selectors
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attn_mlir.errors import LaunchError

from ..machine.memory import ByteRange, GlobalMemory
from ..ptx.ast import Instruction, Kernel
from ..ptx.errors import PtxError
from ..ptx.program import Program

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_SHARED = ("shared", "shared::cta", "shared::cluster")
_STRONG = ("volatile", "relaxed", "acquire", "release", "mmio")


@dataclass
class Outcome:
    """The result of one process: warp-instructions, counters by name, the error that ended it."""

    warp_instructions: int = 0
    counters: dict[str, int] = field(default_factory=dict[str, int])
    error: BaseException | None = None


def can_fork() -> bool:
    """Whether processes can be forked safely here; elsewhere launches are not divided."""
    return sys.platform == "linux"


def is_divisible(kernel: Kernel) -> bool:
    """Whether no instruction lets CTAs of different clusters wait for or count one another."""
    return not any(_communicates(instruction) for instruction in kernel.instructions)


def _communicates(instruction: Instruction) -> bool:
    """Atomics and strong accesses to memory that may be global, and reductions into it."""
    head = instruction.parts[0]
    if head in ("atom", "red"):
        return not instruction.has(*_SHARED)
    if head in ("ld", "st", "multimem"):
        return instruction.has(*_STRONG) and not instruction.has(*_SHARED)
    if instruction.parts[:4] == ("cp", "reduce", "async", "bulk"):
        return instruction.spaces[:1] == ("global",)  # what it adds to
    return False


def translate_ahead(program: Program) -> None:
    """Translate what full warps run, once and for all processes."""
    for number, function in enumerate(program.full):
        if function is None:
            try:
                program.function(number, masked=False)
            except PtxError:
                continue  # an error only where it is executed


def run_divided(
    memory: GlobalMemory, jobs: int, run: Callable[[int], tuple[int, dict[str, int]]]
) -> Outcome:
    """Call `run(part)` for each part in 0 .. jobs - 1, each in a process of its own.

    Args:
      run: returns warp-instructions and counters; what it writes to mapped arrays is kept.

    Returns:
      The sums over all parts.

    Raises:
      LaunchError: what the first part to fail raised, or that a process died. The other
        processes are ended first; an exception in the caller (Ctrl-C) ends them too.
    """
    with _shared(memory):
        children: dict[int, int] = {}  # pipe: process
        try:
            with _interrupts_held():
                for part in range(jobs):
                    reader, process = _start(part, run, list(children))
                    children[reader] = process
            outcomes = _collect(children)
        finally:
            with _interrupts_held():
                for reader, process in children.items():
                    os.kill(process, signal.SIGKILL)
                    os.waitpid(process, 0)
                    os.close(reader)
    total = Outcome()
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
        total.warp_instructions += outcome.warp_instructions
        for name, count in outcome.counters.items():
            total.counters[name] = total.counters.get(name, 0) + count
    return total


@contextmanager
def _interrupts_held() -> Generator[None]:
    """Ctrl-C takes effect only at the end, so that no process is started and then forgotten."""
    before = signal.getsignal(signal.SIGINT)
    if before is None or threading.current_thread() is not threading.main_thread():
        yield  # Python raises KeyboardInterrupt in the main thread only
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)


@contextmanager
def _shared(memory: GlobalMemory) -> Generator[None]:
    """Mapped arrays that kernels may write are in memory that forks share."""
    before = memory.ranges
    shared = {id(mapping): mapping for mapping in before}
    copies: list[tuple[ByteRange, ByteRange]] = []
    for group in _overlapping(before):
        first = min(_host(mapping) for mapping in group)
        size = max(_host(mapping) + mapping.data.size for mapping in group) - first
        block = np.frombuffer(mmap.mmap(-1, size), np.uint8)
        for mapping in group:
            start = _host(mapping) - first
            part = block[start : start + mapping.data.size]
            part[:] = mapping.data
            shared[id(mapping)] = ByteRange(mapping.base, part)
            copies.append((mapping, shared[id(mapping)]))
    memory.ranges = [shared[id(mapping)] for mapping in before]
    try:
        yield
    finally:
        memory.ranges = before
        for mapping, copy in copies:
            mapping.data[:] = copy.data


def _host(mapping: ByteRange) -> int:
    """Where the first byte of a mapping lies in this process."""
    return mapping.data.ctypes.data


def _overlapping(ranges: list[ByteRange]) -> list[list[ByteRange]]:
    """Writable mappings, together with those that have bytes of this process in common."""
    groups: list[list[ByteRange]] = []
    end = 0
    for mapping in sorted((r for r in ranges if r.data.size and r.data.flags.writeable), key=_host):
        if not groups or _host(mapping) >= end:
            groups.append([])
        groups[-1].append(mapping)
        end = max(end, _host(mapping) + mapping.data.size)
    return groups


def _start(
    part: int, run: Callable[[int], tuple[int, dict[str, int]]], inherited: list[int]
) -> tuple[int, int]:
    """Fork a process that runs one part: (pipe with its outcome, process number).

    The kernel ends it when this process ends, in whatever way.
    """
    reader, writer = os.pipe()
    libc, parent = ctypes.CDLL(None), os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process:
        os.close(writer)
        return reader, process
    try:  # the child; it never returns
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != parent:
            return 0, 0  # it died before; `finally` ends this one
        for other in (*inherited, reader):
            os.close(other)
        outcome = Outcome()
        try:
            outcome.warp_instructions, outcome.counters = run(part)
        except Exception as error:
            outcome.error = error
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(_packed(outcome))
    finally:
        os._exit(0)


def _packed(outcome: Outcome) -> bytes:
    """Bytes of an outcome. Errors travel without their constructors, which want other arguments."""
    error = outcome.error
    parts: Any = None
    if error is not None:
        parts = (type(error), error.args, error.__dict__)
        try:
            pickle.dumps(parts)
        except Exception:
            parts = (LaunchError, (f"{type(error).__name__}: {error}",), {})
    return pickle.dumps((outcome.warp_instructions, outcome.counters, parts))


def _unpacked(data: bytes) -> Outcome:
    if not data:
        return Outcome(error=LaunchError("a process of the emulator died before it was done"))
    instructions, counters, parts = pickle.loads(data)
    if parts is None:
        return Outcome(instructions, counters)
    kind, arguments, attributes = parts
    error: BaseException = kind.__new__(kind)
    error.args = arguments
    error.__dict__.update(attributes)
    return Outcome(instructions, counters, error)


def _collect(children: dict[int, int]) -> list[Outcome]:
    """Outcomes as they come, until all are there or one is an error."""
    outcomes: list[Outcome] = []
    received = dict.fromkeys(children, b"")
    with selectors.DefaultSelector() as selector:
        for reader in children:
            selector.register(reader, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                data = os.read(key.fd, 1 << 16)
                received[key.fd] += data
                if data:
                    continue
                selector.unregister(key.fd)
                outcomes.append(_unpacked(received[key.fd]))
                if outcomes[-1].error is not None:
                    return outcomes
    return outcomes
