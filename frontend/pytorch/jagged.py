"""Attention of PyTorch's jagged nested tensors, whose sequences are concatenated in memory.

Their offsets and lengths become `cu_seqlens` and `seqused` of `attention`: nothing is padded, and
rows are copied only where rows of a dense tensor would be copied. The result shares the offsets
tensor of the query, so that PyTorch can combine both.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from attn_mlir.api.attention import attention
from attn_mlir.errors import SpecError, no_kernel
from attn_mlir.masks import causal, full
from attn_mlir.mods import causal_from_top
from attn_mlir.naming import renamed
from attn_mlir.pytorch.attention import attention_in_graph
from attn_mlir.pytorch.autograd import trained
from attn_mlir.pytorch.readable import padded, readable
from attn_mlir.pytorch.shapes import checked, outside_of, wants_gradient
from attn_mlir.runtime.call.torch_tensors import is_tracing

torch: Any = importlib.import_module("torch")

RAGGED = 2  # the axis of the sequences in [batch, heads, ragged, head_dim]

NAMES = {"q": "query", "k": "key", "v": "value"} | {
    f"{ours}_{side}": f"{name}.{theirs}()"
    for ours, theirs in (("cu_seqlens", "offsets"), ("seqused", "lengths"))
    for side, name in (("q", "query"), ("k", "key"))
}

_in_graph, _trained, _attention = (
    renamed(x, **NAMES) for x in (attention_in_graph, trained, attention)
)


@dataclass(frozen=True)
class Jagged:
    """A nested tensor as the rows of its sequences.

    Attributes:
      rows: [total, heads, head_dim].
      offsets: [batch + 1] i64, the begin of each sequence in `rows`, and the end of the last one.
      lengths: [batch] i64, the length of each sequence, if sequences have gaps between them; else
        None.
      longest: the length of the longest sequence; in a graph, if PyTorch does not keep it, the
        number of rows.
    """

    rows: Any
    offsets: Any
    lengths: Any
    longest: int

    def options(self, side: str) -> dict[str, Any]:
        """Offsets and lengths as arguments of `attention`, converted from i64 to i32."""
        named = {"cu_seqlens": self.offsets, "seqused": self.lengths}
        options = {f"{x}_{side}": y.to(torch.int32) for x, y in named.items() if y is not None}
        return {**options, f"max_seqlen_{side}": self.longest}


def is_nested(*operands: Any) -> bool:
    """Whether one of the operands is a nested tensor, of any layout."""
    return any(isinstance(x, torch.Tensor) and x.is_nested for x in operands)


def attend_jagged(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Any:
    """`scaled_dot_product_attention` of nested tensors [batch, heads, ragged, head_dim].

    Args:
      is_causal: whether query i of a sequence sees only its keys 0 ... i.

    Returns:
      A nested tensor with the offsets of query. If query has lengths, rows between sequences are 0;
      otherwise rows after the last sequence are not written.

    Raises:
      SpecError: an argument is wrong or has no kernel.
    """
    names = ("query", "key", "value")
    pairs = zip(names, (query, key, value), strict=True)
    sides = {name: _jagged(name, tensor) for name, tensor in pairs}
    if attn_mask is not None:
        raise SpecError(no_kernel("attn_mask of nested tensors", "is_causal"))
    q, k, v = sides.values()
    _check_sequences(query, key, value, k, v)
    by_head = checked(*(x.rows.transpose(0, 1) for x in sides.values()))
    heads, kv_heads = query.shape[1], key.shape[1]
    if kv_heads not in (1, heads) and not enable_gqa:
        raise SpecError(
            f"query has {heads} heads, key has {kv_heads}: enable_gqa=True lets heads be a multiple"
        )
    rows = [padded(x).transpose(0, 1) for x in by_head]
    attend = _in_graph
    if not (torch.compiler.is_dynamo_compiling() or is_tracing()):
        attend = _trained if wants_gradient(*rows) else _attention
        rows = [readable(name, x) for name, x in zip(names, rows, strict=True)]
    options: dict[str, Any] = {**q.options("q"), **k.options("k"), "mask": full()}
    options["scale"] = query.shape[-1] ** -0.5 if scale is None else scale
    if is_causal and query.shape[RAGGED] == key.shape[RAGGED]:
        options["mask"] = causal()
    elif is_causal:
        options["mask_mod"] = causal_from_top
    o = attend(*rows, **options)[..., : value.shape[-1]]
    if q.lengths is not None:
        o = o.masked_fill(outside_of(o, q.lengths, q.offsets)[:, None, None], 0)
    longest = query._maybe_max_seqlen
    made = torch.nested.nested_tensor_from_jagged(o, q.offsets, q.lengths, max_seqlen=longest)
    return made.transpose(1, 2)


def _jagged(name: str, tensor: Any) -> Jagged:
    """A nested tensor as the rows of its sequences.

    Raises:
      SpecError: the tensor is not a nested tensor of layout torch.jagged, or its ragged axis is not
        the third of four.
    """
    if not is_nested(tensor):
        kind = "is dense" if isinstance(tensor, torch.Tensor) else f"is {type(tensor).__name__}"
        raise SpecError(f"{name} {kind}: query, key and value must be nested, or none of them")
    if tensor.layout is not torch.jagged:
        raise SpecError(
            f"{name} is a nested tensor of layout {tensor.layout}: only torch.jagged is offered, "
            "torch.nested.nested_tensor(list, layout=torch.jagged)"
        )
    if tensor.dim() != 4 or tensor._ragged_idx != RAGGED:
        raise SpecError(
            f"{name} must be [batch, heads, ragged, head_dim], got {list(tensor.shape)}: transpose "
            f"it, or pass {name}.values() where the sequences are not ragged"
        )
    rows = tensor.transpose(1, 2).values()
    if torch.compiler.is_dynamo_compiling():  # where offsets have no elements
        kept = tensor._maybe_max_seqlen
        longest = rows.shape[0] if kept is None else kept
    else:
        longest = tensor._get_max_seqlen()
    return Jagged(rows, tensor.offsets(), tensor.lengths(), longest)


def _check_sequences(query: Any, key: Any, value: Any, k: Jagged, v: Jagged) -> None:
    """Refuses operands with different numbers of sequences, and keys and values of other lengths.

    Raises:
      SpecError: shows the numbers, or names key and value.
    """
    sizes = [x.shape[0] for x in (query, key, value)]
    if len(set(sizes)) != 1:
        raise SpecError("query, key and value have {}, {} and {} sequences".format(*sizes))
    if key.shape[RAGGED] == value.shape[RAGGED] and k.offsets is v.offsets:
        return
    pairs = ((k.offsets, v.offsets), (k.lengths, v.lengths))
    if not all(x is y or (x is not None and y is not None and torch.equal(x, y)) for x, y in pairs):
        raise SpecError("value has other sequences than key: their offsets and lengths differ")
