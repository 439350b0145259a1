"""The ring graph of a kernel: its rings with their producer and consumer roles."""

from dataclasses import asdict, dataclass
from typing import Any

from attn_mlir.dialect import ws


@dataclass(frozen=True)
class RingEdges:
    """A ring with its producer and consumer roles.

    Attributes:
      ring: its name.
      holds: the tile of a slot, such as `128x64 bf16`; `token` for a signal without data.
      space: `shared` or `tensor` memory; empty for tokens.
      stages: slots of an instance.
      instances: instances of the ring, one for each query tile, say.
      producers: roles that fill slots, each with the agent of its commits: `load (copy_engine)`.
      consumers: roles that wait for full slots.
      inside: the ring whose slots contain these; empty if they have their own memory.
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
        """Its fields for JSON, without empty ones."""
        return {name: value for name, value in asdict(self).items() if value != ""}


def ring_graph(kernel: ws.KernelOp) -> list[RingEdges]:
    """The rings of a kernel in the order of their declaration."""
    rings = [op for op in kernel.body.blocks[0].operations if isinstance(op, ws.AllocRingOp)]
    producers: dict[str, dict[str, None]] = {op.label: {} for op in rings}
    consumers: dict[str, dict[str, None]] = {op.label: {} for op in rings}
    for role in kernel.roles():
        for op in ws.inside(role):
            if isinstance(op, ws.AcquireOp):
                agents = [use.owner.opview for use in op.slot.uses]
                commits = [x.by.value for x in agents if isinstance(x, ws.CommitOp)]
                for agent in commits:
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
    inside = op.declared_lender.label if isinstance(op, ws.AllocInsideOp) else ""
    return RingEdges(
        op.label, holds, space, kind.stages, kind.instances, producers, consumers, inside
    )


def _label(ring: Any) -> str:
    """The name of a ring value."""
    return ring.owner.label
