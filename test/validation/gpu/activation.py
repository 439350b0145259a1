"""Checks that PyTorch's own calls of attention are ours while they are activated, in a whole model.

    python3 -m attn_mlir.validation.gpu.run build/gpu-bundles.zip --only activated

The model is a decoder of 1.7 billion random weights. Its outputs and gradients are compared with
those of the same model in float32; PyTorch's attention in bf16 is the yardstick. Times are medians
of `REPEATS` passes of the whole model, with PyTorch's flash attention and with ours in turn.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import attn_mlir as am
from attn_mlir.errors import SpecError
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.validation.gpu.check import HOPPER, Machine, check, module, refused
from attn_mlir.validation.gpu.gradients import MULTIPROCESSORS, steps_of_gradients

LAYERS, WIDTH, HEADS, KV_HEADS, DIM, HIDDEN = 8, 4096, 32, 8, 128, 14336
BATCH, TOKENS = 2, 4096
LENGTHS = (4096, 3001, 1234, 77)  # of sequences in one row
REPEATS = 10
YARDSTICK = 2.0  # ours may be as many times as far off as PyTorch's


@dataclass(frozen=True)
class Call:
    """One way to call attention.

    Attributes:
      name: shown.
      kv_heads: heads of keys and values.
      lengths: of the sequences in one row; empty for a batch.
    """

    name: str
    kv_heads: int
    lengths: tuple[int, ...] = ()


CALLS = (
    Call("scaled_dot_product_attention", HEADS),
    Call("scaled_dot_product_attention, grouped heads", KV_HEADS),
    Call("scaled_dot_product_attention, jagged", HEADS, LENGTHS),
    Call("varlen_attn, grouped heads", KV_HEADS, LENGTHS),
)


def _asks(target: str) -> None:
    bfloat16 = module("ml_dtypes").bfloat16
    device = EmulatorDevice(target=target, multiprocessors=MULTIPROCESSORS)
    for call in CALLS:
        rows = (sum(call.lengths),) if call.lengths else (BATCH, TOKENS)
        shapes = [(*rows, heads, DIM) for heads in (HEADS, call.kv_heads, call.kv_heads, HEADS)]
        options: dict[str, Any] = {"mask": am.causal()}
        if call.lengths:
            offsets = np.cumsum((0, *call.lengths)).astype(np.int32)
            options |= {f"cu_seqlens_{x}": offsets for x in "qk"}
            options |= {f"max_seqlen_{x}": max(call.lengths) for x in "qk"}
        operands = [np.zeros(shape, bfloat16) for shape in shapes]
        for step in steps_of_gradients(operands, options, device):
            am.compile(step.request, target=target)


class _Model:
    """A decoder, whose attention is a function of q, k and v [batch, positions, heads, head_dim]."""

    def __init__(self, torch: Any, kv_heads: int):
        self.torch, self.kv_heads = torch, kv_heads
        torch.manual_seed(0)
        width = (HEADS + 2 * kv_heads) * DIM
        shapes = ((width, WIDTH), (WIDTH, HEADS * DIM), (2 * HIDDEN, WIDTH), (WIDTH, HIDDEN))
        self.layers = [
            [
                (torch.randn(shape, device="cuda") * shape[1] ** -0.5).bfloat16().requires_grad_()
                for shape in shapes
            ]
            for _ in range(LAYERS)
        ]

    def __call__(self, x: Any, attend: Callable[..., Any]) -> Any:
        functional = self.torch.nn.functional
        for weights in self.layers:
            mix, out, up, down = (w.to(x.dtype) for w in weights)
            heads = functional.linear(functional.rms_norm(x, (WIDTH,)), mix)
            heads = heads.unflatten(-1, (-1, DIM))
            o = attend(*heads.split((HEADS, self.kv_heads, self.kv_heads), -2))
            x = x + functional.linear(o.flatten(-2), out)
            gate, value = functional.linear(functional.rms_norm(x, (WIDTH,)), up).chunk(2, -1)
            x = x + functional.linear(functional.silu(gate) * value, down)
        return x

    def trained(self, x: Any, attend: Callable[..., Any]) -> list[Any]:
        """The outputs, and the gradients of all weights."""
        y = self(x, attend)
        weights = [w for layer in self.layers for w in layer]
        found = self.torch.autograd.grad(y.float().square().mean(), weights)
        return [y.detach(), *found]


def _attention(torch: Any, call: Call) -> Callable[..., Any]:
    """Causal attention by PyTorch's function for a kind of call."""
    sdpa = torch.nn.functional.scaled_dot_product_attention
    offsets = torch.tensor((0, *call.lengths), device="cuda").cumsum(0)

    def dense(*operands: Any) -> Any:
        q, k, v = (x.transpose(1, 2) for x in operands)
        grouped = call.kv_heads != HEADS
        return sdpa(q, k, v, is_causal=True, enable_gqa=grouped).transpose(1, 2)

    def jagged(*operands: Any) -> Any:
        made = torch.nested.nested_tensor_from_jagged
        longest = max(LENGTHS)
        q, k, v = (made(x[0], offsets, max_seqlen=longest).transpose(1, 2) for x in operands)
        return sdpa(q, k, v, is_causal=True).transpose(1, 2).values()[None]

    def packed(*operands: Any) -> Any:
        attend = module("torch.nn.attention.varlen").varlen_attn
        sizes = (offsets.int(), offsets.int(), max(LENGTHS), max(LENGTHS))
        known = inspect.signature(attend).parameters  # which differ from version to version
        has_window = "window_size" in known
        options: dict[str, Any] = {"window_size": (-1, 0)} if has_window else {"is_causal": True}
        if call.kv_heads != HEADS and "enable_gqa" in known:
            options["enable_gqa"] = True
        return attend(*(x[0] for x in operands), *sizes, **options)[None]

    if not call.lengths:
        return dense
    return packed if call.name.startswith("varlen") else jagged


def _truth(torch: Any, call: Call) -> Callable[..., Any]:
    """The same by PyTorch's formula, sequence by sequence and a few heads at a time."""
    lengths = call.lengths or (TOKENS,)

    def attend(q: Any, k: Any, v: Any) -> Any:
        def one(*rows: Any) -> Any:
            operands = (x.transpose(1, 2) for x in rows)
            made = torch.nn.functional.scaled_dot_product_attention(
                *operands, is_causal=True, enable_gqa=call.kv_heads != HEADS
            )
            return made.transpose(1, 2)

        parts = zip(*(x.split(lengths, 1) for x in (q, k, v)), strict=True)
        return torch.cat([one(*part) for part in parts], 1)

    return attend


def _median(torch: Any, passes: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Milliseconds of each pass, in turn."""
    times: dict[str, list[float]] = {name: [] for name in passes}
    for _ in range(REPEATS + 1):
        for name, run in passes.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            torch.cuda.synchronize()
            times[name].append(begin.elapsed_time(end))
    return {name: statistics.median(x[1:]) for name, x in times.items()}


def _far(found: list[Any], truth: list[Any]) -> list[float]:
    """How far results are off, as parts of their norms: of the outputs, and the worst gradient."""
    off = [float((x.float() - y).norm() / y.norm()) for x, y in zip(found, truth, strict=True)]
    return [off[0], max(off[1:])]


def _flash() -> Any:
    """A context in which SDPA has no other backend than flash attention."""
    attention = module("torch.nn.attention")
    return attention.sdpa_kernel(attention.SDPBackend.FLASH_ATTENTION)


def _compared(torch: Any, call: Call) -> bool:
    """Prints tokens a second of a kind of call, and whether ours is as exact as PyTorch's."""
    door = module("attn_mlir.torch")
    model, attend = _Model(torch, call.kv_heads), _attention(torch, call)
    rows = (1, sum(call.lengths)) if call.lengths else (BATCH, TOKENS)
    x = torch.randn(*rows, WIDTH, device="cuda").bfloat16()
    truth = model.trained(x.float(), _truth(torch, call))

    def run(step: Callable[..., Any], name: str) -> Any:
        active = door.activate() if name == "ours" else contextlib.nullcontext()
        with active, _flash():
            return step(x, attend)

    def prefill(x: Any, attend: Any) -> Any:
        with torch.no_grad():
            return model(x, attend)

    off = {name: _far(run(model.trained, name), truth) for name in ("torch", "ours")}
    del truth
    print(f"{call.name}: outputs and gradients are off by {off}", flush=True)
    for title, step in (("prefill", prefill), ("training", model.trained)):
        passes = {name: functools.partial(run, step, name) for name in off}
        times = _median(torch, passes)
        speeds = {name: rows[0] * rows[1] / ms * 1e3 for name, ms in times.items()}
        ratio = speeds["ours"] / speeds["torch"]
        print(
            f"{call.name}, {title}: torch {speeds['torch']:.0f}, ours {speeds['ours']:.0f}, "
            f"{ratio:.3f} as fast",
            flush=True,
        )
    pairs = zip(off["ours"], off["torch"], strict=True)
    return all(ours <= YARDSTICK * theirs + 1e-4 for ours, theirs in pairs)


@check(targets=(HOPPER,), asks=_asks, is_long=True)
def pytorchs_attention_activated(machine: Machine) -> None:
    """SDPA, dense and jagged, and `varlen_attn` in a model of real size, with gradients."""
    torch = module("torch")
    door = module("attn_mlir.torch")
    print(f"torch {torch.__version__}: tokens a second of {LAYERS} layers of width {WIDTH}")
    wrong: list[str] = []
    for call in CALLS:
        try:
            is_right = _compared(torch, call)
        except Exception as error:  # the other calls are looked at
            print(f"{call.name}: {type(error).__name__}: {error}", flush=True)
            is_right = False
        wrong += [] if is_right else [call.name]
    assert not wrong, wrong
    q = torch.zeros(1, HEADS, 128, DIM, device="cuda", dtype=torch.bfloat16)
    with door.activate(), _flash():
        refused(
            lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.5),
            SpecError,
            "dropout_p",
        )
