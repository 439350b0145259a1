"""Calls of every scheme, compared with the whole problem in float64."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import attn_mlir as am
from attn_mlir import distributed as ad
from attn_mlir import mods

torch: Any = importlib.import_module("torch")
dist: Any = importlib.import_module("torch.distributed")

HEADS, DIM = 4, 32
SCHEMES = ("ring", "gather", "ulysses")
ROUNDING = 2.0**-8  # of bf16


@dataclass(frozen=True)
class Case:
    """A call of the three schemes.

    Attributes:
      length: tokens of the whole sequence.
      documents: where documents end, without the length.
    """

    length: int = 64
    mask: am.Mask | None = None
    layout: str = "zigzag"
    kv_heads: int = 2
    batch: int = 1
    documents: tuple[int, ...] = ()
    has_alibi: bool = False
    has_sinks: bool = False


CASES = {
    "causal": Case(mask=am.causal()),
    "full": Case(),
    "contiguous": Case(mask=am.causal(), layout="contiguous"),
    "batch": Case(mask=am.causal(), batch=2, kv_heads=4),
    "window": Case(mask=am.sliding_window(20, 0)),
    "chunked": Case(mask=am.chunked(24), layout="contiguous"),
    "prefix": Case(mask=am.prefix_lm(21)),
    "alibi": Case(mask=am.causal(), has_alibi=True),
    "sinks": Case(mask=am.causal(), has_sinks=True),
    "documents": Case(mask=am.causal(), documents=(5, 23, 40)),
    "documents-contiguous": Case(mask=am.causal(), documents=(5, 23, 40), layout="contiguous"),
    "documents-alibi": Case(documents=(30,), has_alibi=True),
    "odd": Case(length=61, mask=am.causal()),
    "odd-contiguous": Case(length=61, layout="contiguous"),
    "empty-rank": Case(length=3, mask=am.causal(), layout="contiguous"),
    "empty-chunks": Case(length=5, mask=am.causal()),
    "one-kv-head": Case(mask=am.causal(), kv_heads=1),
}


def check(*names: str) -> dict[str, Any]:
    """The largest errors of this rank, in units of the bound, by scheme and case.

    Args:
      names: `scheme-case`, with `-gradients` at the end for a backward pass; `decode-how`, `pass_q-how`,
        `unshard-case`, `bits-scheme` and `lengths-scheme`.
    """
    found: dict[str, Any] = {}
    for name in names:
        begin = time.perf_counter()
        scheme, _, rest = name.partition("-")
        case = rest.removesuffix("-gradients")
        if scheme == "decode":
            errors = _decoded(rest)
        elif scheme == "pass_q":
            errors = _passed(rest)
        elif scheme == "bits":
            errors = _changed(*rest.split("-"))
        elif scheme == "lengths":
            errors = _varied(rest)
        elif scheme == "unshard":
            errors = _unsharded(CASES[case])
        else:
            errors = _errors(scheme, CASES[case], gradients=rest != case)
        found[name] = {**errors, "seconds": round(time.perf_counter() - begin, 1)}
    return found


def _varied(scheme: str) -> dict[str, float]:
    """Sequences of several lengths, of which some ranks have as many tokens as of the one before."""
    errors: dict[str, float] = {}
    for length in (8, 7, 8, 5, 6):
        if scheme == "pass_q":
            found = _passed("tensors", length)
        elif scheme == "unshard":
            found = _unsharded(Case(length=length, layout="contiguous"))
        else:
            name, _, how = scheme.partition("-")
            case = Case(length=length, mask=am.causal(), layout="contiguous")
            found = _errors(name, case, gradients=True, is_told=how == "told")
        errors |= {f"{name} of {length}": error for name, error in found.items()}
    return errors


def _errors(scheme: str, case: Case, *, gradients: bool, is_told: bool = False) -> dict[str, float]:
    torch.manual_seed(1)
    shape = case.batch, case.length
    q, do = (torch.randn(*shape, HEADS, DIM) for _ in range(2))
    k, v = (torch.randn(*shape, case.kv_heads, DIM) for _ in range(2))
    q, k, v, do = (x.bfloat16() for x in (q, k, v, do))
    sinks = torch.randn(HEADS) if case.has_sinks else None
    dlse = torch.randn(case.batch, HEADS, case.length) if gradients else None
    if scheme.startswith("ulysses"):
        dlse = None
    whole = [x.double().requires_grad_() for x in (q, k, v)]
    want_sinks = None if sinks is None else sinks.double().requires_grad_()
    want = _whole(case, *whole, want_sinks)
    own = [ad.shard(x, layout=case.layout).requires_grad_(gradients) for x in (q, k, v)]
    sinks = None if sinks is None else sinks.requires_grad_(gradients)
    slopes = torch.tensor([0.5**h for h in range(1, HEADS + 1)])
    function: Callable[..., Any] = getattr(ad, f"{scheme}_attention")
    mesh: tuple[Any, ...] = ()
    if scheme == "ulysses_ring":
        size = dist.get_world_size()
        mesh = (dist.device_mesh.init_device_mesh("cpu", (size // 2, 2)),)
    o, lse = function(
        *own,
        *mesh,
        mask=case.mask,
        layout=case.layout,
        sinks=sinks,
        cu_seqlens=[0, *case.documents, case.length] if case.documents else None,
        length=case.length if is_told else None,
        score_mod=mods.alibi(slopes) if case.has_alibi else None,
        return_lse=True,
        device="emulator",
    )
    rows = ad.positions(case.length, layout=case.layout)
    errors = {"o": _error(o, want[0][:, rows]), "lse": _error(lse, want[1][:, :, rows])}
    if gradients:
        kept = want[1].isfinite()
        total = (want[0] * do.double()).sum()
        mine = (o * do[:, rows]).float().sum()
        if dlse is not None:
            total = total + want[1].masked_fill(~kept, 0).mul(dlse).sum()
            mine = mine + lse.mul(dlse[:, :, rows]).sum()
        total.backward()
        mine.backward()
        for name, x, y in zip(("dq", "dk", "dv"), own, whole, strict=True):
            errors[name] = _error(x.grad, y.grad[:, rows], 4)
        if sinks is not None:
            sums = sinks.grad.clone()
            dist.all_reduce(sums)
            errors["dsinks"] = _error(sums, want_sinks.grad, 4)
    return errors


def _decoded(how: str) -> dict[str, float]:
    """New tokens of two sequences, whose caches are cut by position: the last rank has no key."""
    torch.manual_seed(2)
    rank, size = dist.get_rank(), dist.get_world_size()
    case = Case(length=40)
    q, k, v = (torch.randn(2, x, h, DIM).bfloat16() for x, h in ((3, HEADS), (40, 2), (40, 2)))
    sinks = torch.randn(HEADS)
    want, _ = _whole(case, *(x.double() for x in (q, k, v)), sinks.double())
    step = 40 // max(1, size - 1)
    keys = slice(rank * step, (rank + 1) * step if rank + 2 < size else 40)
    o, lse = am.attention(q, k[:, keys], v[:, keys], return_lse=True, device="emulator")
    if rank == size - 1:  # nothing is read of a part without keys
        o, lse = torch.full_like(o, torch.nan), torch.full_like(lse, torch.inf)
    found = ad.decode_combine(o, lse, how=how, sinks=sinks, device="emulator")
    flat = ad.decode_combine(
        o.flatten(0, 1), lse.transpose(0, 1).flatten(1), how=how, sinks=sinks, device="emulator"
    )
    heads = HEADS // size
    own = want[:, :, rank * heads : (rank + 1) * heads]
    return {"o": _error(found, own, 2 + size), "flat": _error(flat, own.flatten(0, 1), 2 + size)}


def _passed(how: str, new: int = 7) -> dict[str, float]:
    """New tokens of two sequences, and caches of which each rank has a part; the last, none."""
    torch.manual_seed(4)
    rank, size = dist.get_rank(), dist.get_world_size()
    cached = 40
    case = Case(length=cached + new, mask=am.causal(), batch=2)
    q, k, v = (torch.randn(2, cached + new, h, DIM).bfloat16() for h in (HEADS, 2, 2))
    sinks = torch.randn(HEADS)
    want, want_lse = _whole(case, *(x.double() for x in (q, k, v)), sinks.double())
    fresh = [ad.shard(x[:, cached:]) for x in (q, k, v)]
    found = ad.ring_attention(*fresh, mask=am.causal(), return_lse=True, device="emulator")
    step = cached // max(1, size - 1)
    keys = slice(min(cached, rank * step), min(cached, (rank + 1) * step))
    own: tuple[Any, ...] = k[:, keys], v[:, keys]
    if how == "cache":
        lengths = torch.full((2,), own[0].shape[1], dtype=torch.int32)
        room = [torch.zeros(2, cached, 2, DIM).bfloat16() for _ in own]
        for memory, x in zip(room, own, strict=True):
            memory[:, : x.shape[1]] = x
        own = (am.ContiguousKV(*room, lengths),)
    options: dict[str, Any] = {"new": found, "sinks": sinks, "device": "emulator"}
    o, lse = ad.pass_q_attention(fresh[0], *own, **options, return_lse=True)
    rows = cached + ad.positions(new)
    return {"o": _error(o, want[:, rows], 3), "lse": _error(lse, want_lse[:, :, rows])}


def _changed(scheme: str) -> dict[str, float]:
    """Two runs give the same bits: of O and of the gradients."""
    torch.manual_seed(3)
    own = [ad.shard(torch.randn(1, 40, h, DIM).bfloat16()) for h in (HEADS, 2, 2)]
    own = [x.requires_grad_() for x in own]
    runs: list[list[Any]] = []
    for _ in range(2):
        o = getattr(ad, f"{scheme}_attention")(*own, mask=am.causal(), device="emulator")
        runs.append([o, *torch.autograd.grad(o.float().square().sum(), own)])
    names = "o", "dq", "dk", "dv"
    pairs = zip(names, *runs, strict=True)
    return {name: 0.0 if torch.equal(x, y) else float("inf") for name, x, y in pairs}


def _unsharded(case: Case) -> dict[str, float]:
    """Every rank gets back what was cut."""
    x = torch.arange(case.length * 6).view(2, case.length, 3)
    own = ad.shard(x, layout=case.layout)
    same = bool((ad.unshard(own, layout=case.layout) == x).all())
    rows = ad.positions(case.length, layout=case.layout)
    return {"whole": 0.0 if same and bool((own == x[:, rows]).all()) else float("inf")}


def _whole(case: Case, q: Any, k: Any, v: Any, sinks: Any) -> tuple[Any, Any]:
    """O and LSE of the whole problem."""
    groups = HEADS // case.kv_heads
    k, v = (x.repeat_interleave(groups, 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / DIM**0.5
    at = torch.arange(case.length)
    document = torch.bucketize(at, torch.tensor(case.documents), right=True)
    begins = torch.tensor([0, *case.documents])[document]
    at = at - begins
    rows, keys = at[:, None], at[None]
    if case.has_alibi:
        slopes = torch.tensor([0.5**h for h in range(1, HEADS + 1)], dtype=torch.float64)
        scores = scores - slopes[:, None, None] * (rows - keys).abs()
    shown = document[:, None] == document[None]
    if case.mask is not None:
        shown = shown & case.mask.visible(rows, keys, case.length, case.length)
    scores = scores.masked_fill(~shown[-q.shape[1] :], -torch.inf)
    lse = scores.logsumexp(-1)
    if sinks is not None:
        column = sinks[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, column], -1)
    weights = scores.softmax(-1)[..., : case.length]
    return torch.einsum("bhqk,bkhd->bqhd", weights, v), lse


def _error(found: Any, want: Any, factor: float = 2) -> float:
    """The largest error in units of so many roundings of bf16 of the largest value."""
    if not found.numel():
        return 0.0 if found.shape == want.shape else float("inf")
    scale = max(1.0, want.detach().abs().max().item())
    return ((found.detach() - want.detach()).abs().max() / (factor * ROUNDING * scale)).item()
