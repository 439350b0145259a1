"""Clusters: CTAs that run at the same time, signal each other's barriers, and share work tiles.

A kernel says how many CTAs a cluster has. All of them take the same work tiles, and have different
numbers, `ws.rank`; a role may run in some of them only. Each CTA has its own memory and barriers
for every ring, at the same offsets. Attributes say what one CTA does to another: lists of ranks,
one list for each rank that acts:

* `full_at` of a ring: the CTAs at whose full barriers the commits arrive;
* `empty_at` of a ring: the CTAs at whose empty barriers the releases arrive;
* `receivers` of `ws.copy_in` and `ws.copy_across`: the CTAs whose slot is filled.

Without the attribute, each CTA acts on itself. Two CTAs that each load half of an operand for both:

```
           CTA 0                      CTA 1                receivers = [[0, 1], [0, 1]]
 copy ──► upper half ──────────────► upper half            full_at   = [[0, 1], [0, 1]]
          lower half ◄────────────── lower half ◄── copy   empty_at  = [[0, 1], [0, 1]]
```

Ranks 2 i and 2 i + 1 are a pair. A `ws.mma` with `ctas` = 2 works on the slots of both.
"""

from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Any

from attn_mlir.dialect._mlir import I32, Pure, ext, ir

from .dialect import WS, TileType, fail

CLUSTER = "cluster"
PAIR = 2  # CTAs whose tensor cores can compute one product
Targets = tuple[tuple[int, ...], ...]  # for each rank, a list of ranks in ascending order


def cta_count(op: Any) -> int:
    """CTAs of a cluster, for a kernel or an operation within one; 1 outside of kernels."""
    operation = op.operation
    while operation is not None and operation.name != "ws.kernel":
        operation = operation.parent
    if operation is None or CLUSTER not in operation.attributes:
        return 1
    return ir.IntegerAttr(operation.attributes[CLUSTER]).value


def targets(op: Any, name: str) -> Targets:
    """The lists of an attribute, one for each rank; without it, each rank lists itself."""
    attributes = op.operation.attributes
    if name not in attributes:
        return tuple((rank,) for rank in range(cta_count(op)))
    return tuple(tuple(ir.DenseI32ArrayAttr(entry)) for entry in ir.ArrayAttr(attributes[name]))


def targets_attribute(lists: Sequence[Sequence[int]]) -> Any:
    """The attribute with these lists."""
    return ir.ArrayAttr.get([ir.DenseI32ArrayAttr.get(list(ranks)) for ranks in lists])


def check_targets(op: Any, *names: str) -> bool:
    """Whether attributes that are present have a valid list for each rank; reports it if not."""
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
    """Whether numbers are ranks of a cluster, without repetition and in ascending order."""
    return ranks == sorted(set(ranks)) and all(0 <= rank < count for rank in ranks)


def pair_of(rank: int) -> tuple[int, int]:
    """The two ranks of a rank's pair, the even one first."""
    first = rank - rank % PAIR
    return first, first + 1


def crossing(lists: Targets) -> Iterator[int]:
    """The ranks whose list is not just themselves."""
    return (rank for rank, ranks in enumerate(lists) if ranks != (rank,))


class RankOp(WS.Operation, name="rank", traits=[Pure]):
    """The number of this CTA in its cluster, i32, from 0 on; 0 without clusters.

    Memory effects: none. Hardware: any.

    Example:
      %rank = "ws.rank"() : () -> i32
    """

    rank: ext.Result[I32] = ext.infer_result()


class CopyAcrossOp(WS.Operation, name="copy_across"):
    """Copy engine: copies a shared tile of this CTA into the slot of another CTA of the cluster.

    Its bytes are counted like those of `ws.copy_in`: the ring's `full_at` names the receiver, whose
    own role tells its barrier how many bytes to wait for. The sender is not notified when the tile
    has been read: it may release it after the receiver has said, through some ring, that it has
    waited for the slot.

    Operands:
      source: a slot from `ws.wait`.
      target: a slot from `ws.acquire` of a ring whose commit is `by = "copy_engine"`; not this slot
        is filled, but the receiver's with the same number.

    Attributes:
      receivers: for each rank, the CTA that receives the tile, or none.

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
        """Checks for shared tiles of one type, and at most one receiver for each rank."""
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
        """For each rank, the receiver: one CTA or none."""
        return targets(self, "receivers")
