"""Caches of 8 bits for sparse latent attention: packed and unpacked, and refused by the caller's names."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.compiling.sparse_mla import SparseMlaSpec
from attn_mlir.dialect.attn.latent.formats import FORMATS
from attn_mlir.errors import SpecError

BF16: Any = ml_dtypes.bfloat16
E4M3: Any = ml_dtypes.float8_e4m3fn
LARGEST, HALF_STEP = 448, 2.0**-4  # of e4m3, and of what its three bits of mantissa leave out


def rows(kv_format: str, count: int = 12) -> np.ndarray[Any, Any]:
    """Rows of many sizes, in pages where the format is."""
    random, columns = np.random.default_rng(0), FORMATS[kv_format].columns
    sizes = np.exp2(random.integers(-6, 6, (count, 1, 1)))
    found = (random.standard_normal((count, 1, columns)) * sizes).astype(BF16)
    return found.reshape(count // 4, 4, 1, columns) if kv_format == "model1" else found


@pytest.mark.parametrize(
    ("kv_format", "group"),
    [("v32", None), ("model1", None), ("e4m3", 128), ("e4m3", 576), ("e4m3_rope16", 32)],
)
def test_unpacked_rows_are_near_to_those_that_were_packed(
    kv_format: str, group: int | None
) -> None:
    form, kv = FORMATS[kv_format], rows(kv_format)
    packed = am.pack_latent(kv, kv_format, group=group)
    assert packed.kv.shape == (*kv.shape[:-1], form.token_bytes)
    found = am.unpack_latent(packed.kv, kv_format, kv_scale=packed.kv_scale)
    assert found.shape == kv.shape and found.dtype == BF16
    given, got = (x.astype(np.float64).reshape(-1, form.columns) for x in (kv, found))
    assert np.array_equal(given[:, form.narrow :], got[:, form.narrow :])
    width = group or form.scales.group
    for first in range(0, form.narrow, width):
        own = slice(first, min(first + width, form.narrow))
        most = np.abs(given[:, own]).max(1, keepdims=True)
        error = np.abs(given[:, own] - got[:, own])
        assert (error <= np.abs(given[:, own]) * HALF_STEP + most / LARGEST / 2).all()


def test_bytes_are_where_flash_mla_has_them() -> None:
    kv = np.zeros((2, 1, 576), BF16)
    kv[1, 0, 128:256], kv[1, 0, 512:] = 3.0, -2.0
    row = am.pack_latent(kv, "v32").kv[1, 0]
    assert (row[128:256].view(E4M3) == E4M3(384)).all() and not row[:128].any()
    assert row[512:528].view(np.float32).tolist() == [2.0**-13, 2.0**-7, 2.0**-13, 2.0**-13]
    assert (row[528:].view(BF16) == BF16(-2)).all()
    pages = np.zeros((2, 3, 1, 512), BF16)
    pages[1, 2, 0, 64:128], pages[1, 2, 0, 448:] = 3.0, -2.0
    packed = am.pack_latent(pages, "model1").kv
    assert packed.strides[0] == 4 * 576  # 3 x 584 bytes, up to a multiple of 576
    page = packed.reshape(2, -1)[1]
    assert (page[2 * 576 + 64 : 2 * 576 + 128].view(E4M3) == E4M3(384)).all()
    assert (page[2 * 576 + 448 : 3 * 576].view(BF16) == BF16(-2)).all()
    least = 127 - 13
    scales = [least, 127 - 7, least, least, least, least, least, 0]
    assert page[3 * 576 + 2 * 8 :].tolist() == scales


def test_without_scales_numbers_end_at_448() -> None:
    kv = np.full((1, 1, 576), -1e4, np.float32)
    packed = am.pack_latent(kv, "e4m3")
    assert packed.kv_scale is None
    assert (am.unpack_latent(packed.kv, "e4m3") == BF16(-LARGEST)).all()


def call(**changed: Any) -> dict[str, Any]:
    """A call over a cache in 8 bits that is right but for what is changed."""
    right = {
        "q": np.zeros((2, 16, 576), BF16),
        "kv": np.zeros((5, 1, 656), np.uint8),
        "indices": np.zeros((2, 3), np.int32),
        "scale": 1.0,
        "kv_format": "v32",
    }
    return right | changed


E4M3_CALL = {"kv_format": "e4m3", "kv": np.zeros((5, 1, 576), np.uint8)}
MODEL1_CALL = {"kv_format": "model1", "q": np.zeros((2, 16, 512), BF16)}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kv": np.zeros((5, 1, 656), BF16)}, "kv must be u8 or i8 or e4m3 .*, got bf16"),
        ({"kv": np.zeros((5, 656), np.uint8)}, r"kv must be \[s_kv, 1, 656\] or .* got \[5, 656\]"),
        (
            {"kv": np.zeros((0, 1, 656), np.uint8)},
            r"with 1 to 2147483647 rows .* got \[0, 1, 656\]",
        ),
        ({"kv": np.zeros((5, 1, 664), np.uint8)[..., :656]}, "begin at multiples of 16 bytes"),
        ({"kv": np.zeros((5, 1, 1312), np.uint8)[..., ::2]}, "last dimension contiguous"),
        ({"kv": np.zeros((2, 4, 1, 656), np.uint8)[:, :3]}, "one behind the other, 1968 .* 2624"),
        (
            {"q": np.zeros((2, 16, 512), BF16)},
            "q must have 576 columns for kv_format 'v32', got 512",
        ),
        ({"kv_scale": np.ones((5, 4), np.float32)}, "kv_scale must be None: .* 'v32' hold their"),
        (
            MODEL1_CALL | {"kv": np.zeros((5, 1, 584), np.uint8)},
            r"kv must be \[pages, page, 1, 584\]",
        ),
        (
            MODEL1_CALL | {"kv": np.zeros((2, 4, 1, 592), np.uint8)[..., :584]},
            "584 bytes from each row of a page to the next .* got 592",
        ),
        (
            MODEL1_CALL | {"kv": np.zeros((2, 3, 1, 584), np.uint8)},
            "begin at multiples of 16 bytes",
        ),
        (
            E4M3_CALL | {"kv_scale": np.ones((5, 4), np.float32)},
            r"n of 1, 2, 3, 5, 9, 18 .* \[5, 4\]",
        ),
        (
            E4M3_CALL | {"kv_scale": np.ones((4, 1), np.float32)},
            r"kv_scale must be \[5, n\] .* \[4, 1\]",
        ),
        ({"q": np.zeros((2, 16, 576), E4M3)}, "q must be bf16 or f16 unless kv_format is 'e4m3'"),
        (
            E4M3_CALL
            | {"q": np.zeros((2, 16, 576), E4M3), "kv_scale": np.ones((5, 1), np.float32)},
            "q must be bf16 or f16 unless kv_format is 'e4m3' without kv_scale, got e4m3 for 'e4m3'",
        ),
        (E4M3_CALL | {"kv_scale": np.ones((5, 1), BF16)}, "kv_scale must be .* of bf16"),
    ],
    ids=str,
)
def test_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        am.sparse_mla(**call(**changed), device="emulator")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"kv_format": "bf16"},
            "kv_format must be one of v32, model1, e4m3, e4m3_rope16, got 'bf16'",
        ),
        ({"group": 128}, "group for kv_format 'v32' must be None or one of none, got 128"),
        ({"kv_format": "e4m3", "group": 100}, "must be None or one of 32, 64, 128, 256, 512, 576"),
        (
            {"kv": np.zeros((5, 1, 576), np.int32)},
            "kv must be of bf16, f16, f32 .*, got i32 on cpu",
        ),
        (
            {"kv": np.zeros((5, 1, 512), BF16)},
            r"kv must be \[s_kv, 1, 576\] or .* got \[5, 1, 512\]",
        ),
        ({"kv_format": "model1"}, r"kv must be \[pages, page, 1, 512\] for .* got \[5, 1, 576\]"),
    ],
    ids=str,
)
def test_packing_refused(changed: dict[str, Any], message: str) -> None:
    right: dict[str, Any] = {"kv": np.zeros((5, 1, 576), BF16), "kv_format": "v32"}
    with pytest.raises(SpecError, match=message):
        am.pack_latent(**(right | changed))


def test_what_a_kernel_is_called() -> None:
    names = {
        "v32": SparseMlaSpec(heads=8, kv_format="v32"),
        "e4m3_by128": SparseMlaSpec(heads=8, kv_format="e4m3", kv_group=128),
        "model1_page64": SparseMlaSpec(heads=8, head_dim=512, kv_format="model1", kv_page=64),
    }
    for name, spec in names.items():
        assert spec.kernel_name == f"attn_sparse_mla_bf16_h8_d{spec.head_dim}_{name}"
    assert SparseMlaSpec(heads=8, dtype="e4m3", kv_format="e4m3").kernel_name.endswith(
        "e4m3_h8_d576"
    )
    wrong = (
        (
            {"dtype": "e4m3"},
            "kv_format must be 'e4m3' without kv_group with dtype 'e4m3', got 'bf16'",
        ),
        ({"kv_format": "model1", "kv_page": 4}, "head_dim must be 512 with kv_format 'model1'"),
        (
            {"kv_format": "v32", "kv_group": 64},
            "kv_group must be None with kv_format 'v32', got 64",
        ),
        ({"kv_format": "v32", "kv_page": 4}, "kv_page must be None with kv_format 'v32', got 4"),
        (
            {"kv_format": "model1", "head_dim": 512},
            "kv_page must be the rows of a page .* got None",
        ),
        (
            {"kv_format": "model1", "head_dim": 512, "kv_page": 4, "page_size": 8},
            "page_size must be kv_page, 4, got 8",
        ),
    )
    for options, message in wrong:
        with pytest.raises(SpecError, match=message):
            SparseMlaSpec(heads=8, **options)
