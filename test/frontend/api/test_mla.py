"""`mla` as it is called: what it refuses, by which names, and what it plans."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.api.latent.mla import plan
from attn_mlir.dialect.attn.cache import Cache
from attn_mlir.dialect.attn.lengths import Lengths
from attn_mlir.errors import AttnError, SpecError

BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
WIDE = {"q_nope": 128, "q_rope": 64, "k_nope": 128, "v": 128}  # columns


def zeros(*shape: int, dtype: Any = BF16) -> Any:
    return np.zeros(shape, dtype)


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


def ints(*values: int) -> Any:
    return np.array(values, np.int32)


def operands(**changed: Any) -> dict[str, Any]:
    """Two sequences of 3 queries and 40 keys, two heads."""
    given = {
        "q_nope": zeros(2, 3, 2, 128),
        "q_rope": zeros(2, 3, 2, 64),
        "k_nope": zeros(2, 40, 2, 128),
        "k_rope": zeros(2, 40, 1, 64),
        "v": zeros(2, 40, 2, 128),
        "scale": 0.1,
    }
    return given | changed


def narrow(**changed: Any) -> dict[str, Any]:
    """The operands in 8 bits, with their scales."""
    given = {x: zeros(*y.shape, dtype=E4M3) for x, y in operands().items() if x != "scale"}
    scales = {"q_descale": ones(2, 3, 2), "k_descale": ones(2, 40), "v_descale": ones(1)}
    return given | scales | changed


def pages(**changed: Any) -> am.PagedKV:
    """A latent cache of 16-position pages for these."""
    table = np.arange(6, dtype=np.int32).reshape(2, 3)
    return am.PagedKV(**{"k_pages": zeros(6, 16, 1, 576), "page_table": table} | changed)


def ragged(**changed: Any) -> dict[str, Any]:
    """The same keys as rows of one tensor."""
    rows = {"k_nope": zeros(80, 2, 128), "v": zeros(80, 2, 128), "cu_seqlens_k": ints(0, 40, 80)}
    return rows | {"k_rope": zeros(80, 1, 64)} | changed


WIDE_ROPE = {"q_rope": zeros(2, 3, 2, 64), "k_rope": zeros(2, 40, 1, 64)}
PACKED: dict[str, Any] = {"k_pages": zeros(6, 16, 1, 640, dtype=np.uint8)}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "dtype": (
        {"v": zeros(2, 40, 2, 128, dtype=np.float32)},
        r"v has dtype f32, allowed are bf16, f16, e4m3",
    ),
    "two dtypes": (
        {"k_rope": zeros(2, 40, 1, 64, dtype=np.float16)},
        r"k_rope is f16, q_nope is bf16: all must be the same, or e4m3 under bf16, or bf16 under e4m3",
    ),
    "rope of 8 bits of another kind": (
        {"k_rope": zeros(2, 40, 1, 64, dtype=ml_dtypes.float8_e5m2)},
        r"k_rope has dtype e5m2, allowed are bf16, f16, e4m3",
    ),
    "rope of 8 bits under f16": (
        {x: zeros(2, 3 if x[0] == "q" else 40, 2, n, dtype=np.float16) for x, n in WIDE.items()}
        | {"k_rope": zeros(2, 40, 1, 64, dtype=E4M3)},
        r"k_rope is e4m3, q_nope is f16: all must be the same, or e4m3 under bf16",
    ),
    "scales of rope of 16 bits": (
        {"k_rope_descale": ones(2, 40)},
        r"k_rope_descale is for k_rope of e4m3, got bf16: leave it out",
    ),
    "shape of scales of rope": (
        {"k_rope": zeros(2, 40, 1, 64, dtype=E4M3), "k_rope_descale": ones(2, 1)},
        r"k_rope_descale must be \[2, 40\] of f32, of each position of k_rope, got \[2, 1\] of f32",
    ),
    "dtype of scales of rope": (
        {"k_rope": zeros(2, 40, 1, 64, dtype=E4M3), "k_rope_descale": zeros(2, 40)},
        r"k_rope_descale must be \[2, 40\] of f32, of each position of k_rope, got \[2, 40\] of bf16",
    ),
    "scales of a tensor beside a cache": (
        {"k_rope": pages(k_pages=zeros(6, 16, 1, 576, dtype=E4M3)), "k_rope_descale": ones(2, 40)},
        r"k_rope_descale is for k_rope as a tensor: the cache has k_scale",
    ),
    "scales of a cache for each head": (
        {"k_rope": pages(k_pages=zeros(6, 16, 1, 576, dtype=E4M3), k_scale=ones(1))},
        r"k_scale of a latent cache must be of each position, in pages as k_pages, got shape \[1\]",
    ),
    "scales of values of a cache": (
        {"k_rope": pages(k_pages=zeros(6, 16, 1, 576, dtype=E4M3), v_scale=ones(6, 16, 1, 1))},
        r"v_scale must be None: the rows of a latent cache have k_scale",
    ),
    "scales of other pages": (
        {"k_rope": pages(k_pages=zeros(6, 16, 1, 576, dtype=E4M3), k_scale=ones(5, 16, 1, 1))},
        r"k_scale has 5 pages, k has 6 \(pass scale_table\?\)",
    ),
    "scales of rows of 16 bits": (
        {"k_descale": ones(2, 40)},
        r"k_descale is for operands of e4m3, got bf16: leave it out",
    ),
    "no scales of values": (
        narrow(v_descale=None),
        r"v_descale is missing: e4m3 operands need their scales, 1.0 where there are none",
    ),
    "scales of queries": (
        narrow(q_descale=ones(2, 3, 1)),
        r"q_descale must be \[2, 3, 2\] of f32, of each position and head of q_nope, got \[2, 3, 1\] of f32",
    ),
    "scales of queries of a sequence": (
        narrow(q_descale=ones(2)),
        r"q_descale must be \[2, 3\] of f32, of each position of q_nope, got \[2\] of f32",
    ),
    "scales of keys": (
        narrow(k_descale=ones(2, 2)),
        r"k_descale must be \[2, 40\] of f32, of each position of k_nope, got \[2, 2\] of f32",
    ),
    "scales of rope under 8 bits": (
        narrow(k_rope_descale=ones(2, 40)),
        r"k_rope_descale is for k_rope of e4m3 under bf16: k_descale is of both parts",
    ),
    "size of nope of 8 bits": (
        narrow(q_nope=zeros(2, 3, 2, 64, dtype=E4M3), k_nope=zeros(2, 40, 2, 64, dtype=E4M3)),
        r"nope_dim 64 has no kernel for e4m3: supported are multiples of 128",
    ),
    "two query tiles and claimed tiles": (
        {"k_rope": zeros(2, 40, 1, 64, dtype=E4M3), "query_tiles": 2, "tile_order": "clc"},
        r"tile_order clc has no kernel for k_rope of e4m3 with query_tiles 2: supported is 1",
    ),
    "parts of keys that are no lines": (
        {"num_qk_stages": 4},
        r"num_qk_stages must be a divisor of the 3 lines of 128 bytes of 192 columns of keys, got 4",
    ),
    "parts of nope beside rope that is widened": (
        {
            "q_nope": zeros(2, 3, 2, 192),
            "k_nope": zeros(2, 40, 2, 192),
            "k_rope": zeros(2, 40, 1, 64, dtype=E4M3),
            "num_qk_stages": 2,
        },
        r"a divisor of the 3 lines .* of 192 columns of keys, got 2$",
    ),
    "turns of one softmax group": (
        {"ordered_softmax": True},
        r"ordered_softmax must be 0 with one query tile, got True",
    ),
    "rank of queries": (
        {"q_nope": zeros(3, 2, 128)},
        r"q_nope must be \[batch, sequence, heads, head_dim\], got shape \[3, 2, 128\] "
        r"\(pass cu_seqlens_q\?\)",
    ),
    "rope of queries": (
        {"q_rope": zeros(2, 3, 1, 64)},
        r"q_rope must agree with q_nope but for its columns, got \[2, 3, 1, 64\] and \[2, 3, 2, 128\]",
    ),
    "columns of nope": (
        {"k_nope": zeros(2, 40, 2, 64)},
        r"k_nope must agree with q_nope in its columns, got \[2, 40, 2, 64\] and \[2, 3, 2, 128\]",
    ),
    "heads of rope": (
        {"k_rope": zeros(2, 40, 2, 64)},
        r"k_rope must be \[2, 40, 1, 64\], one head of the positions of k_nope and the columns of q_rope",
    ),
    "values": (
        {"v": zeros(2, 41, 2, 128)},
        r"v must agree with k_nope but for its columns, got \[2, 41, 2, 128\] and \[2, 40, 2, 128\]",
    ),
    "batch": ({"q_nope": zeros(3, 3, 2, 128)}, r"k_nope has batch 2, q_nope has 3"),
    "heads": (
        {"k_nope": zeros(2, 40, 3, 128), "v": zeros(2, 40, 3, 128)},
        r"kv_heads must divide heads, got heads = 2 and kv_heads = 3",
    ),
    "no heads": (
        {"q_nope": zeros(2, 3, 0, 128), "q_rope": zeros(2, 3, 0, 64)},
        r"q_nope has 0 heads: shape \[2, 3, 0, 128\]",
    ),
    "size of nope": (
        {"q_nope": zeros(2, 3, 2, 96), "k_nope": zeros(2, 40, 2, 96)},
        r"nope_dim 96 has no kernel: supported are multiples of 64 up to 256 \(pad to 128\?\)",
    ),
    "sizes together": (
        {"q_nope": zeros(2, 3, 2, 256), "k_nope": zeros(2, 40, 2, 256)},
        r"nope_dim 256 and rope_dim 64 have no kernel: together they may be up to 256, got 320",
    ),
    "no scale": ({"scale": None}, r"scale must be a number: it is the model's"),
    "scale": ({"scale": 0.0}, r"scale must be"),
    "tile order": ({"tile_order": "ragged"}, r"tile_order ragged needs queries by cu_seqlens_q"),
    "offsets": (
        ragged(cu_seqlens_k=ints(0, 50, 90)),
        r"cu_seqlens_k goes from 0 to 90: k_nope has rows 0 to 80",
    ),
    "out": ({"out": zeros(2, 3, 2, 64)}, r"out"),
    "values of a cache": (
        {"k_rope": pages(v_pages=zeros(6, 16, 1, 576))},
        r"v_pages must be None: the rows of a latent cache hold keys and values",
    ),
    "rows of a cache": (
        {"k_rope": pages(k_pages=zeros(6, 16, 1, 512))},
        r"k_pages of a latent cache must have 1 head of 576 columns, got 1 of 512",
    ),
    "heads of a cache": (
        {"k_rope": am.ContiguousKV(zeros(2, 40, 2, 576), None, None)},
        r"k of a latent cache must have 1 head of 576 columns, got 2 of 576",
    ),
    "scales of a cache": (
        {"k_rope": pages(k_scale=np.ones(1, np.float32))},
        r"k_scale must be None for a latent cache of 16 bits",
    ),
    "tables of a cache": (
        {"k_rope": pages(page_table=np.zeros((2, 2, 3), np.int32))},
        r"page_table of a latent cache must be \[batch, columns\]",
    ),
    "dtype of a cache": (
        {"k_rope": pages(k_pages=zeros(6, 16, 1, 576, dtype=np.float16))},
        r"k_pages is f16, q_nope is bf16",
    ),
    "batch of a cache": (
        {"k_rope": pages(page_table=np.zeros((3, 3), np.int32))},
        r"page_table has batch 3, q_nope has 2",
    ),
    "pages that are none": (
        {"k_rope": pages(page_table=np.full((2, 3), 6, np.int32))},
        r"page_table\[0, 0\] is 6: k_pages has pages 0 to 5",
    ),
    "rope of 16 bits of keys alone": (
        narrow(k_rope=zeros(2, 40, 1, 64)),
        r"k_rope is bf16, q_rope is e4m3: beside q_nope of e4m3 both must be the same",
    ),
    "rope of f16 beside 8 bits": (
        narrow(q_rope=zeros(2, 3, 2, 64, dtype=np.float16)),
        r"q_rope is f16, q_nope is e4m3: all must be the same, or bf16 under e4m3",
    ),
    "nope of keys of 16 bits beside 8": (
        narrow(k_nope=zeros(2, 40, 2, 128)),
        r"k_nope is bf16, q_nope is e4m3: all must be the same$",
    ),
    "too many columns of rope of 16 bits": (
        narrow(q_rope=zeros(2, 3, 2, 80), k_rope=zeros(2, 40, 1, 80)),
        r"together they may be up to 256, columns of bf16 twice, got 288",
    ),
    "queries claimed with rope of 16 bits beside 8": (
        narrow(**WIDE_ROPE, tile_order="clc", query_tiles=2),
        r"tile_order clc has no kernel for q_nope of e4m3 with query_tiles 2: supported is 1",
    ),
    "a format of a tensor": (
        {"kv_format": "v32"},
        r"kv_format is for k_rope in a cache, got 'v32' for a tensor",
    ),
    "a format whose rope has 8 bits": (
        {"k_rope": pages(), "kv_format": "e4m3"},
        r"kv_format of k_rope must be one of bf16, v32, model1, e4m3_rope16, got 'e4m3'",
    ),
    "no format": (
        {"k_rope": pages(), "kv_format": 640},
        r"kv_format of k_rope must be one of bf16, v32, model1, e4m3_rope16, got 640",
    ),
    "rows of another format": (
        {"k_rope": pages(k_pages=zeros(6, 16, 1, 656, dtype=np.uint8)), "kv_format": "e4m3_rope16"},
        r"k_pages must be \[pages, page, 1, 640\] .* for kv_format 'e4m3_rope16', got \[6, 16, 1, 656\]",
    ),
    "columns of a format": (
        {"k_rope": pages(), "kv_format": "v32"},
        r"k_pages must be \[pages, page, 1, 656\] with .* got \[6, 16, 1, 576\]",
    ),
    "scales of a format": (
        {"k_rope": PACKED | {"k_scale": ones(6, 16, 1, 1)}, "kv_format": "e4m3_rope16"},
        r"k_scale must be None for a latent cache of 16 bits",
    ),
    "bf16 of a format under f16": (
        {x: zeros(2, 3 if x[0] == "q" else 40, 2, n, dtype=np.float16) for x, n in WIDE.items()}
        | {"k_rope": PACKED, "kv_format": "e4m3_rope16"},
        r"k_pages is bf16, q_nope is f16: all must be the same",
    ),
    "several scales of rope alone": (
        {"k_rope": pages(k_pages=zeros(6, 16, 1, 64, dtype=E4M3), k_scale=ones(6, 16, 1, 2))},
        r"cache of k_rope must have one scale for its 64 columns of rope, got 2 for 64",
    ),
    "lengths of a cache": (
        {"k_rope": pages(), "seqused_k": ints(1, 1)},
        r"seqused_k is for k_rope as a tensor: the cache has seqused",
    ),
    "more in a cache than keys": (
        {"k_rope": pages(seqused=ints(40, 41))},
        r"k_rope has 41 positions of sequence 1: k_nope has room for 40",
    ),
    "less in a cache than keys": (
        ragged(k_rope=pages(seqused=ints(39, 40))),
        r"k_rope has 39 positions of sequence 0: k_nope has 40",
    ),
    "less room in a cache than keys": (
        {"k_rope": pages(page_table=np.zeros((2, 2), np.int32))},
        r"k_rope has 32 positions of sequence 0: k_nope has 40",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    changed, message = REFUSED[name]
    if isinstance(rows := changed.get("k_rope"), dict):
        changed = changed | {"k_rope": pages(**rows)}
    with pytest.raises(SpecError, match=message):
        plan(**operands(**changed))


def test_an_order_that_the_machine_does_not_have() -> None:
    message = "sm_90a has no kernel: tile_order must be .*, got clc"
    with pytest.raises(SpecError, match=message):
        plan(**operands(tile_order="clc"), device=am.EmulatorDevice(target="sm_90a"))
    for name, value in (("num_qk_stages", 2), ("num_pv_stages", 2), ("ordered_softmax", True)):
        with pytest.raises(SpecError, match=f"sm_90a has no kernel: {name} must be left out"):
            plan(**operands(**{name: value}), device=am.EmulatorDevice(target="sm_90a"))


def test_rope_of_8_bits_where_products_leave_their_sums_in_registers() -> None:
    message = r"k_rope is e4m3: on sm_90a it must be bf16, f16"
    for changed in ({"k_rope": zeros(2, 40, 1, 64, dtype=E4M3)}, narrow()):
        with pytest.raises(SpecError, match=message):
            plan(**operands(**changed), device=am.EmulatorDevice(target="sm_90a"))


def test_rope_of_16_bits_beside_8() -> None:
    """Of tensors or of packed rows; where products leave their sums in registers nope is refused by name."""
    (step,) = plan(**operands(**narrow(**WIDE_ROPE))).steps
    dtypes = {x.name: x.dtype for x in step.request.tensors}
    assert {x: dtypes[x] for x in ("q_nope", "q_rope", "k_nope", "k_rope", "v", "o")} == {
        "q_nope": "e4m3", "q_rope": "bf16", "k_nope": "e4m3", "k_rope": "bf16", "v": "e4m3",
        "o": "bf16",
    }  # fmt: skip
    assert step.request.kernel_name == "attn_mla_null_e4m3_ropebf16_obf16_h2k2_d128r64v128"
    of_rows = narrow(**WIDE_ROPE | {"k_rope": pages(**PACKED)}, kv_format="e4m3_rope16")
    (step,) = plan(**operands(**of_rows)).steps
    assert step.request.rope_alone and step.request.rope_dtype == "bf16"  # pyright: ignore
    with pytest.raises(SpecError, match="q_nope is e4m3: on sm_90a it must be bf16, f16"):
        plan(**operands(**narrow(**WIDE_ROPE)), device=am.EmulatorDevice(target="sm_90a"))


@pytest.mark.parametrize("rope", [{"rope_dtype": "bf16"}, {"rope_dim": 32, "rope_dtype": "bf16"}])
def test_8_bits_are_refused_by_the_schedule_in_registers(rope: dict[str, Any]) -> None:
    """Rope of 16 bits beside e4m3: the refusal names the argument, before anything is planned."""
    spec = am.MlaSpec(**{"heads": 2, "nope_dim": 128, "rope_dim": 64, "dtype": "e4m3"} | rope)
    reason = "mla-registers: q_nope's element type must be bf16 or f16, got e4m3"
    with pytest.raises(AttnError, match=f"has no kernel: {reason}"):
        am.compile(spec, target="sm_90a")


def test_scales_of_rows_are_one_for_each_head() -> None:
    """Whether the caller has one for all heads or not."""
    made = [plan(**operands(**narrow(q_descale=x))).steps[0] for x in (ones(2, 3), ones(2, 3, 2))]
    assert made[0].request == made[1].request
    scales = [step.arguments["q_descale"] for step in made]
    assert [x.shape for x in scales] == [(2, 3, 2, 1)] * 2  # pyright: ignore
    assert [x.strides[2] for x in scales] == [0, 1]  # pyright: ignore
    assert made[0].request.out_dtype == "bf16"  # pyright: ignore


def test_scales_of_rope_in_pages_of_their_own() -> None:
    cache = pages(
        k_pages=zeros(6, 16, 1, 576, dtype=E4M3),
        k_scale=np.ones((9, 16, 1, 2), np.float16),
        scale_table=np.arange(6, dtype=np.int32).reshape(2, 3),
    )
    (step,) = plan(**operands(k_rope=cache, tile_order="clc")).steps
    assert step.request == am.MlaSpec(
        heads=2, nope_dim=128, rope_dim=64, rope_dtype="e4m3", query_tiles=1, tile_order="clc",
        cache=Cache(16, "table", scale_dtype="f16", k_groups=2, v_groups=2, own_scale_table=True),
        return_lse=False,
    )  # fmt: skip
    scales = step.request.operand("k_rope_descale")
    assert scales is not None and scales.extents == ("k_rope_descale_0", 16, 1, 2)


@pytest.mark.parametrize(
    ("name", "bytes_of", "at"), [("e4m3_rope16", 640, 512), ("v32", 656, 528), ("model1", 584, 448)]
)
def test_rope_of_packed_rows_is_read_where_it_lies(name: str, bytes_of: int, at: int) -> None:
    """Of MODEL1's pages the scales lie behind the rows."""
    pool = zeros(6, 16, 1, bytes_of, dtype=np.uint8)
    (step,) = plan(**operands(k_rope=pages(k_pages=pool), kv_format=name)).steps
    rope: Any = step.arguments["k_rope"]
    row = 576 if name == "model1" else bytes_of
    assert (rope.dtype, rope.shape) == ("bf16", (6, 16, 1, 64))
    assert rope.address == pool.ctypes.data + at
    assert [2 * x for x in rope.strides[:2]] == [16 * bytes_of, row]
    alone = plan(**operands(k_rope=pages(k_pages=zeros(6, 16, 1, 64)))).steps[0]
    assert step.request == alone.request
    assert step.request.operand("k_rope").extents == ("pages", 16, 1, 64)  # pyright: ignore
    assert "attn_mla_null_roperowsp16_bf16" in step.request.kernel_name


def test_an_output_of_f32_that_shared_memory_has_no_room_for() -> None:
    with pytest.raises(SpecError, match="out_dtype f32 needs v_head_dim of at most 192, got 256"):
        plan(**operands(v=zeros(2, 40, 2, 256), out_dtype="f32"))


def test_the_plan_is_one_launch() -> None:
    made = plan(**operands(k_rope=pages(seqused=ints(40, 7)), mask=am.causal(), return_lse=True))
    (step,) = made.steps
    assert step.request == am.MlaSpec(
        heads=2, nope_dim=128, rope_dim=64, mask=am.causal(), query_tiles=1,
        lengths=Lengths(used_k=True), cache=Cache(page_size=16, pages="table"),
    )  # fmt: skip
    assert [(x.name, x.shape) for x in made.results] == [("o", (2, 3, 2, 128)), ("lse", (2, 2, 3))]
    assert "attn_mla_causal_latentp16_uk_bf16_h2k2_d128r64v128(q_nope, q_rope" in str(made)


def test_there_is_no_scale_that_follows_from_sizes() -> None:
    scale = am.MlaSpec(heads=2, nope_dim=128, rope_dim=64).operand("scale")
    assert scale is not None and scale.default is None
    with pytest.raises(TypeError, match="scale"):
        am.mla(*(x for name, x in operands().items() if name != "scale"))  # pyright: ignore


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "e5m2"},
        {"dtype": "e4m3", "rope_dim": 16},
        {"dtype": "e4m3", "v_head_dim": 40},
        {"dtype": "e4m3", "rope_dtype": "f16"},
        {"dtype": "e4m3", "rope_dtype": "bf16", "rope_dim": 80},
        {"dtype": "e4m3", "rope_dtype": "bf16", "rope_dim": 24},
        {"dtype": "e4m3", "rope_dtype": "bf16", "rope_factors": True},
        {
            "dtype": "e4m3",
            "rope_dtype": "bf16",
            "cache": Cache(16, "table", scale_dtype="f32", k_groups=1, v_groups=1),
        },
        {"dtype": "f16", "rope_dtype": "e4m3"},
        {"rope_dtype": "f16"},
        {"rope_factors": True},
        {"rope_dtype": "e4m3", "rope_factors": True, "cache": Cache(16, "table")},
        {"rope_dtype": "e4m3", "cache": Cache(16, "table", scale_dtype="f32", k_groups=16)},
        {"rope_dim": 40},
        {"rope_dim": 32, "cache": Cache(page_size=16, pages="table")},
        {"cache": Cache(page_size=16, pages="table", scale_dtype="f32", k_groups=1, v_groups=1)},
        {"rope_alone": True},
        {"v_head_dim": 12},
        {"out_dtype": "e4m3"},
    ],
    ids=str,
)
def test_requests_without_a_kernel(options: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        am.MlaSpec(**{"heads": 2, "nope_dim": 128, "rope_dim": 64} | options)


@pytest.mark.parametrize("empty", ["batch", "queries", "keys"])
def test_nothing_of_something(empty: str) -> None:
    """No batch and no queries give no rows, no keys rows of zeros."""
    sizes = {"batch": (0, 3, 40), "queries": (2, 0, 40), "keys": (2, 3, 0)}[empty]
    batch, sq, sk = sizes
    o, lse = am.mla(
        zeros(batch, sq, 2, 128), zeros(batch, sq, 2, 64), zeros(batch, sk, 2, 128),
        zeros(batch, sk, 1, 64), zeros(batch, sk, 2, 128), scale=0.1, return_lse=True,
        device="emulator",
    )  # fmt: skip
    assert o.shape == (batch, sq, 2, 128) and lse.shape == (batch, 2, sq)
    assert not o.astype(np.float32).any() and (lse == -np.inf).all()
