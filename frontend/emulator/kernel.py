"""Kernels of a PTX text, and their launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, cast

import numpy as np

from attn_mlir.emulator.report import Report
from attn_mlir.errors import SpecError, shown
from attn_mlir.files import read_file, reason
from attn_mlir.runtime.call.tensors import bytes_at, view
from attn_mlir.runtime.emulator import (
    DeadlockError,
    Emulator,
    InstructionLimitError,
    KernelFault,
)
from attn_mlir.runtime.emulator.emulator import INSTRUCTION_LIMIT, parsed
from attn_mlir.runtime.emulator.ptx.ast import Variable

Extent = int | Sequence[int]
FAILURES = (KernelFault, DeadlockError, InstructionLimitError)  # of a kernel that has begun


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel.

    Attributes:
      name: in the PTX.
      type: of its elements, such as `u64` or `f32`.
      byte_count: its size.
      is_aggregate: whether it is passed as bytes, such as a structure or a tensor map.
    """

    name: str
    type: str
    byte_count: int
    is_aggregate: bool

    @staticmethod
    def of(declared: Variable) -> Parameter:
        """A parameter as the PTX declares it."""
        return Parameter(declared.name, declared.element, declared.byte_count, declared.is_array)


@dataclass(frozen=True)
class Kernel:
    """An entry of a PTX text.

    Attributes:
      text: the PTX.
      entry: its name.
      target: the chip, as `.target` has it.
      parameters: in order.
      block: threads in x, y, z that it requires; None where it takes several numbers.
    """

    text: str
    entry: str
    target: str
    parameters: tuple[Parameter, ...]
    block: tuple[int, ...] | None = None

    def launch(
        self,
        *arguments: Any,
        grid: Extent,
        block: Extent | None = None,
        cluster: Extent = 1,
        shared_bytes: int = 0,
        check: str | None = None,
        schedule: Literal["fair", "adversarial"] = "fair",
        seed: int = 0,
        resident: int = 1,
        trace: bool = False,
        strict_reads: bool = True,
        numeric: Literal["float32", "fused"] = "float32",
        instruction_limit: int = INSTRUCTION_LIMIT,
        output: Callable[[str], object] | None = None,
        sources: Mapping[str, str] = MappingProxyType({}),
    ) -> Report:
        """Runs the kernel to its end, or to what ends it.

        Args:
          arguments: one for each parameter. An array in host memory, of numpy or with DLPack: the
            kernel gets the address of its first element and reads and writes the array itself.
            A number; or the bytes of an aggregate.
          grid, block, cluster: CTAs, threads and CTAs of a cluster in x, y, z, or one number in x;
            `block` may be left out where the PTX requires one.
          shared_bytes: of dynamic shared memory.
          check: which checkers run, "all", "none" or names of `CHECKS`, a name with "-" in front
            left out; None: all, or none with a trace.
          schedule, seed: `adversarial` delays and reorders asynchronous work as far as the
            architecture allows, as the seed chooses.
          trace: whether the report has a trace.
          resident, strict_reads, numeric, instruction_limit, output, sources: see `Emulator`.

        Returns:
          The report: a failure of the kernel is its `error`, and not raised.

        Raises:
          SpecError: an argument or option is wrong, or the chip is none of `CHIPS`.
          LaunchError: the launch does not fit the kernel.
        """
        emulator = Emulator(
            self.target,
            schedule,
            seed,
            check=("none" if trace else "all") if check is None else check,
            check_mode="collect",
            trace=trace,
            resident=resident,
            strict_reads=strict_reads,
            numeric=numeric,
            instruction_limit=instruction_limit,
            output=output,
        )
        if len(arguments) != len(self.parameters):
            names = ", ".join(x.name for x in self.parameters) or "none"
            raise SpecError(
                f"'{self.entry}' has {len(self.parameters)} parameters ({names}), got "
                f"{len(arguments)} arguments"
            )
        if block is None and self.block is None:
            raise SpecError(f"block is missing: '{self.entry}' requires no number of threads")
        mapped: dict[int, int] = {}
        params = [
            _passed(emulator, *x, mapped) for x in zip(self.parameters, arguments, strict=True)
        ]
        stats = error = None
        try:
            stats = emulator.launch(
                self.text,
                self.entry,
                grid=_extent(grid),
                block=_extent(self.block if block is None else block),
                cluster=_extent(cluster),
                shared_bytes=shared_bytes,
                params=params,
                sources=sources,
            )
        except FAILURES as failure:
            error = failure
        return Report(self.entry, stats, tuple(emulator.findings), error, emulator.trace)


def load(source: str | Path, entry: str | None = None) -> Kernel:
    """A kernel of a PTX text.

    Args:
      source: the text, or the path of its file.
      entry: name of the kernel; None: the only one.

    Raises:
      SpecError: no such file or entry, or several without a name.
      PtxError: the text is malformed; names the line.
    """
    text = _read(source) if isinstance(source, Path) else source
    module = parsed(text)
    entries = {name: x for name, x in module.kernels.items() if x.is_entry}
    listed = ", ".join(entries) or "none"
    if entry is None and len(entries) != 1:
        raise SpecError(f"entry is missing: the PTX has {len(entries)} ({listed})")
    name = next(iter(entries)) if entry is None else entry
    if name not in entries:
        raise SpecError(f"the PTX has no entry {shown(name, 40)}; it has: {listed}")
    found = entries[name]
    parameters = tuple(map(Parameter.of, found.params))
    return Kernel(text, name, module.target, parameters, found.directives.get("reqntid"))


def _read(path: Path) -> str:
    try:
        return read_file(path).decode()
    except (OSError, ValueError) as error:
        raise SpecError(f"cannot read the PTX '{path}': {reason(error)}") from error


def _extent(value: Extent | None) -> Sequence[int]:
    return value if isinstance(value, Sequence) else [cast("int", value)]


def _passed(emulator: Emulator, declared: Parameter, value: Any, mapped: dict[int, int]) -> Any:
    """The value of a parameter: an address for an array, which is mapped once.

    Raises:
      SpecError: an array for a parameter that holds no address, or one that is on a GPU.
    """
    numbers: Any = (int, float, bytes, bytearray, np.generic)
    arrays: Any = np.ndarray
    if isinstance(value, numbers) or (declared.is_aggregate and isinstance(value, arrays)):
        return value
    if declared.byte_count != 8 or declared.type[0] == "f":
        raise SpecError(
            f"{declared.name} is of type {declared.type} and takes a number, got {shown(value, 40)}"
        )
    if id(value) not in mapped:
        mapped[id(value)] = emulator.map(_memory(declared.name, value))
    return mapped[id(value)]


def _memory(name: str, value: Any) -> Any:
    """The memory of an array from its first element on."""
    if isinstance(value, np.ndarray):
        return cast("Any", value)
    tensor = view(value, name)
    if tensor.device != "cpu":
        raise SpecError(f"{name} is on {tensor.place}: copy it to host memory")
    memory = bytes_at(tensor.address, tensor.span_bytes)
    memory.flags.writeable = not tensor.read_only
    return memory
