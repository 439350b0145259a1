"""The parts of a trace: tracks of one CTA, and slices of time on them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Dim3 = tuple[int, int, int]
Category = Literal["run", "step", "wait", "engine", "phase"]

# Thread numbers of a CTA's process in the trace file; warps have their index.
COPY_IN, COPY_OUT, COPY_ASYNC, TENSOR, OTHER = 100, 101, 102, 103, 104
ENGINE_NAMES = {
    COPY_IN: "TMA load",
    COPY_OUT: "TMA store",
    COPY_ASYNC: "cp.async",
    TENSOR: "tensor core",
    OTHER: "other engines",
}
FIRST_BARRIER = 200  # bar.sync 0..15
CLUSTER_BARRIER = 216
FIRST_MBARRIER = 217  # plus the offset in shared memory / 8


@dataclass(frozen=True, slots=True)
class Track:
    """A row of a trace: the CTA by its number, and a thread number of its process."""

    cta: int
    row: int


@dataclass(slots=True)
class Slice:
    """Something that lasted from `begin` to `end`, in steps.

    Attributes:
      category: "run" a warp between two waits, "step" a segment within, "wait", "engine" work of
        an engine, "phase" of a barrier.
      args: further facts; `line` and `ptx` name the instruction.
    """

    track: Track
    begin: int
    end: int
    name: str
    category: Category
    args: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Arrow:
    """The end of a wait and what ended it."""

    source: Track
    source_time: int
    target: Track
    target_time: int


@dataclass(frozen=True)
class Names:
    """The author's names for the parts of a kernel.

    Attributes:
      warps: role of a warp, by index.
      barriers: name of an mbarrier, by its offset in dynamic shared memory.
      columns: (begin, end, name) of regions of tensor memory.
    """

    warps: Mapping[int, str] = field(default_factory=dict[int, str])
    barriers: Mapping[int, str] = field(default_factory=dict[int, str])
    columns: Sequence[tuple[int, int, str]] = ()

    def of_column(self, column: int) -> str:
        """The name of the region that holds a column, or the column itself."""
        for begin, end, name in self.columns:
            if begin <= column < end:
                return name
        return f"column {column}"


@dataclass(slots=True)
class CtaInfo:
    """A CTA of the launch: its index, the SM that it is drawn on, and its first and last step."""

    number: int
    index: Dim3
    sm: int
    begin: int
    end: int = 0
