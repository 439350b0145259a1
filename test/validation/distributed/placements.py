"""Attention of DTensor on several ranks: results and gradients of the whole, placements of O.

python -m attn_mlir.validation.distributed.launch placements.check 2 heads batch
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any

import attn_mlir as am
from attn_mlir import torch as door

D = 64
SLOPES = (0.5, 0.25, 0.125, 1.0)


@dataclass(frozen=True)
class Case:
    """A call of attention.

    Attributes:
      q, kv: axis of [batch, heads, positions, head_dim] that is sharded; None: replicated.
      o: the axis of O that is.
      heads, kv_heads, batch, sq, sk: sizes.
      options: of `scaled_dot_product_attention`.
      has_slopes: whether ALiBi is a modifier of `flex_attention`.
      has_sinks: whether it is a call of `am.attention` with sinks, sharded as heads are.
    """

    q: int | None
    kv: int | None
    o: int | None
    heads: int = 4
    kv_heads: int = 2
    batch: int = 2
    sq: int = 9
    sk: int = 9
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    has_slopes: bool = False
    has_sinks: bool = False


CAUSAL = {"is_causal": True}
CASES = {
    "heads": Case(1, 1, 1, options=CAUSAL),
    "batch": Case(0, 0, 0, options=CAUSAL),
    "one-kv-head": Case(1, None, 1, kv_heads=1),
    "queries": Case(2, None, 2, sq=8),
    "torn-groups": Case(1, 1, None, heads=6, kv_heads=3),
    "causal-queries": Case(2, None, None, sq=8, sk=8, options=CAUSAL),
    "keys": Case(None, 2, None, sk=8),
    "sinks": Case(1, 1, 1, options=CAUSAL, has_sinks=True),
    "slopes-of-heads": Case(1, 1, None, heads=4, kv_heads=4, has_slopes=True),
    "slopes-in-batch": Case(0, 0, 0, heads=4, kv_heads=4, has_slopes=True),
}


def _attend(case: Case, *operands: Any) -> Any:
    torch: Any = importlib.import_module("torch")
    grouped = case.heads != case.kv_heads
    if case.has_sinks:
        *rows, sinks = operands
        q, k, v = (x.transpose(1, 2) for x in rows)
        o: Any = am.attention(q, k, v, mask=am.causal(), sinks=sinks)
        return o.transpose(1, 2)
    if not case.has_slopes:
        return door.scaled_dot_product_attention(*operands, **case.options, enable_gqa=grouped)
    slopes = torch.tensor(SLOPES)
    q, k, v = operands
    return door.flex_attention(q, k, v, am.mods.alibi(slopes), enable_gqa=grouped)


def _truth(case: Case, *operands: Any) -> Any:
    torch: Any = importlib.import_module("torch")
    q, k, v, *sinks = operands
    k, v = (x.repeat_interleave(case.heads // case.kv_heads, 1) for x in (k, v))
    if sinks:
        scores = q @ k.transpose(2, 3) / D**0.5
        scores = scores.masked_fill(torch.ones(case.sq, case.sk).triu(1).bool(), -torch.inf)
        extra = sinks[0][None, :, None, None].expand(*scores.shape[:3], 1)
        return torch.cat([scores, extra], -1).softmax(-1)[..., : case.sk] @ v
    if not case.has_slopes:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, **case.options)
    rows, columns = torch.arange(case.sq)[:, None], torch.arange(case.sk)
    slopes = torch.tensor(SLOPES, dtype=torch.float64)[:, None, None]
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=(-slopes * (columns - rows).abs())[None]
    )


def check(*names: str) -> dict[str, Any]:
    """How far O and the gradients are off, and whether O has the placement that it should have."""
    torch: Any = importlib.import_module("torch")
    tensor: Any = importlib.import_module("torch.distributed.tensor")
    mesh = torch.distributed.device_mesh.init_device_mesh(
        "cpu", (torch.distributed.get_world_size(),)
    )
    door.register_sharding()
    found: dict[str, Any] = {}
    for name in names:
        case = CASES[name]
        torch.manual_seed(1)
        kv = (case.batch, case.kv_heads, case.sk, D)
        shapes = ((case.batch, case.heads, case.sq, D), kv, kv)
        whole = [torch.randn(shape).bfloat16() for shape in shapes]
        axes = [case.q, case.kv, case.kv]
        if case.has_sinks:
            whole.append(torch.randn(case.heads))
            axes.append(0)
        operands = [
            tensor.distribute_tensor(
                x, mesh, [tensor.Replicate() if axis is None else tensor.Shard(axis)]
            ).requires_grad_()
            for x, axis in zip(whole, axes, strict=True)
        ]
        o = _attend(case, *operands)
        wide = [x.double().requires_grad_() for x in whole]
        truth = _truth(case, *wide)
        do = torch.randn(o.shape).bfloat16()
        o.backward(tensor.distribute_tensor(do, mesh, o.placements))
        truth.backward(do.double())
        pairs = [
            (o.detach(), truth),
            *((x.grad, y.grad) for x, y in zip(operands, wide, strict=True)),
        ]
        errors = [float((x.full_tensor() - y).abs().max()) for x, y in pairs]
        placed = tensor.Replicate() if case.o is None else tensor.Shard(case.o)
        found[name] = {
            "errors": errors,
            "o": str(o.placements[0]),
            "right": o.placements == (placed,),
        }
    return found
