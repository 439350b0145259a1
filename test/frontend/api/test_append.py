"""`append_kv`: what does not belong together is refused by the caller's names."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import attn_mlir as am
from attn_mlir.api.appending_checks import BATCH, OFFSETS, _tokens
from attn_mlir.compiling.appending import AppendSpec
from attn_mlir.dialect.attn.cache import Cache
from attn_mlir.errors import SpecError
from attn_mlir.validation.numerics.operands import i32

Array = npt.NDArray[Any]
BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn


def zeros(*shape: int, dtype: Any = BF16) -> Array:
    return np.zeros(shape, dtype)


TABLE = i32([0, 1, 2], [3, 4, 5])
USED = i32(40, 17)


def paged(**changes: Any) -> am.PagedKV:
    pools = {"k_pages": zeros(6, 16, 2, 64), "v_pages": zeros(6, 16, 2, 64)}
    return am.PagedKV(**{**pools, "page_table": TABLE, "seqused": USED, **changes})


def narrow(**changes: Any) -> am.PagedKV:
    pools = {name: zeros(6, 16, 2, 64, dtype=E4M3) for name in ("k_pages", "v_pages")}
    return paged(**pools, **changes)


def compressed(**changes: Any) -> am.PagedKV:
    rows = {"indptr": i32(0, 3, 5), "indices": i32(0, 1, 2, 3, 4), "last_page_len": i32(8, 1)}
    return paged(page_table=None, seqused=None, **{**rows, **changes})


def rows(**changes: Any) -> am.ContiguousKV:
    sides = {"k": zeros(2, 48, 2, 64), "v": zeros(2, 48, 2, 64)}
    return am.ContiguousKV(**{**sides, "seqused": USED, **changes})


def call(cache: Any, k_new: Any = None, v_new: Any = None, **options: Any) -> None:
    """Two new tokens of each of two sequences, unless told otherwise."""
    k_new = zeros(2, 2, 2, 64) if k_new is None else k_new
    am.append_kv(cache, k_new, k_new if v_new is None else v_new, **options, device="emulator")


FLAT = zeros(4, 2, 64)
BY_INDEX = {"k_new": FLAT, "positions": i32(3, 4, 5, 47), "batch_indices": i32(0, 1, 1, 0)}
ANGLES = zeros(48, 16, dtype=np.float32)
OWN = {name: zeros(6, 16, 2, 2, dtype=np.float32) for name in ("k_scale", "v_scale")}

WRONG: dict[str, tuple[Any, dict[str, Any], str]] = {
    "no cache": (zeros(2, 48, 2, 64), {}, "cache must be a PagedKV or a ContiguousKV, got"),
    "one slot": (
        paged(),
        {"k_new": FLAT, "slot_mapping": i32(7, -1, 3, 7)},
        "^slot_mapping leads tokens 0 and 3 to slot 7: a place takes one token",
    ),
    "one position": (
        paged(),
        {**BY_INDEX, "positions": i32(3, 4, 4, 3)},
        "^positions leads tokens 0 and 3 to position 3 of sequence 0: a place takes one token",
    ),
    "one position behind padding": (
        rows(leftpad=i32(0, 5)),
        {**BY_INDEX, "positions": i32(3, 4, 4, 5)},
        "^positions leads tokens 1 and 2 to position 4 of sequence 1",
    ),
    "a shared page": (
        paged(page_table=i32([0, 1, 2], [3, 4, 2]), seqused=i32(40, 39)),
        {},
        "^page_table leads tokens 0 and 3 to position 6 of page 2",
    ),
    "a shared page of a list": (
        compressed(indices=i32(0, 1, 2, 3, 2), last_page_len=i32(8, 7)),
        {},
        "^indices leads tokens 0 and 3 to position 6 of page 2",
    ),
    "a shared row": (
        rows(batch_idx=i32(1, 1), seqused=i32(17, 18)),
        {},
        "^batch_idx leads tokens 1 and 2 to position 16 of row 1",
    ),
    "rank": (
        paged(),
        {"k_new": zeros(2, 64)},
        r"k_new must be \[tokens, heads, head_dim\] or \[bat",
    ),
    "heads": (paged(), {"k_new": zeros(2, 2, 3, 64)}, "k_new has 3 heads, k_pages has 2"),
    "columns": (
        paged(),
        {"k_new": zeros(2, 2, 2, 64), "v_new": zeros(2, 2, 2, 32)},
        "v_new has 32 elements per head, v_pages has 64",
    ),
    "dtype": (
        rows(),
        {"k_new": zeros(2, 2, 2, 64, dtype=np.float16)},
        "k_new is f16, k is bf16: allowed are bf16",
    ),
    "dtype of 8 bits": (
        narrow(),
        {"k_new": zeros(2, 2, 2, 64, dtype=np.float32)},
        "k_new is f32, k_pages is e4m3: allowed are e4m3, bf16, f16",
    ),
    "tokens differ": (
        paged(),
        {"k_new": zeros(2, 2, 2, 64), "v_new": zeros(2, 3, 2, 64)},
        "k_new and v_new must agree but for head_dim",
    ),
    "batch": (paged(), {"k_new": zeros(3, 2, 2, 64)}, "k_new has batch 3, page_table has 2"),
    "cache of f32": (
        rows(k=zeros(2, 48, 2, 64, dtype=np.float32), v=zeros(2, 48, 2, 64, dtype=np.float32)),
        {"k_new": zeros(2, 2, 2, 64, dtype=np.float32)},
        "k has dtype f32, allowed are bf16, f16, e4m3, e5m2",
    ),
    "untold": (
        paged(),
        {"k_new": FLAT},
        r"needs slot_mapping, cu_seqlens, or positions and batch_in",
    ),
    "no positions": (
        paged(),
        {**BY_INDEX, "positions": None},
        "positions are missing: batch_indices alone",
    ),
    "told twice": (
        paged(),
        {**BY_INDEX, "slot_mapping": i32(0, 1, 2, 3)},
        "slot_mapping and batch_indices both tell where tokens go: pass one",
    ),
    "slots and positions": (
        paged(),
        {"k_new": FLAT, "positions": i32(0, 1, 2, 3), "slot_mapping": i32(0, 1, 2, 3)},
        "positions and slot_mapping both tell where tokens go",
    ),
    "slots with a batch": (
        paged(),
        {"slot_mapping": i32(0, 1, 2, 3)},
        r"slot_mapping is for k_new \[tokens, heads, head_dim\], got \[2, 2, 2, 64\]",
    ),
    "slots of a dtype": (
        paged(),
        {"k_new": FLAT, "slot_mapping": np.zeros(4, np.int16)},
        r"slot_mapping must be \[tokens\] = \[4\] of i32 or i64, got \[4\] of i16",
    ),
    "positions of a dtype": (
        paged(),
        {**BY_INDEX, "positions": np.zeros(4, np.int64)},
        r"positions must be \[tokens\] = \[4\] of i32, got \[4\] of i64",
    ),
    "positions of a shape": (
        paged(),
        {"positions": i32(1, 2, 3, 4)},
        r"positions must be \[batch, n\] = \[2, 2\] of i32, got \[4\]",
    ),
    "offsets of a shape": (
        paged(),
        {"k_new": FLAT, "cu_seqlens": i32(0, 4)},
        r"cu_seqlens must be \[batch \+ 1\] = \[3\] of i32, got \[2\]",
    ),
    "lengths of a shape": (paged(seqused=i32(3)), {}, r"seqused must be \[batch\] = \[2\] of i32"),
    "slot too large": (
        paged(),
        {"k_new": FLAT, "slot_mapping": i32(0, -5, 96, 3)},
        r"slot_mapping\[2\] is 96: k_pages has slots 0 to 95",
    ),
    "sequence too large": (
        paged(),
        {**BY_INDEX, "batch_indices": i32(0, -1, 2, 0)},
        r"batch_indices\[2\] is 2: there are sequences 0 to 1",
    ),
    "position too large": (
        paged(),
        {**BY_INDEX, "positions": i32(3, 4, 48, 5)},
        "positions have 48 for token 2: append over the end, sequence 1 has room for positions 0 to 47",
    ),
    "position below 0": (
        rows(),
        {**BY_INDEX, "positions": i32(3, 4, -1, 5)},
        "positions have -1 for token 2: append over the end",
    ),
    "position behind padding": (
        rows(leftpad=i32(4, 0)),
        {**BY_INDEX, "positions": i32(44, 4, 6, 5)},
        "positions have 44 for token 0: append over the end, .* 0 to 43",
    ),
    "over the end": (
        paged(seqused=i32(40, 49)),
        {},
        "seqused tells that new tokens of sequence 1 end at 49 .*: append over the end, positions are 0",
    ),
    "over the end by the new ones": (
        rows(seqused=i32(40, 47), counts_new=False),
        {},
        "seqused tells that new tokens of sequence 1 end at 49 .*: append over the end",
    ),
    "before the beginning": (
        paged(seqused=i32(1, 17)),
        {},
        "seqused tells that new tokens of sequence 0 end at 1 and token 0 lies at -1: append over",
    ),
    "over the end of compressed rows": (
        compressed(),
        {"k_new": zeros(2, 18, 2, 64)},
        "the cache tells that new tokens of sequence 1 end at 17 and token 18 lies at -1",
    ),
    "offsets that fall": (
        paged(),
        {"k_new": FLAT, "cu_seqlens": i32(0, 3, 2)},
        r"cu_seqlens must rise from 0 or more to at most 4, the tokens, got \[0, 3, 2\]",
    ),
    "a page that is none": (
        paged(page_table=i32([0, 1, 6], [3, -1, 5])),
        {},
        r"page_table\[0, 2\] is 6: k_pages has pages 0 to 5",
    ),
    "an entry that is none": (
        compressed(indices=i32(0, 1, 2, 3, 9)),
        {},
        r"indices\[4\] is 9: k_pages has pages 0 to 5",
    ),
    "a row that is none": (
        rows(batch_idx=i32(1, 2)),
        {},
        r"batch_idx\[1\] is 2: k has rows 0 to 1",
    ),
    "no scales": (narrow(), {}, "k_scale is missing: e4m3 operands need their scales"),
    "scales of tokens of 8 bits": (
        narrow(**OWN),
        {"k_new": zeros(2, 2, 2, 64, dtype=E4M3)},
        "k_new is e4m3, k_scale has scales of positions, which are found from tokens of 16 bits: pass",
    ),
    "slots and pages of scales": (
        narrow(**OWN, scale_table=TABLE),
        {"k_new": FLAT, "slot_mapping": i32(0, 1, 2, 3)},
        "scale_table needs positions, got slot_mapping",
    ),
    "pages of scales": (
        narrow(**OWN, scale_table=np.full((2, 3), 6, np.int32)),
        {},
        r"scale_table\[0, 2\] is 6: k_scale and v_scale have pages 0 to 5",
    ),
    "scales of sequences": (
        narrow(k_scale=np.ones((2, 2), np.float32), v_scale=np.ones(1, np.float32)),
        {"k_new": FLAT, "slot_mapping": i32(0, 1, 2, 3)},
        "k_scale and v_scale per sequence need positions, got slot_mapping",
    ),
    "rotary of two": (
        paged(),
        {"rotary": (ANGLES, ANGLES)},
        r"rotary must be \(cos, sin, interleaved",
    ),
    "rotary of 8 bits": (
        narrow(),
        {"k_new": zeros(2, 2, 2, 64, dtype=E4M3), "rotary": (ANGLES, ANGLES, False)},
        "rotary is for k_new of bf16 or f16, got e4m3",
    ),
    "rotary of a rank": (
        paged(),
        {"rotary": (ANGLES[None], ANGLES[None], False)},
        r"rotary's cos must be \[positions, rotary_dim / 2\] of bf16, f16 or f32, got \[1, 48, 16\]",
    ),
    "rotary that differs": (
        paged(),
        {"rotary": (ANGLES, ANGLES[:40], False)},
        r"rotary's cos and sin must agree, got \[48, 16\] of f32 and \[40, 16\] of f32",
    ),
    "rotary of 12 columns": (
        paged(),
        {"rotary": (zeros(48, 6), zeros(48, 6), False)},
        "rotary_dim must be a multiple of 16 up to 64 with angles, 0 without, got 12",
    ),
    "rotary of too many columns": (
        paged(),
        {"rotary": (zeros(48, 40), zeros(48, 40), False)},
        "rotary_dim must be a multiple of 16 up to 64 with angles, 0 without, got 80",
    ),
    "rotary, interleaved of no kind": (
        paged(),
        {"rotary": (ANGLES, ANGLES, 2)},
        "rotary's interleaved must be True or False",
    ),
    "rotary with slots": (
        paged(),
        {"k_new": FLAT, "slot_mapping": i32(0, 1, 2, 3), "rotary": (ANGLES, ANGLES, False)},
        "positions are missing: rotary needs them beside slot_mapping",
    ),
    "too few angles": (
        paged(),
        {"rotary": (ANGLES[:39], ANGLES[:39], False)},
        "rotary needs angles of position 39: cos and sin have rows 0 to 38",
    ),
    "a device that is none": (
        paged(),
        {"device": "tpu"},
        "device must be 'cuda', 'emulator', a device",
    ),
}


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_refused_by_its_name(name: str) -> None:
    cache, options, message = WRONG[name]
    options = {"device": "emulator", **options}
    k_new = options.pop("k_new", zeros(2, 2, 2, 64))
    v_new = options.pop("v_new", k_new)
    with pytest.raises(SpecError, match=message):
        am.append_kv(cache, k_new, v_new, **options)


RIGHT: dict[str, tuple[Any, dict[str, Any]]] = {
    "the last position": (paged(seqused=i32(48, 2)), {}),
    "the last position, behind it": (rows(seqused=i32(46, 0), counts_new=False), {}),
    "all of a row": (rows(seqused=None), {"k_new": zeros(2, 48, 2, 64)}),
    "entries of no token": (paged(page_table=i32([9, 1, 2], [3, 4, -1])), {}),
    "no token twice": (paged(), {"k_new": FLAT, "slot_mapping": i32(-1, 3, -1, -2)}),
    "a shared page, other positions": (
        paged(page_table=i32([0, 1, 2], [3, 4, 2]), seqused=i32(40, 42)),
        {},
    ),
    "padding": (paged(), {**BY_INDEX, "batch_indices": i32(0, -1, -2, 0)}),
    "offsets within": (paged(), {"k_new": FLAT, "cu_seqlens": i32(1, 2, 3)}),
    "as many angles": (paged(), {"rotary": (ANGLES[:40], ANGLES[:40], True)}),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_just_right_goes_on(name: str, no_compiler: type[Exception]) -> None:
    cache, options = RIGHT[name]
    with pytest.raises(no_compiler):
        call(cache, **options)


@pytest.mark.parametrize(
    "name", ["position too large", "over the end", "a page that is none", "slot too large"]
)
def test_arrays_on_a_gpu_are_not_waited_for(
    name: str, as_on_a_gpu: Callable[[], None], no_compiler: type[Exception]
) -> None:
    as_on_a_gpu()
    cache, options, _ = WRONG[name]
    with pytest.raises(no_compiler):
        call(cache, **options)


def test_a_cache_that_cannot_be_written_to_is_refused() -> None:
    cache = paged()
    cache.v_pages.flags.writeable = False
    with pytest.raises(SpecError, match="^v_pages is written, but its memory is read-only"):
        call(cache)


def test_tokens_that_lie_in_the_cache_are_refused() -> None:
    cache = paged()
    with pytest.raises(SpecError, match="^k_pages is an output, but it shares memory with k_new"):
        call(cache, cache.k_pages[0, :4], zeros(4, 2, 64), slot_mapping=i32(20, 21, 22, 23))


OF_POSITIONS = Cache(page_size=16, pages="table", scale_dtype="f32", k_groups=1, v_groups=2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_dim": 72}, "head_dim 72 has no kernel: supported are multiples of 16 up to 256"),
        (
            {"sequence_source": "guess"},
            "sequence_source must be one of batch, batch_indices, cu_seqlens, slot_mapping, got",
        ),
        ({"new_dtype": "f32"}, "new_dtype must be one of bf16, f16, e4m3, e5m2, got 'f32'"),
        ({"new_dtype": "e5m2"}, "new_dtype must be one of e4m3, bf16, f16, got 'e5m2'"),
        ({"new_dtype": "e4m3"}, "scaled is for tokens that are narrowed to 8 bits"),
        ({"slot_dtype": "i32"}, "slot_dtype is for sequence_source = slot_mapping, got i32"),
        (
            {"positions": True, "lengths": "seqused_k"},
            "lengths are for positions that nothing else gives",
        ),
        ({"sequence_source": "batch_indices"}, "sequence_source = batch_indices needs positions"),
        ({"interleaved": True}, "interleaved is for rotary_dim above 0"),
        ({"rotary_dim": 16}, "rotary_dim must be a multiple of 16 up to 64 with angles, 0 without"),
        ({"cache": Cache(page_size=16)}, "cache with a page_size, and no other, must list pages"),
        ({"cache": None}, "cache must be a Cache"),
        ({"cache": OF_POSITIONS}, "scales of positions are those of tokens of 16 bits, which are"),
        (
            {"cache": replace(OF_POSITIONS, v_groups=3), "scaled": False},
            "v_groups 3 has no kernel for",
        ),
    ],
)
def test_requests_without_a_kernel(changes: dict[str, Any], message: str) -> None:
    spec = {"heads": 2, "head_dim": 64, "v_head_dim": 64, "dtype": "e4m3", "new_dtype": "bf16"}
    spec |= {
        "cache": Cache(page_size=16, pages="table"),
        "sequence_source": "batch",
        "scaled": True,
    }
    AppendSpec(**spec)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=message):
        AppendSpec(**{**spec, **changes})  # type: ignore[arg-type]


def test_one_kernel_for_all_that_slots_lead_to() -> None:
    """Tables, lengths and counts of pages make no kernels of their own."""
    slots = {"k_new": FLAT, "slot_mapping": i32(0, 1, 2, 3)}
    planner = getattr(am.append_kv, "planner")  # noqa: B009
    k_new = slots.pop("k_new")
    plans_of = [
        planner(c, k_new, k_new, **slots) for c in (paged(), compressed(), paged(counts_new=False))
    ]
    assert len({plan.steps[0].request for plan in plans_of}) == 1
    assert (
        "attn_append_p16_slots_i32_bf16_h2_d64(k_cache, v_cache, k_new, v_new, slot_mapping)"
        in str(plans_of[0])
    )


def test_caches_stay_as_they_are() -> None:
    """Lengths are not changed, and a cache may be used again."""
    cache = rows(counts_new=False)
    fields = {f.name: getattr(cache, f.name) for f in dataclasses.fields(cache)}
    ones = np.ones((2, 2, 2, 64), BF16)
    call(cache, ones)
    assert all(getattr(cache, name) is value for name, value in fields.items())
    assert (cache.k[0, 40:42] == 1).all() and (cache.v[1, 17:19] == 1).all()
    assert cache.k.sum() == ones.sum() and cache.seqused.tolist() == [40, 17]


def test_one_token_of_each_sequence_is_its_last() -> None:
    unused: Any = None
    found = _tokens(unused, BATCH, (3, 1), {})
    assert found is not None and found.back.tolist() == [1, 1, 1]


def test_offsets_of_tokens_begin_at_0_or_later() -> None:
    unused: Any = None
    with pytest.raises(SpecError, match="must rise from 0 or more to at most 2"):
        _tokens(unused, OFFSETS, (2,), {OFFSETS: np.array([-1, 2])})
