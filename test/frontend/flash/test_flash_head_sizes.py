"""Head sizes that no kernel has: O, LSE and the default scale are those of the caller's columns."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.errors import SpecError
from attn_mlir.flash import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
from attn_mlir.validation.numerics.flash_formula import check, truth
from attn_mlir.validation.numerics.operands import i32

BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
RANDOM = np.random.default_rng(23)
TABLE, LENGTHS, ENDS = i32([1, 0], [3, 2]), i32(20, 31), i32(0, 2, 5)


def normal(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(BF16)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_dense(library: str) -> None:
    """With values of another size, into memory of the caller."""
    q, k, v = normal(2, 3, 4, 60), normal(2, 20, 2, 60), normal(2, 20, 2, 41)
    room = np.full((2, 3, 4, 50), 7, BF16)
    out = room[..., 3:44]
    given: Any = [q, k, v, out]
    if library == "torch":
        torch: Any = pytest.importorskip("torch")
        given = [torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) for x in given]
    o, lse = flash_attn_func(*given[:3], causal=True, return_lse=True, out=given[3])
    assert o is given[3]
    check((out, lse), truth(list(q), list(k), list(v), causal=True))
    assert (room[..., :3] == 7).all() and (room[..., 44:] == 7).all()


def test_pages() -> None:
    q, pages = normal(5, 4, 60), [normal(4, 16, 2, 60) for _ in range(2)]
    rows = [
        [x[t].reshape(-1, 2, 60)[:n] for t, n in zip(TABLE, LENGTHS, strict=True)] for x in pages
    ]
    want = truth([q[:2], q[2:]], *rows, causal=True, softmax_scale=0.2)
    options: dict[str, Any] = {"causal": True, "return_softmax_lse": True, "softmax_scale": 0.2}
    found = flash_attn_varlen_func(
        q, *pages, ENDS, None, 3, 32, seqused_k=LENGTHS, block_table=TABLE, **options
    )
    check(found, want)
    found = flash_attn_with_kvcache(
        q,
        *pages,
        cu_seqlens_q=ENDS,
        max_seqlen_q=3,
        cache_seqlens=LENGTHS,
        page_table=TABLE,
        **options,
    )
    check(found, want)


def test_elements_of_8_bits_without_factors() -> None:
    """Which kernels have in multiples of 16; factors are 1."""
    q, k, v = (normal(1, n, 2, 72).astype(E4M3) for n in (4, 20, 20))
    o, lse = flash_attn_func(q, k, v, return_lse=True)
    (want,), (total,) = truth([q[0]], [k[0]], [v[0]])
    assert o.shape == q.shape and abs(lse[0] - total).max() < 0.01
    assert abs(o[0].astype(np.float64) - want).max() < 0.1  # P of 8 bits


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"k": normal(1, 5, 2, 64)}, "^k has 64 elements per head, q has 60"),
        ({"out": np.zeros((1, 5, 2, 64), BF16)}, "^out must have shape"),
        ({"out": np.zeros((1, 5, 2, 60), np.float32)}, "^out must"),
        ({"q": normal(1, 5, 2, 300), "k": normal(1, 5, 2, 300)}, "^head_dim 304 has no kernel"),
        ({"q": [1.0]}, "^q must be an array"),
    ],
)
def test_refused(changed: dict[str, Any], message: str) -> None:
    call: dict[str, Any] = dict.fromkeys("qkv", normal(1, 5, 2, 60))
    with pytest.raises(SpecError, match=message):
        flash_attn_func(**{**call, **changed})
