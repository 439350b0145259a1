"""Which positions of a sequence each rank has, and tensors cut by it.

    layout "contiguous", 3 ranks, 12 tokens      layout "zigzag"
    rank 0: 0 1 2 3                              rank 0: 0 1 10 11
    rank 1: 4 5 6 7                              rank 1: 2 3 8 9
    rank 2: 8 9 10 11                            rank 2: 4 5 6 7

Zigzag cuts 2P chunks, and rank r has chunks r and 2P - 1 - r: under a causal mask all ranks then
have equally many visible scores. Chunks have ceil(length / number of chunks) tokens; where the
length does not divide, the last ones are shorter, or empty.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from attn_mlir.api.outside_graphs import outside_graphs
from attn_mlir.distributed.members import Members, members_of
from attn_mlir.distributed.tensors import check_sendable
from attn_mlir.distributed.transport import transport_of
from attn_mlir.errors import SpecError, shown
from attn_mlir.runtime.call.scalars import integer
from attn_mlir.runtime.call.torch_tensors import check_dense

torch: Any = importlib.import_module("torch")

LAYOUTS = ("contiguous", "zigzag")

Runs = tuple[range, ...]  # ranges of positions, in the order of memory


def check_layout(layout: object) -> str:
    """The layout's name.

    Raises:
      SpecError: it is none.
    """
    if not isinstance(layout, str) or layout not in LAYOUTS:
        raise SpecError(f"layout must be one of {', '.join(LAYOUTS)}, got {shown(layout)}")
    return layout


def runs_of(length: int, ranks: int, rank: int, layout: str) -> Runs:
    """The positions of a rank, as ranges in the order of its tokens; some may be empty."""
    chunks = (rank, 2 * ranks - 1 - rank) if layout == "zigzag" else (rank,)
    size = -(-length // (ranks * len(chunks)))
    return tuple(range(min(length, i * size), min(length, (i + 1) * size)) for i in chunks)


def tokens_of(runs: Runs) -> int:
    """How many tokens lie in ranges."""
    return sum(map(len, runs))


def indices(runs: Sequence[range], device: object = None) -> Any:
    """The positions in ranges, concatenated, i64."""
    ranges = [torch.arange(x.start, x.stop, device=device) for x in runs]
    return torch.cat(ranges) if ranges else torch.empty(0, dtype=torch.int64, device=device)


@outside_graphs
def positions(length: int, group: Any = None, layout: str = "zigzag", *, device: Any = None) -> Any:
    """The positions of this rank's tokens in the whole sequence.

    Args:
      length: tokens of the whole sequence.
      group: a process group of `torch.distributed`, or a mesh of one dimension; None: all ranks.
      layout: `contiguous` or `zigzag`.
      device: the device of the result.

    Returns:
      [own tokens] i64.

    Raises:
      SpecError: an argument is wrong.
    """
    runs = _own_runs(integer("length", length, 0), members_of(group), layout)
    try:
        return indices(runs, device)
    except (RuntimeError, TypeError) as error:  # PyTorch's, which list all that it knows
        if device is None:
            raise
        raise SpecError(f"device must be one of PyTorch, got {shown(device, 40)}") from error


@outside_graphs
def shard(x: Any, group: Any = None, dim: int = 1, layout: str = "zigzag") -> Any:
    """This rank's part of a tensor that every rank has whole.

    Args:
      x: a tensor; gradients flow through the cut.
      dim: the dimension of the sequence.
      group, layout: as of `positions`.

    Returns:
      A tensor of its own memory, of as many rows along `dim` as the rank has tokens.

    Raises:
      SpecError: an argument is wrong.
    """
    members, axis = members_of(group), _axis(x, dim)
    runs = _own_runs(x.shape[axis], members, layout)
    return torch.cat([x.narrow(axis, run.start, len(run)) for run in runs], axis)


@outside_graphs
def unshard(x: Any, group: Any = None, dim: int = 1, layout: str = "zigzag") -> Any:
    """The whole tensor on every rank, from the parts of `shard`; for results, without gradients.

    Args:
      x: this rank's part.
      dim, group, layout: as of `shard`.

    Raises:
      SpecError: an argument is wrong, or differs between ranks; the parts are not those of a
        sequence.
      RankError: another rank failed.
    """
    members = members_of(group)
    with members.checked():
        axis, layout = _axis(x, dim), check_layout(layout)
        check_sendable("x", x, has_gradient=True)
    rows = x.detach().movedim(axis, 0)
    shared: dict[str, object] = {
        "shape": tuple(rows.shape[1:]),
        "dtype": str(x.dtype),
        "layout": layout,
    }
    length = agreed_length(members, "unshard", shared, rows.shape[0], layout)
    ranks = range(members.size)
    runs = [runs_of(length, members.size, rank, layout) for rank in ranks]
    most = max(map(tokens_of, runs))
    with members.watched("unshard"):
        own = padded(rows, most)
        whole = own.new_empty((members.size, *own.shape))
        transport_of(members, x.device).gather([(whole, own)])()
    parts = torch.cat([whole[rank, : tokens_of(runs[rank])] for rank in ranks])
    found = torch.empty_like(parts)
    found[indices([run for of_rank in runs for run in of_rank], x.device)] = parts
    return found.movedim(0, axis)


def padded(rows: Any, count: int) -> Any:
    """A dense copy of rows, padded with zeros to `count` rows."""
    own = rows.new_zeros((count, *rows.shape[1:]))
    own[: rows.shape[0]] = rows
    return own


def agreed_length(
    members: Members,
    call: str,
    shared: Mapping[str, object],
    tokens: int,
    layout: str,
    length: int | None = None,
) -> int:
    """The length of the whole sequence, agreed on with all ranks.

    Args:
      call: name of the function.
      shared: values that must be equal on all ranks, as of `Members.agree`.
      tokens: token count of this rank.
      length: the length where the caller knows it, the same on all ranks; the ranks then need not
        exchange their token counts in every call.

    Raises:
      SpecError: as of `Members.agree`; or the layout gives some rank another token count.
      RankError: another rank failed.
    """
    shared = {**shared, "length": length}
    counts = members.agree(call, shared, tokens, follows=length is not None)
    total = sum(counts) if length is None else length
    wanted = [tokens_of(runs_of(total, members.size, r, layout)) for r in range(members.size)]
    with members.agreeing():
        if list(counts) != wanted:
            source = "" if length is None else " (length, or that of block_mask)"
            raise SpecError(
                f"the ranks have {list(counts)} tokens, which are no shards of {total}{source}: "
                f"layout {layout} gives them {wanted}; cut with attn_mlir.distributed.shard"
            )
    return total


def _own_runs(length: int, members: Members, layout: str) -> Runs:
    return runs_of(length, members.size, members.rank, check_layout(layout))


def _axis(x: Any, dim: object) -> int:
    if not isinstance(x, torch.Tensor):
        raise SpecError(f"x must be a tensor of torch, got {type(x).__name__}")
    check_dense(x, "x")
    return integer("dim", dim, -x.dim(), x.dim() - 1) % x.dim()
