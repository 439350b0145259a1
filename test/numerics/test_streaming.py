"""Attention of few queries, keys streaming past them: the same kernel for both targets, on the emulator."""

from __future__ import annotations

from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.compiling.request import request
from attn_mlir.compiling.spec import MhaSpec
from attn_mlir.errors import SpecError
from attn_mlir.lowering.compile import compile_request
from attn_mlir.runtime.file.bundle import Bundle
from attn_mlir.runtime.kernel import Kernel

TARGETS = ("sm_90a", "sm_100a")


def operands(sq: int, sk: int, heads: int, kv_heads: int, d: int, dv: int, batch: int = 1) -> Any:
    """Random q, k, v in bf16."""
    rng = np.random.default_rng(sq * 1000 + sk)
    shapes = ((sq, heads, d), (sk, kv_heads, d), (sk, kv_heads, dv))
    return [rng.standard_normal((batch, *shape)).astype(ml_dtypes.bfloat16) for shape in shapes]


def device(target: str, seed: int = 0) -> am.EmulatorDevice:
    """An emulator with two multiprocessors, so that persistent CTAs take several work tiles."""
    kind = "adversarial" if seed else "fair"
    return am.EmulatorDevice(kind, seed, multiprocessors=2, target=target)


def wrong(q: Any, k: Any, v: Any, target: str, seed: int = 0, **options: Any) -> str:
    """What is wrong with O and LSE of a call, or nothing."""
    o, lse = am.attention(
        q, k, v, **options, schedule="mha-streaming", return_lse=True, device=device(target, seed)
    )
    options.pop("num_splits", None)
    options.pop("query_tiles", None)
    verdict = am.reference.check_attention(q, k, v, o, lse, **options)
    return "" if verdict.ok else str(verdict)


@pytest.mark.parametrize(
    ("d", "dv", "target"),
    [
        (8, 8, "sm_100a"),
        (80, 80, "sm_90a"),
        (128, 128, "sm_90a"),
        (128, 128, "sm_100a"),
        (192, 128, "sm_90a"),
        (64, 144, "sm_100a"),
        (192, 192, "sm_90a"),
        (256, 256, "sm_100a"),
    ],
)
@pytest.mark.long(but=("8-8-sm_100a", "192-128-sm_90a", "256-256-sm_100a"))
def test_head_sizes(d: int, dv: int, target: str) -> None:
    """From one slice of O to two, the last one of another width than O has columns left."""
    q, k, v = operands(3, 150, 4, 2, d, dv)
    assert not wrong(q, k, v, target, seed=1, mask=am.causal())


@pytest.mark.parametrize(
    ("sq", "heads", "kv_heads", "tiles"),
    [(1, 8, 1, 1), (4, 8, 2, 2), (5, 16, 1, 6), (17, 3, 1, 4), (1, 32, 1, 2), (2, 24, 1, 4)],
)
@pytest.mark.long("4-8-2-2", "2-24-1-4", "5-16-1-6")
def test_work_tiles(
    sq: int, heads: int, kv_heads: int, tiles: int, product_counts: list[int]
) -> None:
    """Query tiles hold 2 and 4 positions of 8 and 4 heads, 5 of 3 heads, halves of 32 heads and of 24;
    from 17 rows on there are two of them in a work tile. Keys 0 .. 332 are 3 key tiles.

    A warp takes 4 + 4 products of K = 16 to get 16 x 32 scores of D = 64, and as many for O, in
    blocks of 8 columns: 4 x 4 and 8 x 2 instructions.
    """
    q, k, v = operands(sq, 333, heads, kv_heads, 64, 64)
    assert not wrong(q, k, v, "sm_90a", mask=am.full())
    assert product_counts == [tiles * 3 * 4 * (16 + 16)]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.long("1-*", "2-sm_100a", "0-sm_100a")
def test_tiles_one_after_the_other(target: str, seed: int) -> None:
    """Six work tiles on two CTAs: loads go on into the next tile, and warps drift apart."""
    q, k, v = operands(2, 250, 8, 2, 64, 64, batch=3)
    assert not wrong(q, k, v, target, seed, mask=am.causal())


@pytest.mark.parametrize(
    ("sq", "heads", "kv_heads", "options"),
    [
        (11, 6, 2, {}),  # a group of 3: 5 positions and a row that is nobody's
        (4, 5, 1, {"num_splits": 3, "query_tiles": 2}),  # 15 rows and 5
        (7, 14, 2, {"num_splits": 2, "query_tiles": 1}),  # 14 rows, of one query tile each
        (1, 11, 1, {"num_splits": 3}),  # 11 rows alone
        (3, 12, 1, {}),  # 12 rows three times
        (4, 16, 2, {"num_splits": 3, "query_tiles": 2}),  # 32 rows of 8 heads
        (1, 32, 1, {"num_splits": 3, "query_tiles": 2}),  # 32 heads
        (2, 40, 2, {}),  # 20 heads as two times 10
        # 16 heads three times, two positions, of one query tile each
        (2, 48, 1, {"num_splits": 2}),
    ],
)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.long(
    "sm_100a-*-options0",
    "sm_90a-*-options1",
    "sm_100a-*-options2",
    "sm_90a-*-options3",
    "sm_100a-*-options4",
    "sm_90a-*-options5",
    "sm_100a-*-options6",
    "sm_90a-*-options7",
    "sm_100a-*-options8",
    "*-options3",
    "*-options4",
    "*-options6",
    "*-options7",
    "sm_90a-*-options2",
    "sm_100a-*-options5",
)
def test_rows_of_two_query_tiles(
    sq: int, heads: int, kv_heads: int, options: dict[str, Any], target: str
) -> None:
    """Tiles along positions and along heads, some with rows that are nobody's, masked and modified."""
    keys = 300 if "num_splits" in options else 150
    q, k, v = operands(sq, keys, heads, kv_heads, 64, 64)
    sinks = np.linspace(-1, 3, heads, dtype=np.float32)
    slopes = am.mods.alibi(heads, offset=keys - sq)
    more: dict[str, Any] = {"mask": am.causal(), "sinks": sinks, "score_mod": slopes}
    assert not wrong(q, k, v, target, seed=1, **more, **options)


@pytest.mark.parametrize("parts", [1, pytest.param(3, marks=pytest.mark.long)])
def test_two_query_tiles_that_are_read_again(parts: int) -> None:
    """Where a thread has no registers for all of Q beside O: for each key tile, of which there are two."""
    q, k, v = operands(5, 150, 4, 1, 128, 128)
    options: dict[str, Any] = {"num_splits": parts, "query_tiles": 2}
    assert not wrong(q, k, v, "sm_100a", 1, mask=am.causal(), **options)


@pytest.mark.parametrize(("d", "dv"), [(128, 128), (192, 128), (40, 16)])
@pytest.mark.long("192-128", "40-16")
def test_head_sizes_of_two_query_tiles(d: int, dv: int) -> None:
    """O in four pieces, and in one; two where shared memory has room for key tiles beside them."""
    several = operands(
        5, 300, 8, 2, d, dv
    )  # more work tiles of one query tile than multiprocessors
    plan = am.plan(*several, schedule="mha-streaming", device=device("sm_90a"))
    assert plan.steps[0].request.query_tiles == (None if d == 192 else 2)  # pyright: ignore
    q, k, v = operands(5, 300, 4, 1, d, dv)
    for parts in (1, 3):
        options: dict[str, Any] = {"num_splits": parts, "query_tiles": 1 if d == 192 else 2}
        assert not wrong(q, k, v, "sm_90a", 1, mask=am.causal(), **options)


def test_bits_do_not_depend_on_query_tiles() -> None:
    """Which sizes choose, those of the batch among them: a sequence keeps its results in any."""
    q, k, v = operands(4, 200, 8, 1, 64, 64)
    options: dict[str, Any] = {"mask": am.causal(), "schedule": "mha-streaming"}
    found = [
        am.attention(q, k, v, **options, query_tiles=n, return_lse=True, device=device("sm_90a"))
        for n in (1, 2)
    ]
    assert all((x.view(np.uint8) == y.view(np.uint8)).all() for x, y in zip(*found, strict=True))


def test_two_query_tiles_of_unequal_lengths() -> None:
    """Rows of all sequences and parts: a work tile ends within its second query tile, or its first."""
    q, k, v = operands(9, 300, 3, 1, 64, 64, batch=4)
    used = np.array([9, 0, 2, 6], np.int32)
    ends = np.concatenate([[0], np.cumsum(used)]).astype(np.int32)
    rows = np.concatenate([q[b, :n] for b, n in enumerate(used)])
    options: dict[str, Any] = {"mask": am.causal(), "schedule": "mha-streaming"}
    for parts in (1, 3):
        out = np.full((len(rows) + 5, 3, 64), 7, q.dtype)
        o, lse = am.attention(
            np.concatenate([rows, rows[:5]]), k, v, cu_seqlens_q=ends, max_seqlen_q=9, out=out,
            num_splits=parts, query_tiles=2, return_lse=True, device=device("sm_90a", 1), **options,
        )  # fmt: skip
        assert (o[len(rows) :] == 7).all()
        for b, n in enumerate(used):
            one, packed = slice(b, b + 1), slice(ends[b], ends[b + 1])
            if n:
                verdict = am.reference.check_attention(
                    q[one, :n],
                    k[one],
                    v[one],
                    o[None, packed],
                    lse[None, :, packed],
                    mask=am.causal(),
                )
                assert verdict.ok, str(verdict)


@pytest.mark.parametrize(("parts", "seed"), [(3, 0), (7, 1), (9, 2)])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.long(but=("sm_90a-9-2", "sm_100a-7-1"))
def test_parts_of_the_keys(parts: int, seed: int, target: str) -> None:
    """Of 4 key tiles, so that some are empty, more than are read at a time; sinks count once."""
    q, k, v = operands(1, 500, 8, 1, 128, 128)
    sinks = np.linspace(-1, 3, 8, dtype=np.float32)
    assert not wrong(q, k, v, target, seed, num_splits=parts, sinks=sinks, mask=am.causal())


@pytest.mark.parametrize(
    ("d", "dv"), [(64, 64), (40, 40), (80, 96), (64, 144), (224, 224), (256, 256)]
)
@pytest.mark.long("64-64", "80-96", "64-144", "224-224")
def test_parts_of_head_sizes(d: int, dv: int) -> None:
    """Pieces for two warps, for one, for three; two slices, the last piece beyond O's columns, or 16 wide."""
    q, k, v = operands(3, 300, 2, 1, d, dv)
    assert not wrong(q, k, v, "sm_90a", seed=1, num_splits=3, mask=am.causal())


def test_parts_of_queries_of_unequal_lengths() -> None:
    """Rows past the end of a sequence are not written, by position and in rows of all sequences."""
    q, k, v = operands(3, 300, 4, 1, 64, 64, batch=3)
    used = np.array([3, 0, 2], np.int32)
    options: dict[str, Any] = {"mask": am.causal(), "seqused_q": used, "return_lse": True}
    options |= {"schedule": "mha-streaming", "device": device("sm_90a", 1)}
    out = np.full((3, 3, 4, 64), 7, q.dtype)
    o, lse = am.attention(q, k, v, num_splits=3, out=out, **options)
    rows = np.concatenate([q[b, :n] for b, n in enumerate(used)])
    ends = np.array([0, 3, 3, 5], np.int32)
    options |= {"cu_seqlens_q": ends, "seqused_q": None}
    again, sums = am.attention(rows, k, v, num_splits=3, **options)
    for b, n in enumerate(used):
        one = slice(b, b + 1)
        assert (o[b, n:] == 7).all()
        if n:
            verdict = am.reference.check_attention(
                q[one, :n], k[one], v[one], o[one, :n], lse[one, :, :n], mask=am.causal()
            )
            assert verdict.ok, str(verdict)
        packed = slice(ends[b], ends[b + 1])
        assert again[packed].tobytes() == o[b, :n].tobytes()
        assert sums[:, packed].tobytes() == np.ascontiguousarray(lse[b, :, :n]).tobytes()


def test_parts_have_the_same_bits_whoever_is_last() -> None:
    """And one launch, however often it is repeated: counters end as they began."""
    q, k, v = operands(2, 400, 4, 1, 64, 64, batch=2)
    found = set[bytes]()
    for seed in range(2):
        plan = am.plan(
            q, k, v, num_splits=3, schedule="mha-streaming", device=device("sm_90a", seed)
        )
        assert len(plan.steps) == 1
        found |= {plan.run().tobytes(), plan.run().tobytes()}
    assert len(found) == 1


@pytest.mark.parametrize("mask", [am.causal(), am.sliding_window(300)], ids=str)
@pytest.mark.long("window:300,0")
def test_parts_of_a_size_do_not_depend_on_the_batch(mask: am.Mask) -> None:
    """Alone, and among four others in two orders, of lengths that need more parts: the same bits."""
    rng = np.random.default_rng(0)
    lengths = np.array([300, 1, 0, 128], np.int32)
    count = len(lengths)
    pools = [rng.standard_normal((64, 16, 1, 64)).astype(ml_dtypes.bfloat16) for _ in "kv"]
    table = rng.permutation(64)[rng.integers(0, 64, (count, 20))].astype(np.int32)
    q = rng.standard_normal((count, 2, 4, 64)).astype(ml_dtypes.bfloat16)
    options: dict[str, Any] = {"mask": mask, "return_lse": True, "schedule": "mha-streaming"}
    options |= {"sinks": np.linspace(-1, 3, 4, dtype=np.float32)}

    def attended(chosen: Any, columns: int, seed: int, **split: int) -> Any:
        cache = am.PagedKV(*pools, table[chosen, :columns].copy(), lengths[chosen])
        return am.attention(q[chosen], cache, **options, **split, device=device("sm_90a", seed))

    together, sums = attended(np.arange(count), 20, 0, split_size=128)
    order = rng.permutation(count)
    others, other_sums = attended(order, 19, 1, split_size=128)
    assert others.tobytes() == together[order].tobytes()
    assert other_sums.tobytes() == sums[order].tobytes()
    differs = 0
    for b, length in enumerate(lengths):
        columns = -(-max(int(length), 1) // 16)
        alone, own_sums = attended([b], columns, 2, split_size=128)
        assert alone.tobytes() == together[b : b + 1].tobytes(), length
        assert own_sums.tobytes() == sums[b : b + 1].tobytes()
        if length > 128:
            shares = attended([b], columns, 2, num_splits=2)[0]
            differs += shares.tobytes() != alone.tobytes()
        if length:
            k, v = (p[table[b]].reshape(1, -1, 1, 64)[:, :length] for p in pools)
            verdict = am.reference.check_attention(
                q[b : b + 1], k, v, alone, own_sums, mask=mask, sinks=options["sinks"]
            )
            assert verdict.ok, str(verdict)
    assert differs  # parts of other sizes add up in another order


def test_parts_of_a_size_are_refused_where_there_is_no_kernel() -> None:
    """By name, with what would do."""
    q, k, v = operands(1, 40000, 8, 1, 64, 64)
    plan = am.plan(q, k, v, split_size=256, schedule="mha-streaming", device=device("sm_100a"))
    assert [x.shape[0] for x in plan.workspace if x.dtype == "f32"] == [157, 2]
    for size in (0, 100, -128, True, 128.0):
        with pytest.raises(SpecError, match="^split_size must be a multiple of 128 keys or None"):
            am.plan(q, k, v, split_size=size, schedule="mha-streaming", device="emulator")
    with pytest.raises(SpecError, match="^split_size 128 makes 313 parts .* pass at least 256$"):
        am.plan(q, k, v, split_size=128, schedule="mha-streaming", device="emulator")
    with pytest.raises(SpecError, match="^split_size excludes num_splits, got 2"):
        am.plan(q, k, v, split_size=256, num_splits=2, device=device("sm_90a"))
    with pytest.raises(SpecError, match="^split_size 256 needs schedule mha-streaming"):
        am.plan(q, k, v, split_size=256, schedule="mha", device=device("sm_100a"))
    for target in ("sm_100a", "sm_90a"):  # a call that names none gets one that has them
        plan = am.plan(q, k, v, split_size=256, device=device(target))
        assert [step.request.schedule for step in plan.steps] == ["mha-streaming"]
    with pytest.raises(SpecError, match="^split_size of a kernel is that of joined parts"):
        am.mha(heads=8, head_dim=64, schedule="mha-streaming", split_size=256)


def test_memory_of_the_parts() -> None:
    """What it holds before does not matter but for the counters, which are 0 again."""
    q, k, v = operands(1, 300, 8, 1, 64, 64, batch=2)
    spec = am.mha(heads=8, kv_heads=1, head_dim=64, schedule="mha-streaming", joined=True)
    kernel = am.Kernel(am.compile(spec, target="sm_90a"))
    o, lse = np.empty((2, 1, 8, 64), q.dtype), np.empty((2, 8, 1), np.float32)
    sums = np.full((4, 2, 2, 16, 32), np.nan, np.float32)
    extremes = np.full((2, 4, 2, 2, 16), np.nan, np.float32)
    arrived = np.zeros((2, 2), np.int32)
    for seed in range(2):
        o[:], lse[:] = np.nan, np.nan
        kernel(q, k, v, o, lse, sums, extremes, arrived, device=device("sm_90a", seed))
        verdict = am.reference.check_attention(q, k, v, o, lse)
        assert verdict.ok and not arrived.any(), str(verdict)
    with pytest.raises(SpecError, match="dimension 2 says tiles = 3, part_sums says 2"):
        wrong_one = np.zeros((2, 4, 3, 2, 16), np.float32)
        kernel(q, k, v, o, lse, sums, wrong_one, arrived, device="emulator")


class _Noting(am.EmulatorDevice):
    """Keeps the grids of its launches."""

    grids: ClassVar[list[Any]] = []

    def launch(self, bundle: Any, bound: Any, stream: object | None) -> Any:
        self.grids.append((bundle.entry, bound.grid_on(self.multiprocessors), bound.symbols))
        return super().launch(bundle, bound, stream)


def test_launches_do_not_depend_on_lengths_in_memory() -> None:
    """A plan is run again after the lengths of its cache have changed, as a graph is replayed."""
    q, k, v = operands(1, 256, 8, 2, 64, 64, batch=3)
    pools = [x.reshape(6, 128, 2, 64) for x in (k, v)]
    table, used = np.arange(6, dtype=np.int32).reshape(3, 2), np.zeros(3, np.int32)
    cache = am.PagedKV(*pools, page_table=table, seqused=used)
    on = _Noting("fair", 0, multiprocessors=24, target="sm_90a")
    plan = am.plan(q, cache, mask=am.causal(), num_splits=2, return_lse=True, device=on)
    for lengths in ((256, 256, 256), (1, 200, 0), (129, 0, 255)):
        used[:] = lengths
        o, lse = plan.run()
        for b, n in enumerate(lengths):
            one = slice(b, b + 1)
            if n:
                verdict = am.reference.check_attention(
                    q[one], k[one, :n], v[one, :n], o[one], lse[one], mask=am.causal()
                )
                assert verdict.ok, str(verdict)
            else:
                assert not o[b].any() and (lse[b] == -np.inf).all()
    first, *others = on.grids
    assert others == [first] * 2


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"query_tiles": 3}, "query_tiles must be 1, 2 or None, got 3"),
        (
            {"tile_order": "clc"},
            "schedule mha-streaming has no kernel: tile_order must be .*, got clc",
        ),
        (
            {"schedule": "mha-stream"},
            "schedule must be one of mha-swapped, mha-streaming, mha, mha-registers or None, got 'mha-stream'",
        ),
    ],
)
def test_what_there_is_no_kernel_for(option: dict[str, Any], text: str) -> None:
    q, k, v = operands(1, 20, 1, 1, 64, 64)
    with pytest.raises(SpecError, match=text):
        am.attention(q, k, v, **{"schedule": "mha-streaming", **option}, device="emulator")


@pytest.mark.parametrize("page", [1, 8, 192])
@pytest.mark.long("8")
def test_pages_that_do_not_go_with_its_key_tiles(page: int) -> None:
    """Smaller ones, and one whose size is no multiple of a key tile's; the table turns them round."""
    q, k, v = operands(1, 2 * page, 1, 1, 64, 64)
    table, keys = np.array([[1, 0]], np.int32), page + (page + 1) // 2
    pool = (x.reshape(2, page, 1, 64) for x in (k, v))
    cache = am.PagedKV(*pool, page_table=table, seqused=np.array([keys], np.int32))
    o, lse = am.attention(
        q, cache, schedule="mha-streaming", return_lse=True, device=device("sm_90a")
    )
    k, v = (np.roll(x, page, axis=1)[:, :keys] for x in (k, v))
    verdict = am.reference.check_attention(q, k, v, o, lse)
    assert verdict.ok, str(verdict)


@request
class OneSlot(MhaSpec):
    """Attention whose keys and values share one slot, as a single buffer."""

    @property
    def schedule_options(self) -> dict[str, int | str]:
        """With that wish."""
        return {**super().schedule_options, "kv-stages": 1}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.long("sm_100a")
def test_one_slot_of_keys_and_values(target: str) -> None:
    """Copies and products in turn: the same bits, late and out of order, in a fraction of shared memory."""
    spec = OneSlot(heads=2, kv_heads=1, head_dim=64, schedule="mha-streaming")
    bundle = Bundle.from_bytes(compile_request(spec, target=target))
    report: Any = bundle.report
    sizes = {x["what"]: x["end"] - x["begin"] for x in report["memory_map"]}
    assert sizes["kv"] == 128 * 2 * 64
    q, k, v = operands(3, 150, 2, 1, 64, 64)
    o, lse = np.full_like(q, np.nan), np.full((1, 2, 3), np.nan, np.float32)
    arguments = {"q": q, "k": k, "v": v, "scale": 0.125, "o": o, "lse": lse}
    Kernel(bundle).launch(arguments, device=device(target, 2))
    options: dict[str, Any] = {"schedule": "mha-streaming", "return_lse": True}
    wanted, sums = am.attention(q, k, v, **options, device=device(target))
    assert o.tobytes() == wanted.tobytes() and lse.tobytes() == sums.tobytes()
