"""Sparse latent attention on the emulator: every element against its formula, whatever the lists hold.

Cases of FlashMLA's matrix are in `test_flash_mla_matrix`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.reference.sparse_mla import SparseAttention, of_pages
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.validation.numerics import sparse_draws
from attn_mlir.validation.numerics.sparse_cases import FILLERS, Case, problem, wrong

FAIR = EmulatorDevice(check="all")


def attend(given: dict[str, Any], device: EmulatorDevice = FAIR) -> SparseAttention:
    """What the kernel makes of the arguments of a call."""
    return SparseAttention(*am.sparse_mla(**given, device=device))


@pytest.mark.parametrize(
    "case",
    [
        Case(lengths=True, sinks=True),
        Case(s_q=3, s_kv=256, topk=256, lengths=True, sinks=True, empty=True),
        Case(s_q=2, s_kv=200, topk=100, heads=24, lengths=True),  # a block that is not full
        Case(s_q=2, topk=64, heads=128, d_qk=512, sinks=True),  # two CTAs for a query
    ],
    ids=str,
)
@pytest.mark.long(
    "Case(s_q=1, s_kv=128, topk=128, heads=64, *", "Case(s_q=3, *", "Case(*, heads=128, *"
)
def test_every_element(case: Case) -> None:
    given = problem(case)
    assert not wrong(given, attend(given))


OTHER_TYPES = {
    "f16": (Case(topk=70, s_kv=70, heads=8, d_qk=512, half=True), np.float16),
    "f16, of two CTAs, to f32": (Case(topk=70, s_kv=70, heads=128, half=True), np.float32),
    "widened, to f32": (Case(topk=70, s_kv=70, heads=8, kv_format="v32"), np.float32),
    "8 bits, to f16": (
        Case(topk=70, s_kv=70, heads=8, kv_format="e4m3", narrow=True),
        np.float16,
    ),
    "8 bits, of two CTAs, to f32": (
        Case(topk=70, s_kv=70, heads=128, kv_format="e4m3", narrow=True),
        np.float32,
    ),
}


@pytest.mark.parametrize("name", OTHER_TYPES)
@pytest.mark.long("f16, of two *", "widened*", "8 bits*")
def test_other_types_into_an_array_of_the_caller(name: str) -> None:
    """Of unsigned lists; the array's rows lie apart, and what is between them stays."""
    case, out = OTHER_TYPES[name]
    given = problem(case)
    memory = np.full((case.s_q, case.heads, 600), np.nan, out)
    given |= {"indices": given["indices"].view(np.uint32), "out": memory[..., 24:536]}
    found = attend(given)
    assert found.o is given.pop("out") and np.isnan(memory[..., :24]).all()
    assert not wrong(given | {"indices": given["indices"].view(np.int32)}, found)


@pytest.mark.parametrize("size", [1, 61])
@pytest.mark.long("1")
def test_pages_are_rows_elsewhere(size: int) -> None:
    """Tables and sequences of any contents; the bits are those of the rows without pages."""
    random = np.random.default_rng(size)
    given = problem(Case(s_q=3, s_kv=122, topk=64, heads=8, d_qk=512))
    pages = 122 // size
    table = np.stack([random.permutation(pages) for _ in range(2)]).astype(np.int32)
    table[0, :1], table[1, 1:2] = -(2**31), pages
    sequences = np.array([1, 0, 7 if size > 1 else -1], np.int32)
    positions = given["indices"]
    positions[:, :: 64 // len(FILLERS)][:, : len(FILLERS)] = FILLERS
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
    expected = attend(flat)
    assert not wrong(flat, expected)
    found = attend(paged)
    assert bits(found) == bits(expected)
    slots = {**flat, "kv": paged["kv"]}  # numbers of rows in pages, without a table
    assert bits(attend(slots)) == bits(expected)


@pytest.mark.parametrize("seed", [225, 1310])
@pytest.mark.long("1310")
def test_draws(seed: int) -> None:
    """Tables of several sequences with pages in any order, a few rows again and again, sinks, late and out of
    order; of 8 bits with a scale for 32 columns, and of bf16."""
    problem = sparse_draws.drawn(seed)
    assert problem.page and problem.case.distinct and problem.device
    assert not (failure := sparse_draws.DRAWS.failure(seed)), failure


def test_a_wrong_draw_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(q: Any, **_: Any) -> Any:
        return np.zeros((*q.shape[:2], 512), "bfloat16"), *np.zeros((2, *q.shape[:2]), np.float32)

    monkeypatch.setattr(am, "sparse_mla", nothing)
    told = sparse_draws.DRAWS.failure(225)
    assert told.startswith("python -m attn_mlir.validation.numerics.sparse_draws 225\n")
    assert "of LSE wrong" in told


def bits(found: SparseAttention) -> list[bytes]:
    return [array.tobytes() for array in vars(found).values()]
