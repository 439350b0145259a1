"""The front of the emulator: map arrays, launch kernels."""

import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from attn_mlir.errors import LaunchError, SpecError, TargetError

from .checkers import Checker, CheckMode, EveryWatch, Finding, checks_named
from .isa import families
from .machine.memory import SHARED_BASE, SHARED_WINDOW_BYTES, GlobalMemory
from .machine.tensorcore import TensorCore
from .observer import Observer
from .parallel import can_fork, is_divisible, run_divided, translate_ahead
from .ptx.ast import Kernel, Module, Variable
from .ptx.flow import unwritten_reads
from .ptx.layout import lay_out_local, lay_out_shared
from .ptx.loads import waits_for_loads
from .ptx.parser import parse
from .ptx.translate import Program
from .scheduler import Schedule, Scheduler
from .state import Dim3, Launch
from .trace import MmaSteps, Names, TimedProgram, Trace, TracingScheduler

Target = Literal["sm_100a", "sm_90a"]
Parameter = int | float | bytes | bytearray | npt.NDArray[Any] | np.generic

MAX_THREADS = 1024  # per CTA; CUDA programming guide, compute capabilities
MAX_SHARED_BYTES = 232448  # per CTA, 227 KiB; spec-ptx 8
MAX_PARAM_BYTES = 32764  # kernel parameters; CUDA programming guide
MAX_CLUSTER_CTAS = 16  # with opt-in; spec-ptx 8

_FORMATS = {
    **{f"{sign}8": "<b" if sign == "s" else "<B" for sign in "bus"},
    **{f"{sign}16": "<h" if sign == "s" else "<H" for sign in "bus"},
    **{f"{sign}32": "<i" if sign == "s" else "<I" for sign in "bus"},
    **{f"{sign}64": "<q" if sign == "s" else "<Q" for sign in "bus"},
    "f32": "<f",
    "f64": "<d",
}


@dataclass(frozen=True)
class Stats:
    """What a launch did.

    Attributes:
      warp_instructions: instructions executed, counted once per warp (or part of a diverged one).
      seconds: wall-clock time of the launch, translation included.
      mma_count: tensor-core instructions: tcgen05.mma, wgmma (per warpgroup), mma.sync (per warp).
      counters: other counts by name.
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
def translated(ptx_text: str, entry: str) -> Program:
    """The program of one entry, with its variables laid out.

    Raises:
      LaunchError: the text is malformed or has no such entry.
    """
    assert families.TABLE
    module = parsed(ptx_text)
    kernel = module.kernels.get(entry)
    if kernel is None or not kernel.is_entry:
        entries = ", ".join(k.name for k in module.kernels.values() if k.is_entry) or "none"
        raise LaunchError(f"the PTX has no entry '{entry}'; it has: {entries}")
    lay_out_shared(module, kernel)
    lay_out_local(kernel)
    return Program(module, kernel)


@lru_cache(maxsize=64)
def marked(program: Program) -> Program:
    """The program, telling of registers that it reads although nothing wrote them, if there are any."""
    found = unwritten_reads(program.kernel, program.graph)
    if not found:
        return program
    return Program(
        program.module, program.kernel, {at: ", ".join(names) for at, names in found.items()}
    )


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
      strict_loads: fault when a register is read between the tcgen05.ld that writes it and
        tcgen05.wait::ld. None: for kernels that wait for most of their loads. (PTX asks for the
        wait; some compilers leave most waits out and rely on the assembler, see ptx/loads.py.)
      strict_fences: whether tcgen05.fence is asked for between threads that share tensor memory. None: in kernels that use
        it at all (some compilers leave all of them out).
      observer: receives memory accesses and synchronisation in words, for traces.
      check: what the checkers look for: "all", "none", or names of `checkers.CHECKS`.
      check_mode: "raise" a `CheckError` at the first finding, or "collect" all in `findings`.
      jobs: processes that share the clusters of a grid, at most. A launch stays in this process
        with checkers, an observer or a trace, where the system cannot fork, and when CTAs may talk
        to one another through global memory (see parallel.py).
      trace: record a trace; `Names` to record one that uses them. Not together with checkers or
        an observer.

    Attributes:
      findings: what the checkers found in the last launch.
      trace: of the last launch (also of one that failed), or None.
    """

    def __init__(
        self,
        target: Target = "sm_100a",
        schedule: Schedule = "fair",
        seed: int = 0,
        *,
        numeric: Literal["float32", "fused"] = "float32",
        track_initialised: bool = False,
        strict_loads: bool | None = None,
        strict_fences: bool | None = None,
        observer: Observer | None = None,
        check: str | Iterable[str] = "none",
        check_mode: CheckMode = "raise",
        trace: bool | Names = False,
        jobs: int = 1,
    ):
        if target not in ("sm_100a", "sm_90a"):
            raise SpecError(f"emulator target '{target}' is unknown: sm_100a or sm_90a")
        if schedule not in ("fair", "adversarial"):
            raise SpecError(f"schedule '{schedule}' is unknown: fair or adversarial")
        if jobs < 1:
            raise SpecError(f"jobs must be at least 1, got {jobs}")
        self.jobs = jobs
        self.target = target
        self.schedule: Schedule = schedule
        self.seed = seed
        self.numeric: Literal["float32", "fused"] = numeric
        self.track_initialised = track_initialised
        self.strict_loads = strict_loads
        self.strict_fences = strict_fences
        self.observer = observer
        if check_mode not in ("raise", "collect"):
            raise SpecError(f"check_mode '{check_mode}' is unknown: raise or collect")
        self.checks = checks_named(check)
        self.check_mode: CheckMode = check_mode
        self.findings: list[Finding] = []
        self.traces = trace
        self.trace: Trace | None = None
        if trace and (self.checks or observer is not None):
            raise SpecError("a trace cannot be recorded together with checkers or an observer")
        self.memory = GlobalMemory()
        self._variables: dict[tuple[str, str], int] = {}
        self._parameters = np.zeros(MAX_PARAM_BYTES, np.uint8)
        self._param_address = self.memory.map(self._parameters)

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
        program = translated(ptx_text, entry)
        if "uninitialised" in self.checks:
            program = marked(program)
        program.sources = sources
        module, kernel = program.module, program.kernel
        if module.target and module.target != self.target:
            raise TargetError(
                f"the PTX is for .target {module.target}, this emulator runs {self.target}"
            )
        grid3, block3, cluster3 = (
            _dim3(value, name)
            for value, name in ((grid, "grid"), (block, "block"), (cluster, "cluster"))
        )
        cluster3 = _check_shape(kernel, grid3, block3, cluster3)
        static_bytes, window = lay_out_shared(module, kernel)
        total = static_bytes
        if shared_bytes:
            total = window - SHARED_BASE + shared_bytes
        if shared_bytes < 0 or total > min(MAX_SHARED_BYTES, SHARED_WINDOW_BYTES - SHARED_BASE):
            raise LaunchError(
                f"'{entry}' needs {total} B of shared memory ({static_bytes} B static, "
                f"{shared_bytes} B dynamic), {self.target} gives {MAX_SHARED_BYTES} B"
            )
        parameters = _pack_parameters(kernel, params)
        if 0 in grid3:
            return Stats(0, time.perf_counter() - start, 0)
        self._parameters[: parameters.size] = parameters
        tensor_core = TensorCore(self.numeric)
        trace = self.trace = self._new_trace()
        if trace is not None:
            program = TimedProgram(module, kernel, trace)
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
            symbols=self._symbols(ptx_text, module),
            target=self.target,
            tensor_core=tensor_core,
            track_initialised=self.track_initialised or "uninitialised" in self.checks,
            observer=self.observer if trace is None else MmaSteps(trace),
            inspector=checker if trace is None else trace,
            strict_loads=self._strict_loads(kernel),
            strict_fences=self.strict_fences,
            remaining=_cluster_origins(grid3, cluster3),
            local_bytes=lay_out_local(kernel),
        )
        if checker is not None:
            checker.launched(launch)
            self.memory.watch = EveryWatch(checker)
        jobs = min(self.jobs, len(launch.remaining))
        if jobs > 1 and launch.inspector is None and launch.observer is None:
            if can_fork() and is_divisible(kernel):
                return self._launch_divided(launch, jobs, start)
        if trace is None:
            scheduler = Scheduler(launch, self.schedule, self.seed)
        else:
            trace.launched(launch)
            scheduler = TracingScheduler(launch, trace, self.schedule, self.seed)
        try:
            with np.errstate(all="ignore"):
                scheduler.run()
        finally:
            self.memory.watch = None
            if trace is not None:
                trace.finish()
        return Stats(
            scheduler.warp_instructions,
            time.perf_counter() - start,
            launch.counters.get("mma", 0),
            dict(launch.counters),
        )

    def _launch_divided(self, launch: Launch, jobs: int, start: float) -> Stats:
        """Run every `jobs`-th cluster in a process of its own."""
        origins = launch.remaining

        def run(part: int) -> tuple[int, dict[str, int]]:
            launch.remaining = origins[part::jobs]
            scheduler = Scheduler(launch, self.schedule, self.seed + part)
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

    def _strict_loads(self, kernel: Kernel) -> bool:
        if self.strict_loads is not None:
            return self.strict_loads
        return waits_for_loads(kernel)

    def _symbols(self, ptx_text: str, module: Module) -> dict[str, int]:
        """Addresses of the module's variables, which live as long as the emulator."""
        result: dict[str, int] = {}
        for variable in module.variables:
            if variable.space not in ("global", "const"):
                continue
            key = (ptx_text, variable.name)
            if key not in self._variables:
                self._variables[key] = self.memory.map(_initial_bytes(variable))
            result[variable.name] = self._variables[key]
        return result


def _dim3(value: Sequence[int], name: str) -> Dim3:
    numbers = tuple(int(v) for v in value)
    if not 1 <= len(numbers) <= 3 or any(n < (0 if name == "grid" else 1) for n in numbers):
        raise LaunchError(f"{name} must be one to three positive numbers, got {tuple(value)}")
    x, y, z = (*numbers, 1, 1, 1)[:3]
    return (x, y, z)


def _check_shape(kernel: Kernel, grid: Dim3, block: Dim3, cluster: Dim3) -> Dim3:
    """Check grid, block and cluster against the kernel's directives; returns the cluster."""
    threads = block[0] * block[1] * block[2]
    if threads > MAX_THREADS:
        raise LaunchError(f"block {block} has {threads} threads, {MAX_THREADS} are allowed")
    required = kernel.directives.get("reqntid")
    if required and (*required, 1, 1)[:3] != block:
        raise LaunchError(f"'{kernel.name}' requires a block of {required}, got {block}")
    limit = kernel.directives.get("maxntid")
    if limit and threads > int(np.prod(limit)):
        raise LaunchError(f"'{kernel.name}' allows blocks up to {limit}, got {block}")
    needed = kernel.directives.get("reqnctapercluster")
    if needed:
        shape = (*needed, 1, 1)[:3]
        if cluster == (1, 1, 1):
            cluster = (shape[0], shape[1], shape[2])
        elif shape != cluster:
            raise LaunchError(f"'{kernel.name}' requires clusters of {shape}, got {cluster}")
    count = cluster[0] * cluster[1] * cluster[2]
    most = min(MAX_CLUSTER_CTAS, *kernel.directives.get("maxclusterrank", (MAX_CLUSTER_CTAS,)))
    if count > most:
        raise LaunchError(f"cluster {cluster} has {count} CTAs, {most} are allowed")
    if any(g % c for g, c in zip(grid, cluster, strict=True)):
        raise LaunchError(f"cluster {cluster} does not divide the grid {grid}")
    return cluster


def _pack_parameters(kernel: Kernel, params: Sequence[Parameter]) -> npt.NDArray[np.uint8]:
    """The bytes of the parameter space."""
    if len(params) != len(kernel.params):
        raise LaunchError(f"'{kernel.name}' has {len(kernel.params)} parameters, got {len(params)}")
    size = max((p.address + p.byte_count for p in kernel.params), default=0)
    if size > MAX_PARAM_BYTES:
        raise LaunchError(f"{size} B of parameters, {MAX_PARAM_BYTES} B are allowed")
    result = np.zeros(max(size, 1), np.uint8)
    for position, (declared, value) in enumerate(zip(kernel.params, params, strict=True)):
        raw = _parameter_bytes(kernel, position, declared, value)
        result[declared.address : declared.address + len(raw)] = np.frombuffer(raw, np.uint8)
    return result


def _parameter_bytes(kernel: Kernel, position: int, declared: Variable, value: Parameter) -> bytes:
    where = f"parameter {position} of '{kernel.name}'"
    if isinstance(value, bytes | bytearray | np.ndarray):
        raw = bytes(value) if not isinstance(value, np.ndarray) else value.tobytes()
        if len(raw) != declared.byte_count:
            raise LaunchError(f"{where} has {declared.byte_count} bytes, got {len(raw)}")
        return raw
    if declared.is_array:
        raise LaunchError(
            f"{where} is an aggregate of {declared.byte_count} bytes: pass bytes, "
            f"got {type(value).__name__}"
        )
    form = _FORMATS.get(declared.element)
    if form is None:
        raise LaunchError(f"{where} has type .{declared.element}: pass raw bytes")
    number = value.item() if isinstance(value, np.generic) else value
    if form[-1] in "fd":
        return struct.pack(form, float(number))
    if not isinstance(number, int):
        raise LaunchError(f"{where} has type .{declared.element}: got {number!r}")
    bits = 8 * declared.element_bytes
    if not -(1 << (bits - 1)) <= number < 1 << bits:
        raise LaunchError(f"{where} has type .{declared.element}: {number} does not fit")
    return (number & ((1 << bits) - 1)).to_bytes(bits // 8, "little")


def _initial_bytes(variable: Variable) -> npt.NDArray[np.uint8]:
    result = np.zeros(max(1, variable.byte_count), np.uint8)
    form = _FORMATS.get(variable.element)
    for position, value in enumerate(variable.initial):
        start = position * variable.element_bytes
        if form is not None and form[-1] in "fd":
            raw = struct.pack(form, float(value))
        else:
            bits = 8 * variable.element_bytes
            raw = (int(value) & ((1 << bits) - 1)).to_bytes(bits // 8, "little")
        result[start : start + len(raw)] = np.frombuffer(raw, np.uint8)
    return result


def _cluster_origins(grid: Dim3, cluster: Dim3) -> list[Dim3]:
    return [
        (x, y, z)
        for z in range(0, grid[2], cluster[2])
        for y in range(0, grid[1], cluster[1])
        for x in range(0, grid[0], cluster[0])
    ]
