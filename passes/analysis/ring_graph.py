"""Which roles of a kernel hand tiles to which, and through which rings."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from attn_mlir.dialect import ws


@dataclass(frozen=True)
class RingEdges:
    """A ring, and the roles on both sides of it.

    Attributes:
      ring: its name.
      holds: what a slot holds, such as `128x64 bf16`; `token` for a signal without data.
      space: `shared` or `tensor` memory; empty for tokens.
      stages: slots of an instance.
      instances: rings of this kind, one for each query tile, say.
      producers: roles that fill slots, each with what completes its writes: `load (copy_engine)`.
      consumers: roles that wait for full slots.
      inside: the ring in whose slots these lie; empty if they have a place of their own.
    """

    ring: str
    holds: str
    space: str
    stages: int
    instances: int
    producers: tuple[str, ...]
    consumers: tuple[str, ...]
    inside: str = ""

    def record(self) -> dict[str, Any]:
        """Its fields as JSON has them, without those that are empty."""
        return {name: value for name, value in asdict(self).items() if value != ""}


def ring_graph(kernel: ws.KernelOp) -> list[RingEdges]:
    """The rings of a kernel in the order of their declaration."""
    rings = [op for op in kernel.body.blocks[0].operations if isinstance(op, ws.AllocRingOp)]
    producers: dict[str, dict[str, None]] = {op.label: {} for op in rings}
    consumers: dict[str, dict[str, None]] = {op.label: {} for op in rings}
    for role in kernel.roles():
        for op in _operations(role):
            if isinstance(op, ws.AcquireOp):
                agents = [use.owner.opview for use in op.slot.uses]
                found = [x.by.value for x in agents if isinstance(x, ws.CommitOp)]
                for agent in found:
                    producers[_label(op.ring)][f"{role.label} ({agent})"] = None
            elif isinstance(op, ws.WaitOp):
                consumers[_label(op.ring)][role.label] = None
    return [_edges(op, tuple(producers[op.label]), tuple(consumers[op.label])) for op in rings]


def _edges(op: Any, producers: tuple[str, ...], consumers: tuple[str, ...]) -> RingEdges:
    kind = ws.RingType(op.ring.type)
    holds, space = "token", ""
    if (tile := kind.tile) is not None:
        holds = "x".join(map(str, tile.shape)) + f" {tile.element}"
        space = tile.space
    inside = op.partner.label if isinstance(op, ws.AllocInsideOp) else ""
    return RingEdges(op.label, holds, space, kind.stages, kind.ways, producers, consumers, inside)


def _label(ring: Any) -> str:
    """The name of the ring that a value is."""
    return ring.owner.label


def _operations(op: Any) -> Iterator[Any]:
    """All operations below one, in order."""
    for region in op.operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield inner
                yield from _operations(inner)
