"""Sparse latent attention of 128 heads by a pair of CTAs, on the emulator: every element, and what it costs."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import attn_mlir as am
from attn_mlir.compiling.sparse_mla import SparseMlaSpec
from attn_mlir.expr import evaluate
from attn_mlir.reference.sparse_mla import SparseAttention
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.emulator.emulator import Stats
from attn_mlir.runtime.file.bundle import Bundle
from attn_mlir.runtime.file.manifest import TensorMapParam
from attn_mlir.validation.numerics.sparse_cases import Case, problem, wrong

HEADS, BLOCK = 128, 128
FAIR = EmulatorDevice(check="all")


def attend(given: dict[str, Any], device: EmulatorDevice = FAIR) -> SparseAttention:
    return SparseAttention(*am.sparse_mla(**given, device=device))


def bits(found: SparseAttention) -> list[bytes]:
    return [array.tobytes() for array in vars(found).values()]


@pytest.fixture(scope="module")
def plain() -> Bundle:
    """The kernel without options."""
    return am.compile(SparseMlaSpec(heads=HEADS, head_dim=512), target="sm_100a")


def in_table(rows: NDArray[Any], where: NDArray[Any], size: int) -> NDArray[np.int32]:
    """Positions of a sequence whose table has page p at `where[p]`; other numbers are what they were."""
    exists = (rows >= 0) & (rows < len(where) * size)
    pages = where[np.where(exists, rows // size, 0)]
    return np.where(exists, pages * size + rows % size, rows).astype(np.int32)


def test_every_element_late_and_out_of_order() -> None:
    """A query in which nothing counts, and one of two blocks; rows in pages, whose table is turned round."""
    size = 100
    given = problem(Case(2, 3 * size, 200, HEADS, lengths=True, sinks=True, empty=True), seed=2)
    assert given["topk_length"][1] > BLOCK
    where = np.array([1, 2, 0])
    paged: dict[str, Any] = {
        **given,
        "kv": np.ascontiguousarray(given["kv"]).reshape(3, size, 1, -1),
        "indices": in_table(given["indices"], where, size),
        "page_table": np.argsort(where).astype(np.int32)[None],
        "batch_of_query": np.zeros(2, np.int32),
    }
    fair = attend(paged)
    assert not wrong(given, fair)
    assert bits(attend(paged, EmulatorDevice("adversarial", 1, check="all"))) == bits(fair)


def test_two_halves_of_the_heads_agree() -> None:
    """The kernels of one CTA: sums in another order, of blocks of 64 entries."""
    given = problem(Case(s_kv=64, topk=64, heads=HEADS, d_qk=512))
    whole = attend(given)
    for first in (0, 64):
        part = attend({**given, "q": given["q"][:, first : first + 64]})
        for one, other in zip(vars(whole).values(), vars(part).values(), strict=True):
            mine = one[:, first : first + 64].astype(np.float32)
            assert np.allclose(mine, other.astype(np.float32), rtol=2**-7, atol=2**-12)


def test_rows_are_gathered_once_as_key_and_once_as_value(launches: list[Stats]) -> None:
    """A pair's block is 128 rows of 512 + 512 columns in copies of 4 rows by 64 columns, 512 / 16 products
    for S, and 128 / 16 for each half of O; a block in which nothing counts is nothing."""
    given = problem(Case(s_kv=3 * BLOCK, topk=3 * BLOCK, heads=HEADS, d_qk=512))
    is_empty = np.arange(3 * BLOCK) // BLOCK == 1
    counted: list[tuple[int, int]] = []
    for indices in (given["indices"][:, :BLOCK], np.where(is_empty, -1, given["indices"])):
        case = {**given, "indices": np.ascontiguousarray(indices, np.int32)}
        assert not wrong(case, attend(case, EmulatorDevice()))
        counted.append((launches[-1].mma_count, launches[-1].counters["tensor_loads"]))
    products, copies = 512 // 16 + 2 * BLOCK // 16, (512 + 512) // 64 * BLOCK // 4
    queries = 2 * (
        1 + 2 * 384 // 64
    )  # boxes of Q: of each CTA the first columns, and twice the rest
    assert counted == [(products, copies + queries), (2 * products, 2 * copies + queries)]


@pytest.mark.parametrize(
    ("kv_format", "group", "key", "value"),
    [
        ("v32", None, 512 + 128 + 4 * 4 * 4, 256 + 4 * 2 * 4),
        ("e4m3", 32, 576 + 4 * 4 * 9, 256 + 4 * 4 * 4),
    ],
)
@pytest.mark.long("e4m3-*")
def test_rows_of_8_bits_are_read_once_as_key_and_once_as_value(
    launches: list[Stats], kv_format: str, group: int | None, key: int, value: int
) -> None:
    """Of a block of `v32` each CTA reads 64 rows, 512 + 128 bytes and in four threads four scales, and
    half of the 512 bytes and of the scales of all 128; and a warp reads the list. Of scales of 32
    columns each of four threads reads one for each 64."""
    whole = problem(Case(s_kv=150, topk=2 * BLOCK, heads=HEADS, kv_format=kv_format, group=group))
    whole["indices"] = np.ascontiguousarray(whole["indices"] % 150, np.int32)
    counted: list[tuple[int, int]] = []
    for blocks, device in ((1, EmulatorDevice()), (2, FAIR)):
        case = {**whole, "indices": np.ascontiguousarray(whole["indices"][:, : blocks * BLOCK])}
        assert not wrong(case, attend(case, device))
        bytes_read = launches[-1].counters["thread_load_bytes"]
        counted.append((launches[-1].mma_count, bytes_read))
    of_a_block = 2 * (64 * key + BLOCK * value + BLOCK * 4)
    products = 576 // 16 + 2 * BLOCK // 16
    assert np.diff(counted, axis=0).tolist() == [[products, of_a_block]]
    assert counted[0][0] == products


def test_rows_of_products_of_8_bits_are_gathered_once_as_key_and_once_as_value(
    launches: list[Stats],
) -> None:
    """In lines of 128 columns, of which 576 are four and a half; products are of 32 columns or entries,
    and Q comes in five boxes for each CTA. Two blocks come late and out of order."""
    whole = problem(
        Case(s_kv=2 * BLOCK, topk=2 * BLOCK, heads=HEADS, kv_format="e4m3", narrow=True)
    )
    counted: list[tuple[int, int]] = []
    for blocks in (1, 2):
        case = {**whole, "indices": np.ascontiguousarray(whole["indices"][:, : blocks * BLOCK])}
        device = FAIR if blocks == 1 else EmulatorDevice("adversarial", 1, check="all")
        assert not wrong(case, attend(case, device))
        counted.append((launches[-1].mma_count, launches[-1].counters["tensor_loads"]))
    products, copies = 576 // 32 + 2 * BLOCK // 32, (5 + 4) * BLOCK // 4
    assert counted == [(products, copies + 10), (2 * products, 2 * copies + 10)]


@pytest.mark.long
@pytest.mark.parametrize(
    "case",
    [
        Case(2, 300, 290, HEADS, lengths=True, sinks=True, empty=True, kv_format="v32"),
        Case(2, 304, 290, HEADS, 512, lengths=True, sinks=True, kv_format="model1"),
        Case(1, 300, 290, 2 * HEADS, sinks=True, kv_format="e4m3"),
        Case(1, 300, 290, HEADS, lengths=True, kv_format="e4m3_rope16", group=64),
        Case(1, 300, 290, HEADS, sinks=True, kv_format="e4m3_rope16", group=32),
        Case(2, 200, 150, HEADS, lengths=True, kv_format="e4m3", group=32),
        Case(2, 300, 290, 2 * HEADS, lengths=True, sinks=True, kv_format="e4m3", narrow=True),
        Case(2, 300, 290, HEADS, sinks=True, empty=True, kv_format="e4m3", narrow=True),
    ],
    ids=str,
)
def test_rows_of_8_bits_late_and_out_of_order(case: Case) -> None:
    given = problem(case)
    fair = attend(given)
    assert not wrong(given, fair)
    assert bits(attend(given, EmulatorDevice("adversarial", 1, check="all"))) == bits(fair)


@pytest.mark.parametrize(
    ("spec", "slots"),
    [
        (SparseMlaSpec(heads=64, head_dim=512), {"keys": 65536}),
        (SparseMlaSpec(heads=HEADS, head_dim=512), {"k": 16384, "v": 32768}),
        (SparseMlaSpec(heads=HEADS, kv_format="v32"), {"k": 24576, "v": 32768}),
    ],
    ids=["one CTA", "pair", "pair, 8 bits"],
)
def test_t5_a_slot_has_memory_and_barriers_of_its_own(
    spec: SparseMlaSpec, slots: dict[str, int]
) -> None:
    """Two buffers of barriers over one of data would let a copy into what a product still reads."""
    report: Any = am.compile(spec, target="sm_100a").report
    bytes_of = {x["what"]: x["end"] - x["begin"] for x in report["memory_map"]}
    counts = {x["name"]: x["count"] for x in report["barriers"]}
    for name, slot in slots.items():
        stages = bytes_of[name] // slot
        assert stages * slot == bytes_of[name] and stages >= 2
        assert counts[f"{name} full"] == counts[f"{name} empty"] == stages


def test_t6_barriers_are_there_before_another_cta_uses_them(plain: Bundle) -> None:
    first = plain.ptx.index
    meeting = first("barrier.cluster.arrive")
    assert first("mbarrier.init") < meeting < first("barrier.cluster.wait")
    for use in ("cp.async.bulk.tensor.2d", "mapa.shared::cluster", "tcgen05.mma"):
        assert meeting < first(use)


def test_t7_bytes_of_both_ctas_count_at_the_first(plain: Bundle) -> None:
    copies = [line for line in plain.ptx.splitlines() if "cp.async.bulk.tensor.2d.shared" in line]
    assert copies and all(".cta_group::2" in line for line in copies)
    assert "mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster" in plain.ptx


def test_t23_pairs_are_in_the_first_extent_of_the_grid(plain: Bundle) -> None:
    known = {"s_q": 70000, "s_kv": 256, "topk": 256}
    assert [evaluate(extent, known) for extent in plain.manifest.grid] == [140000, 1, 1]
    assert plain.manifest.cluster == (2, 1, 1)


def test_t28_both_ctas_free_tensor_memory_when_neither_works(plain: Bundle) -> None:
    meetings = [at.start() for at in re.finditer(r"barrier\.cluster\.wait", plain.ptx)]
    assert "tcgen05.alloc.cta_group::2" in plain.ptx[: meetings[0]]
    assert len(meetings) == 2 and "tcgen05.dealloc.cta_group::2" in plain.ptx[meetings[1] :]


def test_memory_of_a_cta(plain: Bundle) -> None:
    """As in schedules/latent/sparse/README.md, but for eight chunks of 128 columns; O is staged where keys were."""
    regions: Any = plain.report["memory_map"]
    places = {x["what"]: (x["begin"], x["end"]) for x in regions}
    extents = {name: end - begin for name, (begin, end) in places.items()}
    shared = {"q": 16384, "k": 131072, "v": 65536, "p": 16384}
    tensor = {"o": 256, "rest": 192, "s": 64}
    assert {name: extents[name] for name in shared | tensor} == shared | tensor
    assert places["k"][0] <= places["out"][0] < places["out"][1] <= places["k"][1]


def test_t8_a_in_tensor_memory_is_there_twice(plain: Bundle) -> None:
    """A strip of 64 columns comes as two boxes of 64 heads; the first columns are a box of two lines."""
    params = [x for x in plain.manifest.params if isinstance(x, TensorMapParam) and x.tensor == "q"]
    assert sorted(tuple(x.box) for x in params) == [(64, 64, 1, 1), (64, 64, 2, 1)]
    copies = re.findall(r"cp\.async\.bulk\.tensor\.4d\.shared", plain.ptx)
    assert len(copies) == 1 + 2 * 384 // 64


def test_memory_of_a_cta_where_products_are_of_8_bits() -> None:
    """Q has no part in tensor memory, so there is room for two tiles of scores."""
    spec = SparseMlaSpec(heads=HEADS, kv_format="e4m3", dtype="e4m3")
    bundle = am.compile(spec, target="sm_100a")
    regions: Any = bundle.report["memory_map"]
    extents = {x["what"]: x["end"] - x["begin"] for x in regions}
    places = {"q": 40960, "k": 122880, "v": 49152, "p": 16384, "o": 256, "s": 128}
    assert {name: extents[name] for name in places} == places
    assert "rest" not in extents and "tail" not in extents
    assert "tcgen05.mma.cta_group::2.kind::f8f6f4" in bundle.ptx


def test_the_result_leaves_in_strips_while_the_next_is_made(plain: Bundle) -> None:
    """Of 64 columns of both halves: each has a slot and barriers of its own, and two boxes of 64 heads."""
    barriers: Any = plain.report["barriers"]
    counts = {x["name"]: x["count"] for x in barriers}
    assert counts["out full"] == counts["out empty"] == 256 // 64
    assert len(re.findall(r"cp\.async\.bulk\.tensor\.\dd\.global", plain.ptx)) == 512 // 64


def products(bundle: Bundle) -> list[tuple[str, int]]:
    """Where the sums of each product of the PTX lie, and for how many columns, by its descriptor."""
    constants = dict(re.findall(r"mov\.b32\s+(%r\d+), (\d+);", bundle.ptx))
    found = re.findall(r"tcgen05\.mma\S* \[(%r\d+)\], [^,]+, [^,]+, (%r\d+), ", bundle.ptx)
    return [(sums, (int(constants[told]) >> 17 & 63) << 3) for sums, told in found]


@pytest.mark.parametrize("heads", [64, HEADS])
def test_t16_values_of_512_columns_are_two_products(heads: int) -> None:
    """Of 256 columns each, as one has at most; 16 entries of a block of 64, or 128, at a time."""
    bundle = am.compile(SparseMlaSpec(heads=heads, head_dim=512), target="sm_100a")
    found = products(bundle)
    assert max(columns for _, columns in found) == 256
    halves = [sums for sums, columns in found if columns == 256]
    assert len(set(halves)) == 2 and len(halves) == 2 * heads // 16
    assert halves.count(halves[0]) == heads // 16


@pytest.mark.parametrize(
    ("heads", "options"),
    [
        (64, {}),
        (HEADS, {}),
        (HEADS, {"kv_format": "e4m3"}),
        (HEADS, {"kv_format": "e4m3", "narrow": True}),
    ],
    ids=["one CTA", "pair", "pair, 8 bits widened", "pair, products of 8 bits"],
)
@pytest.mark.long("pair, 8 bits widened")
def test_t18_each_weight_meets_the_row_of_its_entry(heads: int, options: dict[str, Any]) -> None:
    """Every head attends to one entry alone, another one each: those of a block's two halves, of blocks
    of 64 and of 128, lie in different places among the weights."""
    count = 2 * heads
    given = problem(Case(s_kv=count, topk=count, heads=heads, **options))
    form = options.get("kv_format")
    entries = np.random.default_rng(0).permutation(count)[:heads]
    rows = np.zeros((count, 1, 576), np.float32)
    rows[np.arange(count), 0, np.arange(count)] = 1
    kv: Any = rows.astype(given["kv"].dtype) if form is None else am.pack_latent(rows, form).kv
    q = np.zeros((1, heads, 576), np.float32)
    q[0, np.arange(heads), entries] = 64
    given |= {"kv": kv, "q": q.astype(given["q"].dtype), "scale": 4.0}
    given["indices"] = np.arange(count, dtype=np.int32)[None]
    found = attend(given)
    assert np.array_equal(found.o[0].astype(np.float32), rows[entries, 0, :512])


def test_t17_values_wait_until_queries_have_left_their_place(plain: Bundle) -> None:
    regions: Any = plain.report["memory_map"]
    places = {x["what"]: (x["begin"], x["end"]) for x in regions}
    assert places["tail"] == places["v"]
