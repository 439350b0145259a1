"""The functions of ring-flash-attn, with its signatures: attention of sequences on several ranks.

    from attn_mlir import ring_flash_attn as rfa
    o = rfa.zigzag_ring_flash_attn_func(q, k, v, causal=True, group=group)

q, k and v are this rank's tokens, [batch, own tokens, heads, head_dim], or for packed documents
[own tokens, heads, head_dim]; the functions `kvpacked` and `qkvpacked` take them stacked in one
tensor, along an axis before the heads. Autograd computes the gradients. `NEUTRAL` lists arguments
without effect. All functions take:

  softmax_scale: head_dim^-0.5 by default.
  causal, window_size: as of `attn_mlir.flash.flash_attn_func`, over the whole sequence.
  return_attn_probs: return (O, LSE, None); LSE is [batch, heads, own tokens] f32, or for packed
    documents [heads, own tokens].
  group: a process group, or a mesh of one dimension; None: all ranks.

All functions raise the errors of `attn_mlir.distributed.ring_attention`.
"""

from __future__ import annotations

import bisect
import importlib
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from attn_mlir.adapters import REQUIRED, Options, adapter, neutral, passed
from attn_mlir.api.outside_graphs import outside_graphs
from attn_mlir.distributed.members import Members, members_of
from attn_mlir.distributed.operands import checked_call
from attn_mlir.distributed.pieces import Document, Piece
from attn_mlir.distributed.problem import integers_of
from attn_mlir.distributed.ring_variants import OfEveryDocument, Sliced, Striped, by_halves
from attn_mlir.distributed.schemes import attend_sharded, computed
from attn_mlir.distributed.tensors import check_sendable
from attn_mlir.errors import SpecError, shown
from attn_mlir.flash.options import NO_WINDOW, mask_of
from attn_mlir.naming import rename
from attn_mlir.runtime.call.scalars import as_int, flag, integer

torch: Any = importlib.import_module("torch")

NEUTRAL = {
    **neutral("dropout_p", 0, instead="there is no dropout"),
    **neutral("alibi_slopes", None, instead="score_mod of attn_mlir.distributed adds biases"),
    **neutral("deterministic", False, True, instead="the same call gives the same bits"),
}
POSITIONS = (
    "dropout_p softmax_scale causal window_size alibi_slopes deterministic return_attn_probs group"
)
OPTIONS = (
    *passed("softmax_scale"),
    *passed("causal", False),
    *passed("window_size", NO_WINDOW),
    *passed("return_attn_probs", False),
    *passed("group"),
)
DENSE, PACKED = "", "cu_seqlens max_seqlen"
SLICED = "cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k heads_k_stride local_k_slice"

Given = Mapping[str, Any]
Results = tuple[Any, Any]  # O and LSE
Attend = Callable[[Members, str, tuple[Any, Any, Any], Given], Results]


def llama3_flash_attn_prepare_cu_seqlens(
    cu_seqlens: Any, causal: bool, rank: int, world_size: int
) -> tuple[Any, Any, int, int, slice]:
    """The documents of a rank's shard, as arguments of `llama3_flash_attn_varlen_func`.

    Args:
      cu_seqlens: [documents + 1] offsets in the whole sequence, a tensor of integers.
      causal: whether the keys end at the rank's last query; else they end with its document.
      rank, world_size: the number of the rank, and the number of ranks.

    Returns:
      (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, local_k_slice): the offsets of the
      rank's queries and of their keys, in the dtype and on the device of `cu_seqlens`; the longest
      document of each; and the slice of the whole sequence's keys that cu_seqlens_k describes.

    Raises:
      SpecError: an argument is wrong, or the ranks do not divide the sequence.
    """
    check_sendable("cu_seqlens", cu_seqlens)
    if cu_seqlens.dim() != 1:
        got = list(cu_seqlens.shape)
        raise SpecError(f"cu_seqlens must be a tensor [documents + 1], got shape {got}")
    starts = _rising("cu_seqlens", cu_seqlens)
    ranks = integer("world_size", world_size, 1)
    if starts[-1] % ranks:
        raise SpecError(f"{ranks} ranks do not divide the {starts[-1]} tokens of cu_seqlens")
    count = starts[-1] // ranks
    begin = integer("rank", rank, 0, ranks - 1) * count
    end = begin + count
    left, right = bisect.bisect_left(starts, begin), bisect.bisect_left(starts, end)
    left -= starts[left] != begin
    inside, last = starts[left + 1 : right], end if flag("causal", causal) else starts[right]
    of_q = [0, *(x - begin for x in inside), count]
    of_k = [x - starts[left] for x in (starts[left], *inside, last)]
    longest = [max(b - a for a, b in pairwise(x)) for x in (of_q, of_k)]
    tensors = [cu_seqlens.new_tensor(x) for x in (of_q, of_k)]
    return tensors[0], tensors[1], longest[0], longest[1], slice(starts[left], last)


def _ring(members: Members, _: str, operands: tuple[Any, Any, Any], given: Given) -> Results:
    """Rank r has the r-th of P equal parts of the sequence, where P is the number of ranks."""
    return _by_layout("contiguous", members, operands, given)


def _zigzag(members: Members, _: str, operands: tuple[Any, Any, Any], given: Given) -> Results:
    """Rank r of P has chunks r and 2P - 1 - r of 2P; `causal` may be False as well."""
    return _by_layout("zigzag", members, operands, given)


def _by_layout(
    layout: str, members: Members, operands: tuple[Any, Any, Any], given: Given
) -> Results:
    with members.checked():
        mask = mask_of(given["causal"], given["window_size"])
    options = {"layout": layout, "mask": mask, "scale": given["softmax_scale"], "return_lse": True}
    return attend_sharded("ring", operands, members.group, options)


def _stripes(members: Members, name: str, operands: tuple[Any, Any, Any], given: Given) -> Results:
    """Rank r of P has tokens r, r + P, r + 2P ...; P divides the length. Windows are refused."""
    with members.checked():
        if mask_of(False, given["window_size"]) != mask_of(False):
            raise SpecError(
                f"window_size must be (-1, -1) of stripes, got {shown(given['window_size'])}"
            )
        mask = mask_of(True) if flag("causal", given["causal"]) else None
    whole = _agreed(members, name, operands, given, mask=mask)
    operands, problem, shards = whole
    with members.agreeing():
        if not shards.is_even:
            raise SpecError(
                f"{members.size} ranks do not divide the {shards.length} tokens of the sequence"
            )
    return computed(Striped(name, members, problem, shards), operands)


def _ring_varlen(
    members: Members, name: str, operands: tuple[Any, Any, Any], given: Given
) -> Results:
    """Rank r of P has the r-th of P equal parts of every document.

    `cu_seqlens` [documents + 1] has the offsets of the documents in the shard. It is the same on
    all ranks, and the host reads it. `max_seqlen` is at least the longest part of a document in the
    shard.
    """
    return _of_every_document(members, name, operands, given, is_zigzag=False)


def _zigzag_varlen(
    members: Members, name: str, operands: tuple[Any, Any, Any], given: Given
) -> Results:
    """Rank r of P has chunks r and 2P - 1 - r of 2P of every document, document by document.

    `cu_seqlens` [documents + 1] has the offsets of the documents in the shard. It is the same on
    all ranks, and the host reads it. `max_seqlen` is at least the longest part of a document in the
    shard. All these parts have even lengths.
    """
    return _of_every_document(members, name, operands, given, is_zigzag=True)


def _of_every_document(
    members: Members, name: str, operands: tuple[Any, Any, Any], given: Given, *, is_zigzag: bool
) -> Results:
    with members.checked():
        _check_packed(*operands)
        starts = _starts(given, "cu_seqlens", "max_seqlen", operands[0].shape[0])
        sizes = [b - a for a, b in pairwise(starts)]
        if is_zigzag and any(x % 2 for x in sizes):
            raise SpecError(f"own parts of documents must be of even length, got {shown(sizes)}")
        mask = mask_of(given["causal"], given["window_size"])
    packed = tuple(x[None] for x in operands)
    whole = [x * members.size for x in starts]
    packed, problem, shards = _agreed(members, name, packed, given, mask=mask, cu_seqlens=whole)
    chunks = tuple(x // (1 + is_zigzag) for x in sizes)
    scheme = OfEveryDocument(name, members, problem, shards, chunks, is_zigzag)
    if not is_zigzag:
        o, lse = computed(scheme, packed)
        return o[0], lse[0]
    order, back = by_halves(starts, packed[0].device)
    o, lse = computed(scheme, tuple(x[:, order] for x in packed))
    return o[0, back], lse[0][:, back]


def _llama3(members: Members, name: str, operands: tuple[Any, Any, Any], given: Given) -> Results:
    """Rank r of P has the r-th of P equal parts of all tokens, and gathers K and V of all ranks.

    `llama3_flash_attn_prepare_cu_seqlens`, called on this rank with the same `causal`, returns
    `cu_seqlens_q`, `cu_seqlens_k`, `max_seqlen_q`, `max_seqlen_k` and `local_k_slice`; the host
    reads them. `heads_k_stride` divides the heads of k and has no other effect: all heads are
    gathered at once. Windows need `causal`.
    """
    q, k, _ = operands
    with members.checked():
        _check_packed(*operands)
        mask, causal = mask_of(given["causal"], given["window_size"]), given["causal"]
        if not causal and mask != mask_of(False):
            raise SpecError("window_size must be (-1, -1) without causal")
        stride = integer("heads_k_stride", given["heads_k_stride"], 1)
        if k.shape[1] % stride:
            raise SpecError(f"heads_k_stride must divide the {k.shape[1]} heads of k, got {stride}")
        keys = _keys(given["local_k_slice"], k.shape[0] * members.size)
        rows = _starts(given, "cu_seqlens_q", "max_seqlen_q", q.shape[0])
        columns = _starts(given, "cu_seqlens_k", "max_seqlen_k", len(keys))
        documents = _of_slice(rows, columns)
    packed = tuple(x[None] for x in operands)
    packed, problem, shards = _agreed(members, name, packed, given, mask=mask)
    piece = Piece(range(q.shape[0]), keys, mask if causal else None, documents=documents)
    o, lse = computed(Sliced(name, members, problem, shards, piece), packed)
    return o[0], lse[0]


def _keys(at: Any, tokens: int) -> range:
    """The keys of a slice of so many tokens.

    Raises:
      SpecError: it is none, or leaves some between its ends out.
    """
    ends = (at.start, at.stop) if type(at) is slice and at.step in (None, 1) else ("",)
    if not all(x is None or as_int(x) is not None for x in ends):
        raise SpecError(f"local_k_slice must be slice(start, stop) of integers, got {shown(at)}")
    return range(*at.indices(tokens))


def _of_slice(rows: tuple[int, ...], columns: tuple[int, ...]) -> tuple[Document, ...]:
    """The documents of a piece; the last query of each is at the position of its last key.

    Args:
      rows, columns: [documents + 1] offsets of the queries and of the keys.

    Raises:
      SpecError: the numbers of documents differ, or a document has more queries than keys.
    """
    if len(rows) != len(columns):
        raise SpecError(
            f"cu_seqlens_q and cu_seqlens_k must be of as many documents, got {len(rows) - 1} and "
            f"{len(columns) - 1}"
        )
    found = list[Document]()
    for (a, b), (c, d) in zip(pairwise(rows), pairwise(columns), strict=True):
        if b - a > d - c:
            raise SpecError(f"a document has {b - a} queries on this rank, and {d - c} keys")
        found.append(Document(range(d - c - (b - a), d - c), range(d - c)))
    return tuple(found)


def _agreed(
    members: Members, name: str, operands: tuple[Any, ...], given: Given, **options: Any
) -> Any:
    """`checked_call` for equal shards; options that ring-flash-attn does not have are left out."""
    missing = dict.fromkeys(("score_mod", "mask_mod", "sinks", "device", "cu_seqlens"))
    options = {**missing, "layout": "contiguous", "scale": given["softmax_scale"], **options}
    return checked_call(members, name, operands, **options)


def _check_packed(q: Any, k: Any, v: Any) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_sendable(name, x, has_gradient=True)
        if x.dim() != 3:
            raise SpecError(f"{name} must be [own tokens, heads, head_dim], got {list(x.shape)}")


def _starts(given: Given, name: str, longest: str, tokens: int) -> tuple[int, ...]:
    """The offsets of documents, up to `tokens`.

    Args:
      name: the argument with the offsets.
      longest: the argument with the length of the longest document.

    Raises:
      SpecError: the offsets do not rise from 0 to `tokens`, or a document is longer than `longest`.
    """
    starts = _rising(name, given[name])
    if starts[-1] != tokens:
        raise SpecError(f"{name} must rise from 0 to {tokens}, got {shown(starts)}")
    integer(longest, given[longest], max(b - a for a, b in pairwise(starts)))
    return starts


def _rising(name: str, cu_seqlens: Any) -> tuple[int, ...]:
    if isinstance(cu_seqlens, torch.Tensor):
        check_sendable(name, cu_seqlens)
        cu_seqlens = cu_seqlens.tolist()
    starts = integers_of(cu_seqlens) or ()
    if len(starts) < 2 or starts[0] or any(a > b for a, b in pairwise(starts)):
        raise SpecError(f"{name} must rise from 0 to the number of tokens, got {shown(cu_seqlens)}")
    return starts


def _functions(name: str, attend: Attend, lengths: str) -> tuple[Callable[..., Any], ...]:
    """The three public functions of a scheme: of (q, k, v), of (q, kv) and of (qkv).

    Args:
      name: the public name, with `{}` in the place of `kvpacked_` and `qkvpacked_`.
      lengths: names of the required arguments between operands and options.
    """
    options = Options([*passed(lengths, REQUIRED), *OPTIONS])
    rank = 4 if lengths else 5

    def attended(public: str, operands: tuple[Any, Any, Any], given: Given) -> Any:
        given = {**options.defaults, **given}
        members = members_of(given["group"])
        with members.checked():
            has_lse = flag("return_attn_probs", given["return_attn_probs"])
        try:
            found = attend(members, public, operands, given)
        except SpecError as error:
            rename(error, {"scale": "softmax_scale"})
            raise
        return (*found, None) if has_lse else found[0]

    def of_three(q: Any, k: Any, v: Any, **given: Any) -> Any:
        return attended(name.format(""), (q, k, v), given)

    def of_two(q: Any, kv: Any, **given: Any) -> Any:
        return attended(name.format("kvpacked_"), (q, *_unpacked(kv, "kv", rank)), given)

    def of_one(qkv: Any, **given: Any) -> Any:
        return attended(name.format("qkvpacked_"), _unpacked(qkv, "qkv", rank), given)

    found = list[Callable[..., Any]]()
    forms = (("", "q k v", of_three), ("kvpacked_", "q kv", of_two), ("qkvpacked_", "qkv", of_one))
    for packed, operands, function in forms:
        public = name.format(packed)
        vars_of: Any = function
        vars_of.__name__ = vars_of.__qualname__ = public
        vars_of.__doc__ = f"Computes ring-flash-attn's `{public}`. {attend.__doc__}"
        positions = f"{operands} {lengths} {POSITIONS}"
        found.append(outside_graphs(adapter(NEUTRAL, positions, options=options)(function)))
    return tuple(found)


def _unpacked(packed: Any, name: str, rank: int) -> Any:
    """The operands in a packed tensor, as views.

    Args:
      rank: the rank that the tensor must have, 5 with a batch axis and 4 without.

    Raises:
      SpecError: the tensor has another shape.
    """
    check_sendable(name, packed, has_gradient=True)
    if packed.dim() != rank or packed.shape[-3] != len(name):
        lead = "batch, own tokens" if rank == 5 else "own tokens"
        raise SpecError(
            f"{name} must be [{lead}, {len(name)}, heads, head_dim], got {list(packed.shape)}"
        )
    return packed.unbind(-3)


ring_flash_attn_func, ring_flash_attn_kvpacked_func, ring_flash_attn_qkvpacked_func = _functions(
    "ring_flash_attn_{}func", _ring, DENSE
)
(
    zigzag_ring_flash_attn_func,
    zigzag_ring_flash_attn_kvpacked_func,
    zigzag_ring_flash_attn_qkvpacked_func,
) = _functions("zigzag_ring_flash_attn_{}func", _zigzag, DENSE)
stripe_flash_attn_func, stripe_flash_attn_kvpacked_func, stripe_flash_attn_qkvpacked_func = (
    _functions("stripe_flash_attn_{}func", _stripes, DENSE)
)
(
    ring_flash_attn_varlen_func,
    ring_flash_attn_varlen_kvpacked_func,
    ring_flash_attn_varlen_qkvpacked_func,
) = _functions("ring_flash_attn_varlen_{}func", _ring_varlen, PACKED)
(
    zigzag_ring_flash_attn_varlen_func,
    zigzag_ring_flash_attn_varlen_kvpacked_func,
    zigzag_ring_flash_attn_varlen_qkvpacked_func,
) = _functions("zigzag_ring_flash_attn_varlen_{}func", _zigzag_varlen, PACKED)
(
    llama3_flash_attn_varlen_func,
    llama3_flash_attn_varlen_kvpacked_func,
    llama3_flash_attn_varlen_qkvpacked_func,
) = _functions("llama3_flash_attn_varlen_{}func", _llama3, SLICED)

__all__ = [
    "llama3_flash_attn_prepare_cu_seqlens",
    "llama3_flash_attn_varlen_func",
    "llama3_flash_attn_varlen_kvpacked_func",
    "llama3_flash_attn_varlen_qkvpacked_func",
    "ring_flash_attn_func",
    "ring_flash_attn_kvpacked_func",
    "ring_flash_attn_qkvpacked_func",
    "ring_flash_attn_varlen_func",
    "ring_flash_attn_varlen_kvpacked_func",
    "ring_flash_attn_varlen_qkvpacked_func",
    "stripe_flash_attn_func",
    "stripe_flash_attn_kvpacked_func",
    "stripe_flash_attn_qkvpacked_func",
    "zigzag_ring_flash_attn_func",
    "zigzag_ring_flash_attn_kvpacked_func",
    "zigzag_ring_flash_attn_qkvpacked_func",
    "zigzag_ring_flash_attn_varlen_func",
    "zigzag_ring_flash_attn_varlen_kvpacked_func",
    "zigzag_ring_flash_attn_varlen_qkvpacked_func",
]
