"""Caches of 8 bits in which every position has factors of its own, on the emulator."""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir import mods
from attn_mlir.dialect.attn.cache import Cache
from attn_mlir.lowering import ptxas
from attn_mlir.reference import attention_f64, attention_yardstick, compare, sequences
from attn_mlir.validation.numerics.stored import Form

BF16, E4M3, E5M2 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
LENGTHS = (77, 0, 256, 1)
HEADS, KV_HEADS = 4, 2


def made(
    form: Form,
    sizes: tuple[int, int],
    groups: tuple[int, int],
    *,
    q: Any = BF16,
    kv: Any = E4M3,
    scale: Any = np.float32,
    spread: float = 1.5,
    queries: int = 3,
    lengths: tuple[int, ...] = LENGTHS,
) -> tuple[Any, Any]:
    """Queries and a cache; all that holds no position is NaN, factors among it, and tables hostile."""
    random = np.random.default_rng(sum(sizes) + sum(groups))

    def drawn(n: int, columns: int) -> Any:
        return random.standard_normal((n, KV_HEADS, columns))

    keys, values = ([drawn(n, size).astype(kv) for n in lengths] for size in sizes)
    factors = [[np.exp(spread * drawn(n, g)).astype(scale) for n in lengths] for g in groups]
    new = [queries] * len(lengths)
    scales = {"k_scale": factors[0], "v_scale": factors[1]}
    tokens = random.standard_normal((len(lengths), queries, HEADS, sizes[0])).astype(q)
    return tokens, form.stored(keys, values, new, random, 256, **scales)


def wrong(q: Any, cache: Any, target: str, seed: int = 0, **options: Any) -> str:
    """What is wrong with O and LSE of a call, or nothing."""
    kind = "adversarial" if seed else "fair"
    device = am.EmulatorDevice(kind, seed, multiprocessors=2, target=target)
    o, lse = am.attention(q, cache, return_lse=True, device=device, **options)
    for name in ("num_splits", "out_dtype", "query_tiles"):
        options.pop(name, None)
    for one in sequences(q, cache):
        arrays, own = (one.q, one.k, one.v), dict[str, Any](options, first_batch=one.batch)
        truth = attention_f64(*arrays, **own)
        yardstick = attention_yardstick(*arrays, out_dtype=o.dtype, **own)
        verdict = compare(o[one.o][None], lse[one.lse][None], truth, yardstick)
        if not verdict.ok:
            return f"sequence {one.batch}: {verdict}"
    return ""


@pytest.mark.parametrize(
    ("form", "sizes", "groups", "scale", "target", "seed"),
    [
        (Form(64), (64, 64), (1, 1), np.float32, "sm_90a", 0),
        (Form(16, layout="HND"), (128, 128), (1, 1), np.float16, "sm_100a", 1),
        (Form(16, scales_apart=True), (128, 128), (4, 4), np.float32, "sm_90a", 2),
        (Form(32, in_one_pool=True), (64, 64), (2, 2), BF16, "sm_100a", 0),
        (Form(128, compressed=True), (96, 64), (3, 1), np.float32, "sm_90a", 3),
        (Form(16, compressed=True, scales_apart=True), (80, 48), (1, 1), np.float16, "sm_90a", 1),
        (Form(16, apart=True), (64, 128), (1, 2), np.float32, "sm_90a", 0),
        (Form(256), (192, 128), (2, 4), np.float32, "sm_100a", 4),
        (Form(selected=True, padded=True), (64, 64), (1, 2), np.float32, "sm_90a", 5),
        (Form(), (256, 256), (2, 2), np.float32, "sm_90a", 0),
        (Form(1, scales_apart=True), (128, 128), (2, 1), np.float32, "sm_100a", 0),
    ],
)  # fmt: skip
@pytest.mark.long("form0-*", "form2-*", "form3-*", "form5-*", "form6-*", "form7-*", "form9-*")
def test_caches(
    form: Form, sizes: tuple[int, int], groups: tuple[int, int], scale: Any, target: str, seed: int
) -> None:
    assert not wrong(*made(form, sizes, groups, scale=scale), target, seed, mask=am.causal())


@pytest.mark.parametrize("q", [np.float16, E4M3, E5M2])
@pytest.mark.long("float8_e5m2")
def test_queries(q: Any) -> None:
    """Queries of 8 bits have a factor of their own."""
    is_narrow = np.dtype(q).itemsize == 1
    kv = q if is_narrow else E5M2
    factor = {"q_descale": np.full(1, 0.4, np.float32)} if is_narrow else {}
    q, cache = made(Form(16), (64, 64), (2, 2), q=q, kv=kv, queries=1)
    assert not wrong(q, cache, "sm_100a", 1, **factor)


@pytest.mark.parametrize(
    ("form", "rows", "sizes", "groups", "target", "seed"),
    [
        (Form(16), 16, (128, 128), (1, 1), "sm_90a", 0),
        (Form(64, layout="HND"), 8, (256, 256), (2, 2), "sm_100a", 1),
        (Form(32, scales_apart=True), 4, (64, 64), (2, 1), "sm_90a", 2),
        (Form(128, compressed=True), 128, (64, 64), (1, 2), "sm_90a", 0),
        (Form(selected=True), 32, (64, 128), (1, 2), "sm_90a", 1),
        (Form(), 2, (64, 64), (2, 2), "sm_100a", 0),
    ],
)  # fmt: skip
@pytest.mark.long("form1-*", "form3-*", "form4-*", "form5-*")
def test_blocks_of_positions(
    form: Form,
    rows: int,
    sizes: tuple[int, int],
    groups: tuple[int, int],
    target: str,
    seed: int,
) -> None:
    """Neighbouring positions share a factor: as if each had that of the first of its block."""
    q, cache = made(form, sizes, groups)
    step: Any = np.s_[:, :, ::rows] if form.layout == "HND" else np.s_[:, ::rows]
    axis = 2 if form.layout == "HND" else 1
    shared = {name: getattr(cache, name)[step] for name in ("k_scale", "v_scale")}
    told = {name: np.repeat(x, rows, axis) for name, x in shared.items()}
    of_blocks = dataclasses.replace(cache, **shared)
    assert not wrong(q, of_blocks, target, seed, mask=am.causal())
    device = am.EmulatorDevice("fair", 0, multiprocessors=2, target=target)
    found, wanted = (
        am.attention(q, x, mask=am.causal(), device=device)
        for x in (of_blocks, dataclasses.replace(cache, **told))
    )
    assert np.array_equal(found.view(np.uint16), wanted.view(np.uint16))


def test_modifiers_windows_sinks_and_parts() -> None:
    """A modifier sees scores with the factors of their keys; parts of the keys each have powers of their own."""
    given: dict[str, Any] = {
        "score_mod": mods.softcap(5.0),
        "sinks": np.linspace(-1, 3, HEADS, dtype=np.float32),
        "mask": am.sliding_window(90, 0),
    }
    assert not wrong(*made(Form(16), (64, 64), (1, 2)), "sm_90a", num_splits=3, **given)


@pytest.mark.parametrize(
    ("sizes", "groups", "splits"), [((128, 128), (4, 4), 1), ((64, 64), (1, 2), 3)]
)
@pytest.mark.long("sizes0-groups0-1")
def test_two_query_tiles(sizes: tuple[int, int], groups: tuple[int, int], splits: int) -> None:
    """Warps of both tiles read the factors of the key tile that they share."""
    form = Form(16, scales_apart=True)
    given = made(form, sizes, groups, queries=20, lengths=(77, 0, 150))
    options: dict[str, Any] = {"mask": am.sliding_window(90, 0), "num_splits": splits}
    assert not wrong(*given, "sm_90a", 1, query_tiles=2, **options)


@pytest.mark.parametrize("magnitude", [1e-20, 1e20])
def test_factors_of_any_size(magnitude: float) -> None:
    """Weights times factors are far outside of f16, and from 2^-20 to 2^20 apart in one tile."""
    q, cache = made(Form(64), (64, 64), (1, 2), spread=5.0)
    cache = dataclasses.replace(cache, v_scale=cache.v_scale * np.float32(magnitude))
    cache = dataclasses.replace(cache, k_scale=np.minimum(cache.k_scale, np.float32(4.0)))
    assert not wrong(q, cache, "sm_90a", out_dtype="f32")


def test_growing_and_shrinking_factors() -> None:
    """The power of two of a row follows the largest weight up, from tile to tile, and does not lose it again."""
    for order in (1, -1):
        q, cache = made(Form(), (64, 64), (1, 1), spread=0.0)
        sizes = np.geomspace(1e-12, 1e12, 256, dtype=np.float32)[::order]
        factors = np.broadcast_to(sizes[None, :, None, None], cache.v_scale.shape)
        cache = dataclasses.replace(
            cache, v_scale=np.where(np.isnan(cache.v_scale), np.nan, factors)
        )
        assert not wrong(q, cache, "sm_90a", out_dtype="f32")


def test_pages_that_are_none_are_zero() -> None:
    """In arrays that are not looked at, such as those on a GPU: zeros for data and factors alike."""
    q, cache = made(Form(64), (64, 64), (1, 1))
    table, own = np.array(cache.page_table), np.array(cache.page_table)
    own[2] = (-1, 2**31 - 1, -(2**31), own[2, 3])
    whole = dataclasses.replace(
        cache, scale_table=own, k_scale=cache.k_scale, v_scale=cache.v_scale
    )
    device = am.EmulatorDevice(target="sm_90a")
    plan = am.plan(q, dataclasses.replace(whole, scale_table=table), device=device)
    (step,) = plan.steps
    arguments = {**step.arguments, "scale_table": own}
    hostile = dataclasses.replace(plan, steps=[dataclasses.replace(step, arguments=arguments)])
    k, v = (np.array(x) for x in (cache.k_pages, cache.v_pages))
    k[table[2, :3]], v[table[2, :3]] = 0, 0
    zeroed = dataclasses.replace(cache, k_pages=k, v_pages=v)
    wanted = am.attention(q, zeroed, device=device)
    assert np.array_equal(hostile.run(), wanted)


@pytest.mark.parametrize("form", [Form(), Form(64)], ids=["rows", "pages"])
@pytest.mark.long("pages")
def test_no_position_at_all(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays without an element, in front of which other ones lie: nothing is read of them."""
    monkeypatch.setenv("ATTN_MLIR_CHECK", "all")
    sides = [np.zeros((0, KV_HEADS, 64), E4M3) for _ in "kv"]
    factors = [np.zeros((0, KV_HEADS, 1), np.float32) for _ in "kv"]
    scales = {"k_scale": factors[:1] * 3, "v_scale": factors[1:] * 3}
    random, new = np.random.default_rng(0), [2] * 3
    cache = form.stored([sides[0]] * 3, [sides[1]] * 3, new, random, 0, **scales)
    q = np.ones((3, 2, HEADS, 64), BF16)
    for splits in (1, 3):
        assert not wrong(q, cache, "sm_90a", 1, num_splits=splits)


@pytest.mark.ptxas
@pytest.mark.parametrize(
    ("sizes", "groups", "q", "tiles", "target", "most"),
    [
        ((128, 128), (4, 4), "bf16", 1, "sm_90a", 0),
        ((128, 128), (4, 4), "bf16", 2, "sm_90a", 68),
        ((192, 128), (2, 4), "bf16", 1, "sm_90a", 0),
        ((256, 256), (2, 2), "e4m3", 1, "sm_100a", 0),
    ],
)
@pytest.mark.long("sizes1-*", "sizes2-*")
def test_spills(
    sizes: tuple[int, int], groups: tuple[int, int], q: str, tiles: int, target: str, most: int
) -> None:
    """At the most factors of a row that are taken, bytes stored and loaded."""
    cache = Cache(
        page_size=16, pages="table", scale_dtype="f32", k_groups=groups[0], v_groups=groups[1]
    )
    sides: dict[str, Any] = {
        "head_dim": sizes[0],
        "v_head_dim": sizes[1],
        "dtype": q,
        "kv_dtype": "e4m3",
        "query_tiles": tiles,
    }
    spec = am.mha(heads=8, kv_heads=1, mask=am.sliding_window(100, 0), cache=cache, **sides)
    assert ptxas.assemble(am.compile(spec, target=target).ptx, target).spill_bytes <= most
