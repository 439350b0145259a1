"""Modifiers as models and galleries of attention write them, on layers, under no_grad: they trace to what they say."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

from attn_mlir.arrays import host_arrays  # noqa: E402
from attn_mlir.dialect.attn.programs.evaluation import evaluate  # noqa: E402
from attn_mlir.trace import trace  # noqa: E402

nn, F = torch.nn, torch.nn.functional
BATCH, HEADS, LENGTH = 2, 4, 24
torch.manual_seed(0)
SCORES = 4 * torch.randn(BATCH, HEADS, LENGTH, LENGTH, dtype=torch.float64)
INDICES = tuple(
    torch.arange(n).reshape([-1 if a == axis else 1 for a in range(4)]).expand(SCORES.shape)
    for axis, n in enumerate(SCORES.shape)
)


def element_by_element(mod: Callable[..., Any], *operands: Any) -> Any:
    """What a function of numbers makes of tensors."""
    flat = torch.vmap(mod)(*(operand.flatten() for operand in operands))
    return flat.reshape(SCORES.shape)


def check(mod: Callable[..., Any], atol: float = 2e-6) -> None:
    """The program of a score modifier computes what the function does on tensors, but for `atol`."""
    with torch.no_grad():
        program, arrays = trace(mod)
        truth = element_by_element(mod, SCORES, *INDICES).double().numpy()
    assert program is not None
    names = ("batch", "head", "q", "k")
    at = {"score": SCORES.numpy()} | {n: i.numpy() for n, i in zip(names, INDICES, strict=True)}
    made = evaluate(program, at, host_arrays(arrays)).score
    np.testing.assert_allclose(np.broadcast_to(made, truth.shape), truth, rtol=2e-5, atol=atol)


def check_mask(mod: Callable[..., Any]) -> None:
    """The same of a predicate."""
    with torch.no_grad():
        program, arrays = trace(None, mod)
        truth = element_by_element(mod, *INDICES).numpy()
    assert program is not None
    names = ("batch", "head", "q", "k")
    at = {"score": SCORES.numpy()} | {n: i.numpy() for n, i in zip(names, INDICES, strict=True)}
    made = evaluate(program, at, host_arrays(arrays)).kept
    np.testing.assert_array_equal(np.broadcast_to(made, truth.shape), truth)


class Buckets(nn.Module):
    """Bias by logarithmic buckets of distance, learned per head, both directions."""

    def __init__(self, buckets: int = 16, max_distance: int = 20):
        super().__init__()
        self.buckets, self.max_distance = buckets, max_distance
        self.relative_attention_bias = nn.Embedding(buckets, HEADS)

    def bucket(self, distance: Any) -> Any:
        half = self.buckets // 2
        side = (distance > 0).to(torch.long) * half
        distance = torch.abs(distance)
        exact = half // 2
        ratio = torch.log(distance.clamp_min(1).float() / exact) / math.log(
            self.max_distance / exact
        )
        large = exact + (ratio * (half - exact) + 1e-4).to(torch.long)
        large = torch.minimum(large, torch.full_like(large, half - 1))
        return side + torch.where(distance < exact, distance, large)

    def forward(self) -> Callable[..., Any]:
        def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return score + self.relative_attention_bias(self.bucket(kv_idx - q_idx))[..., h]

        return score_mod


class Windows(nn.Module):
    """Bias of windows of an image: a table of offsets, looked up through an index of pairs."""

    def __init__(self, side: int = 4):
        super().__init__()
        self.table = nn.Parameter(torch.randn((2 * side - 1) ** 2, HEADS))
        at = torch.stack(
            torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
        ).flatten(1)
        offset = at[:, :, None] - at[:, None, :] + side - 1
        self.register_buffer("index", (offset[0] * (2 * side - 1) + offset[1]).to(torch.int16))
        self.logit_scale = nn.Parameter(torch.log(10 * torch.ones((HEADS, 1, 1))))

    def forward(self) -> Callable[..., Any]:
        def score_mod(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
            scale = torch.clamp(self.logit_scale[h, 0, 0], max=math.log(100.0)).exp()
            bias = 16 * torch.sigmoid(self.table[self.index[q % 16, k % 16].long()][h])
            return score * scale + bias

        return score_mod


class Decayed(nn.Module):
    """Decay by distance, in the score and as a scale, with a rate per head."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer(
            "gamma", 1 - torch.exp2(-5.0 - torch.arange(HEADS, dtype=torch.float64))
        )
        self.forget = nn.Parameter(torch.randn(BATCH, HEADS, LENGTH))

    def forward(self) -> Callable[..., Any]:
        def score_mod(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
            decay = self.gamma[h] ** (q - k).abs()
            gates = F.logsigmoid(self.forget[b, h, q]) - F.softplus(self.forget[b, h, k])
            return score * decay + gates

        return score_mod


class Rotated(nn.Module):
    """A bias that turns with distance, as rotary embeddings do to a score."""

    # torch rounds an angle of up to 23 to float32, 23 * 2**-24 off, and a score of up to 20 multiplies what follows.
    atol = 20 * 23 * 2.0**-24

    def __init__(self) -> None:
        super().__init__()
        self.rates = nn.ParameterList([nn.Parameter(torch.rand(HEADS)) for _ in range(2)])

    def forward(self) -> Callable[..., Any]:
        def score_mod(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
            angle = (q - k) * self.rates[0][h]
            return score * torch.cos(angle) + torch.sin(angle) * self.rates[1][h]

        return score_mod


class Activated(nn.Module):
    """Scores through activations before the softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.act, self.gate = nn.GELU(approximate="tanh"), nn.SiLU()
        self.slopes = {"alibi": torch.exp2(-torch.arange(1, HEADS + 1) * 8.0 / HEADS)}

    def forward(self) -> Callable[..., Any]:
        def score_mod(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
            capped = 30.0 * torch.tanh(score / 30.0)
            alibi = self.slopes["alibi"][h] * (k - q)
            return self.act(capped) + self.gate(score) * 0.1 + alibi + score.square().log1p()

        return score_mod


@pytest.mark.parametrize("layer", [Buckets, Windows, Decayed, Rotated, Activated])
def test_score_mods_of_layers(layer: Any) -> None:
    check(layer().forward(), getattr(layer, "atol", 2e-6))


class Documents:
    """Masks of packed documents and of caches in pages, from the tensors of a batch."""

    def __init__(self) -> None:
        self.lengths = [7, 5, 12]
        self.ids = torch.repeat_interleave(torch.arange(3), torch.tensor(self.lengths)).to(
            torch.uint8
        )
        self.offsets = torch.tensor([0, 7, 12, 24])
        self.pages = torch.stack([torch.randperm(6), torch.randperm(6)])
        self.seen = torch.tensor([20, 13])
        self.prefix: dict[str, Any] = {"length": torch.tensor([3, 9])}

    def document(self, b: Any, h: Any, q: Any, k: Any) -> Any:
        inner_q, inner_k = q - self.offsets[self.ids[q].long()], k - self.offsets[self.ids[k].int()]
        return (self.ids[q] == self.ids[k]) & (inner_q >= inner_k)

    def paged(self, b: Any, h: Any, q: Any, k: Any) -> Any:
        page = self.pages[b, k // 4]
        logical = page * 4 + k % 4
        return (logical < self.seen[b]) & torch.where(page >= 0, q >= logical, False)

    def prefix_lm(self, b: Any, h: Any, q: Any, k: Any) -> Any:
        return torch.logical_or(k < self.prefix["length"][b], q >= k)

    def dilated(self, b: Any, h: Any, q: Any, k: Any) -> Any:
        return ((q - k).abs() <= 8) & ((q - k) % 2 == 0)

    def neighbourhood(self, b: Any, h: Any, q: Any, k: Any) -> Any:
        (qx, qy), (kx, ky) = divmod(q, 6), divmod(k, 6)
        centre_x, centre_y = qx.clamp(1, 2), torch.clamp(qy, 1, 4)
        return ((centre_x - kx).abs() <= 1) & ((centre_y - ky).abs() <= 1)


@pytest.mark.parametrize("name", ["document", "paged", "prefix_lm", "dilated", "neighbourhood"])
def test_mask_mods_of_objects(name: str) -> None:
    batch = Documents()
    if name == "neighbourhood":  # tensors have no divmod
        program, _ = trace(None, batch.neighbourhood)
        assert program is not None and not program.tensors
        return
    check_mask(getattr(batch, name))
    check_mask(lambda b, h, q, k: getattr(batch, name)(b, h, q, k) & (k > 0))


def test_a_layer_in_inference() -> None:
    """Parameters as operands, as sinks, in modifiers and in closures over the layer."""
    import attn_mlir as am

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query = nn.Parameter(torch.randn(1, 9, 2, 64).bfloat16())
            self.sinks = nn.Parameter(torch.randn(2))
            self.bias = nn.Parameter(torch.randn(2, 9, 12))

        def forward(self, k: Any, v: Any) -> Any:
            def biased(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
                return s + self.bias[h, ...][q, k]

            options = {"sinks": self.sinks, "score_mod": biased, "device": "emulator"}
            return am.attention(self.query, k, v, **options)

    layer = Layer()
    k, v = torch.randn(2, 1, 12, 2, 64).bfloat16()
    with torch.inference_mode():
        o = layer(k, v)
        q, heads_last = layer.query.float().transpose(1, 2), (k.float(), v.float())
        k_first, v_first = (x.transpose(1, 2) for x in heads_last)
        scores = q @ k_first.transpose(2, 3) / 8 + layer.bias
        padded = torch.cat([scores, layer.sinks[None, :, None, None].expand(1, 2, 9, 1)], -1)
        truth = (torch.softmax(padded, -1)[..., :-1] @ v_first).transpose(1, 2)
    np.testing.assert_allclose(o.float().numpy(), truth.numpy(), atol=0.02)
    layer(k, v).float().square().sum().backward()
    for own in (layer.query, layer.sinks, layer.bias):
        assert own.grad is not None and bool(own.grad.isfinite().all())
