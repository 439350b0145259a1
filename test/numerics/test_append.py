"""New tokens in caches on the emulator: every row where it belongs, every other bit as it was."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import attn_mlir as am
from attn_mlir.reference.appending import appended, destinations, measured
from attn_mlir.reference.caches import stored, stored_scales
from attn_mlir.validation.numerics.appends import BF16, CASES, E4M3, ROWS, Case, bits, check
from attn_mlir.validation.numerics.stored import Form

Array = npt.NDArray[Any]

pytestmark = pytest.mark.slow
TARGETS = ("sm_90a", "sm_100a")
I32_ENDS = (-(2**31), -(2**31) + 7, -1, 2**31 - 7, 2**31 - 1)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.long(*(f"{name}-{TARGETS[at % 2]}" for at, name in enumerate(CASES)))
def test_a_cache_with_its_new_tokens(name: str, target: str) -> None:
    """All checkers are on; what holds no token stays NaN, and every other bit what it was."""
    case = CASES[name]
    cache, call = case.call()
    before = copy.deepcopy(cache)
    device = am.EmulatorDevice(target=target, check="all", **case.device)
    assert am.append_kv(cache, **call, device=device) is None
    count = check(cache, before, call, case.rotary is not None)
    is_left_out = "slot_mapping" in call
    assert count == (sum(call["slot_mapping"] >= 0) if is_left_out else sum(case.new))


@pytest.mark.parametrize("target", TARGETS)
def test_strides_of_tokens_and_pools(target: str) -> None:
    """A layer of a pool of several, and tokens as slices of one array of queries, keys and values."""
    random = np.random.default_rng(1)
    whole = np.full((5, 3, 2, 16, 2, 64), np.nan, BF16)
    qkv = random.standard_normal((7, 4 * 2, 64)).astype(BF16)
    cache = am.PagedKV(whole[:, 1], None, np.array([[3, 0, 1]], np.int32), np.array([9], np.int32))
    call: dict[str, Any] = {
        "k_new": qkv[:, 4:6],
        "v_new": qkv[:, 6:8],
        "positions": np.array([0, 47, 16, 15, 31, 32, 7], np.int32),
        "batch_indices": np.zeros(7, np.int32),
    }
    before = whole.copy()
    am.append_kv(cache, **call, device=am.EmulatorDevice(target=target, check="all"))
    was = dataclasses.replace(cache, k_pages=before[:, 1])
    assert check(cache, was, call, is_rounded=False) == 7
    assert (bits(whole[:, ::2]) == bits(before[:, ::2])).all()


def test_a_cache_is_read_by_attention_as_it_was_written() -> None:
    """Prefill, and two steps of decoding that read it, the second one in a new page."""
    random = np.random.default_rng(2)
    device = am.EmulatorDevice(target="sm_90a")
    pool = np.full((6, 2, 16, 2, 64), np.nan, BF16)
    table, used = np.array([[4, 1], [0, 5]], np.int32), np.zeros(2, np.int32)
    cache = am.PagedKV(pool, page_table=table, seqused=used)
    keys, values = (random.standard_normal((2, 0, 2, 64)).astype(BF16) for _ in range(2))
    for n in (15, 1, 1):
        q, k, v = (random.standard_normal((2, n, h, 64)).astype(BF16) for h in (4, 2, 2))
        keys, values = np.concatenate([keys, k], 1), np.concatenate([values, v], 1)
        used += n
        am.append_kv(cache, k, v, device=device)
        if n > 1:
            continue
        o = am.attention(q, cache, mask=am.causal(), device=device)
        assert (o == am.attention(q, keys, values, mask=am.causal(), device=device)).all()


@pytest.mark.parametrize("target", TARGETS)
def test_factors_of_odd_tokens(target: str) -> None:
    """Nothing but zeros, numbers too small and too large for a factor, infinities, and no numbers."""
    case = CASES["factors of positions"]
    cache, call = case.call()
    rows = call["k_new"][:6, 0]
    rows[0], rows[1], rows[2], rows[3] = 0.0, 2.0**-81, 3e38, 1.0
    rows[3, ::2] = [np.inf, -np.inf] * 16
    rows[4, 5] = np.nan
    before = copy.deepcopy(cache)
    am.append_kv(cache, **call, device=am.EmulatorDevice(target=target, check="all"))
    k, scales = stored(cache)[0].astype(np.float32), cache.k_scale
    found = [p.k for p in destinations(before, (16,), None, None, call["cu_seqlens"], None)][:6]
    factors = [float(scales[page, offset, 0, 0]) for page, offset in found]
    assert factors[:4] == [2.0**-80, 2.0**-80, 2.0**80, 2.0**80]
    zeros, small, large, infinite, odd = (k[page, offset, 0] for page, offset in found[:5])
    assert not zeros.any() and (small == 0.5).all() and (large == 448).all()
    assert (infinite == [448, 0, -448, 0] * 16).all()
    others = np.arange(64) != 5
    assert factors[4] == np.abs(rows[4, others].astype(np.float32)).max() / np.float32(448)
    assert np.isnan(odd[5]) and np.abs(odd[others]).max() == 448


HOSTILE: dict[str, tuple[Any, ...]] = {
    "page_table": (*I32_ENDS, 5, 2**30),
    "indptr": (0, 3, *I32_ENDS),
    "indices": (*I32_ENDS, 5, 100),
    "last_page_len": (*I32_ENDS, 0, 17),
    "seqused": (*I32_ENDS, 0, 1, 49),
    "scale_table": (*I32_ENDS, 5, 19, 2**30),
    "batch_idx": (*I32_ENDS, 4, 5),
    "leftpad": (*I32_ENDS, 63, 64),
    "positions": (*I32_ENDS, 48, 64),
    "batch_indices": (*I32_ENDS, 4, 5),
    "cu_seqlens": (0, *I32_ENDS),
    "slot_mapping": (*I32_ENDS, 80, 81, 2**30),
    "slot_mapping int64": (*I32_ENDS, -(2**63), 2**63 - 1, 2**32, -(2**32), 2**31, 80),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.long(*(f"{name}-{TARGETS[at % 2]}" for at, name in enumerate(HOSTILE)))
def test_nothing_is_written_outside_whatever_arrays_hold(
    name: str, target: str, as_on_a_gpu: Callable[[], None]
) -> None:
    """As on a GPU, where nobody looks at arrays first: memory around the cache is left alone.

    Several tokens may go to one place, which is no business of the kernel's.
    """
    compressed = name in ("indptr", "indices", "last_page_len")
    form = ROWS if name in ("batch_idx", "leftpad") else Form(16, compressed=compressed)
    form = dataclasses.replace(form, selected=name == "batch_idx", padded=name == "leftpad")
    told = name if name in CALLS else "lengths"
    new = (1, 3, 2, 3) if told == "cu_seqlens" else (3, 3, 3, 3)
    factors: dict[str, Any] = {}
    if name == "scale_table":
        form = dataclasses.replace(form, scales_apart=True)
        factors = {"dtypes": (E4M3, BF16, BF16), "groups": (2, 1, np.float32)}
    cache, call = Case(form, new=new, told=told, **factors).call()
    label = name.partition(" ")[0]
    for numbers in (HOSTILE[name], HOSTILE[name][::-1]):
        given = call[label] if label in call else getattr(cache, label)
        wrong = np.resize(np.array(numbers, np.int64), given.shape).astype(given.dtype)
        changed = {label: wrong}
        surrounded, wholes = _surrounded(cache)
        if label in call:
            call |= changed
        else:
            surrounded = dataclasses.replace(surrounded, **changed)
        as_on_a_gpu()
        am.append_kv(surrounded, **call, device=am.EmulatorDevice(target=target, check="none"))
        for whole in wholes:
            assert np.isnan(whole[[0, -1]].astype(np.float32)).all()
        if name in TOLD_EXACTLY:
            pairs = list(zip(stored(surrounded), appended(surrounded, **call), strict=True))
            if (scales := stored_scales(surrounded)) is not None:
                pairs += zip(scales, measured(surrounded, **call), strict=True)
            for got, want in pairs:
                assert (np.isnan(got.astype(np.float32)) == np.isnan(want)).all()


CALLS = ("positions", "batch_indices", "cu_seqlens", "slot_mapping", "slot_mapping int64")
TOLD_EXACTLY = {*HOSTILE} - {"indptr", "indices", "last_page_len", "leftpad", "cu_seqlens"}


def _surrounded(cache: Any) -> tuple[Any, list[Array]]:
    """The cache with pools of NaN in the middle of larger ones, and these."""
    names = ("k", "v") if isinstance(cache, am.ContiguousKV) else ("k_pages", "v_pages")
    names += ("k_scale", "v_scale") if stored_scales(cache) is not None else ()
    wholes = [
        np.full((len(pool) + 2, *pool.shape[1:]), np.nan, pool.dtype)
        for pool in (getattr(cache, name) for name in names)
    ]
    inner = {name: whole[1:-1] for name, whole in zip(names, wholes, strict=True)}
    return dataclasses.replace(cache, **inner), wholes
