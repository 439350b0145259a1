"""The interface of the emulator: maps arrays and launches kernels."""

import operator
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from attn_mlir.errors import LaunchError, SpecError, TargetError

from .checkers import Checker, CheckMode, EveryWatch, Finding, checks_named
from .core.arguments import (
    MAX_BLOCK,
    MAX_GRID,
    MAX_PARAM_BYTES,
    Parameter,
    check_shape,
    extent,
    initial_bytes,
    integer,
    pack_parameters,
    shown,
)
from .core.observer import Observer
from .core.parallel import can_fork, is_divisible, run_divided, translate_ahead
from .core.scheduler import Schedule, Scheduler
from .core.state import Launch, Unstarted
from .isa.memory.accesses import MAX_LOCAL_BYTES
from .isa.translate import Translation
from .machine.chips import CHIPS, DEFAULT_CHIP
from .machine.memory import SHARED_BASE, SHARED_WINDOW_BYTES, GlobalMemory
from .machine.tensorcore import TensorCore
from .ptx.ast import Kernel, Module
from .ptx.flow import unwritten_reads
from .ptx.layout import lay_out_local, lay_out_shared, reached
from .ptx.link import linked
from .ptx.loads import early_reads
from .ptx.parser import parse
from .ptx.program import Program
from .recording import Recording
from .trace import MmaSteps, Names, TimedProgram, Trace, TracingScheduler

Numeric = Literal["float32", "fused"]

MAX_SHARED_BYTES = 232448  # per CTA, 227 KiB; spec-ptx 8
INSTRUCTION_LIMIT = 10**9  # warp-instructions: minutes of `L: bra L`, an hour of a real kernel


@dataclass(frozen=True)
class Stats:
    """Statistics of a launch.

    Attributes:
      warp_instructions: instructions executed, counted once per warp (or part of a diverged one).
      seconds: wall-clock time of the launch, translation included.
      mma_count: tensor-core instructions: tcgen05.mma, wgmma (per warpgroup), mma.sync (per warp).
      counters: other counts by name, such as `tensor_loads` and the bytes that they bring,
        `tensor_load_bytes`, those that threads load from global memory, `thread_load_bytes`, and
        those that they copy from there, zeros included, `thread_copy_bytes`.
    """

    warp_instructions: int
    seconds: float
    mma_count: int
    counters: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def instructions_per_second(self) -> float:
        """Warp-instructions per second of wall-clock time."""
        return self.warp_instructions / self.seconds if self.seconds else 0.0


@lru_cache(maxsize=64)
def parsed(ptx_text: str) -> Module:
    """The parsed module of a PTX text.

    Raises:
      PtxError: the text is malformed.
    """
    return parse(ptx_text)


@lru_cache(maxsize=64)
def translated(ptx_text: str, entry: str, *, native: bool) -> Translation:
    """The program of one entry, with its variables laid out.

    Args:
      native: arithmetic runs as native blocks where that is possible.

    Raises:
      LaunchError: the text is malformed or has no such entry.
    """
    module = parsed(ptx_text)
    kernel = module.kernels.get(entry)
    if kernel is None or not kernel.is_entry:
        entries = ", ".join(k.name for k in module.kernels.values() if k.is_entry) or "none"
        raise LaunchError(f"the PTX has no entry '{entry}'; it has: {entries}")
    kernel = linked(module, kernel)
    lay_out_shared(module, kernel)
    lay_out_local(kernel)
    return Translation(module, kernel, native=native)


@lru_cache(maxsize=64)
def marked(program: Translation) -> Translation:
    """The program, which reports reads of registers that nothing has written,
    if there may be any.
    """
    reads = unwritten_reads(program.kernel, program.graph)
    if not reads:
        return program
    marks = {at: ", ".join(names) for at, names in reads.items()}
    return Translation(program.module, program.kernel, marks, native=program.native)


@lru_cache(maxsize=64)
def _early_reads(program: Program) -> frozenset[int]:
    return early_reads(program.kernel, program.graph)


class Emulator:
    """An emulated GPU.

    Args:
      target: the architecture; the PTX must be for it.
      schedule: "fair" runs everything soon and in order, "adversarial" delays and reorders as far
        as the architecture allows.
      seed: of the adversarial schedule.
      numeric: "float32" (fast; queued K-steps are summed together, so the last bits depend on
        the schedule) or "fused" (bit-exact accumulation) in the tensor core.
      track_initialised: fault on reads of shared memory that was never written.
      strict_reads: whether a read of shared memory through the generic proxy needs a
        fence.proxy.async before an engine writes the bytes. (PTX asks for it; many compilers leave
        it out where the data has been used before the place is handed on.)
      observer: receives memory accesses and synchronisation in words, for traces.
      check: which checkers run: "all", "none", or names in `checkers.CHECKS`.
      check_mode: "raise" a `CheckError` at the first finding, or "collect" all in `findings`.
      instruction_limit: warp-instructions after which a launch is given up
        (`InstructionLimitError`, which says where each warp is), counted by each process of `jobs`
        for itself.
      jobs: processes that share the clusters of a grid, at most. A launch stays in this process
        with checkers, an observer or a trace, where the system cannot fork, and when CTAs may talk
        to one another through global memory (see parallel.py).
      resident: clusters that run at the same time. Another begins also where all that run wait.
      native: run arithmetic as native code where that is possible (native/); the results are the
        same.
      output: gets the texts that kernels print (`printf`), in the order of execution; standard
        output when None.
      trace: record a trace; `Names` to record one that uses them. Not together with checkers or
        an observer.
      recording: gets the events of a launch and chooses the clusters that run. Not together with
        checkers, an observer or a trace.

    Attributes:
      findings: what the checkers found in the last launch.
      trace: of the last launch (also of one that failed), or None.
    """

    def __init__(
        self,
        target: str = DEFAULT_CHIP,
        schedule: Schedule = "fair",
        seed: int = 0,
        *,
        numeric: Numeric = "float32",
        track_initialised: bool = False,
        strict_reads: bool = True,
        observer: Observer | None = None,
        check: str | Iterable[str] = "none",
        check_mode: CheckMode = "raise",
        trace: bool | Names = False,
        recording: Recording | None = None,
        jobs: int = 1,
        resident: int = 1,
        instruction_limit: int = INSTRUCTION_LIMIT,
        native: bool = True,
        output: Callable[[str], object] | None = None,
    ):
        for value, allowed, what in (
            (target, tuple(CHIPS), "emulator target"),
            (schedule, get_args(Schedule), "schedule"),
            (numeric, get_args(Numeric), "numeric"),
            (check_mode, get_args(CheckMode), "check_mode"),
        ):
            if type(value) is not str or value not in allowed:
                raise SpecError(f"{what} {shown(value)} is unknown: {' or '.join(allowed)}")
        self.native = native
        self.jobs = _at_least(jobs, 1, "jobs")
        self.resident = _at_least(resident, 1, "resident")
        self.instruction_limit = _at_least(instruction_limit, 1, "instruction_limit")
        self.seed = _at_least(seed, None, "seed")
        self.target = target
        self.schedule: Schedule = schedule
        self.numeric: Numeric = numeric
        self.track_initialised = track_initialised
        self.strict_reads = strict_reads
        self.observer = observer
        self.checks = checks_named(check)
        self.output = output
        self.check_mode: CheckMode = check_mode
        self.findings: list[Finding] = []
        self.traces = trace
        self.trace: Trace | None = None
        if trace and (self.checks or observer is not None):
            raise SpecError("a trace cannot be recorded together with checkers or an observer")
        self.recording = recording
        if recording is not None and (trace or self.checks or observer is not None):
            raise SpecError("a recording excludes a trace, checkers and an observer")
        self._scheduler: Scheduler | None = None
        self.memory = GlobalMemory()
        self._variables: dict[tuple[str, str], int] = {}
        self._workspace: tuple[npt.NDArray[np.uint32], int] | None = None
        self._parameters = np.zeros(MAX_PARAM_BYTES, np.uint8)
        self._param_address = self.memory.map(_read_only(self._parameters))

    def map(self, array: npt.NDArray[Any], address: int | None = None) -> int:
        """Make an array visible to kernels; they read and write its own bytes.

        Args:
          address: device address to use; chosen when not given.

        Returns:
          The device address of its first byte.

        Raises:
          SpecError: it cannot be aliased, or overlaps another mapping.
        """
        return self.memory.map(array, address)

    def unmap(self, address: int) -> None:
        """Remove a mapping made by `map`."""
        self.memory.unmap(address)

    def launch(
        self,
        ptx_text: str,
        entry: str,
        *,
        grid: Sequence[int],
        block: Sequence[int],
        cluster: Sequence[int] = (1, 1, 1),
        shared_bytes: int = 0,
        params: Sequence[Parameter] = (),
        sources: Mapping[str, str] = MappingProxyType({}),
    ) -> Stats:
        """Run a kernel to its end.

        Args:
          grid: CTAs in x, y, z. block: threads. cluster: CTAs per cluster.
          shared_bytes: dynamic shared memory per CTA.
          params: one value per `.param` of the entry: a number, packed by the declared type, or
            the raw bytes of an aggregate such as a tensor map.
          sources: texts of the files that the PTX names in `.file`, which messages then quote.

        Raises:
          LaunchError: the request does not fit the kernel or the machine, or the kernel failed
            (`KernelFault`, `DeadlockError`, `PtxError`).
          TargetError: the PTX is for another architecture.
        """
        start = time.perf_counter()
        for value, name in ((ptx_text, "the PTX"), (entry, "entry")):
            if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise LaunchError(f"{name} must be a str, got {type(value).__name__}")
        if not isinstance(sources, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise LaunchError(f"sources must be a mapping, got {type(sources).__name__}")
        program = translated(ptx_text, entry, native=self.native)
        if "uninitialised" in self.checks:
            program = marked(program)
        program.sources = sources
        module, kernel = program.module, program.kernel
        if module.target and module.target != self.target:
            raise TargetError(
                f"the PTX is for .target {module.target}, this emulator runs {self.target}"
            )
        grid3 = extent(grid, "grid", MAX_GRID, least=0)
        block3 = extent(block, "block", MAX_BLOCK)
        cluster3 = check_shape(kernel, grid3, block3, extent(cluster, "cluster", MAX_GRID))
        shared_bytes = integer(shared_bytes, "shared_bytes")
        static_bytes, window = lay_out_shared(module, kernel)
        total = static_bytes
        if shared_bytes:
            total = window - SHARED_BASE + shared_bytes
        if shared_bytes < 0 or total > min(MAX_SHARED_BYTES, SHARED_WINDOW_BYTES - SHARED_BASE):
            raise LaunchError(
                f"'{entry}' needs {total} B of shared memory ({static_bytes} B static, "
                f"{shared_bytes} B dynamic), {self.target} gives {MAX_SHARED_BYTES} B"
            )
        local = lay_out_local(kernel)
        if local.byte_count > MAX_LOCAL_BYTES:
            raise LaunchError(
                f"'{entry}' needs {local.byte_count} B of local memory per thread, {self.target} "
                f"gives {MAX_LOCAL_BYTES} B"
            )
        parameters = pack_parameters(kernel, params)
        if 0 in grid3:
            return Stats(0, time.perf_counter() - start, 0)
        self._parameters[: parameters.size] = parameters
        tensor_core = TensorCore(self.numeric)
        trace = self.trace = self._new_trace()
        if trace is not None:
            program = TimedProgram(module, kernel, trace, native=self.native)
            program.sources = sources
        recording = self.recording
        if recording is not None:
            program = recording.make_program(module, kernel)
            program.sources = sources
        checker = Checker(self.checks, self.check_mode) if self.checks else None
        self.findings = checker.findings if checker is not None else []
        launch = Launch(
            program=program,
            memory=self.memory,
            grid=grid3,
            block=block3,
            cluster=cluster3,
            shared_bytes=total,
            dynamic_shared_bytes=shared_bytes,
            parameters=parameters,
            param_address=self._param_address,
            workspace=self._grid_workspace(ptx_text),
            symbols=self._symbols(ptx_text, module, kernel),
            target=self.target,
            tensor_core=tensor_core,
            track_initialised=self.track_initialised or "uninitialised" in self.checks,
            observer=self.observer if trace is None else MmaSteps(trace),
            inspector=recording or trace or checker,
            early_loads=_early_reads(program),
            strict_reads=self.strict_reads,
            remaining=recording.chosen(grid3, cluster3)
            if recording is not None
            else Unstarted(grid3, cluster3),
            local=local,
            output=sys.stdout.write if self.output is None else self.output,
            instruction_limit=self.instruction_limit,
        )
        if checker is not None:
            checker.launched(launch)
            self.memory.watch = EveryWatch(checker)
        jobs = min(self.jobs, launch.remaining.count)
        if jobs > 1 and launch.inspector is None and launch.observer is None:
            if can_fork() and is_divisible(kernel):
                return self._launch_divided(launch, jobs, start)
        if trace is None:
            scheduler = Scheduler(launch, self.schedule, self.seed, self.resident)
        else:
            trace.launched(launch)
            scheduler = TracingScheduler(launch, trace, self.schedule, self.seed, self.resident)
        self._scheduler = scheduler
        try:
            with np.errstate(all="ignore"):
                scheduler.run()
        finally:
            self._scheduler = None
            self.memory.watch = None
            if trace is not None:
                trace.finish()
        return Stats(
            scheduler.warp_instructions,
            time.perf_counter() - start,
            launch.counters.get("mma", 0),
            dict(launch.counters),
        )

    def state(self) -> str:
        """How far a launch in this process is, in words, for another thread; empty without one."""
        scheduler = self._scheduler
        if scheduler is None:
            return ""
        waiting = scheduler.launch.remaining.count
        begun = f", {waiting} clusters to begin" if waiting else ""
        return f"{scheduler.warp_instructions:,} warp-instructions{begun}"

    def _launch_divided(self, launch: Launch, jobs: int, start: float) -> Stats:
        """Run every `jobs`-th cluster in a process of its own."""
        everything = launch.remaining

        def run(part: int) -> tuple[int, dict[str, int]]:
            launch.remaining = everything.share(part, jobs)
            scheduler = Scheduler(launch, self.schedule, self.seed + part, self.resident)
            with np.errstate(all="ignore"):
                scheduler.run()
            return scheduler.warp_instructions, launch.counters

        translate_ahead(launch.program)
        outcome = run_divided(self.memory, jobs, run)
        seconds = time.perf_counter() - start
        mma_count = outcome.counters.get("mma", 0)
        return Stats(outcome.warp_instructions, seconds, mma_count, outcome.counters)

    def _new_trace(self) -> Trace | None:
        if not self.traces:
            return None
        return Trace(self.traces if isinstance(self.traces, Names) else None)

    def _grid_workspace(self, ptx_text: str) -> int:
        """The address of the grid-wide barrier: its size and a count of 0; 0 without one."""
        if "%envreg" not in ptx_text:
            return 0
        if self._workspace is None:
            array = np.zeros(2, np.uint32)
            self._workspace = array, self.memory.map(array)
        array, address = self._workspace
        array[:] = array.nbytes, 0
        return address

    def _symbols(self, ptx_text: str, module: Module, kernel: Kernel) -> dict[str, int]:
        """Addresses of the variables that a kernel reaches; they live as long as the emulator."""
        result: dict[str, int] = {}
        for variable in reached(module, kernel):
            if variable.space not in ("global", "const"):
                continue
            key = (ptx_text, variable.key)
            if key not in self._variables:
                content = initial_bytes(ptx_text, variable)
                if variable.space == "const":
                    content = _read_only(content)
                self._variables[key] = self.memory.map(content)
            result[variable.key] = self._variables[key]
        return result


def _read_only(array: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """A view that kernels may not write to."""
    view = array.view()
    view.flags.writeable = False
    return view


def _at_least(value: int, least: int | None, what: str) -> int:
    """An option that has to be an integer."""
    try:
        number = operator.index(value)
    except TypeError:
        raise SpecError(f"{what} must be an integer, got {shown(value)}") from None
    if least is not None and number < least:
        raise SpecError(f"{what} must be at least {least}, got {shown(number)}")
    return number
