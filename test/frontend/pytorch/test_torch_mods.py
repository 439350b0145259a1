"""Modifiers and predicates in PyTorch's own style, from its documentation, unchanged: they trace to what they say."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")
flex: Any = pytest.importorskip("torch.nn.attention.flex_attention")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402 # pyright: ignore

import attn_mlir as am  # noqa: E402
from attn_mlir import mods  # noqa: E402
from attn_mlir.arrays import host_arrays  # noqa: E402
from attn_mlir.dialect.attn.programs.evaluation import evaluate  # noqa: E402
from attn_mlir.errors import SpecError  # noqa: E402
from attn_mlir.pytorch.call import as_tensor  # noqa: E402
from attn_mlir.torch import flex_attention  # noqa: E402
from attn_mlir.trace import trace  # noqa: E402
from attn_mlir.validation.effects import only_planned  # noqa: E402

BATCH, HEADS, LENGTH = 2, 4, 24
SOFTCAP, WINDOW, WIDTH, KERNEL_SIZE = 20, 5, 6, 3
torch.manual_seed(0)
SCORES = 8 * torch.randn(BATCH, HEADS, LENGTH, LENGTH, dtype=torch.float64)
INDICES = tuple(
    torch.arange(n).reshape([-1 if a == axis else 1 for a in range(4)]).expand(SCORES.shape)
    for axis, n in enumerate(SCORES.shape)
)
alibi_bias = torch.exp2(-torch.arange(1, HEADS + 1) * 8.0 / HEADS)
prefix_length = torch.tensor([3, 10])
document_id = torch.arange(LENGTH) // 7
offsets = torch.arange(0, LENGTH + 7, 7)
bias_table = torch.randn(BATCH, HEADS, LENGTH, LENGTH)
head_gate = torch.tensor([True, False, True, False])


def noop(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score


def relative_positional(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score + (q_idx - kv_idx)


def alibi(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    bias = alibi_bias[h] * (kv_idx - q_idx)
    return score + bias


def soft_cap(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    score = score / SOFTCAP
    score = torch.tanh(score)
    score = score * SOFTCAP
    return score


def causal_bias(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return torch.where(q_idx >= kv_idx, score, -float("inf"))


def soft_capped_causal(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return causal_bias(soft_cap(score, b, h, q_idx, kv_idx), b, h, q_idx, kv_idx)


def additive(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score + bias_table[b, h, q_idx, kv_idx]


def checkerboard(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    score = torch.where(torch.abs(kv_idx - q_idx) % 2 == 1, score * 0.5, score)
    return torch.where(torch.eq(kv_idx, q_idx), score * 2.0, score)


def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx >= kv_idx


def sliding_window_causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    causal_mask = q_idx >= kv_idx
    window_mask = q_idx - kv_idx <= WINDOW
    return causal_mask & window_mask


def prefix_mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return kv_idx <= prefix_length[b]


def document_masking(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return document_id[q_idx] == document_id[kv_idx]


def document_causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    same_doc = document_id[q_idx] == document_id[kv_idx]
    q_logical = q_idx - offsets[document_id[q_idx]]
    kv_logical = kv_idx - offsets[document_id[kv_idx]]
    return same_doc & causal(b, h, q_logical, kv_logical)


def neighbourhood(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    def get_x_y(idx: Any) -> tuple[Any, Any]:
        return idx // WIDTH, idx % WIDTH

    q_x, q_y = get_x_y(q_idx)
    kv_x, kv_y = get_x_y(kv_idx)
    horizontal_mask = (q_x - kv_x).abs() <= KERNEL_SIZE // 2
    vertical_mask = (q_y - kv_y).abs() <= KERNEL_SIZE // 2
    return horizontal_mask & vertical_mask


def gated_heads(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return torch.where(head_gate[h], causal(b, h, q_idx, kv_idx), True)


SCORE_MODS: list[Callable[..., Any]] = [
    noop, relative_positional, alibi, soft_cap, causal_bias, soft_capped_causal, additive,
    checkerboard,
]  # fmt: skip
MASK_MODS: dict[str, Callable[..., Any]] = {
    **{
        mod.__name__: mod
        for mod in (
            causal, sliding_window_causal, prefix_mask, document_masking, document_causal,
            neighbourhood, gated_heads,
        )
    },
    "or_masks": flex.or_masks(prefix_mask, causal),
    "and_masks": flex.and_masks(sliding_window_causal, document_masking),
    "nested": flex.and_masks(flex.or_masks(prefix_mask, causal), document_masking),
    "noop_mask": flex.noop_mask,
}  # fmt: skip


def evaluated(program: Any, arrays: dict[str, Any]) -> Any:
    """What a program makes of all scores."""
    if program is None:  # nothing to do
        return SCORES.numpy(), np.ones(SCORES.shape, bool)
    names = ("batch", "head", "q", "k")
    at = {"score": SCORES.numpy()} | {
        name: index.numpy() for name, index in zip(names, INDICES, strict=True)
    }
    made = evaluate(program, at, host_arrays(arrays))
    return made.score, made.kept


@pytest.mark.parametrize("mod", SCORE_MODS, ids=lambda mod: mod.__name__)
def test_score_mods(mod: Callable[..., Any]) -> None:
    score, _ = evaluated(*trace(mod))
    truth = mod(SCORES, *INDICES).numpy()
    np.testing.assert_allclose(np.broadcast_to(score, truth.shape), truth, rtol=1e-6)


@pytest.mark.parametrize("name", MASK_MODS)
def test_mask_mods(name: str) -> None:
    mod = MASK_MODS[name]
    _, kept = evaluated(*trace(None, mod))
    truth = torch.as_tensor(mod(*INDICES)).expand(SCORES.shape).numpy()
    np.testing.assert_array_equal(np.broadcast_to(kept, truth.shape), truth)


@pytest.mark.parametrize(
    "options",
    [
        lambda: {"score_mod": mods.softcap(2.0)},
        lambda: {"score_mod": mods.compose(mods.softcap(2.0), mods.softcap(3.0))},
        lambda: {"mask_mod": mods.not_mask(mods.or_masks(mods.causal_from_top, causal))},
    ],
    ids=["softcap", "compose", "masks"],
)
def test_functions_of_mods_are_made_inside_a_graph(
    options: Callable[[], dict[str, Any]], graphs_afresh: None
) -> None:
    def call(q: Any) -> Any:
        return am.attention(q, q, q, **options())

    q = torch.zeros(1, 5, 2, 64, dtype=torch.bfloat16)
    with only_planned() as plans:
        torch.compile(call, fullgraph=True, backend="eager")(q)
        call(q)
    ours, eager = ({step.request.canonical_json() for step in plan.steps} for plan in plans)
    assert ours == eager


def test_captured_arrays_of_numpy_reach_the_operator_as_tensors() -> None:
    """Also bfloat16, which numpy's DLPack does not export; none is copied."""
    numbers = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    for array in (
        numbers,
        numbers.astype(ml_dtypes.bfloat16),
        np.broadcast_to(numbers[:1], (2, 3)),
    ):
        tensor = as_tensor(array, 3)
        assert tensor.shape == (2, 3, 1) and tensor.data_ptr() == array.ctypes.data
        np.testing.assert_array_equal(tensor[..., 0].float().numpy(), array.astype(np.float32))


class Watched(TorchDispatchMode):
    """Sees the operators that are called."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return function(*args, **(kwargs or {}))


def test_captured_arrays_that_run_backwards_are_refused_before_pytorch_sees_them() -> None:
    """PyTorch ends the process that imports one by DLPack; operators take tensors alone."""
    q = torch.zeros(1, 2, 4, 64).bfloat16()
    backwards = np.arange(4.0, dtype=np.float32)[::-1]
    for mode, message in (
        (contextlib.nullcontext(), r"backwards has strides \[-1, 1\]: negative strides must go"),
        (Watched(), r"has strides \[-4\] in bytes: PyTorch has no negative ones"),
    ):
        with mode, pytest.raises(SpecError, match=message):
            flex_attention(q, q, q, lambda s, b, h, i, j: s + backwards[j])
