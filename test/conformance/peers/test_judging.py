"""The judge of conformance runs: right numbers pass, wrong ones fail, for every kind of case."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from attn_mlir.validation.conformance.cases import (
    Attention,
    Case,
    Combine,
    Gemm,
    TritonAttention,
    TritonGemm,
)
from attn_mlir.validation.conformance.judging import DTYPES, judge, operands

Array = npt.NDArray[Any]

CASES: list[Case] = [
    Attention("a", sq=40, sk=70, heads=4, kv_heads=2, head_dim=16, is_causal=True),
    Attention("b", sq=33, sk=33, head_dim=24, head_dim_v=16, window=5, is_causal=True, dtype="f16"),
    Combine("c", splits=6, batch=2, sq=9, heads=2, head_dim=16, empty_splits=2),
    Gemm("d", m=48, n=40, k=64, tile=(128, 128), cluster=(1, 1), batch=2, add=True),
    Gemm("e", m=48, n=40, k=64, tile=(128, 128), cluster=(1, 1), m_major=True, out_dtype="f32"),
    TritonGemm("f", m=32, n=48, k=64, tile=(32, 48, 64)),
    TritonAttention("g", batch=2, heads=2, length=32, head_dim=16, is_causal=True),
]


def attention_by_row(
    q: Array, k: Array, v: Array, case: Attention | TritonAttention
) -> tuple[Array, Array]:
    """[batch, heads, rows, dim] operands; every row on its own, written apart from the judge."""
    batch, heads, rows, dim = q.shape
    keys = k.shape[2]
    window = case.window if isinstance(case, Attention) else None
    o = np.zeros((batch, heads, rows, v.shape[3]))
    lse = np.zeros((batch, heads, rows))
    for b, h, row in np.ndindex(batch, heads, rows):
        kv = h * k.shape[1] // heads
        last = row + keys - rows if case.is_causal else keys - 1
        first = 0 if window is None else max(0, row + keys - rows - window)
        scores = k[b, kv, first : last + 1] @ q[b, h, row] / np.sqrt(dim)
        lse[b, h, row] = np.logaddexp.reduce(scores)
        o[b, h, row] = np.exp(scores - lse[b, h, row]) @ v[b, kv, first : last + 1]
    return o, lse


def solve(case: Case, arrays: dict[str, Array]) -> None:
    """Put the right numbers into the outputs."""
    wide = {name: array.astype(np.float64) for name, array in arrays.items()}
    if isinstance(case, Attention | TritonAttention):
        is_triton = isinstance(case, TritonAttention)
        turn = (0, 1, 2, 3) if is_triton else (0, 2, 1, 3)
        o, arrays["lse"][:] = attention_by_row(*(wide[x].transpose(turn) for x in "qkv"), case)
        arrays["o"][:] = o.transpose(turn)
    elif isinstance(case, Combine):
        lse = np.logaddexp.reduce(wide["lse_partial"], axis=0)
        share = np.exp(wide["lse_partial"] - lse)
        arrays["o"][:] = np.einsum("sbhq,sbqhd->bqhd", share, wide["o_partial"])
        arrays["lse"][:] = lse
    elif isinstance(case, TritonGemm):
        arrays["d"][:] = wide["a"] @ wide["b"]
    else:
        form = "bkm,bkn->bmn" if case.m_major else "bmk,bnk->bmn"
        arrays["d"][:] = np.einsum(form, wide["a"], wide["b"]) + wide.get("c", 0)


@pytest.mark.parametrize("case", CASES, ids=lambda case: type(case).__name__ + case.name)
def test_right_numbers_pass_and_any_wrong_element_fails(case: Case) -> None:
    arrays = operands(case)
    assert [v.wrong for v in judge(case, arrays)] == [v.count for v in judge(case, arrays)]
    solve(case, arrays)
    verdicts = judge(case, arrays)
    assert all(verdict.ok for verdict in verdicts), [str(v) for v in verdicts]
    for name in arrays.keys() & {"o", "d", "lse"}:
        output = arrays[name]
        place = tuple(np.random.default_rng(1).integers(n) for n in output.shape)
        for wrong in (np.nan, np.inf, float(output[place]) + 0.5):
            kept, output[place] = output[place], wrong
            assert sum(verdict.wrong for verdict in judge(case, arrays)) == 1
            output[place] = kept


def test_a_kernel_that_ignores_a_mask_is_wrong() -> None:
    case = Attention("a", sq=64, sk=64, head_dim=16, is_causal=True)
    arrays = operands(case)
    solve(replace(case, is_causal=False), arrays)
    verdicts = judge(case, arrays)
    assert not verdicts[0].ok and not verdicts[1].ok
    assert verdicts[0].wrong < verdicts[0].count  # the last row sees every key


def test_rounding_decides_and_not_luck() -> None:
    case = Gemm("d", m=16, n=64, k=64, tile=(128, 128), cluster=(1, 1))
    arrays = operands(case)
    solve(case, arrays)
    step = np.spacing(np.abs(arrays["d"]).astype(np.float32)) * 2**16  # of bf16
    arrays["d"][:] = arrays["d"].astype(np.float32) + 8 * step
    assert arrays["d"].dtype == DTYPES["bf16"]
    (verdict,) = judge(case, arrays)
    assert verdict.wrong > verdict.count // 20 and verdict.ratio > 2
