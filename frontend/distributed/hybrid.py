"""Ulysses within a node, and a ring between nodes: heads are exchanged over fast links only.

    mesh of 2 nodes x 2 ranks, zigzag, 16 tokens: rank = 2 x node + local rank

    rank          0                1                 2                3
    tokens        0 1 14 15        2 3 12 13         4 5 10 11        6 7 8 9
    after the exchange within a node each rank has half of the heads:
    tokens        0 ... 3, 12 ... 15                 4 ... 11
    rings         ranks 0 and 2, and ranks 1 and 3

The tokens of the nodes form a zigzag layout with one shard for each node.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Unpack

from attn_mlir.api.outside_graphs import outside_graphs
from attn_mlir.distributed.autograd import Sharded
from attn_mlir.distributed.layouts import Runs, runs_of, tokens_of
from attn_mlir.distributed.members import Members, members_of
from attn_mlir.distributed.operands import Arguments, Shards, checked_arguments, checked_length
from attn_mlir.distributed.ring import Ring
from attn_mlir.distributed.schemes import Options, checked_options
from attn_mlir.distributed.ulysses import exchange_heads, repeats_of
from attn_mlir.errors import SpecError, shown
from attn_mlir.runtime.call.torch_tensors import wants_gradient

torch: Any = importlib.import_module("torch")

NAME = "ulysses_ring_attention"


@outside_graphs
def ulysses_ring_attention(q: Any, k: Any, v: Any, mesh: Any, **options: Unpack[Options]) -> Any:
    """Attention by Ulysses over the second dimension of a mesh, and a ring over the first.

    From another node a rank receives only K and V of its share of the heads. The number of ranks
    of a node divides heads. LSE carries no gradient.

    Args:
      mesh: a mesh of two dimensions, nodes and the ranks of a node, such as
        `init_device_mesh("cuda", (nodes, 8))`; layouts number its ranks row by row.
      q, k, v, options: as of `ring_attention`.

    Returns, Raises:
      As `ring_attention`.
    """
    if getattr(mesh, "ndim", 0) != 2 or not hasattr(mesh, "get_group"):
        raise SpecError(f"mesh must be a mesh of two dimensions, got {shown(mesh)}")
    ring, node = (members_of(mesh.get_group(dim)) for dim in (0, 1))
    with ring.checked():
        with node.checked():
            return_lse, given = checked_options(node, options)
            length, sinks = checked_length(given.pop("length")), given["sinks"]
            call = checked_arguments((q, k, v), ranks_of_heads=node.size, **given)
        shared, follows = {**call.shared, "length": length}, length is not None
        counts = node.agree(NAME, shared, q.shape[1], follows=follows)
    of_all = ring.agree(NAME, shared, counts, follows=follows)
    with ring.agreeing(), node.agreeing():
        of_nodes, of_ranks, length = _shards(of_all, call, length, ring.rank)
        problem = call.problem_of(length)

    def scheme(head: int) -> Ring:
        return Ring(NAME, ring, problem.of_heads(head, q.device), of_nodes)

    def attend(operands: Any, sinks: Any, head: int) -> tuple[Any, Any]:
        with ring.watched(NAME):
            return Sharded.apply(*operands, sinks, scheme(head))

    def prepare() -> None:
        heads = q.shape[2] // node.size
        kv_heads = k.shape[2] * repeats_of(k, node.size) // node.size
        counts = zip(call.operands, (heads, kv_heads, kv_heads), strict=True)
        like_q, like_k, like_v = (
            x.new_empty(1).expand(x.shape[0], of_ranks.length, n, x.shape[3]) for x, n in counts
        )
        own = None if sinks is None else sinks[:heads]
        gradients = wants_gradient((q, k, v, sinks), {})
        scheme(0).prepare(like_q, like_k, like_v, own, gradients=gradients)

    _prepare(ring, node, prepare)
    with node.watched(NAME):
        o, lse = exchange_heads(node, of_ranks, call.operands, sinks, attend)
    return (o, lse) if return_lse else o


def _prepare(ring: Members, node: Members, kernels: Any) -> None:
    """`Members.prepare` in both groups: a refusal reaches the ring of the rank, then all nodes."""

    def in_ring() -> None:
        if ring.size > 1:
            ring.prepare(kernels)
        else:
            kernels()

    if node.size > 1:
        node.prepare(in_ring)
    else:
        in_ring()


def _shards(
    counts: Sequence[Sequence[int]], call: Arguments, length: int | None, own: int
) -> tuple[Shards, Shards, int]:
    """The shards of nodes in the sequence, the shards of ranks in this node's, and the length.

    Args:
      counts: [nodes][ranks of a node], the token count of each rank.
      length: tokens of the whole sequence; None: the sum of `counts`.
      own: the number of this rank's node.

    Raises:
      SpecError: the layout gives the ranks other token counts.
    """
    size = len(counts[0])
    flat = [int(x) for of_node in counts for x in of_node]
    length = sum(flat) if length is None else length
    runs = [runs_of(length, len(flat), rank, call.layout) for rank in range(len(flat))]
    if (wanted := [*map(tokens_of, runs)]) != flat:
        raise SpecError(
            f"the ranks have {flat} tokens, which are no shards of {length}: layout {call.layout} "
            f"gives them {wanted}; cut by the positions of the ranks of the mesh, row by row"
        )
    nodes = [runs[begin : begin + size] for begin in range(0, len(flat), size)]
    return Shards.of(tuple(map(joined, nodes))), Shards.of(renumbered(nodes[own])), length


def joined(shards: Sequence[Runs]) -> Runs:
    """The sorted positions of several ranks; runs that continue one another are merged."""
    found = list[range]()
    for run in sorted((x for runs in shards for x in runs if x), key=lambda x: x.start):
        if found and found[-1].stop == run.start:
            found[-1] = range(found[-1].start, run.stop)
        else:
            found.append(run)
    return tuple(found)


def renumbered(shards: Sequence[Runs]) -> tuple[Runs, ...]:
    """The positions of several ranks, numbered from 0 in the sorted order of all of them."""
    begins, count = dict[int, int](), 0
    for run in sorted((x for runs in shards for x in runs if x), key=lambda x: x.start):
        begins[run.start] = count
        count += len(run)
    return tuple(
        tuple(range(begins[x.start], begins[x.start] + len(x)) if x else x for x in runs)
        for runs in shards
    )
