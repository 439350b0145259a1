"""`context_parallel`: a program written for one rank computes attention of a sharded sequence."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Collection, Generator, Sequence
from typing import Any, cast

from attn_mlir import torch as functions
from attn_mlir.distributed.layouts import check_layout, indices, runs_of
from attn_mlir.distributed.members import Members, members_of
from attn_mlir.distributed.schemes import SCHEMES, attend_sharded
from attn_mlir.distributed.tensors import check_sendable
from attn_mlir.errors import SpecError, shown
from attn_mlir.pytorch.sharded import check_none_in_force, put_in_force
from attn_mlir.runtime.call.scalars import integer

torch: Any = importlib.import_module("torch")
functional: Any = importlib.import_module("torch.nn.functional")

SDPA = "scaled_dot_product_attention"


@contextlib.contextmanager
def context_parallel(
    mesh: Any,
    *,
    buffers: Sequence[Any] | None = None,
    seq_dims: Sequence[int] | None = None,
    buffer_seq_dims: Sequence[int] | None = None,
    no_restore_buffers: Collection[Any] | None = None,
    scheme: str = "ring",
    layout: str = "zigzag",
    device: Any = None,
) -> Generator[None]:
    """Shards buffers and attention, as `torch.distributed.tensor.experimental.context_parallel`.

    Inside the context, `attn_mlir.torch.scaled_dot_product_attention` and `flex_attention` compute
    attention of this rank's queries to the keys of all ranks, and
    `torch.nn.functional.scaled_dot_product_attention` is replaced by the former. Their operands are
    shards; masks and modifiers see positions of the whole sequence, and a BlockMask describes the
    whole sequence. Other functions are not changed. The context holds for the whole process, not
    for one thread.

    Inside the context a buffer holds this rank's shard. Call `backward` inside as well: autograd
    cannot use what it saved of a buffer after the buffer is restored.

    Args:
      mesh: a mesh of one dimension, or a process group.
      buffers: tensors without gradient that every rank has whole; all have the same length along
        the sequence.
      seq_dims: the sequence dimension of each buffer; PyTorch also calls it `buffer_seq_dims`.
      no_restore_buffers: buffers that remain shards afterwards. All other buffers get their
        original memory back, also after an error; writes to their shards are lost.
      scheme: `ring`, `gather` or `ulysses`: see `ring_attention`, `gather_attention` and
        `ulysses_attention`.
      layout: as of `shard`.
      device: as of `attn_mlir.attention`.

    Raises:
      SpecError: an argument is wrong, or another context is in force; nothing was changed or sent.
    """
    members = members_of(mesh)
    with members.checked():
        if not isinstance(cast(object, scheme), str) or scheme not in SCHEMES:
            raise SpecError(f"scheme must be one of {', '.join(SCHEMES)}, got {shown(scheme)}")
        layout = check_layout(layout)
        if seq_dims is not None and buffer_seq_dims is not None:
            raise SpecError("seq_dims and buffer_seq_dims are two names of one argument: pass one")
        dims = buffer_seq_dims if seq_dims is None else seq_dims
        given = _listed("buffers", buffers)
        axes = _axes(given, _listed("seq_dims", dims))
        kept = _listed("no_restore_buffers", no_restore_buffers)
        if not all(any(x is buffer for buffer in given) for x in kept):
            raise SpecError("no_restore_buffers has a tensor that buffers has not")
        shards = _shards(members, given, axes, layout)
        check_none_in_force()

    def attend(q: Any, k: Any, v: Any, **options: Any) -> tuple[Any, Any]:
        options |= {"layout": layout, "device": device, "return_lse": True}
        return attend_sharded(scheme, (q, k, v), mesh, options)

    with contextlib.ExitStack() as stack:
        stack.enter_context(put_in_force(attend))
        for buffer, own in zip(given, shards, strict=True):
            whole = buffer.detach()
            buffer.set_(own)
            if not any(x is buffer for x in kept):
                stack.callback(buffer.set_, whole)
        stack.callback(setattr, functional, SDPA, getattr(functional, SDPA))
        setattr(functional, SDPA, functions.scaled_dot_product_attention)
        yield


def _listed(name: str, items: object) -> list[Any]:
    """The items of a list, a tuple or a set; none of None.

    Raises:
      SpecError: it is something else, such as one tensor, whose rows would be the items.
    """
    if items is None:
        return []
    if not isinstance(items, Collection) or isinstance(items, torch.Tensor | str):
        raise SpecError(f"{name} must be a list, got {type(cast(object, items)).__name__}")
    return list(cast("Collection[Any]", items))


def _axes(buffers: Sequence[Any], dims: Sequence[Any]) -> list[int]:
    """The sequence dimension of each buffer.

    Raises:
      SpecError: a buffer cannot be sharded, or its dimension is not one of its dimensions.
    """
    if len(dims) != len(buffers):
        raise SpecError(f"seq_dims must be as many as buffers, {len(buffers)}, got {len(dims)}")
    axes = list[int]()
    for i, (x, dim) in enumerate(zip(buffers, dims, strict=True)):
        check_sendable(f"buffers[{i}]", x, has_gradient=True)
        if x.requires_grad:
            raise SpecError(
                f"buffers[{i}] requires a gradient, which that of its shard is not: pass "
                "attn_mlir.distributed.shard(x) to the model"
            )
        if any(x is other for other in buffers[:i]):
            raise SpecError(f"buffers[{i}] is there twice")
        axes.append(integer(f"seq_dims[{i}]", dim, -x.dim(), x.dim() - 1) % x.dim())
    return axes


def _shards(
    members: Members, buffers: Sequence[Any], axes: Sequence[int], layout: str
) -> list[Any]:
    """This rank's shard of each buffer, a copy.

    Raises:
      SpecError: the buffers are of sequences of different lengths.
    """
    lengths = [x.shape[axis] for x, axis in zip(buffers, axes, strict=True)]
    if len(set(lengths)) > 1:
        raise SpecError(
            f"buffers have {lengths} positions along seq_dims: all must be of one sequence"
        )
    made = list[Any]()
    for x, axis in zip(buffers, axes, strict=True):
        runs = runs_of(x.shape[axis], members.size, members.rank, layout)
        made.append(x.index_select(axis, indices(runs, x.device)))
    return made
