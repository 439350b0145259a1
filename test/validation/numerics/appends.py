"""Caches and new tokens for them, and what the result is judged by; for the emulator and for a GPU."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

import attn_mlir as am
from attn_mlir.reference.appending import appended, measured
from attn_mlir.reference.caches import stored, stored_scales
from attn_mlir.validation.numerics.stored import Form

Array = npt.NDArray[Any]

BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2


@dataclass(frozen=True)
class Case:
    """A cache and tokens for it.

    Attributes:
      lengths: positions of each sequence, the new ones counted; `new` of them are new.
      told: `lengths`, `positions`, `slot_mapping`; with `ragged` by cu_seqlens or batch_indices.
      rotary: columns that are rotated, and whether their pairs are neighbours.
      dtypes: of the cache, of the tokens and of the angles.
      scales: factors of keys and of values.
      groups: of keys and of values that have factors of their own, position by position, in a dtype.
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
    groups: tuple[int, int, Any] | None = None
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
        fields: dict[str, Any] = {}
        if self.groups is not None:
            *counts, scale_dtype = self.groups
            fields = {
                name: [
                    random.random((n, self.heads, groups)).astype(scale_dtype) for n in self.lengths
                ]
                for name, groups in zip(("k_scale", "v_scale"), counts, strict=True)
            }
        cache = self.form.stored(*sides, self.new, random, self.room, **fields)
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
    "pages of a position": Case(Form(1)),
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
    "factors of positions": Case(
        PAGES, dtypes=(E4M3, BF16, BF16), groups=(1, 1, np.float32), new=(9, 1, 3, 3)
    ),
    "factors of groups, one pool": Case(
        Form(16, "HND", in_one_pool=True),
        dtypes=(E5M2, np.float16, BF16),
        head_dims=(128, 128),
        groups=(4, 4, np.float16),
        told="positions",
    ),
    "factors of groups, apart, rotary": Case(
        Form(16, compressed=True, scales_apart=True),
        dtypes=(E4M3, BF16, np.float32),
        head_dims=(128, 64),
        groups=(2, 1, BF16),
        rotary=(32, True),
    ),
    "factors, tables of their own": Case(
        Form(16, apart=True), dtypes=(E4M3, BF16, BF16), groups=(2, 2, np.float32)
    ),
    "factors, tables apart from both": Case(
        Form(16, scales_apart=True),
        dtypes=(E4M3, BF16, BF16),
        groups=(1, 2, BF16),
        told="batch_indices",
    ),
    "factors, slots": Case(
        PAGES, dtypes=(E4M3, BF16, BF16), groups=(1, 1, BF16), told="slot_mapping"
    ),
    "factors in rows, padding": Case(
        Form(selected=True, padded=True),
        room=80,
        dtypes=(E4M3, np.float16, BF16),
        groups=(1, 1, np.float32),
        rotary=(32, False),
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
    if (scales := stored_scales(cache)) is not None:
        _check_scales(scales, before, call, is_rounded)
        own = {"k_scale": cache.k_scale, "v_scale": cache.v_scale}
        before = dataclasses.replace(before, **own)
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


def _check_scales(
    scales: tuple[Array, Array], before: Any, call: dict[str, Any], is_rounded: bool
) -> None:
    """Compares the factors that positions have of their own: those of new tokens, and all others."""
    was = stored_scales(before)
    assert was is not None
    for got, old, want in zip(scales, was, measured(before, **call), strict=True):
        is_new = ~np.isnan(want)
        assert (bits(got)[~is_new] == bits(old)[~is_new]).all(), "other factors were written"
        rounded = want[is_new].astype(got.dtype)
        if is_rounded:
            off = np.abs(got[is_new].astype(np.float64) - want[is_new])
            assert (off <= 0.51 * ulp(want[is_new], got.dtype) + 1e-6 * want[is_new]).all()
        else:
            assert (bits(got[is_new]) == bits(rounded)).all()
