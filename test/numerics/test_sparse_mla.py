"""Sparse latent attention on the emulator: every element against its formula, whatever the lists hold.

The cases are FlashMLA's in small, and so are its inputs: strided tensors, entries that do not count
drawn from the numbers that it draws, rows of the cache that nothing names filled with NaN.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import attn_mlir as am
from attn_mlir.reference.sparse_mla import (
    SparseAttention,
    check_sparse_mla,
    counting,
    of_pages,
    sparse_mla_f64,
)
from attn_mlir.runtime.devices.emulator import EmulatorDevice

BF16: Any = ml_dtypes.bfloat16
SCALE = 0.5
FAIR = EmulatorDevice(check="all")
FILLERS = (
    -(2**31),
    -123456,
    -1,
    114514,
    1919810,
    2147480000,
    2**31 - 1,
)  # and the first row too many


class Case(NamedTuple):
    """Sizes and features of a problem; the names are FlashMLA's."""

    s_q: int = 1
    s_kv: int = 128
    topk: int = 128
    heads: int = 64
    d_qk: int = 576
    lengths: bool = False
    sinks: bool = False
    empty: bool = False  # queries without an entry that counts


def strided(array: NDArray[Any], room: int = 64) -> NDArray[Any]:
    """The same numbers in memory whose rows lie apart."""
    wide = np.zeros((*array.shape[:-1], array.shape[-1] + room), array.dtype)
    wide[..., : array.shape[-1]] = array
    return wide[..., : array.shape[-1]]


def problem(case: Case, seed: int = 0) -> dict[str, Any]:
    """The arguments of a call."""
    random = np.random.default_rng(seed)

    def drawn(*shape: int) -> NDArray[Any]:
        numbers = random.standard_normal(shape) / 10 + random.uniform(-0.05, 0.05)
        return numbers.clip(-10, 10).astype(BF16)

    fillers = np.array([*FILLERS, case.s_kv], np.int64)
    indices = random.choice(fillers, (case.s_q, case.topk))
    count = min(case.topk, case.s_kv)
    for row in indices:
        row[:count] = random.permutation(case.s_kv)[:count]
        random.shuffle(row)
    if case.empty:
        indices[::2] = random.choice(fillers, indices[::2].shape)
    options: dict[str, Any] = {"scale": SCALE}
    if case.lengths:
        most = max(case.topk, 63) + 1
        options["topk_length"] = random.integers(0, most, case.s_q).clip(0, case.topk).astype("i4")
    if case.sinks:
        sinks = random.standard_normal(case.heads).astype(np.float32)
        sinks[random.random(case.heads) < 0.3] = np.inf
        sinks[random.random(case.heads) < 0.3] = -np.inf
        options["sinks"] = sinks
    kv = drawn(case.s_kv, case.d_qk)
    named = np.concatenate(counting(indices, case.s_kv, options.get("topk_length")))
    kv[np.setdiff1d(np.arange(case.s_kv), named)] = np.nan
    return {
        "q": strided(drawn(case.s_q, case.heads, case.d_qk)),
        "kv": strided(kv)[:, None],
        "indices": strided(indices.astype(np.int32), 4),
        **options,
    }


def attend(given: dict[str, Any], device: EmulatorDevice = FAIR) -> SparseAttention:
    """What the kernel makes of the arguments of a call."""
    return SparseAttention(*am.sparse_mla(**given, device=device))


def agrees(given: NDArray[Any], truth: NDArray[Any], absolute: float, relative: float) -> bool:
    """FlashMLA's comparison of an output with its reference."""
    given, truth = given.astype(np.float64), truth.astype(np.float64)
    is_finite = np.isfinite(truth)
    if not np.array_equal(given[~is_finite], truth[~is_finite], equal_nan=True):
        return False
    given, truth = given[is_finite], truth[is_finite]
    error = np.abs(given - truth)
    close = (error < absolute) | (error / (np.abs(truth) + 1e-6) < relative)
    squares = (given**2 + truth**2).sum()
    apart = 1 - 2 * (given * truth).sum() / squares if (truth**2).sum() >= 1e-12 else 0.0
    return bool(close.all()) and abs(apart) < 7e-6


def check(given: dict[str, Any], found: SparseAttention) -> None:
    """Every element, by our measure and by FlashMLA's."""
    plain = {**given, "kv": given["kv"][:, 0]}
    for verdict in check_sparse_mla(found, **plain):
        assert verdict.ok, verdict
    truth = sparse_mla_f64(**plain)
    assert agrees(found.o, truth.o, 8e-4, 3.01 / 128)
    assert agrees(found.lse, truth.lse, 1e-6, 2.01 / 65536)
    assert agrees(found.max_logits, truth.max_logits, 1e-6, 2.01 / 65536)


@pytest.mark.parametrize(
    "case",
    [
        Case(lengths=True, sinks=True),
        Case(s_q=2, s_kv=95, lengths=True, sinks=True),  # more entries than rows
        Case(s_q=3, s_kv=256, topk=256, lengths=True, sinks=True, empty=True),
        Case(s_q=2, s_kv=592, d_qk=512),  # rows of the cache that no block divides
        Case(s_kv=32, topk=512, d_qk=512),  # blocks in which nothing counts
        Case(s_q=2, s_kv=200, topk=100, heads=24, lengths=True),  # a block that is not full
        Case(s_q=2, topk=64, heads=128, d_qk=512, sinks=True),  # two CTAs for a query
    ],
    ids=str,
)
def test_every_element(case: Case) -> None:
    given = problem(case)
    check(given, attend(given))


def test_late_and_out_of_order() -> None:
    given = problem(Case(s_q=2, s_kv=300, topk=200, lengths=True, sinks=True))
    fair = attend(given)
    check(given, fair)
    for seed in range(2):
        found = attend(given, EmulatorDevice("adversarial", seed, check="all"))
        assert bits(found) == bits(fair)


@pytest.mark.parametrize("size", [1, 61])
def test_pages_are_rows_elsewhere(size: int) -> None:
    """Tables and sequences of any contents; the bits are those of the rows without pages."""
    random = np.random.default_rng(size)
    given = problem(Case(s_q=3, s_kv=122, topk=64, heads=8, d_qk=512))
    pages = 122 // size
    table = np.stack([random.permutation(pages) for _ in range(2)]).astype(np.int32)
    table[0, :1], table[1, 1:2] = -1, pages
    sequences = np.array([1, 0, 7], np.int32)
    positions = given["indices"]
    rows = of_pages(positions, table, sequences, size, pages).astype(np.int32)
    assert (rows[:2] >= 0).any(1).all() and (rows[2] < 0).all()
    kv = np.ascontiguousarray(given["kv"])
    named = np.unique(rows[rows >= 0])
    kv[named] = np.where(np.isnan(kv[named]), 0, kv[named])
    flat = {**given, "kv": kv, "indices": rows}
    paged = {
        **given,
        "kv": kv.reshape(pages, size, 1, -1),
        "page_table": table,
        "batch_of_query": sequences,
    }
    check(flat, expected := attend(flat))
    found = attend(paged)
    assert bits(found) == bits(expected)
    slots = {**flat, "kv": paged["kv"]}  # numbers of rows in pages, without a table
    assert bits(attend(slots)) == bits(expected)


def bits(found: SparseAttention) -> list[bytes]:
    return [array.tobytes() for array in vars(found).values()]
