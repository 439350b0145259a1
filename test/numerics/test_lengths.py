"""Batches of unequal lengths on the emulator: every row judged, what lies beside them poisoned."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import attn_mlir as am
from attn_mlir import mods
from attn_mlir.api.attention import spec_of
from attn_mlir.api.lengths import LengthArguments, sequence_lengths
from attn_mlir.dialect.attn.lengths import Lengths
from attn_mlir.dialect.orders import TILE_ORDERS
from attn_mlir.expr import evaluate
from attn_mlir.reference import attention_f64, attention_yardstick, compare, sequences
from attn_mlir.runtime.call.tensors import view
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.validation.numerics.mha_cases import SCHEDULES, Schedule
from attn_mlir.validation.numerics.mha_check import poisoned

Array = npt.NDArray[Any]

pytestmark = pytest.mark.slow
FAIR, ADVERSARIAL = SCHEDULES[0], SCHEDULES[3]
FEW = 3  # multiprocessors, so that persistent CTAs take several tiles
BF16 = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True)
class Batch:
    """Operands, and the arguments that tell the lengths."""

    q: Array
    k: Array
    v: Array
    told: dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A batch by the lengths of its sequences.

    Attributes:
      queries, keys: positions per sequence.
      holes_q, holes_k: rows of NaN behind each sequence: None stores it without, by offsets alone.
      padded_q, padded_k: sequences have a dimension of this extent instead; its rest is NaN.
      bounded: whether max_seqlen tells the longest, holes not counted.
      cached: cache_seqlens tells the keys, without the new ones.
      options: of `attention`; `orders` of the kernel.
    """

    queries: Sequence[int]
    keys: Sequence[int]
    heads: tuple[int, int] = (4, 2)
    head_dim: int = 64
    dtype: Any = BF16
    holes_q: int | None = None
    holes_k: int | None = None
    padded_q: int | None = None
    padded_k: int | None = None
    bounded: bool = False
    cached: bool = False
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    tile_order: str | None = None
    schedule: Schedule = FAIR

    def batch(self) -> Batch:
        random = np.random.default_rng(sum(self.queries) * 1000 + sum(self.keys))

        def side(name: str, lengths: Sequence[int], heads: int, dense: int | None, gap: int | None):
            """Arrays filled with NaN, the sequences' rows with numbers; and what tells them."""
            told: dict[str, Array] = {}
            used = np.array(lengths, np.int32)
            if dense is not None:
                array = np.full((len(lengths), dense, heads, self.head_dim), np.nan, self.dtype)
                spans: list[Any] = [np.s_[b, :n] for b, n in enumerate(lengths)]
                if any(n != dense for n in lengths):
                    told[f"seqused_{name}"] = used
            else:
                ends = np.cumsum([0, *(n + (gap or 0) for n in lengths)])
                array = np.full((ends[-1], heads, self.head_dim), np.nan, self.dtype)
                spans = [np.s_[e : e + n] for e, n in zip(ends[:-1], lengths, strict=True)]
                told[f"cu_seqlens_{name}"] = ends.astype(np.int32)
                if gap is not None:
                    told[f"seqused_{name}"] = used
                    if self.bounded:
                        told[f"max_seqlen_{name}"] = max(lengths)
            for span in spans:
                array[span] = random.standard_normal(array[span].shape)
            return array, told

        q, told = side("q", self.queries, self.heads[0], self.padded_q, self.holes_q)
        k, told_k = side("k", self.keys, self.heads[1], self.padded_k, self.holes_k)
        v, _ = side("k", self.keys, self.heads[1], self.padded_k, self.holes_k)
        if self.cached:
            used = told_k.pop("seqused_k")
            told_k["cache_seqlens"] = (used - np.array(self.queries)).astype(np.int32)
        return Batch(q, k, v, told | told_k)


def run(case: Case, batch: Batch, *, told: dict[str, Any] | None = None) -> tuple[Array, Array]:
    """O and LSE over poison; `told` in the place of what the batch tells, unchecked."""
    operands = {name: view(getattr(batch, name), name) for name in ("q", "k", "v")}
    lengths = sequence_lengths(operands, LengthArguments(**batch.told))
    mask = case.options.get("mask")
    modified = {name: case.options.get(name) for name in ("score_mod", "mask_mod", "sinks")}
    plain = spec_of(operands, mask, lengths=lengths)
    modifier, captured = am.trace.trace(**modified)
    fields = {"modifier": modifier, "tile_order": case.tile_order}
    kernel = am.load(am.compile(replace(plain, **fields)))
    *lead, heads, _ = batch.q.shape
    o = poisoned(batch.q.shape, batch.q.dtype)
    lse = poisoned((*lead[:-1], heads, lead[-1]), np.dtype(np.float32))
    arrays = dict(lengths.arrays) | (told or {})
    kernel(
        batch.q, batch.k, batch.v, o, lse, *arrays.values(), *captured.values(),
        **lengths.scalars,
        device=EmulatorDevice(
            schedule=case.schedule.kind, seed=case.schedule.seed, multiprocessors=FEW
        ),
    )  # fmt: skip
    return o, lse


def is_poison(array: Array) -> bool:
    """Whether nobody wrote any element."""
    return bool(np.all(np.ascontiguousarray(array).view(np.uint8) == 0xFF))


def judge(case: Case, batch: Batch, o: Array, lse: Array) -> None:
    """Judges the rows of every sequence, and that no other row was written."""
    o, lse = o.copy(), lse.copy()
    told = {name: x for name, x in batch.told.items() if not name.startswith("max_seqlen")}
    for one in sequences(batch.q, batch.k, batch.v, **told):
        formulas: list[Callable[..., Any]] = [attention_f64, attention_yardstick]
        truth, yardstick = (
            formula(one.q, one.k, one.v, first_batch=one.batch, **case.options)
            for formula in formulas
        )
        verdict = compare(o[one.o][None], lse[one.lse][None], truth, yardstick)
        assert verdict.ok, f"sequence {one.batch}: {verdict}"
        o[one.o] = poisoned(o[one.o].shape, o.dtype)  # judged: what is left has to be poison
        lse[one.lse] = poisoned(lse[one.lse].shape, lse.dtype)
    assert is_poison(o) and is_poison(lse)


UNEQUAL = ((0, 37, 300, 0, 128, 0), (5, 50, 260, 70, 128, 0))
CASES = {
    "ragged": Case(*UNEQUAL, (2, 1), options={"mask": am.causal()}),
    "one head, wide": Case((129, 1, 0, 40), (1, 130, 9, 0), (2, 2), 128),
    "holes": Case(*UNEQUAL, (2, 1), 128, holes_q=3, holes_k=2, bounded=True, schedule=ADVERSARIAL),
    "short keys in a dense cache": Case(
        (40, 40, 40, 40), (0, 200, 77, 1), padded_q=40, padded_k=210,
        options={"mask": am.causal()},
    ),
    "padded queries and keys": Case(
        (0, 150, 33, 200), (60, 0, 33, 201), padded_q=200, padded_k=201,
        options={"mask": am.sliding_window(40, 8)}, dtype=np.dtype(np.float16),
    ),
    "cached prefix": Case(
        (1, 5, 0, 3), (200, 5, 130, 128), (8, 1), 128, padded_k=256, cached=True,
        options={"mask": am.causal()}, schedule=ADVERSARIAL,
    ),
    "modified, with sinks": Case(
        (70, 0, 257), (130, 3, 140), (2, 1), holes_k=5,
        options={
            "mask": am.causal(),
            "score_mod": mods.alibi(np.float32([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])),
            "sinks": np.float32([0.5, -1.0]),
        },
    ),
    "wide head": Case((20, 300), (129, 250), (1, 1), 256, holes_k=1),
    "persistent": Case(*UNEQUAL, (1, 1), tile_order="persistent"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.long("one head, wide", "short keys in a dense cache", "wide head", "persistent")
def test_unequal_lengths(name: str) -> None:
    case = CASES[name]
    batch = case.batch()
    judge(case, batch, *run(case, batch))


@pytest.mark.parametrize("packed", [1, 2])
@pytest.mark.long("2")
def test_tile_orders_give_the_same_bits(packed: int) -> None:
    """Also with CTAs that take several tiles, and with the queries of two heads in a tile."""
    queries, keys = (70, 0, 260, 1), (100, 5, 140, 0)
    options = {"mask": am.causal()}
    results: set[tuple[bytes, bytes]] = set()
    orders = [order for order in TILE_ORDERS if order != "counter"]  # of sm_90a
    for order in orders if packed == 2 else ("single", "persistent", "ragged", "clc"):
        case = Case(queries, keys, (packed, 1), tile_order=order, options=options)
        results.add(tuple(array.tobytes() for array in run(case, case.batch())))
    assert len(results) == 1


@pytest.mark.parametrize("order", ["single", "ragged"])
def test_rows_in_front_of_the_first_sequence_are_nobodys(order: str) -> None:
    """Offsets may begin anywhere, here after two blocks and a half; no CTA works for those."""
    options = {"mask": am.causal()}
    case = Case((70, 0, 130), (100, 5, 140), (1, 1), tile_order=order, options=options)
    batch, front = case.batch(), 640
    expected = run(case, batch)
    padding = np.full((front, 1, 64), np.nan, BF16)
    rows = [np.concatenate([padding, array]) for array in (batch.q, batch.k, batch.v)]
    told = dict(batch.told)
    for name in ("cu_seqlens_q", "cu_seqlens_k"):
        told[name] = (told[name] + front).astype(np.int32)
    o, lse = run(case, Batch(*rows, told))
    assert is_poison(o[:front]) and is_poison(lse[:, :front])
    assert o[front:].tobytes() == expected[0].tobytes()
    assert lse[:, front:].tobytes() == expected[1].tobytes()


@pytest.mark.parametrize("lengths", [(300, 1, 1, 1), (0, 0, 5), (256, 512), (255, 257, 1, 0), ()])
def test_a_ragged_batch_starts_ctas_for_what_is_there(lengths: tuple[int, ...]) -> None:
    """At most one per sequence beyond the blocks of 256 that sequences have."""
    manifest = am.compile(am.mha(heads=1, head_dim=64, lengths=Lengths(ragged_q=True))).manifest
    sizes = {"total_q": sum(lengths), "cu_seqlens_q_0": len(lengths) + 1, "batch": len(lengths)}
    blocks = sum(-(-n // 256) for n in lengths)
    ctas = math.prod(evaluate(extent, sizes) for extent in manifest.grid)
    assert blocks <= ctas <= blocks + len(lengths)


@pytest.mark.parametrize(
    ("mask", "tiles"),
    [
        (am.full(), 0 + 1 + 2 + 4),
        (am.sliding_window(100, 0), 0 + 1 + 2 + 2),  # of 400 keys the last 102, in two tiles
    ],
    ids=str,
)
@pytest.mark.long("full-7")
def test_keys_that_are_padding_cost_nothing(
    mask: am.Mask, tiles: int, product_counts: list[int]
) -> None:
    """Executed products by the valid lengths 0, 128, 129 and 400; a tile takes 4 + 8 with K = 16."""
    case = Case((2, 2, 2, 2), (0, 128, 129, 400), (8, 1), padded_q=2, padded_k=400)
    batch = case.batch()
    am.attention(batch.q, batch.k, batch.v, mask=mask, device="emulator", **batch.told)
    assert product_counts == [tiles * (4 + 8)]


def test_a_neighbour_of_nan_and_infinity() -> None:
    """Sequences side by side: the last tiles of one hold rows of the next."""
    options = {"mask": am.causal()}
    case = Case((100, 60, 130), (70, 140, 90), (2, 1), options=options)
    batch = case.batch()
    for one in sequences(batch.q, batch.k, batch.v, **batch.told):
        if one.batch == 1:
            one.q[:], one.k[:], one.v[:] = np.nan, np.inf, np.nan
    o, lse = run(case, batch)
    for one in sequences(batch.q, batch.k, batch.v, **batch.told):
        if one.batch == 1:
            assert np.isnan(o[one.o].astype(np.float32)).all()
            continue
        truth = attention_f64(one.q, one.k, one.v, **options)
        yardstick = attention_yardstick(one.q, one.k, one.v, **options)
        assert compare(o[one.o][None], lse[one.lse][None], truth, yardstick).ok


WRONG = {
    "backwards": ("cu_seqlens_k", [0, 120, 30, 90]),
    "beyond the tensor": ("cu_seqlens_k", [0, 50, 2**31 - 1, 2**31 - 1]),
    "negative": ("cu_seqlens_q", [-(2**31), -5, 40, 90]),
    "queries beyond": ("cu_seqlens_q", [80, 2**31 - 1, 0, 2**30]),
    "longer than the longest": ("cu_seqlens_q", [0, 90, 90, 90]),
    "used more than there are": ("seqused_k", [2**31 - 1, -1, 50]),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arrays_stay_inside_the_tensors(name: str) -> None:
    """The emulator refuses accesses outside of an allocation; here it sees none."""
    case = Case((30, 20, 40), (50, 20, 50), (1, 1), holes_k=1)
    batch = case.batch()
    array, numbers = WRONG[name]
    o, _ = run(case, batch, told={array: np.array(numbers, np.int32)})
    assert o.shape == batch.q.shape
