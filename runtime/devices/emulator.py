"""The emulator as a device: host tensors, the bundle's PTX, and no GPU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from attn_mlir.env import settings
from attn_mlir.errors import SpecError, TargetError
from attn_mlir.runtime.call.binding import Bound, parameters
from attn_mlir.runtime.call.tensormap import encode
from attn_mlir.runtime.call.tensors import bytes_at
from attn_mlir.runtime.devices.base import Launch
from attn_mlir.runtime.file.bundle import SOURCE, Bundle
from attn_mlir.waiting import waiting_for

if TYPE_CHECKING:
    from attn_mlir.runtime.emulator import Emulator
    from attn_mlir.runtime.emulator.recording import Recording
    from attn_mlir.runtime.emulator.trace import Names

MAX_WARPS = 32  # most threads of a CTA; CUDA programming guide, technical specifications
MAX_BARRIERS = 1024  # warps or barriers of one name: far above any kernel
# first address of tensors, far from 0 and from the emulator's own addresses
_FIRST_ADDRESS = 0x70_0000_0000
_PAGE_BYTES = 4096  # an address keeps its offset in a page, and so its alignment


@dataclass(frozen=True)
class EmulatorDevice:
    """Runs bundles on the emulator; a call returns when the kernel has finished.

    Attributes:
      schedule: `fair`, or `adversarial`: asynchronous work is delayed and reordered by `seed`.
      seed: seed of the adversarial schedule.
      multiprocessors: number of CTAs of a persistent kernel.
      trace: file to which each launch, also a failing one, writes a trace as Chrome trace JSON.
      target: the chip for which `am.*` calls on this device compile, one that the emulator runs;
        None for the default. Bundles of all these chips run.
      resident: clusters that run at the same time; another begins also where all that run wait.
      check: which checkers run: "all", "none" or names (docs/emulator.md). None for the value of
        ATTN_MLIR_CHECK, but no checkers if a trace is written or a launch recorded.
      native: arithmetic runs as native code where that is possible; the results are the same.
      recording: gets the events of each launch and chooses the clusters that run.
    """

    schedule: Literal["fair", "adversarial"] = "fair"
    seed: int = 0
    multiprocessors: int = 148  # NVIDIA B200
    trace: str | Path | None = None
    check: str | None = None
    target: str | None = None
    resident: int = 1
    native: bool = True
    recording: Recording | None = None

    def __post_init__(self) -> None:
        if self.schedule not in ("fair", "adversarial"):
            raise SpecError(f"schedule must be 'fair' or 'adversarial', got {self.schedule!r}")
        if self.target is not None and self.target not in (chips := _chips()):
            allowed = ", ".join(chips)
            raise SpecError(f"target must be None or one of {allowed}, got {self.target!r}")

    def _checks(self) -> str:
        if self.check is not None:
            return self.check
        return settings().check if self.trace is None and self.recording is None else "none"

    @property
    def name(self) -> str:
        """`emulator`."""
        return "emulator"

    def refusal(self, bundle: Bundle) -> str | None:
        """Why the emulator cannot run the bundle: an unknown target; else None."""
        if bundle.target in (chips := _chips()):
            return None
        return f"the emulator runs {', '.join(chips)}, the bundle is for {bundle.target}"

    def launch(self, bundle: Bundle, bound: Bound, stream: object | None) -> Launch:
        """Runs the kernel to its end on tensors in host memory; `stream` must be None.

        Raises:
          SpecError: a tensor on a GPU, or a stream.
          TargetError: a target that the emulator does not know.
          LaunchError: the kernel failed, or a checker found something (`CheckError`); the message
            names the lines of the PTX.
          SpecError: the trace cannot be written.
        """
        if reason := self.refusal(bundle):
            raise TargetError(reason)
        if stream is not None:
            raise SpecError("the emulator has no streams: leave stream= away")
        for name, tensor in bound.tensors.items():
            if tensor.device != "cpu":
                raise SpecError(
                    f"{name} is on {tensor.place}, the emulator takes tensors in host memory: "
                    f"copy {name} to the CPU, or pass device='cuda'"
                )
        if bound.launches_nothing:
            return Launch(self.name, bound.grid, warp_instructions=0, seconds=0.0)
        from attn_mlir.runtime.emulator import Emulator

        names = False if self.trace is None else names_of(bundle.report)
        emulator = Emulator(
            target=bundle.target,
            schedule=self.schedule,
            seed=self.seed,
            trace=names,
            check=self._checks(),
            resident=self.resident,
            native=self.native,
            recording=self.recording,
        )
        packed = parameters(bound, _map_tensors(emulator, bound), encode)
        progress = waiting_for(f"emulating {bundle.entry}", emulator.state)
        try:
            with progress:
                stats = emulator.launch(
                    bundle.ptx,
                    bundle.entry,
                    grid=bound.grid_on(self.multiprocessors),
                    block=bundle.manifest.block,
                    cluster=bundle.manifest.cluster,
                    shared_bytes=bundle.manifest.smem_bytes,
                    params=[param.value for param in packed],
                    sources={SOURCE: bundle.source},
                )
        finally:
            if self.trace is not None and emulator.trace is not None:
                from attn_mlir.runtime.emulator.trace import write_trace

                write_trace(emulator.trace, Path(self.trace))
        return Launch(
            self.name,
            bound.grid,
            warp_instructions=stats.warp_instructions,
            seconds=stats.seconds,
        )


def _chips() -> tuple[str, ...]:
    """The names of the chips that the emulator stands for."""
    from attn_mlir.runtime.emulator.machine.chips import CHIPS

    return tuple(CHIPS)


def names_of(report: dict[str, object]) -> Names:
    """The roles of warps, and the names of barriers and regions, from a bundle's report."""
    from attn_mlir.runtime.emulator.trace import Names

    warps: dict[int, str] = {}
    for role in _records(report.get("roles")):
        first, _, last = str(role.get("warps", "")).partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            for warp in range(int(first[:9]), min(int((last or first)[:9]) + 1, MAX_WARPS)):
                warps[warp] = str(role.get("role", ""))
    barriers: dict[int, str] = {}
    for run in _records(report.get("barriers")):
        begin, count, name = run.get("begin"), run.get("count"), run.get("name")
        if isinstance(begin, int) and isinstance(count, int):
            for slot in range(min(count, MAX_BARRIERS)):
                barriers[begin + 8 * slot] = f"{name}[{slot}]" if count > 1 else str(name)
    columns = [
        (region["begin"], region["end"], str(region["what"]))
        for region in _records(report.get("memory_map"))
        if region.get("space") == "tensor" and "what" in region
        if isinstance(region.get("begin"), int) and isinstance(region.get("end"), int)
    ]
    columns.sort(key=lambda region: region[0] - region[1])  # a lender before its borrowers
    return Names(warps, barriers, columns)


def _records(value: object) -> list[dict[str, Any]]:
    """The objects of a list in the report; an empty list for anything else."""
    items = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("dict[str, Any]", item) for item in items if isinstance(item, dict)]


def _map_tensors(emulator: Emulator, bound: Bound) -> dict[str, int]:
    """Maps the tensors in the emulator, and returns the address of element 0 of each.

    Tensors whose bytes interleave (views of one packed buffer) share a mapping. A mapping without
    outputs is read-only, so that a kernel that writes to its inputs is caught.
    """
    outputs = {tensor.name for tensor in bound.manifest.tensors if tensor.is_written}
    spans = sorted(
        (tensor.address, tensor.address + tensor.span_bytes, name)
        for name, tensor in bound.tensors.items()
        if not tensor.empty
    )
    groups: list[tuple[int, int, list[str]]] = []
    for start, end, name in spans:
        if groups and start < groups[-1][1]:
            first, last, names = groups[-1]
            groups[-1] = (first, max(last, end), [*names, name])
        else:
            groups.append((start, end, [name]))
    addresses: dict[str, int] = {}
    cursor = _FIRST_ADDRESS
    for start, end, names in groups:
        memory = bytes_at(start, end - start)
        memory.flags.writeable = not outputs.isdisjoint(names)
        base = emulator.map(memory, address=cursor + start % _PAGE_BYTES)
        for name in names:
            addresses[name] = base + bound.tensors[name].address - start
        cursor += (end - start + 3 * _PAGE_BYTES) // _PAGE_BYTES * _PAGE_BYTES
    return addresses
