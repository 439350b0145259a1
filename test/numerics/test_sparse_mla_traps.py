"""What kernels of sparse latent attention have got wrong elsewhere; a test is named after its trap.

Those of pairs of CTAs are in `test_sparse_mla_pair`, the others belong to 8 bits or to dense keys.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.compiling.sparse_mla import SparseMlaSpec
from attn_mlir.expr import evaluate
from attn_mlir.flash_mla import flash_mla_sparse_fwd
from attn_mlir.reference.sparse_mla import SparseAttention, check_sparse_mla
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.emulator.emulator import Stats
from attn_mlir.runtime.file.bundle import Bundle
from attn_mlir.runtime.file.manifest import TensorMapParam

BF16: Any = ml_dtypes.bfloat16
HEADS, COLUMNS, BLOCK = 64, 512, 64
ADVERSARIAL = EmulatorDevice("adversarial", 3, check="all")
EVERY = np.arange(2 * BLOCK, dtype=np.int32)[None]


def operands(rows: int = 2 * BLOCK, seed: int = 0) -> dict[str, Any]:
    """One query, and a cache of which its list names every row, one after the other."""
    random = np.random.default_rng(seed)
    shapes = ((1, HEADS, COLUMNS), (rows, 1, COLUMNS))
    q, kv = ((random.standard_normal(shape) / 4).astype(BF16) for shape in shapes)
    return {"q": q, "kv": kv, "indices": np.arange(rows, dtype=np.int32)[None], "scale": 0.1}


def attend(given: dict[str, Any], device: Any = "emulator") -> SparseAttention:
    return SparseAttention(*am.sparse_mla(**given, device=device))


def judge(given: dict[str, Any], device: Any = "emulator") -> SparseAttention:
    """Every element against the formula."""
    found = attend(given, device)
    for verdict in check_sparse_mla(found, **{**given, "kv": given["kv"][:, 0]}):
        assert verdict.ok, verdict
    return found


def bits(found: SparseAttention) -> list[bytes]:
    return [array.tobytes() for array in vars(found).values()]


@pytest.fixture(scope="module")
def plain() -> Bundle:
    """The kernel of most tests here."""
    return am.compile(SparseMlaSpec(heads=HEADS, head_dim=COLUMNS), target="sm_100a")


def boxes(bundle: Bundle) -> dict[str, list[tuple[int, ...]]]:
    """What the copy engine moves at once, by tensor."""
    found: dict[str, list[tuple[int, ...]]] = {}
    for parameter in bundle.manifest.params:
        if isinstance(parameter, TensorMapParam):
            found.setdefault(parameter.tensor, []).append(tuple(parameter.box))
    return found


def rising(blocks: int = 3) -> dict[str, Any]:
    """Maxima of every other head rise from block to block, so far that O has to be rescaled."""
    given = operands(blocks * BLOCK)
    direction = np.ones(COLUMNS)
    sign = np.where(np.arange(HEADS) % 2, 1, -1)[:, None]
    given["q"] = (sign * direction / 4).astype(BF16)[None]
    steps = np.repeat(np.arange(blocks), BLOCK)[:, None, None]
    given["kv"] = (given["kv"] / 8 + steps / 2).astype(BF16)
    return given | {"scale": 0.25}


def test_t9_t11_heads_of_a_warp_rescale_when_the_product_before_is_over() -> None:
    """And others do not; fair, and late and out of order."""
    assert bits(judge(rising(), ADVERSARIAL)) == bits(judge(rising()))


def test_t10_a_first_block_without_an_entry_that_counts() -> None:
    given = operands()
    given["indices"] = np.where(EVERY < BLOCK, -1, EVERY).astype(np.int32)
    judge(given)


def test_t12_entries_past_the_length_are_not_read() -> None:
    given = operands()
    given["kv"][70:] = np.nan
    judge(given | {"topk_length": np.array([70], np.int32)})


def test_t13_blocks_without_an_entry_cost_neither_rows_nor_products(launches: list[Stats]) -> None:
    """A block takes 512 / 16 products for S and 64 / 16 for each half of O, and a row is gathered once."""
    given = operands(4 * BLOCK)
    is_empty = np.isin(given["indices"] // BLOCK, (0, 2))
    counted: list[tuple[int, int]] = []
    for indices in (given["indices"][:, :BLOCK], np.where(is_empty, -1, given["indices"])):
        judge({**given, "indices": np.ascontiguousarray(indices, np.int32)})
        counted.append((launches[-1].mma_count, launches[-1].counters["tensor_loads"]))
    products, copies = COLUMNS // 16 + 2 * BLOCK // 16, COLUMNS // 64 * BLOCK // 4
    assert counted[0][0] == products and counted[1][0] == 2 * products
    assert counted[1][1] - counted[0][1] == copies


def test_t14_a_copy_brings_four_rows_of_one_line_each(plain: Bundle) -> None:
    assert boxes(plain)["kv"] == [(64, 1)]
    given = operands()
    given["indices"] = np.where(EVERY % 4 == 2, -7, EVERY).astype(np.int32)  # in every copy
    judge(given)


@pytest.mark.parametrize("heads", [8, 24])
def test_t15_boxes_end_with_the_heads(heads: int) -> None:
    bundle = am.compile(SparseMlaSpec(heads=heads, head_dim=COLUMNS), target="sm_100a")
    found = boxes(bundle)
    rest = {(64, 64 % heads, 1)} if 64 % heads else set[tuple[int, ...]]()
    assert {*found["q"]} == {(64, heads, 1)} | rest and found["o"] == [(64, heads, 1)]


def test_t21_natural_logarithms_without_the_sink() -> None:
    given = operands() | {"topk_length": np.array([70], np.int32)}
    none = judge(given)
    sinks = np.linspace(-2, 2, HEADS).astype(np.float32)
    sinks[:2] = np.inf, -np.inf
    some = judge(given | {"sinks": sinks})
    assert bits(none)[1:] == bits(some)[1:]
    assert not some.o[:, 0].any() and some.o[:, 1].tobytes() == none.o[:, 1].tobytes()
    empty: dict[str, Any] = {**given, "topk_length": np.array([0], np.int32), "sinks": sinks}
    found = judge(empty)
    assert np.isneginf(found.lse).all() and np.isneginf(found.max_logits).all()
    flash = flash_mla_sparse_fwd(
        empty["q"],
        empty["kv"],
        empty["indices"][:, None],
        empty["scale"],
        attn_sink=sinks,
        topk_length=empty["topk_length"],
        device="emulator",
    )
    for array, everywhere in zip(flash, (0, -np.inf, np.inf), strict=True):
        assert np.array_equal(array, np.full(array.shape, everywhere))


def test_t23_queries_are_in_the_first_extent_of_the_grid(plain: Bundle) -> None:
    """70000 are more than the other extents can hold."""
    known = {"s_q": 70000, "s_kv": 256, "topk": 256}
    assert [evaluate(extent, known) for extent in plain.manifest.grid] == [70000, 1, 1]


def test_t24_the_result_is_staged_where_keys_were(plain: Bundle) -> None:
    regions: Any = plain.report["memory_map"]
    places = {x["what"]: (x["begin"], x["end"]) for x in regions}
    assert places["keys"][0] <= places["out"][0] < places["out"][1] <= places["keys"][1]
    judge(operands(3 * BLOCK), ADVERSARIAL)


@pytest.mark.parametrize("filler", [-(2**31), -1, 2 * BLOCK, 2**31 - 1])
@pytest.mark.long("-1", "128")
def test_t26_numbers_that_are_no_rows(filler: int) -> None:
    given = operands()
    given["indices"] = np.where(EVERY % 3 == 0, filler, EVERY).astype(np.int32)
    judge(given)


def test_equal_bits_in_repeated_calls_and_any_order_of_queries() -> None:
    random = np.random.default_rng(5)
    given = operands()
    q = np.concatenate([given["q"], given["q"][:, ::-1], given["q"] * BF16(2)])
    lists = np.stack([random.permutation(2 * BLOCK) for _ in range(3)]).astype(np.int32)
    first = attend({**given, "q": q, "indices": lists})
    again = attend({**given, "q": q[[2, 0, 1]], "indices": lists[[2, 0, 1]]})
    for one, other in zip(vars(first).values(), vars(again).values(), strict=True):
        assert one[[2, 0, 1]].tobytes() == other.tobytes()


def test_one_row_for_all_entries() -> None:
    given = operands()
    given["indices"] = np.full((1, 2 * BLOCK), 17, np.int32)
    judge(given)
