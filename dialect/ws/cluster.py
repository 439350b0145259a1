"""Clusters: CTAs that run side by side, see one another's barriers, and share out the work of a tile.

A kernel says how many CTAs a cluster has. All of them take the same work tiles, and tell themselves
apart by `ws.rank`; a role may belong to some of them alone. Each CTA has storage and barriers of its
own for every ring, at one place in all of them. What crosses from one CTA to another is said by
lists with an entry per rank, of ranks:

* `full_at` of a ring: whose full barriers the CTA's commits arrive at;
* `empty_at` of a ring: whose empty barriers its releases arrive at;
* `receivers` of `ws.copy_in` and `ws.copy_across`: into whose slot, at the same place, is copied.

Absent, each is the CTA itself. Two CTAs that fill halves of an operand for both:

```
           CTA 0                      CTA 1                receivers = [[0, 1], [0, 1]]
 copy ──► upper half ──────────────► upper half            full_at   = [[0, 1], [0, 1]]
          lower half ◄────────────── lower half ◄── copy   empty_at  = [[0, 1], [0, 1]]
```

Ranks 2 i and 2 i + 1 are a pair. A `ws.mma` of `ctas` = 2 works on the slots of both.
"""

from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Any

from attn_mlir.dialect._mlir import I32, Pure, ext, ir

from .dialect import WS, TileType, fail

CLUSTER = "cluster"
PAIR = 2  # CTAs whose tensor cores can work on one product
Targets = tuple[tuple[int, ...], ...]  # per rank, ranks in ascending order


def cta_count(op: Any) -> int:
    """CTAs of a cluster of the kernel that an operation is or stands in; 1 outside of one."""
    operation = op.operation
    while operation is not None and operation.name != "ws.kernel":
        operation = operation.parent
    if operation is None or CLUSTER not in operation.attributes:
        return 1
    return ir.IntegerAttr(operation.attributes[CLUSTER]).value


def targets(op: Any, name: str) -> Targets:
    """Per rank of the cluster the ranks that an attribute lists; each CTA itself where it is absent."""
    attributes = op.operation.attributes
    if name not in attributes:
        return tuple((rank,) for rank in range(cta_count(op)))
    return tuple(tuple(ir.DenseI32ArrayAttr(entry)) for entry in ir.ArrayAttr(attributes[name]))


def targets_attribute(lists: Sequence[Sequence[int]]) -> Any:
    """The attribute that says so."""
    return ir.ArrayAttr.get([ir.DenseI32ArrayAttr.get(list(ranks)) for ranks in lists])


def check_targets(op: Any, *names: str) -> bool:
    """Whether attributes, where they are there, list ranks of the cluster for each of its CTAs."""
    count = cta_count(op)
    for name in names:
        if name not in op.attributes:
            continue
        entries = list(ir.ArrayAttr(op.attributes[name]))
        if not all(isinstance(entry, ir.DenseI32ArrayAttr) for entry in entries):
            return fail(op, f"expects {name} to hold lists of i32, got {op.attributes[name]}")
        if len(entries) != count:
            return fail(
                op, f"expects a list in {name} for each of {count} CTAs, got {len(entries)}"
            )
        for entry in entries:
            if not is_ranks(ranks := list(entry), count):
                return fail(op, f"expects {name} of ranks below {count} that ascend, got {ranks}")
    return True


def is_ranks(ranks: list[int], count: int) -> bool:
    """Whether numbers are ranks of a cluster, each once, in ascending order."""
    return ranks == sorted(set(ranks)) and all(0 <= rank < count for rank in ranks)


def pair_of(rank: int) -> tuple[int, int]:
    """The CTAs of a rank's pair, the leading one first."""
    first = rank - rank % PAIR
    return first, first + 1


def crossing(lists: Targets) -> Iterator[int]:
    """The ranks whose list is not the CTA itself."""
    return (rank for rank, ranks in enumerate(lists) if ranks != (rank,))


class RankOp(WS.Operation, name="rank", traits=[Pure]):
    """The number of this CTA in its cluster, i32, from 0 on; 0 where there are no clusters.

    Memory effects: none. Hardware: any.

    Example:
      %rank = "ws.rank"() : () -> i32
    """

    rank: ext.Result[I32] = ext.infer_result()


class CopyAcrossOp(WS.Operation, name="copy_across"):
    """Copy engine: copies a shared tile of this CTA into the slot of another CTA of the cluster.

    Its bytes count as those of `ws.copy_in` do: the ring's `full_at` names the receiver, whose own
    role for the ring says how many to wait for. Nobody here is told when the tile has been read: it
    is released when the receiver has said, through some ring, that it has waited for the slot.

    Operands:
      source: a slot from `ws.wait`.
      target: a slot from `ws.acquire` of a ring whose commit is `by = "copy_engine"`; the receiver's
        slot at the same place is filled, and not this one.

    Attributes:
      receivers: per rank the CTA that gets the tile, or nobody.

    Memory effects: reads the tile, writes that of another CTA, asynchronously. Hardware: sm_90 on.

    Example:
      "ws.copy_across"(%mine, %slot) {receivers = [array<i32: 0>]}
        : (!ws.tile<vector<64x64xbf16>, "shared">, !ws.tile<vector<64x64xbf16>, "shared">) -> ()
    """

    source: ext.Operand[TileType]
    target: ext.Operand[TileType]
    receivers: Any

    ATTRIBUTE_CLASSES = MappingProxyType({"receivers": ir.ArrayAttr})

    @staticmethod
    def verify_invariants(op: "CopyAcrossOp") -> bool:
        """Shared tiles of one type; at most one receiver each."""
        source, target = TileType(op.source.type), TileType(op.target.type)
        if source.space != "shared" or source != target:
            return fail(op, f"expects shared tiles of one type, got {source} and {target}")
        if not check_targets(op, "receivers"):
            return False
        for ranks in targets(op, "receivers"):
            if len(ranks) > 1:
                return fail(op, f"expects at most one receiver of a CTA, got {list(ranks)}")
        return True

    @property
    def to(self) -> Targets:
        """Per rank, who gets the tile: one CTA or none."""
        return targets(self, "receivers")
