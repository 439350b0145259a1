"""`context_parallel`: a small model of one layer, its gradients, and what a context refuses."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from attn_mlir import distributed as ad
from attn_mlir import mods
from attn_mlir import torch as functions
from attn_mlir.errors import AttnError
from attn_mlir.validation.distributed.cases import DIM, HEADS, ROUNDING

torch: Any = importlib.import_module("torch")
dist: Any = importlib.import_module("torch.distributed")
flex: Any = importlib.import_module("torch.nn.attention.flex_attention")
functional: Any = importlib.import_module("torch.nn.functional")

LENGTH, WIDTH, KV_HEADS = 61, 48, 2  # of which no 2P is a divisor
SLOPES = tuple(0.5**h for h in range(1, HEADS + 1))
WINDOW = 19

Attend = Callable[[Any, Any, Any], Any]


def model(x: Any, turns: Any, weights: Any, attend: Attend) -> Any:
    """One layer: x [1, tokens, WIDTH] to [1, tokens, HEADS * DIM], with an embedding of positions."""
    projected = (x + turns) @ weights
    q, k, v = projected.unflatten(-1, (-1, DIM)).transpose(1, 2).split([HEADS, *[KV_HEADS] * 2], 1)
    return attend(q, k, v).transpose(1, 2).flatten(2)


def check(scheme: str) -> dict[str, float]:
    """Errors of this rank, in units of the bound: of SDPA and flex, and of the weights' gradients."""
    torch.manual_seed(1)
    x = torch.randn(1, LENGTH, WIDTH).bfloat16()
    turns = torch.randn(LENGTH, WIDTH).bfloat16()
    weights = (torch.randn(WIDTH, (HEADS + 2 * KV_HEADS) * DIM) / WIDTH**0.5).bfloat16()
    do = torch.randn(1, LENGTH, HEADS * DIM).bfloat16()
    slopes = torch.tensor(SLOPES)
    blocks = flex.create_block_mask(_in_window, None, None, LENGTH, LENGTH, device="cpu")
    calls: dict[str, Attend] = {
        "sdpa": lambda q, k, v: functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=True
        ),
        "flex": lambda q, k, v: functions.flex_attention(
            q, k, v, score_mod=mods.alibi(slopes), block_mask=blocks, enable_gqa=True
        ),
    }
    rows = ad.positions(LENGTH)
    found: dict[str, float] = {}
    for name, attend in calls.items():
        exact = weights.double().requires_grad_()
        want = model(x.double(), turns.double(), exact, functools.partial(_exact, name))
        (want * do.double()).sum().backward()
        own, memory, before = weights.clone().requires_grad_(), x.data_ptr(), x.clone()
        given = {"buffers": [x, turns], "seq_dims": [1, 0], "scheme": scheme}
        with ad.context_parallel(None, **given, device="emulator"):
            o = model(x, turns, own, attend)
            (o * do[:, rows]).float().sum().backward()
        dist.all_reduce(own.grad)
        found[name] = _error(o, want[:, rows], 4)
        found[f"{name} gradient"] = _error(own.grad, exact.grad, 8)
        is_back = x.data_ptr() == memory and torch.equal(x, before) and turns.shape[0] == LENGTH
        found[f"{name} restored"] = 0.0 if is_back else float("inf")
    return found


def refused() -> dict[str, str]:
    """The texts of what is refused; after them a context is entered, and left by an error."""
    mesh = dist.device_mesh.init_device_mesh("cpu", (1, 2), mesh_dim_names=("outer", "inner"))
    x, y = torch.ones(8, 3), torch.ones(9, 3)
    q = torch.ones(1, HEADS, 4, DIM).bfloat16()
    sdpa = functional.scaled_dot_product_attention
    texts: dict[str, str] = {}

    def refuse(name: str, call: Callable[[], Any]) -> None:
        try:
            call()
        except AttnError as error:
            texts[name] = str(error)

    def entered(mesh: Any, **options: Any) -> None:
        with ad.context_parallel(mesh, **options):
            texts["entered"] = "a context that must be refused"

    inner = mesh["inner"]
    refuse("mesh", lambda: entered(mesh))
    refuse("dims", lambda: entered(inner, buffers=[x], seq_dims=[2]))
    refuse("count", lambda: entered(inner, buffers=[x]))
    refuse("lengths", lambda: entered(inner, buffers=[x, y], seq_dims=[0, 0]))
    refuse("kept", lambda: entered(inner, buffers=[x], seq_dims=[0], no_restore_buffers=[y]))
    refuse("gradient", lambda: entered(inner, buffers=[y.requires_grad_()], seq_dims=[0]))
    refuse("scheme", lambda: entered(inner, scheme="star"))
    z = torch.ones(8)
    try:
        with ad.context_parallel(
            inner, buffers=[x, z], buffer_seq_dims=[0, 0], no_restore_buffers={z}
        ):
            texts["inside"] = f"{x.shape[0]} {z.shape[0]}"
            refuse("nested", lambda: entered(inner))
            refuse("mask", lambda: functional.scaled_dot_product_attention(q, q, q, q[..., :4]))
            blocks = flex.create_block_mask(_in_window, None, None, 9, 9, device="cpu")
            refuse("blocks", lambda: functions.flex_attention(q, q, q, block_mask=blocks))
            with functions.activate("cpu"):
                refuse("operator", lambda: sdpa(q, q, q))
            raise KeyError
    except KeyError:
        texts["after"] = f"{x.shape[0]} {z.shape[0]}"
    if functional.scaled_dot_product_attention is not sdpa:
        texts["after"] = "PyTorch's function was not restored"
    return texts


def _in_window(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q >= k) & (q - k <= WINDOW)


def _exact(name: str, q: Any, k: Any, v: Any) -> Any:
    """Attention of the whole sequence, [1, heads, tokens, DIM]."""
    k, v = (x.repeat_interleave(HEADS // KV_HEADS, 1) for x in (k, v))
    scores = q @ k.mT / DIM**0.5
    rows, keys = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)[None]
    shown = rows >= keys
    if name == "flex":
        scores = scores - torch.tensor(SLOPES).double()[:, None, None] * (rows - keys).abs()
        shown = _in_window(0, 0, rows, keys)
    return scores.masked_fill(~shown, -torch.inf).softmax(-1) @ v


def _error(found: Any, want: Any, factor: float) -> float:
    scale = max(1.0, want.detach().abs().max().item())
    return ((found.detach() - want.detach()).abs().max() / (factor * ROUNDING * scale)).item()
