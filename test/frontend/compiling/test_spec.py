"""Requests: what has a kernel, what is refused, and the key they make."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.compiling.options import MAX_HEADS, check_target
from attn_mlir.errors import SpecError, TargetError


def test_defaults() -> None:
    spec = am.mha(heads=8, head_dim=64)
    assert spec == am.MhaSpec(
        heads=8,
        kv_heads=8,
        head_dim=64,
        v_head_dim=64,
        dtype="bf16",
        mask=am.full(),
        out_dtype="bf16",
    )
    assert spec.group == 1


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ("bf16", "bf16"), ("bfloat16", "bf16"), (ml_dtypes.bfloat16, "bf16"),
        (np.dtype(ml_dtypes.bfloat16), "bf16"), ("f16", "f16"), ("float16", "f16"),
        (np.float16, "f16"), (np.dtype("float16"), "f16"), ("float8_e4m3fn", "e4m3"),
        (ml_dtypes.float8_e5m2, "e5m2"), ("torch.float8_e5m2", "e5m2"),
    ],
)  # fmt: skip
def test_dtype_spellings(dtype: object, name: str) -> None:
    assert am.mha(heads=1, head_dim=64, dtype=dtype).dtype == name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 0}, f"heads must be an integer from 1 to {MAX_HEADS}, got 0"),
        ({"heads": MAX_HEADS + 1, "kv_heads": 1}, "heads must be an integer .* got 65537"),
        ({"heads": True}, "heads must be an integer"),
        ({"heads": 2.0}, "heads must be an integer"),
        ({"kv_heads": 0}, "kv_heads must be an integer from 1"),
        ({"kv_heads": -4}, "kv_heads must be an integer from 1"),
        ({"kv_heads": 3}, "kv_heads must divide heads, got heads = 16 and kv_heads = 3"),
        ({"kv_heads": 32}, "kv_heads must divide heads"),
        ({"head_dim": 63}, r"head_dim 63 has no kernel: .* up to 256 \(pad to 64\?\)"),
        ({"head_dim": 65}, r"head_dim 65 .* \(pad to 72\?\)"),
        ({"head_dim": 257}, "head_dim 257 has no kernel: supported are multiples of 8 up to 256$"),
        ({"head_dim": 0}, "head_dim 0 has no kernel"),
        *(
            ({name: value}, f"^{name} ")
            for name in ("heads", "kv_heads", "head_dim", "v_head_dim", "query_tiles", "block")
            for value in (64.0, "64", True, np.True_, 1j, [64], np.ones(2), 10**5000, object, "")
        ),
        *(
            ({name: value}, f"^{name} ")
            for name in ("dtype", "out_dtype", "tile_order", "mask", "lengths", "return_lse")
            for value in (5, 1.0, [], {}, object(), np.zeros(3), b"bf16", "")
        ),
        ({"query_tiles": 1.0}, "query_tiles must be 1, 2 or None, got 1.0"),
        ({"lengths": 5}, "lengths must be a Lengths of .*, got 5"),
        ({"query_tiles": 3}, "query_tiles must be 1, 2 or None, got 3"),
        ({"num_qk_stages": 3}, "num_qk_stages must be 1, 2, 4 or None, got 3"),
        ({"ordered_softmax": 1}, "ordered_softmax must be True or False, got 1"),
        (
            {"ordered_softmax": True, "query_tiles": 1},
            "mha has no kernel: ordered_softmax must be 0 with one query tile, got True",
        ),
        (
            {"ordered_softmax": True, "schedule": "mha-streaming"},
            "schedule mha-streaming has no kernel: ordered_softmax must be left out",
        ),
        ({"num_pv_stages": 0}, "num_pv_stages must be 1, 2, 4 or None, got 0"),
        (
            {"num_pv_stages": 2, "schedule": "mha-swapped"},
            "schedule mha-swapped has no kernel: num_pv_stages must be left out",
        ),
        ({"num_qk_stages": 2.0}, "num_qk_stages must be 1, 2, 4 or None, got 2.0"),
        (
            {"num_qk_stages": 4},
            "mha has no kernel: num_qk_stages must be a divisor of the 2 lines of 128 bytes of 128 "
            "columns of keys, got 4",
        ),
        (
            {"num_qk_stages": 2, "dtype": "e4m3"},
            "a divisor of the 1 lines .* of 128 columns of keys, got 2",
        ),
        (
            {"num_qk_stages": 2, "head_dim": 192},
            "a divisor of the 3 lines .* of 192 columns of keys, got 2",
        ),
        (
            {"num_qk_stages": 1, "schedule": "mha-streaming"},
            "schedule mha-streaming has no kernel: num_qk_stages must be left out",
        ),
        ({"tile_order": "zigzag"}, "tile_order must be one of single, .* or None, got 'zigzag'"),
        ({"tile_order": "ragged"}, "tile_order ragged needs queries by cu_seqlens_q, got none"),
        ({"head_dim": "128"}, "head_dim '128' has no kernel"),
        ({"dtype": "f32"}, "dtype 'f32' has no kernel: supported are bf16, f16, e4m3, e5m2"),
        ({"dtype": "e4m3", "head_dim": 72}, r"head_dim 72 .* multiples of 16 .* \(pad to 80\?\)"),
        ({"dtype": np.float32}, "dtype .* has no kernel"),
        ({"dtype": None}, "dtype None has no kernel"),
        ({"out_dtype": "f64"}, "out_dtype 'f64' has no kernel: supported are bf16, f16, f32"),
        ({"out_dtype": "f32", "head_dim": 200}, "f32 needs v_head_dim of at most 192, got 200"),
        ({"return_lse": 1}, "return_lse must be True or False, got 1"),
        ({"mask": "causal"}, r"mask 'causal' has no kernel: supported are full\(\), causal\(\), "),
        ({"mask": am.Mask}, "mask .* has no kernel"),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    request: dict[str, Any] = {"heads": 16, "head_dim": 128, **changes}
    with pytest.raises(SpecError, match=message):
        am.mha(**request)


def test_integers_of_any_library() -> None:
    numbers: list[Any] = [np.int64(2), np.array(1), np.uint8(64), np.int32(128), np.int16(1)]
    names = ("heads", "kv_heads", "head_dim", "v_head_dim", "query_tiles")
    spec = am.mha(**dict(zip(names, numbers, strict=True)), block=(np.int64(128), 1, 128))  # pyright: ignore
    same = am.mha(
        heads=2, kv_heads=1, head_dim=64, v_head_dim=128, query_tiles=1, block=(128, 1, 128)
    )
    assert spec == same and spec.canonical_json() == same.canonical_json()


def test_a_modifier_is_traced() -> None:
    with pytest.raises(SpecError, match="^modifier must be what attn_mlir.trace.trace returns"):
        am.mha(heads=1, head_dim=64, modifier=max)  # pyright: ignore


def test_canonical_json() -> None:
    text = am.mha(heads=16, kv_heads=4, head_dim=128, mask=am.causal()).canonical_json()
    assert json.loads(text) == {
        "op": "mha", "heads": 16, "kv_heads": 4, "head_dim": 128, "v_head_dim": 128, "dtype": "bf16",
        "kv_dtype": "bf16",
        "mask": "causal", "modifier": None,
        "query_tiles": None, "tile_order": None, "schedule": None, "out_dtype": "bf16",
        "num_qk_stages": None, "num_pv_stages": None,
        "ordered_softmax": False, "return_lse": True, "lengths": [],
        "cache": None, "block": None, "offsets": [],
        "partial": False, "joined": False, "split_size": None,
    }  # fmt: skip
    assert (
        am.mha(heads=16, head_dim=64).canonical_json()
        == (
            am.mha(heads=16, kv_heads=16, head_dim=64, dtype="bfloat16", mask=am.full())
        ).canonical_json()
    )


def test_masks_are_part_of_the_request() -> None:
    def mask_of(mask: am.Mask) -> str:
        return json.loads(am.mha(heads=1, head_dim=64, mask=mask).canonical_json())["mask"]

    both = am.causal() & am.chunked(512)
    assert mask_of(both) == mask_of(am.chunked(512) & am.causal())
    assert mask_of(both) == "causal&chunked:512"
    assert mask_of(am.sliding_window(127)) == "window:127,0"
    assert mask_of(am.sliding_window(None, 0)) == mask_of(am.causal())
    assert mask_of(am.sliding_window(None, None)) == mask_of(am.full())


@pytest.mark.parametrize("target", ["sm_90", "sm_100", "", "sm_120a"])
def test_a_target_that_is_not_known(target: str) -> None:
    with pytest.raises(TargetError, match="is not known: supported are sm_90a, sm_100a"):
        check_target(target)
