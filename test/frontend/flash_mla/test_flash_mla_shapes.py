"""FlashMLA's names with numbers of heads that kernels do not have, gaps between pages, and whole sequences in 8 bits."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.errors import SpecError
from attn_mlir.flash_mla import (
    flash_mla_sparse_fwd,
    flash_mla_with_kvcache,
    flash_mla_with_kvcache_fp8,
    get_mla_metadata,
    get_mla_metadata_dense_fp8,
)
from attn_mlir.reference import mla_decode_f64

BF16: Any = ml_dtypes.bfloat16
E4M3: Any = ml_dtypes.float8_e4m3fn
EMULATOR = am.EmulatorDevice(target="sm_100a")
RANDOM = np.random.default_rng(3)


def normal(*shape: int, dtype: Any = BF16) -> Any:
    return (RANDOM.standard_normal(shape) / 4).astype(dtype)


def close(found: Any, wanted: Any, most: float = 3e-3) -> bool:
    return bool(np.abs(np.asarray(found, np.float64) - wanted).max() < most)


@pytest.mark.parametrize("heads", [1, 9])
def test_any_number_of_heads(heads: int) -> None:
    q, pool = normal(2, 2, heads, 576), normal(3, 64, 1, 576)
    table, lengths = np.array([[2, 0], [1, 1]], np.int32), np.array([70, 9], np.int32)
    sinks = np.linspace(-1, 1, heads).astype(np.float32)
    out, lse = flash_mla_with_kvcache(
        q, pool, table, lengths, 512, get_mla_metadata()[0], attn_sink=sinks, device=EMULATOR
    )
    assert out.shape == (2, 2, heads, 512) and out.flags.c_contiguous and lse.shape == (2, heads, 2)
    for b, rows in enumerate((np.concatenate([pool[2], pool[0]])[:70, 0], pool[1, :9, 0])):
        truth = mla_decode_f64(q[b : b + 1], rows[None, :, None], scale=576**-0.5, sinks=sinks)
        assert close(out[b], truth.o[0]) and close(lse[b], truth.lse[0], 1e-4)
    with pytest.raises(SpecError, match=rf"^attn_sink must be \[{heads}\] of f32, got \[4\]"):
        flash_mla_with_kvcache(
            q, pool, table, lengths, 512, get_mla_metadata()[0], attn_sink=np.zeros(4, np.float32)
        )


def test_any_number_of_heads_of_sparse_prefill() -> None:
    q, kv = normal(2, 3, 576), normal(40, 1, 576)
    indices = RANDOM.integers(-1, 40, (2, 1, 20)).astype(np.int32)
    out, largest, lse = flash_mla_sparse_fwd(q, kv, indices, 0.3, device=EMULATOR)
    truth = mla_decode_f64(q[:, None], kv[:, 0], indices=indices, scale=0.3)
    assert out.shape == (2, 3, 512) and largest.shape == lse.shape == (2, 3)
    assert close(out, truth.o[:, 0]) and close(lse, truth.lse[:, :, 0], 1e-4)


def test_several_heads_of_keys() -> None:
    q, pool = normal(1, 1, 6, 576), normal(2, 64, 2, 576)
    out, lse = flash_mla_with_kvcache(
        q, pool, np.array([[1]], np.int32), np.array([50], np.int32), 512, get_mla_metadata()[0],
        device=EMULATOR,
    )  # fmt: skip
    for head in range(2):
        own = slice(3 * head, 3 * head + 3)
        truth = mla_decode_f64(q[:, :, own], pool[1:, :50, head, None], scale=576**-0.5)
        assert close(out[:, :, own], truth.o) and close(lse[:, own], truth.lse, 1e-4)


@pytest.mark.parametrize("narrow", [False, True])
def test_rows_between_pages(narrow: bool) -> None:
    """As FlashMLA's own test makes them: pages of one row more, whose last is none."""
    q, rows = normal(1, 1, 8, 576), normal(3, 4, 1, 576)
    stored = am.pack_latent(rows, "v32").kv if narrow else rows
    pool = np.full((3, 5, *stored.shape[2:]), 255, stored.dtype)[:, :4]
    pool[:] = stored
    indices = np.array([[[0, 3, 4, 7, 11, -1, 12, 15]]], np.int32)  # the last three are no rows
    out, lse = flash_mla_with_kvcache(
        q, pool, None, None, 512, get_mla_metadata()[0], indices=indices, softmax_scale=0.3,
        is_fp8_kvcache=narrow, device=EMULATOR,
    )  # fmt: skip
    rows = am.unpack_latent(stored, "v32") if narrow else rows
    truth = mla_decode_f64(q, rows.reshape(12, 576), indices=indices[..., :5], scale=0.3)
    assert close(out, truth.o) and close(lse, truth.lse, 1e-4)


def test_gaps_that_are_no_rows_are_refused() -> None:
    memory = np.zeros((3, 4 * 576 + 8), BF16)
    pool = np.lib.stride_tricks.as_strided(memory, (3, 4, 1, 576), (4624, 1152, 1152, 2))
    with pytest.raises(
        SpecError, match="^pages of k_cache must begin a whole number of rows of 576"
    ):
        flash_mla_with_kvcache(
            normal(1, 1, 8, 576), pool, None, None, 512, get_mla_metadata()[0],
            indices=np.zeros((1, 1, 4), np.int32), device=EMULATOR,
        )  # fmt: skip


@pytest.mark.parametrize("wide", [False, True])
def test_whole_sequences_in_8_bits(wide: bool) -> None:
    """Factors are those of the queries and of the rows, which are values as well."""
    q = normal(2, 2, 4, 576, dtype=BF16 if wide else E4M3)
    pool = normal(3, 64, 1, 576, dtype=E4M3)
    table, lengths = np.array([[2, 0], [1, 1]], np.int32), np.array([70, 0], np.int32)
    factors = {} if wide else {"descale_q": np.float32([0.5]), "descale_k": np.float32([3.0])}
    metadata = get_mla_metadata_dense_fp8(lengths, 4, 1)
    out, lse = flash_mla_with_kvcache_fp8(
        q, pool, table, lengths, 512, *metadata, causal=True, **factors, device=EMULATOR
    )
    rows = np.concatenate([pool[2], pool[0]])[:70, 0].astype(np.float64)
    by_q, by_k = (1.0, 1.0) if wide else (0.5, 3.0)
    for query, count in enumerate((69, 70)):
        truth = mla_decode_f64(
            q[:1, query : query + 1].astype(np.float64) * by_q,
            rows[None, :count, None] * by_k,
            scale=576**-0.5,
        )
        assert close(out[0, query], truth.o[0, 0], 0.01)
        assert close(lse[0, :, query], truth.lse[0, :, 0], 0.01)
    assert out.dtype == BF16 and not out[1].any() and bool(np.isposinf(lse[1]).all())


def test_whole_sequences_in_8_bits_are_refused() -> None:
    q, pool = normal(1, 1, 8, 576, dtype=E4M3), normal(1, 64, 1, 576, dtype=E4M3)
    rest = (np.zeros((1, 1), np.int32), np.ones(1, np.int32), 512, None, None)
    for given, message in (
        ((q, pool.astype(BF16)), "^k_cache must be of e4m3, got bf16"),
        ((q[0], pool), "^q must have 4 dimensions"),
        ((q, pool[..., :512]), "^k_cache"),
    ):
        with pytest.raises(SpecError, match=message):
            flash_mla_with_kvcache_fp8(*given, *rest, device=EMULATOR)
    with pytest.raises(SpecError, match=r"^descale_k must be of one element, got \[2\]"):
        flash_mla_with_kvcache_fp8(q, pool, *rest, descale_k=np.ones(2, np.float32))
