"""FlashMLA's decoding on top of `mla_decode`: its arguments, its metadata, what it returns for queries without a key."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.errors import SpecError
from attn_mlir.flash_mla import FlashMLASchedMeta, flash_mla_with_kvcache, get_mla_metadata
from attn_mlir.reference import mla_decode_f64

BF16: Any = ml_dtypes.bfloat16
EMULATOR = am.EmulatorDevice(target="sm_100a")


def given(**changed: Any) -> dict[str, Any]:
    """A call that is right but for what is changed."""
    right: dict[str, Any] = {
        "q": np.zeros((2, 1, 16, 576), BF16),
        "k_cache": np.zeros((3, 64, 1, 576), BF16),
        "block_table": np.zeros((2, 1), np.int32),
        "cache_seqlens": np.ones(2, np.int32),
        "head_dim_v": 512,
        "tile_scheduler_metadata": get_mla_metadata()[0],
    }
    return right | changed


LISTS = np.zeros((2, 1, 5), np.int32)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"head_dim_v": 256}, "head_dim_v must be 512, got 256"),
        ({"num_splits": 4}, "num_splits must be None, got 4"),
        (
            {"tile_scheduler_metadata": None},
            "must be what get_mla_metadata returns first, got None",
        ),
        ({"block_table": None}, "block_table and cache_seqlens must be given without indices"),
        ({"causal": True, "indices": LISTS}, "causal must be False with indices"),
        ({"is_fp8_kvcache": True}, "is_fp8_kvcache True has no kernel: it needs indices"),
        (
            {"is_fp8_kvcache": True, "indices": LISTS},
            r"^k_cache must be \[pages, page, 1, 656\] with 1 to .* 'v32', got \[3, 64, 1, 576\]",
        ),
        ({"extra_k_cache": LISTS}, "extra_k_cache needs indices, which are None"),
        (
            {"extra_k_cache": LISTS, "indices": LISTS},
            "extra_k_cache needs extra_indices_in_kvcache, which are None",
        ),
        (
            {"extra_topk_length": LISTS},
            "extra_topk_length is of the rows in extra_k_cache, which is None",
        ),
        (
            {"extra_k_cache": LISTS, "indices": LISTS, "extra_indices_in_kvcache": LISTS},
            r"extra_k_cache must have 4 dimensions, got \[2, 1, 5\]",
        ),
        ({"topk_length": np.ones(2, np.int32)}, "topk_length is of the lists in indices"),
        (
            {"indices": LISTS, "topk_length": np.ones(2, np.float32)},
            "^topk_length must be of int32, got float32",
        ),
        ({"indices": LISTS, "topk_length": [1, 2]}, "^topk_length must be an array of numpy"),
        ({"q": None}, "q must be a numpy array or have __dlpack__"),
        ({"q": np.ndarray}, "q cannot be exported by DLPack"),
        ({"q": np.zeros((2, 1, 16, 0), BF16)}, "q must have 576 or 512 columns, got 0"),
        ({"k_cache": None}, "k_cache must be a numpy array or have __dlpack__"),
        ({"k_cache": np.zeros((3, 576), BF16)}, r"k_cache must have 4 dimensions, got \[3, 576\]"),
        (
            {"indices": LISTS, "topk_length": np.ones((2, 1), np.int32)},
            r"topk_length must be \[2\], got \[2, 1\]",
        ),
        ({"softmax_scale": float("nan")}, "^softmax_scale must be finite and greater than 0"),
        ({"k_cache": np.zeros((3, 64, 1, 576), np.float16)}, "^k_cache is f16, q is bf16"),
        ({"block_table": np.full((2, 1), 3, np.int32)}, r"^block_table\[0, 0\] is 3: k_cache has"),
        ({"cache_seqlens": np.array([1, 65], np.int32)}, r"^cache_seqlens\[1\] is 65: .* has 64"),
        ({"cache_seqlens": np.array([-1, 1], np.int32)}, "of k_cache has 64, and a length is 0"),
        ({"attn_sink": np.zeros(8, np.float32)}, r"^attn_sink must be \[16\] of f32, got \[8\]"),
        (
            {"k_cache": np.zeros((3, 4, 1, 512), BF16), "indices": LISTS},
            "^k_cache of a latent cache must have 1 head of 576 columns, got 1 of 512",
        ),
        (
            {"indices": LISTS, "extra_k_cache": np.zeros((3, 4, 1, 576), BF16)}
            | {"extra_indices_in_kvcache": LISTS[:1]},
            r"^extra_indices_in_kvcache must be \[2, 1, topk\] of i32 .* got \[1, 1, 5\]",
        ),
        (
            {"indices": LISTS, "extra_k_cache": np.zeros((3, 4, 1, 576), np.float16)}
            | {"extra_indices_in_kvcache": LISTS},
            "^extra_k_cache is f16, q is bf16",
        ),
    ],
)
def test_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        flash_mla_with_kvcache(**given(**changed), device="emulator")


def test_metadata_are_of_calls_of_equal_sizes() -> None:
    """An older form's arguments are not looked at."""
    metadata, splits = get_mla_metadata(np.ones(2, np.int32), 16, 1)
    assert splits is None and metadata == FlashMLASchedMeta()
    metadata.check({"b": 2})
    metadata.config = {"b": 2, "causal": True}
    metadata.check({"b": 2, "causal": True})
    with pytest.raises(SpecError, match="is of calls with b = 2, got 3"):
        metadata.check({"b": 3, "causal": True})


METADATA = {
    "b": 2, "s_q": 1, "h_q": 16, "page_block_size": 64, "h_k": 1, "causal": False,
    "is_fp8_kvcache": False, "topk": 5, "extra_page_block_size": 16, "extra_topk": 3,
}  # fmt: skip


def test_metadata_are_of_every_size_of_a_call() -> None:
    """Each is compared: with another one in the metadata, the call is refused by its name."""
    call = given(
        indices=LISTS,
        extra_k_cache=np.zeros((2, 16, 1, 576), BF16),
        extra_indices_in_kvcache=LISTS[..., :3],
    )
    for name, value in METADATA.items():
        was = not value if isinstance(value, bool) else value + 1
        call["tile_scheduler_metadata"] = FlashMLASchedMeta({**METADATA, name: was})
        with pytest.raises(SpecError, match=f"is of calls with {name} = {was}, got {value}:"):
            flash_mla_with_kvcache(**call)
    call["tile_scheduler_metadata"] = FlashMLASchedMeta(dict(METADATA))
    with pytest.raises(SpecError, match="^device must be"):  # of what follows the comparison
        flash_mla_with_kvcache(**call, device="elsewhere")


def test_a_refused_call_leaves_metadata_as_they_were() -> None:
    call = given(q=np.zeros((2, 1, 1032, 576), BF16))
    with pytest.raises(SpecError, match="heads"):
        flash_mla_with_kvcache(**call, device="emulator")
    assert call["tile_scheduler_metadata"] == FlashMLASchedMeta()


def test_whole_sequences_with_tensors_of_pytorch() -> None:
    """The second of two sequences is empty; the scale is that of head_dim."""
    torch: Any = pytest.importorskip("torch")
    torch.manual_seed(0)
    q, pool = ((torch.randn(shape) / 4).bfloat16() for shape in ((2, 2, 8, 576), (3, 64, 1, 576)))
    table, lengths = (torch.tensor(x, dtype=torch.int32) for x in ([[2, 0], [1, 1]], [70, 0]))
    metadata, splits = get_mla_metadata()
    options: dict[str, Any] = {"causal": True, "device": EMULATOR}
    out, lse = flash_mla_with_kvcache(q, pool, table, lengths, 512, metadata, splits, **options)
    rows = torch.cat([pool[2], pool[0]])[:, 0].float()
    for query, count in enumerate((69, 70)):
        keys = rows[:count]
        scores = 576**-0.5 * (q[0, query].float() @ keys.T)
        assert (out[0, query].float() - torch.softmax(scores, 1) @ keys[:, :512]).abs().max() < 3e-3
        assert (lse[0, :, query] - torch.logsumexp(scores, 1)).abs().max() < 1e-5
    assert not out[1].any() and torch.isposinf(lse[1]).all()
    with pytest.raises(SpecError, match="is of calls with s_q = 2, got 1"):
        flash_mla_with_kvcache(q[:, :1], pool, table, lengths, 512, metadata, **options)


def test_lists_with_lengths_of_sequences() -> None:
    """As `mla_decode` with the same lengths for all queries of a sequence, but for the LSE of none."""
    random = np.random.default_rng(0)
    q, pool = (
        (random.standard_normal(x) / 4).astype(BF16) for x in ((2, 2, 16, 512), (3, 5, 1, 512))
    )
    indices = random.integers(-1, 15, (2, 2, 20)).astype(np.int32)
    lengths, sinks = np.array([13, 0], np.int32), random.standard_normal(16).astype(np.float32)
    call = given(q=q, k_cache=pool, block_table=None, cache_seqlens=None)
    out, lse = flash_mla_with_kvcache(
        **call,
        softmax_scale=0.3,
        indices=indices,
        attn_sink=sinks,
        topk_length=lengths,
        device=EMULATOR,
    )
    cache = am.PagedKV(pool, None, np.zeros((1, 1), np.int32))
    each = np.repeat(lengths[:, None], 2, 1)
    wanted, log = am.mla_decode(
        q, cache, scale=0.3, indices=indices, topk_length=each, sinks=sinks, device=EMULATOR
    )
    assert out.tobytes() == wanted.tobytes()
    assert lse[0].tobytes() == log[0].tobytes() and bool((lse[1] == np.inf).all())


@pytest.mark.parametrize(("columns", "kv_format"), [(576, "v32"), (512, "model1")])
def test_caches_of_8_bits(columns: int, kv_format: str) -> None:
    """As `mla_decode` with the format that belongs to head_dim."""
    random = np.random.default_rng(0)
    q, rows = (
        (random.standard_normal(x) / 4).astype(BF16)
        for x in ((1, 2, 16, columns), (3, 8, 1, columns))
    )
    pool = am.pack_latent(rows, kv_format).kv
    indices = random.integers(-1, 24, (1, 2, 20)).astype(np.int32)
    call = given(q=q, k_cache=pool, block_table=None, cache_seqlens=None, softmax_scale=0.3)
    out, lse = flash_mla_with_kvcache(**call, indices=indices, is_fp8_kvcache=True, device=EMULATOR)
    cache = am.PagedKV(pool, None, np.zeros((1, 1), np.int32))
    wanted, log = am.mla_decode(
        q, cache, scale=0.3, indices=indices, kv_format=kv_format, device=EMULATOR
    )
    assert out.tobytes() == wanted.tobytes() and lse.tobytes() == log.tobytes()
    truth = mla_decode_f64(
        q, am.unpack_latent(pool, kv_format).reshape(24, columns), indices=indices, scale=0.3
    )
    assert np.abs(truth.o - out.astype(np.float32)).max() < 3e-3


def test_two_caches_at_once() -> None:
    """The first of two sequences sees nothing; the metadata are of the sizes of both caches."""
    random = np.random.default_rng(0)
    q = random.standard_normal((2, 1, 8, 512)).astype(BF16)
    pools = [random.standard_normal((2, page, 1, 512)).astype(BF16) for page in (4, 3)]
    packed = [am.pack_latent(pool, "model1").kv for pool in pools]
    lists = [random.integers(-1, 6, (2, 1, topk)).astype(np.int32) for topk in (7, 5)]
    lengths = np.array([0, 3], np.int32), np.array([0, 5], np.int32)
    call: dict[str, Any] = given(q=q, k_cache=packed[0], is_fp8_kvcache=True)
    call |= {"indices": lists[0], "topk_length": lengths[0], "softmax_scale": 0.1}
    call |= {"extra_k_cache": packed[1], "extra_indices_in_kvcache": lists[1]}
    out, lse = flash_mla_with_kvcache(**call, extra_topk_length=lengths[1], device=EMULATOR)
    with pytest.raises(SpecError, match="is of calls with extra_page_block_size = 3, got 4"):
        flash_mla_with_kvcache(**given(**call | {"extra_k_cache": packed[0]}), device=EMULATOR)
    rows = np.concatenate([am.unpack_latent(x, "model1").reshape(-1, 512) for x in packed])
    lists[0][:, :, 3:], lists[1][lists[1] >= 6] = -1, -1  # what does not count
    both = np.concatenate([lists[0], np.where(lists[1] < 0, -1, lists[1] + 8)], 2)
    truth = mla_decode_f64(q[1:], rows, indices=both[1:], scale=0.1)
    assert np.abs(truth.o - out[1:].astype(np.float32)).max() < 0.02
    assert np.abs(truth.lse - lse[1:]).max() < 1e-3
    assert bool((lse[0] == np.inf).all()) and not out[0].any()


def test_what_flash_mla_does_not_take() -> None:
    """f16, sinks without lists, a second cache of 16 bits, and lists of it without an entry."""
    random = np.random.default_rng(0)
    q, pool, more = (
        (random.standard_normal(x) / 4).astype(np.float16)
        for x in ((1, 1, 8, 512), (2, 64, 1, 512), (2, 5, 1, 512))
    )
    sinks = np.linspace(-1, 1, 8).astype(np.float32)
    call = given(q=q, k_cache=pool, block_table=np.array([[1]], np.int32), attn_sink=sinks)
    call["cache_seqlens"] = np.array([40], np.int32)
    out, lse = flash_mla_with_kvcache(**call, device=EMULATOR)
    truth = mla_decode_f64(q, pool[1:, :40], scale=512**-0.5, sinks=sinks)
    assert out.dtype == np.float16 and np.abs(truth.o - out.astype(np.float64)).max() < 1e-3
    assert np.abs(truth.lse - lse).max() < 1e-4
    named = np.arange(64, 104, dtype=np.int32)[None, None]
    metadata = get_mla_metadata()[0]
    listed: dict[str, Any] = {**call, "indices": named, "extra_k_cache": more}
    listed |= {"extra_indices_in_kvcache": named[..., :0], "tile_scheduler_metadata": metadata}
    listed["extra_topk_length"] = np.zeros(1, np.int32)
    again, sums = flash_mla_with_kvcache(**listed, device=EMULATOR)
    assert np.abs(truth.o - again.astype(np.float64)).max() < 1e-3
    assert np.abs(truth.lse - sums).max() < 1e-4
