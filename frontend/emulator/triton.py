"""Kernels that Triton compiled: its PTX with what its launcher passes and the text does not say."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from attn_mlir.emulator.kernel import Extent, Kernel, load
from attn_mlir.emulator.report import Report
from attn_mlir.errors import SpecError, shown
from attn_mlir.files import read_file, reason
from attn_mlir.runtime.call.scalars import as_int

MAX_BYTES = 1 << 24  # of metadata, which have some thousand
LANES = 32  # threads of a warp
SCRATCH = ("global_scratch_size", "profile_scratch_size")  # of the hidden parameters, in order
MAX_THREADS = re.compile(r"\.maxntid\s+(\d+)")
AXES = 3


@dataclass(frozen=True)
class TritonKernel:
    """A kernel of Triton.

    Attributes:
      kernel: of its PTX.
      block: threads; cluster: CTAs of a program in x, y, z.
      shared_bytes: of dynamic shared memory.
      scratch_bytes: of a CTA, for each of the hidden parameters that Triton may add behind those of
        the function: memory for descriptors, and for its profiler.
    """

    kernel: Kernel
    block: int
    cluster: tuple[int, int, int]
    shared_bytes: int
    scratch_bytes: tuple[int, ...]

    def launch(self, *arguments: Any, grid: Extent, **options: Any) -> Report:
        """Runs the kernel, as `Kernel.launch`.

        Args:
          arguments: those of the function that are no constants (neither `tl.constexpr` nor those
            that Triton specialised on, such as an integer of 1).
          grid: programs in x, y, z, or one number in x.
          options: further ones of `Kernel.launch`.

        Raises:
          SpecError, LaunchError: as there; or another number of arguments.
        """
        hidden = len(self.kernel.parameters) - len(arguments)
        if not 0 <= hidden <= len(self.scratch_bytes):
            names = ", ".join(x.name for x in self.kernel.parameters)
            raise SpecError(
                f"'{self.kernel.entry}' has the parameters {names}, of which up to "
                f"{len(self.scratch_bytes)} are Triton's own: got {len(arguments)} arguments; "
                "leave constants out"
            )
        programs = [grid] if isinstance(grid, int) else list(grid)
        ctas = math.prod(self.cluster)
        grid = [programs[0] * ctas, *programs[1:]]
        scratch = [
            np.zeros(size * math.prod(grid), np.uint8) if size else 0
            for size in self.scratch_bytes[:hidden]
        ]
        fixed = {"block": self.block, "cluster": self.cluster, "shared_bytes": self.shared_bytes}
        return self.kernel.launch(*arguments, *scratch, grid=grid, **fixed, **options)


def load_triton(compiled: Any) -> TritonKernel:
    """A kernel that Triton compiled for a chip of `CHIPS`.

    Args:
      compiled: what `kernel.warmup(...)`, `kernel[grid](...)` or `triton.compile` returns; or the
        path of a `.json` of Triton's cache, beside which the `.ptx` lies.

    Raises:
      SpecError: something else, or metadata without a field.
      PtxError: the text is malformed; names the line.
    """
    text, metadata = _from_cache(compiled) if isinstance(compiled, str | Path) else _parts(compiled)
    kernel = load(text, _field(metadata, "name", str))
    warps, ctas = _count(metadata, "num_warps"), _count(metadata, "num_ctas", 1)
    bound = MAX_THREADS.search(text)
    threads = kernel.block[0] if kernel.block else int(bound[1]) if bound else warps * LANES
    cluster = metadata.get("cluster_dims")
    if cluster is None:
        cluster = (ctas, 1, 1)
    if not isinstance(cluster, tuple | list) or len(cast("Sequence[Any]", cluster)) != AXES:
        raise SpecError(
            f"cluster_dims of Triton's metadata must be 3, got {shown(cast(object, cluster), 40)}"
        )
    x, y, z = (as_int(extent) or 1 for extent in cast("Sequence[Any]", cluster))
    scratch = tuple(_count(metadata, name, 0) for name in SCRATCH)
    return TritonKernel(kernel, threads, (x, y, z), _count(metadata, "shared"), scratch)


def _parts(compiled: Any) -> tuple[str, Mapping[str, Any]]:
    """PTX and metadata of a compiled kernel.

    Raises:
      SpecError: it is none.
    """
    texts, metadata = getattr(compiled, "asm", None), getattr(compiled, "metadata", None)
    if not isinstance(texts, Mapping) or "ptx" not in texts or metadata is None:
        raise SpecError(
            f"expected a kernel that Triton compiled, or the path of its .json, got "
            f"{shown(compiled, 40)}"
        )
    fields = metadata._asdict() if hasattr(metadata, "_asdict") else dict(metadata)
    return cast("str", texts["ptx"]), fields


def _from_cache(path: str | Path) -> tuple[str, Mapping[str, Any]]:
    """The same from Triton's cache.

    Raises:
      SpecError: a file cannot be read, or is no JSON object.
    """
    file = Path(path)
    try:
        fields = json.loads(read_file(file, most_bytes=MAX_BYTES))
        text = read_file(file.with_suffix(".ptx")).decode()
    except (OSError, ValueError) as error:
        raise SpecError(f"cannot read Triton's kernel {file}: {reason(error)}") from error
    if not isinstance(fields, dict):
        raise SpecError(f"{file} must be Triton's metadata, a JSON object")
    return text, cast("Mapping[str, Any]", fields)


def _field(metadata: Mapping[str, Any], name: str, kind: type[str]) -> str:
    value = metadata.get(name)
    if not isinstance(value, kind):
        raise SpecError(f"Triton's metadata have no {name}, got {shown(value, 40)}")
    return value


def _count(metadata: Mapping[str, Any], name: str, otherwise: int | None = None) -> int:
    """An integer of at least 0.

    Raises:
      SpecError: it is none, or there is none and no other value.
    """
    value = metadata.get(name, otherwise)
    number = as_int(value)
    if number is None or number < 0:
        raise SpecError(f"{name} of Triton's metadata must be an integer, got {shown(value, 40)}")
    return number
