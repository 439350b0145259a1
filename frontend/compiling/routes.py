"""Which of the kernels of attention a call takes, where it names none.

By the machine and by rows: those of a group's heads and of the longest sequence's queries, which
share keys. Never by what a device array holds, so that a recorded launch stays right.
"""

from __future__ import annotations

import dataclasses

from attn_mlir.compiling.schedules import check_registers
from attn_mlir.compiling.spec import MhaSpec
from attn_mlir.passes.target.limits import DEFAULT_TARGET, target_named
from attn_mlir.passes.target.tiling import HELD, MAX_Q_TILES, STREAM_ROWS, STREAMED
from attn_mlir.runtime.kernel import Machine


def routed(spec: MhaSpec, sq: int, machine: Machine, *, in_parts: bool = False) -> MhaSpec:
    """The request with its kernel.

    Args:
      spec: the request; a kernel that it names stays, as does None where sums lie in tensor memory.
      sq: queries of the longest sequence.
      machine: what the call runs on.
      in_parts: whether keys are to be split into parts of a size, which one kernel alone has.

    Raises:
      SpecError: an option that no kernel of the machine has.
    """
    target = target_named(machine.target or DEFAULT_TARGET)
    if target.accumulator == "tensor":
        return spec
    check_registers(spec, target.chip)
    if spec.schedule is not None:
        return spec
    few = sq * spec.group <= MAX_Q_TILES * STREAM_ROWS and spec.query_tiles is None
    streams = few or in_parts or spec.is_narrow
    return dataclasses.replace(spec, schedule=STREAMED if streams else HELD)
