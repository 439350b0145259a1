"""`mla_decode` as it is called: what it refuses, by which names, and what it plans."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.api.latent.mla_decode import plan
from attn_mlir.compiling.combination import CombineSpec
from attn_mlir.compiling.mla_decode import MlaDecodeSpec
from attn_mlir.compiling.routes import choice_of
from attn_mlir.compiling.splits import split_count
from attn_mlir.dialect.attn.cache import Cache
from attn_mlir.dialect.attn.lengths import Lengths
from attn_mlir.errors import SpecError
from attn_mlir.reference import mla_decode_f64
from attn_mlir.runtime.devices.idle import IdleDevice
from attn_mlir.runtime.kernel import Machine

BF16 = ml_dtypes.bfloat16
HOPPER = am.EmulatorDevice(target="sm_90a", multiprocessors=4)
TENSOR = am.EmulatorDevice(target="sm_100a")


def zeros(*shape: int, dtype: Any = BF16) -> Any:
    return np.zeros(shape, dtype)


def ints(*shape: int) -> Any:
    return np.zeros(shape, np.int32)


def pages(**changed: Any) -> am.PagedKV:
    """Three pages of 16 rows for each of two sequences."""
    table = np.arange(6, dtype=np.int32).reshape(2, 3)
    given: dict[str, Any] = {"k_pages": zeros(6, 16, 1, 576), "page_table": table}
    return am.PagedKV(**given | changed)


def operands(**changed: Any) -> dict[str, Any]:
    """Two sequences of 2 queries and 48 rows, 16 heads."""
    return {"q": zeros(2, 2, 16, 576), "cache": pages(), "scale": 0.1} | changed


LISTS = ints(2, 2, 8)
PACKED = np.zeros((6, 16, 1, 656), np.uint8)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "rank of q": (
        {"q": zeros(2, 16, 576)},
        r"q must be \[batch, sq, heads, head_dim\], got shape \[2, 16, 576\]",
    ),
    "columns of q": ({"q": zeros(2, 2, 16, 128)}, r"q must have 576 or 512 columns, got 128"),
    "dtype of q": (
        {"q": zeros(2, 2, 16, 576, dtype=np.float32)},
        r"q has dtype f32, allowed are bf16, f16",
    ),
    "heads": ({"q": zeros(2, 2, 12, 576)}, r"heads must be a multiple of 8 up to 1024, got 12"),
    "no cache": (
        {"cache": zeros(2, 48, 1, 576)},
        r"cache must be a PagedKV or a ContiguousKV, got ",
    ),
    "dtype of the cache": (
        {"cache": pages(k_pages=zeros(6, 16, 1, 576, dtype=np.float16))},
        r"k_pages is f16, q is bf16: both must be the same",
    ),
    "columns of the cache": (
        {"q": zeros(2, 2, 16, 512)},
        r"k_pages of a latent cache must have 1 head of 512 columns, got 1 of 576",
    ),
    "values of their own": (
        {"cache": pages(v_pages=zeros(6, 16, 1, 512))},
        r"v_pages must be None: the rows of a latent cache hold keys and values",
    ),
    "scales": (
        {"cache": pages(k_scale=np.ones(1, np.float32))},
        r"k_scale must be None for a latent cache of 16 bits",
    ),
    "batch": ({"q": zeros(3, 2, 16, 576)}, r"page_table has batch 2, q has 3"),
    "pages that are none": (
        {"cache": pages(page_table=np.full((2, 3), 6, np.int32))},
        r"page_table\[0, 0\] is 6: k_pages has pages 0 to 5",
    ),
    "too many rows": (
        {"cache": pages(seqused=np.array([48, 49], np.int32))},
        r"seqused\[1\] is 49: sequence 1 of k_pages has 48",
    ),
    "no scale": ({"scale": None}, r"scale must be a number: it is the model's"),
    "scale": ({"scale": 0.0}, r"scale must be"),
    "mask": ({"mask": "causal"}, r"mask 'causal' has no kernel"),
    "shape of sinks": (
        {"sinks": np.zeros(8, np.float32)},
        r"sinks must be \[16\] of f32, got \[8\] of f32",
    ),
    "dtype of sinks": ({"sinks": zeros(16)}, r"sinks must be \[16\] of f32, got \[16\] of bf16"),
    "parts": ({"num_splits": 257}, r"num_splits must be .*256.*, got 257"),
    "lengths of no lists": (
        {"topk_length": ints(2, 2)},
        r"topk_length is of the lists in indices, which are None",
    ),
    "mask beside lists": (
        {"indices": LISTS, "mask": am.causal()},
        r"mask and indices both say what a query sees, got causal",
    ),
    "rank of lists": (
        {"indices": ints(2, 8)},
        r"indices must be \[2, 2, topk\] of i32 beside this q, got \[2, 8\] of i32",
    ),
    "dtype of lists": (
        {"indices": LISTS.astype(np.int64)},
        r"indices must be \[2, 2, topk\] of i32 beside this q, got \[2, 2, 8\] of i64",
    ),
    "lengths of lists": (
        {"indices": LISTS, "topk_length": ints(2)},
        r"topk_length must be \[2, 2\] of i32 beside this q, got \[2\] of i32",
    ),
    "unknown format": (
        {"kv_format": "e5m2"},
        r"kv_format must be one of bf16, v32, model1, e4m3, e4m3_rope16, got 'e5m2'",
    ),
    "format of sequences": (
        {"cache": pages(k_pages=PACKED), "kv_format": "v32"},
        r"^sm_90a has no kernel: .* rows of 8 bits must be left out",
    ),
    "bytes of sequences": (
        {"kv_format": "v32"},
        r"^k_pages must be \[pages, page, 1, 656\] with 1 to 2147483647 rows for kv_format 'v32', got",
    ),
    "dtype of q beside a format": (
        {"q": zeros(2, 2, 16, 576, dtype=np.float16), "kv_format": "v32"},
        r"^q must be bf16 for kv_format 'v32', got f16",
    ),
    "bytes of further rows": (
        {"cache": pages(k_pages=PACKED), "indices": LISTS, "kv_format": "v32"}
        | {"extra_kv": zeros(6, 16, 1, 576), "extra_indices": LISTS},
        r"^extra_kv must be \[pages, page, 1, 656\] with",
    ),
    "columns of a format": (
        {"indices": LISTS, "kv_format": "model1"},
        r"q must have 512 columns for kv_format 'model1', got 576",
    ),
    "format of a target": (
        {"cache": pages(k_pages=PACKED), "indices": LISTS, "kv_format": "v32"},
        r"^sm_90a has no kernel: .* rows of 8 bits must be left out",
    ),
    "scales of 16 bits": (
        {"indices": LISTS, "kv_scale": np.ones((6, 16, 1), np.float32)},
        r"kv_scale must be None for kv_format 'bf16'",
    ),
    "gaps between pages": (
        {"indices": LISTS, "cache": pages(k_pages=zeros(6, 20, 1, 576)[:, :16])},
        r"k_pages must have its pages one behind the other, 9216 elements from each to the next",
    ),
    "address of rows": (
        {"indices": LISTS, "cache": pages(k_pages=zeros(1, 96, 1, 584)[..., 4:580])},
        r"^k_pages starts at 0x[0-9a-f]+: it must be aligned to 16 bytes",
    ),
    "further rows without lists": (
        {"extra_kv": zeros(6, 16, 1, 576)},
        r"extra_kv needs indices, which are None",
    ),
    "further rows without lists of their own": (
        {"indices": LISTS, "extra_kv": zeros(6, 16, 1, 576)},
        r"extra_indices must say which rows of extra_kv are seen, got None",
    ),
    "lists of no further rows": (
        {"indices": LISTS, "extra_indices": LISTS},
        r"extra_indices is of the rows in extra_kv, which is None",
    ),
    "columns of further rows": (
        {"indices": LISTS, "extra_kv": zeros(6, 16, 1, 512), "extra_indices": LISTS},
        r"extra_kv of a latent cache must have 1 head of 576 columns, got 1 of 512",
    ),
    "rank of further rows": (
        {"indices": LISTS, "extra_kv": zeros(6, 1, 576), "extra_indices": LISTS},
        r"extra_kv must be \[pages, page, 1, columns\], got \[6, 1, 576\]",
    ),
    "lengths of further lists": (
        {
            "indices": LISTS,
            "extra_kv": zeros(6, 16, 1, 576),
            "extra_indices": LISTS,
            "extra_topk_length": ints(2),
        },
        r"extra_topk_length must be \[2, 2\] of i32 beside this q, got \[2\] of i32",
    ),
    "more of a list than it has": (
        {"indices": LISTS, "topk_length": LISTS[..., 0] * 0 + 99},
        r"topk_length\[0, 0\] is 99: lists have \d+ entries, so 0 to \d+ of them can count",
    ),
    "further rows on a target": (
        {"indices": LISTS, "extra_kv": zeros(6, 16, 1, 576), "extra_indices": LISTS},
        r"^sm_90a has no kernel: .* results for parts of the keys must be left out",
    ),
    "shape of out": ({"out": zeros(2, 2, 16, 576)}, r"out"),
    "dtype of out": (
        {"out": zeros(2, 2, 16, 512, dtype=np.float16)},
        r"out has dtype f16, q is bf16: both must be the same",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    changed, told = REFUSED[name]
    with pytest.raises(SpecError, match=told):
        am.mla_decode(**operands(**changed), device=HOPPER)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"head_dim": 128}, r"head_dim must be 576 or 512, got 128"),
        ({"topk_length": True}, r"topk_length is of the lists in indices, got none"),
        (
            {"indices": True, "cache": Cache(page_size=16, pages="table")},
            r"indices name rows of the whole cache: cache and lengths must be left out",
        ),
        ({"lengths": Lengths(used_q=True)}, r"lengths must be those of the cache's sequences"),
        (
            {"cache": Cache(page_size=16, pages="table", scale_dtype="f32", k_groups=1)},
            r"cache must have no scales of positions",
        ),
        ({"partial": True, "sinks": True}, r"partial results exclude sinks"),
        (
            {"joined": True},
            r"joined parts of the keys need schedule mla-decode-streaming, got None",
        ),
        ({"schedule": "mha"}, r"schedule must be one of mla-decode-pair, mla-decode, "),
    ],
)
def test_requests_that_have_no_kernel(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecError, match=told):
        MlaDecodeSpec(**{"heads": 16, **changed})


def test_a_call_is_one_launch_also_of_parts() -> None:
    given = operands(indices=LISTS, device=HOPPER)
    made = plan(**given, num_splits=2, sinks=np.zeros(16, np.float32))
    (step,) = made.steps
    spec = step.request
    assert isinstance(spec, MlaDecodeSpec)
    assert spec.joined and spec.sinks and spec.schedule == "mla-decode-streaming"
    assert spec.kernel_name == "attn_mla_decode_stream_indices_sinks_joined_bf16_h16_d576"
    assert [(x.name, x.shape) for x in made.results] == [
        ("o", (2, 2, 16, 512)),
        ("lse", (2, 16, 2)),
    ]
    assert [(x.name, x.shape) for x in made.workspace] == [
        ("part_sums", (2, 4, 16, 16, 32)),
        ("part_extremes", (2, 2, 4, 1, 16)),
        ("arrived", (4, 1)),
    ]
    assert not plan(**given, num_splits=1).workspace


def test_tensor_memory_has_a_kernel_of_its_own() -> None:
    """One launch, and a second one that puts parts together, which adds the sinks."""
    device, sinks = IdleDevice("sm_100a"), np.zeros(16, np.float32)
    given = operands(device=device, sinks=sinks, indices=LISTS, topk_length=ints(2, 2))
    one = plan(**given, num_splits=1)
    assert [step.request.kernel_name for step in one.steps] == [
        "attn_mla_decode_tensor_indices_topk_length_sinks_bf16_h16_d576"
    ]
    parts = plan(**given, num_splits=3)
    spec, combine = (step.request for step in parts.steps)
    assert isinstance(spec, MlaDecodeSpec) and spec.partial and not spec.sinks
    assert (
        combine.fields()
        == CombineSpec(
            heads=16,
            v_head_dim=512,
            out_dtype="bf16",
            sinks="f32",
            return_lse=True,
            heads_along_rows=True,
            lse_terms=2,
        ).fields()
    )
    assert [(x.name, x.dtype, x.shape) for x in parts.workspace] == [
        ("partial_o", "f32", (6, 2, 16, 512)),
        ("partial_lse", "f32", (2, 6, 16, 2)),
    ]


@pytest.mark.parametrize(
    ("heads", "listed", "tiles"),
    [(64, False, 3), (16, False, 1), (16, True, 3), (24, False, 2), (128, True, 6), (72, False, 6)],
)
def test_work_tiles_of_64_rows(heads: int, listed: bool, tiles: int) -> None:
    """Of three queries of a sequence; 72 heads are three times 24, of which two queries fill a tile."""
    spec = MlaDecodeSpec(heads=heads, indices=listed, schedule="mla-decode")
    sizes = {"batch": 1, "sq": 3, "sk": 100}
    assert choice_of(spec, sizes, Machine("sm_100a", 0)).work_tiles() == tiles


def test_parts_are_chosen_by_sizes() -> None:
    spec = MlaDecodeSpec(heads=128, schedule="mla-decode-streaming")
    machine = Machine("sm_90a", 132)

    def count(batch: int, sk: int, sq: int = 1) -> int:
        sizes = {"batch": batch, "sq": sq, "sk": sk}
        return split_count(0, choice_of(spec, sizes, machine))

    assert count(1, 16384) == 11  # of 8 work tiles of 16 heads, which have room for 16
    assert count(1, 16384, sq=2) == 8
    assert count(64, 16384) == 1
    assert count(1, 512) == 1
    assert count(0, 16384) == 1


def test_lists_for_heads_that_do_not_fill_a_tile() -> None:
    told = "^sm_90a has no kernel: .* mla-decode-streaming: heads must be a multiple of 16, got 24"
    given = operands(indices=LISTS, q=zeros(2, 2, 24, 576))
    with pytest.raises(SpecError, match=told):
        plan(**given, device=HOPPER)


def test_listed_rows_in_order_are_those_of_a_sequence() -> None:
    """Of the reference: a list of all rows of a sequence, with entries that do not count between."""
    random = np.random.default_rng(0)
    q, kv = (random.standard_normal(shape) for shape in ((2, 1, 8, 512), (2, 5, 1, 512)))
    sinks = random.standard_normal(8)
    indices = np.array([[[0, 1, -1, 2, 3, 4, 9]], [[5, 10, 6, 7, 8, 9, 0]]])
    lengths = np.array([[6], [6]])
    given: dict[str, Any] = {"scale": 0.1, "sinks": sinks}
    rows = mla_decode_f64(q, kv, **given)
    listed = mla_decode_f64(q, kv.reshape(10, 512), **given, indices=indices, topk_length=lengths)
    for one, other in ((rows.o, listed.o), (rows.lse, listed.lse)):
        assert np.allclose(one, other, rtol=1e-12)


def test_two_pools_are_two_launches_and_one_that_combines() -> None:
    """Parts of each pool as those of one; twice as many are too many."""
    given = operands(indices=LISTS, extra_kv=zeros(3, 5, 1, 576), extra_indices=ints(2, 2, 3))
    made = plan(**given, num_splits=3, sinks=np.zeros(16, np.float32), device=TENSOR)
    one, other, combine = made.steps
    assert one.request == other.request and not getattr(one.request, "sinks")  # noqa: B009
    assert isinstance(combine.request, CombineSpec) and combine.request.sinks == "f32"
    assert [x.shape for x in made.workspace] == [(12, 2, 16, 512), (2, 12, 16, 2)]
    with pytest.raises(
        SpecError, match="num_splits must be an integer from 0 to 128 with extra_kv"
    ):
        plan(**given, num_splits=129, device=TENSOR)
