"""`attention_backward` on the emulator, element by element against its formula in float64."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import attn_mlir as am
from attn_mlir.compiling.backward.gradients import DeltaSpec
from attn_mlir.dialect.attn.lengths import DENSE, Lengths
from attn_mlir.masks import Mask
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.validation.numerics import gradients as cases
from attn_mlir.validation.numerics.gradients import NUMPY, called, draw, gradients
from attn_mlir.validation.numerics.mha_check import poisoned

RAGGED = Lengths(ragged_q=True, ragged_k=True)
everywhere = pytest.mark.parametrize("target", cases.TARGETS)
judge = partial(cases.judge, by=called)


@everywhere
@pytest.mark.parametrize(
    ("heads", "sizes", "mask", "dtype", "lengths", "with_dlse"),
    [
        ((2, 1, 64, 64), [(130, 70), (130, 70)], am.causal(), "bf16", DENSE, True),
        ((4, 2, 40, 64), [(100, 140)], am.sliding_window(60, 30), "f16", DENSE, False),
        ((3, 3, 64, 128), [(70, 40)], am.causal() | am.prefix_lm(9), "f16", DENSE, True),
        ((4, 1, 64, 64), [(0, 70), (90, 130), (65, 0), (1, 1)], am.causal(), "bf16", RAGGED, True),
        ((2, 2, 32, 32), [(40, 70), (90, 20)], am.full(), "bf16", Lengths(ragged_k=True, used_q=True), True),
        ((2, 1, 64, 64), [(100, 70), (40, 130), (0, 65)], am.causal(), "f16", Lengths(used_q=True, used_k=True), False),
    ],
    ids=["causal", "window", "prefix", "ragged", "ragged keys", "used"],
)  # fmt: skip
@pytest.mark.long(
    but=(
        "causal-sm_90a",
        "window-sm_100a",
        "prefix-sm_90a",
        "ragged-sm_100a",
        "ragged keys-sm_90a",
        "used-sm_100a",
    )
)
def test_gradients(
    heads: tuple[int, int, int, int],
    sizes: list[tuple[int, int]],
    mask: Mask,
    dtype: str,
    lengths: Lengths,
    with_dlse: bool,
    target: str,
) -> None:
    """Causal masks have rows that see no key, whose LSE has an infinite gradient."""
    request, scale = gradients(*heads, mask, dtype, lengths=lengths), heads[2] ** -0.5
    given = [draw(request, *x, scale, n, with_dlse=with_dlse) for n, x in enumerate(sizes)]
    judge(request, given, scale, target=target)


@everywhere
@pytest.mark.long("sm_90a")  # as of tests of the fused kernel
def test_after_our_own_attention(target: str) -> None:
    """O and LSE of a kernel in place of those of the formula."""
    request = gradients(4, 2, 64, 64, am.causal())
    one = draw(request, 100, 100, 0.125, 1, with_dlse=False)
    q, k, v, do = (getattr(one, name)[None] for name in ("q", "k", "v", "do"))
    device = EmulatorDevice(target=target)
    o, lse = am.attention(q, k, v, mask=request.mask, return_lse=True, device=device)
    found = am.attention_backward(q, k, v, o, lse, do, mask=request.mask, device=device)
    true = am.reference.attention_backward_f64(q, k, v, o, lse, do, mask=request.mask)
    for got, wanted, expected in zip(
        found[:3], true[:3], cases.expected(request, one, 0.125).values(), strict=True
    ):
        # O is rounded once more than in the formula, LSE is of f32
        assert np.all(np.abs(got[0].astype(np.float64) - wanted[0]) <= 2 * expected.bound)


def test_the_keys_of_one_shard() -> None:
    """With O and LSE of all keys, gradients of shards of the keys are those of the whole."""
    request = gradients(2, 1, 64, 64)
    whole = draw(request, 70, 140, 0.125, 4)
    q, k, v, o, do, lse, dlse = (
        getattr(whole, name)[None] for name in ("q", "k", "v", "o", "do", "lse", "dlse")
    )
    parts = [
        am.attention_backward(q, k[:, i], v[:, i], o, lse, do, dlse=dlse, device="emulator")
        for i in (np.s_[:80], np.s_[80:])
    ]
    bounds = cases.expected(request, whole, 0.125)
    found = {
        "dq": sum(x.dq.astype(np.float64) for x in parts),
        **{name: np.concatenate([getattr(x, name) for x in parts], 1) for name in ("dk", "dv")},
    }
    for name, got in found.items():
        true, bound = bounds[name]
        assert np.all(np.abs(got[0].astype(np.float64) - true) <= 4 * bound), name


@everywhere
@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "with_dlse"),
    [(45, 64, "bf16", True), (1, 40, "f16", False), (33, 128, "f16", True), (130, 8, "bf16", True)],
)
def test_delta(rows: int, columns: int, dtype: str, with_dlse: bool, target: str) -> None:
    """In f32, and 0 for a row that sees no key, whatever the gradient of its LSE is."""
    spec = DeltaSpec(heads=3, v_head_dim=columns, dtype=dtype, dlse="f32" if with_dlse else None)
    kernel = am.load(am.compile(spec, target=target))
    random = np.random.default_rng(columns)
    o, do = (random.standard_normal((2, rows, 3, columns)).astype(NUMPY[dtype]) for _ in range(2))
    lse, dlse = (random.standard_normal((2, 3, rows)).astype(np.float32) for _ in range(2))
    lse[0, 1, rows // 2], dlse[0, 1, rows // 2] = -np.inf, np.inf
    delta: NDArray[Any] = poisoned(lse.shape, lse.dtype)
    tensors = {"o": o, "do": do, "lse": lse, "delta": delta}
    tensors |= {"dlse": dlse} if with_dlse else {}
    device = EmulatorDevice("adversarial", 1, multiprocessors=2, target=target, check="all")
    kernel.launch(tensors, device=device)
    products = (o.astype(np.float64) * do.astype(np.float64)).transpose(0, 2, 1, 3)
    wanted = products.sum(3) - (dlse if with_dlse else 0.0)
    wanted[0, 1, rows // 2] = 0.0
    bound = 2.0**-22 * (columns + 1) ** 0.5 * (np.abs(products).sum(3) + np.abs(wanted))
    assert np.all(np.abs(delta - wanted) <= bound)
