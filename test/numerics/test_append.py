"""New tokens in caches on the emulator: every row where it belongs, every other bit as it was."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import attn_mlir as am
from attn_mlir.reference.appending import appended, stored
from attn_mlir.validation.numerics.stored import Form

Array = npt.NDArray[Any]

pytestmark = pytest.mark.slow
BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
NARROW = (E4M3, E5M2)
TARGETS = ("sm_90a", "sm_100a")
I32_ENDS = (-(2**31), -(2**31) + 7, -1, 2**31 - 7, 2**31 - 1)


@dataclass(frozen=True)
class Case:
    """A cache and tokens for it.

    Attributes:
      lengths: positions of each sequence, the new ones counted; `new` of them are new.
      told: `lengths`, `positions`, `slot_mapping`; with `ragged` by cu_seqlens or batch_indices.
      rotary: columns that are rotated, and whether their pairs are neighbours.
      dtypes: of the cache, of the tokens and of the angles.
      scales: factors of keys and of values.
      device: of `EmulatorDevice`.
    """

    form: Form
    lengths: tuple[int, ...] = (40, 3, 64, 17)
    new: tuple[int, ...] = (3, 3, 3, 3)
    told: str = "lengths"
    room: int = 64
    heads: int = 2
    head_dims: tuple[int, int] = (64, 64)
    rotary: tuple[int, bool] | None = None
    dtypes: tuple[Any, Any, Any] = (BF16, BF16, np.float32)
    scales: tuple[Any, Any] | None = None
    device: dict[str, Any] = field(default_factory=dict[str, Any])

    def call(self) -> tuple[am.PagedKV | am.ContiguousKV, dict[str, Any]]:
        """The cache, NaN where no token is, and the arguments of `append_kv`."""
        random = np.random.default_rng(sum(self.lengths) + self.room)
        dtype, new_dtype, angle_dtype = self.dtypes
        sides = [
            [random.standard_normal((n, self.heads, width)).astype(dtype) for n in self.lengths]
            for width in self.head_dims
        ]
        for side in sides:
            for rows, new in zip(side, self.new, strict=True):
                rows[len(rows) - new :] = np.nan
        cache = self.form.stored(*sides, self.new, random, self.room)
        if self.scales is not None:
            names = ("k_scale", "v_scale")
            values = (np.array(scale, np.float32) for scale in self.scales)
            cache = dataclasses.replace(cache, **dict(zip(names, values, strict=True)))
        is_ragged = len(set(self.new)) > 1 or self.told not in ("lengths", "positions")
        shape = (sum(self.new),) if is_ragged else (len(self.new), self.new[0])
        call: dict[str, Any] = {
            name: (4 * random.standard_normal((*shape, self.heads, width))).astype(new_dtype)
            for name, width in zip(("k_new", "v_new"), self.head_dims, strict=True)
        }
        positions = np.concatenate(
            [np.arange(n - new, n) for n, new in zip(self.lengths, self.new, strict=True)]
        ).astype(np.int32)
        sequences = np.repeat(np.arange(len(self.new)), self.new).astype(np.int32)
        if is_ragged and self.told != "batch_indices":
            call["cu_seqlens"] = np.cumsum([0, *self.new]).astype(np.int32)
        if self.told == "batch_indices":
            shuffled = random.permutation(len(sequences))
            call["batch_indices"] = sequences[shuffled]
            positions = positions[shuffled]
        if self.told in ("positions", "batch_indices"):
            call["positions"] = positions.reshape(shape)
        if self.told.startswith("slot"):
            lines, offsets = stored(cache)[0].shape[:2]
            slots = random.permutation(lines * offsets)[: shape[0]]
            slots[::4] = -1 - slots[::4]
            call["slot_mapping"] = slots.astype(self.told.partition(" ")[2] or np.int32)
            del call["cu_seqlens"]
        if self.rotary is not None:
            columns, interleaved = self.rotary
            angle = random.standard_normal((max(self.lengths), columns // 2))
            cos, sin = (f(angle).astype(angle_dtype) for f in (np.cos, np.sin))
            call["rotary"] = (cos, sin, interleaved)
            if "slot_mapping" in call:
                call["positions"] = positions
        return cache, call


ROWS, PAGES = Form(), Form(16)
SCALES = ([0.5], [[0.25, 3.0]] * 4)
CASES = {
    "pages": Case(PAGES),
    "pages, one new token, wide heads": Case(
        Form(32, "HND"), new=(1, 1, 1, 1), head_dims=(128, 128), heads=1
    ),
    "one pool": Case(Form(16, in_one_pool=True), told="positions"),
    "one pool, heads first": Case(Form(8, "HND", in_one_pool=True), room=72),
    "compressed rows": Case(Form(16, compressed=True)),
    "compressed rows, positions": Case(
        Form(16, "HND", compressed=True), new=(5, 0, 20, 1), told="batch_indices"
    ),
    "tables of their own": Case(Form(16, apart=True), new=(2, 1, 40, 0)),
    "without the new ones": Case(Form(16, counts_new=False)),
    "without the new ones, ragged": Case(Form(16, counts_new=False), new=(37, 1, 0, 9)),
    "more tokens than a tile": Case(Form(64), (200, 77), (130, 70), room=256),
    "slots": Case(PAGES, told="slot_mapping"),
    "slots of 64 bits": Case(Form(64, "HND"), told="slot_mapping int64", new=(30, 1, 9, 0)),
    "slots in rows": Case(ROWS, told="slot_mapping"),
    "rows": Case(ROWS),
    "rows, other sizes": Case(ROWS, head_dims=(72, 40), heads=3, dtypes=(np.float16,) * 3),
    "rows, ragged": Case(ROWS, new=(37, 3, 0, 9), head_dims=(256, 96)),
    "rows by index": Case(Form(selected=True, counts_new=False)),
    "rows by index, padding": Case(
        Form(selected=True, padded=True), room=80, told="positions", rotary=(32, False)
    ),
    "padding": Case(Form(padded=True), room=80, rotary=(64, True)),
    "padding, positions by index": Case(Form(padded=True), room=80, told="batch_indices"),
    "rotary": Case(PAGES, rotary=(64, False)),
    "rotary of some columns": Case(PAGES, head_dims=(128, 64), rotary=(16, False)),
    "rotary, neighbours": Case(PAGES, rotary=(48, True), dtypes=(BF16, BF16, BF16)),
    "rotary, slots": Case(PAGES, told="slot_mapping", rotary=(64, False), dtypes=(np.float16,) * 3),
    "8 bits": Case(PAGES, dtypes=(E4M3, BF16, BF16), scales=SCALES),
    "8 bits of 8 bits": Case(PAGES, dtypes=(E4M3, E4M3, BF16), head_dims=(48, 80)),
    "8 bits, too large": Case(
        Form(16, "HND"), dtypes=(E5M2, np.float16, BF16), scales=([1e-5], [2.0, 1e-6])
    ),
    "8 bits, rotary": Case(
        PAGES, dtypes=(E4M3, BF16, BF16), scales=SCALES, rotary=(32, True), new=(9, 1, 3, 3)
    ),
    "8 bits, rotary of few columns": Case(
        PAGES, dtypes=(E4M3, np.float16, np.float32), scales=([0.5, 1.5], [1.0]), rotary=(16, False)
    ),
    "8 bits, slots": Case(
        PAGES, dtypes=(E5M2, BF16, BF16), scales=([0.5], [0.125]), told="slot_mapping"
    ),
    "no tokens": Case(PAGES, new=(0, 0, 0, 0)),
    "adversarial": Case(
        PAGES, new=(33, 1, 0, 2), rotary=(64, False), device={"schedule": "adversarial", "seed": 3}
    ),
}


def bits(array: Array) -> Array:
    return array.view(f"u{array.itemsize}")


def ulp(x: Array, dtype: Any) -> Array:
    """Distance of neighbouring numbers of a dtype around finite ones."""
    kind = ml_dtypes.finfo(dtype)
    exponent = np.floor(np.log2(np.maximum(np.abs(x), float(kind.smallest_normal))))
    return np.exp2(exponent - kind.nmant)


def check(
    cache: am.PagedKV | am.ContiguousKV, before: Any, call: dict[str, Any], is_rounded: bool
) -> int:
    """Compares each row with the reference, bit for bit where nothing is rounded on the way.

    Returns:
      How many rows were written.
    """
    expected = appended(before, **call)
    for got, was, want in zip(stored(cache), stored(before), expected, strict=True):
        is_new = ~np.isnan(want)
        assert (bits(got)[~is_new] == bits(was)[~is_new]).all(), "something else was written"
        most = float(ml_dtypes.finfo(got.dtype).max)
        want = np.clip(want[is_new], -most, most)
        if is_rounded:
            off = np.abs(got[is_new].astype(np.float64) - want)
            assert (off <= 0.51 * ulp(want, got.dtype) + 1e-6).all(), off.max()
        else:
            rounded = want.astype(np.float32).astype(got.dtype)
            assert (bits(got[is_new]) == bits(rounded)).all()
    return int((~np.isnan(expected[0])).any((2, 3)).sum())


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
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
    """Prefill and three steps of decoding, as somebody would call them."""
    random = np.random.default_rng(2)
    device = am.EmulatorDevice(target="sm_90a")
    pool = np.full((6, 2, 16, 2, 64), np.nan, BF16)
    table, used = np.array([[4, 1], [0, 5]], np.int32), np.zeros(2, np.int32)
    cache = am.PagedKV(pool, page_table=table, seqused=used)
    keys, values = (random.standard_normal((2, 0, 2, 64)).astype(BF16) for _ in range(2))
    for n in (14, 1, 1, 1):
        q, k, v = (random.standard_normal((2, n, h, 64)).astype(BF16) for h in (4, 2, 2))
        keys, values = np.concatenate([keys, k], 1), np.concatenate([values, v], 1)
        used += n
        am.append_kv(cache, k, v, device=device)
        o = am.attention(q, cache, mask=am.causal(), device=device)
        assert (o == am.attention(q, keys, values, mask=am.causal(), device=device)).all()


HOSTILE: dict[str, tuple[Any, ...]] = {
    "page_table": (*I32_ENDS, 5, 2**30),
    "indptr": (0, 3, *I32_ENDS),
    "indices": (*I32_ENDS, 5, 100),
    "last_page_len": (*I32_ENDS, 0, 17),
    "seqused": (*I32_ENDS, 0, 1, 49),
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
def test_nothing_is_written_outside_whatever_arrays_hold(
    name: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where nobody looks at arrays first: memory around the cache is left alone.

    Several tokens may go to one place, which is no business of the kernel's.
    """
    compressed = name in ("indptr", "indices", "last_page_len")
    form = ROWS if name in ("batch_idx", "leftpad") else Form(16, compressed=compressed)
    form = dataclasses.replace(form, selected=name == "batch_idx", padded=name == "leftpad")
    told = name if name in CALLS else "lengths"
    new = (1, 3, 2, 3) if told == "cu_seqlens" else (3, 3, 3, 3)
    cache, call = Case(form, new=new, told=told).call()
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
        monkeypatch.setattr("attn_mlir.api.lengths._contents", lambda value, name: None)  # pyright: ignore
        am.append_kv(surrounded, **call, device=am.EmulatorDevice(target=target, check="none"))
        for whole in wholes:
            assert np.isnan(whole[[0, -1]].astype(np.float32)).all()
        if name in TOLD_EXACTLY:
            expected = appended(surrounded, **call)
            for got, want in zip(stored(surrounded), expected, strict=True):
                assert (np.isnan(got.astype(np.float32)) == np.isnan(want)).all()


CALLS = ("positions", "batch_indices", "cu_seqlens", "slot_mapping", "slot_mapping int64")
TOLD_EXACTLY = {*HOSTILE} - {"indptr", "indices", "last_page_len", "leftpad", "cu_seqlens"}


def _surrounded(cache: Any) -> tuple[Any, list[Array]]:
    """The cache with pools of NaN in the middle of larger ones, and these."""
    names = ("k", "v") if isinstance(cache, am.ContiguousKV) else ("k_pages", "v_pages")
    wholes = [
        np.full((len(pool) + 2, *pool.shape[1:]), np.nan, pool.dtype)
        for pool in (getattr(cache, name) for name in names)
    ]
    inner = {name: whole[1:-1] for name, whole in zip(names, wholes, strict=True)}
    return dataclasses.replace(cache, **inner), wholes
