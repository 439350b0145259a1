"""Latent attention before absorption on the emulator: every element judged, NaN wherever nothing lies."""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.runtime.emulator.emulator import Stats
from attn_mlir.runtime.file.recipes import TensorMapParam
from attn_mlir.validation.numerics import prefill_sweep
from attn_mlir.validation.numerics.latent import ALONE, E4M3, LatentProblem, NarrowRope, RowFactors
from attn_mlir.validation.numerics.latent_draws import DRAWS
from attn_mlir.validation.numerics.stored import Form

pytestmark = pytest.mark.slow

IN_SUITE = 2  # draws; `make numerics` runs 200
ONE = {"query_tiles": 1}
PAIR = (130, 77)
ADVERSARIAL = {"schedule": "adversarial", "seed": 3}
CASES = {
    "two query tiles": LatentProblem((150,), (200,), heads=(2, 2), options={"mask": am.causal()}),
    "ragged": LatentProblem(
        (140, 0, 7), (150, 77, 130), ragged="qk", options={"mask": am.causal()}
    ),
    "used keys, f16": LatentProblem(
        (40, 40), PAIR, dtype=np.float16, options={"mask": am.sliding_window(50, 0)}, call=ONE
    ),
    "pages under dense keys": LatentProblem(
        (40, 40), PAIR, cache=Form(16), options={"mask": am.causal()}, call=ONE
    ),
    "pages under ragged keys": LatentProblem(
        (40, 0, 3), (130, 77, 0), ragged="qk", spare=30, cache=Form(64, "HND"), device=ADVERSARIAL
    ),
    "compressed rows": LatentProblem((40, 40), PAIR, cache=Form(32, compressed=True), call=ONE),
    "rows by index, padded, without the new keys": LatentProblem(
        (40, 40),
        PAIR,
        cache=Form(selected=True, padded=True, counts_new=False),
        options={"mask": am.chunked(64)},
        call=ONE,
    ),
    "other sizes, a group of heads": LatentProblem(
        (40,), (130,), heads=(4, 2), sizes=(64, 32, 72), call={"out_dtype": "f32"}
    ),
    "rope of packed rows": LatentProblem(
        (40, 40),
        PAIR,
        cache=Form(16),
        stored="e4m3_rope16",
        options={"mask": am.causal()},
        call=ONE,
    ),
    "rope behind the rows of pages": LatentProblem((9,), (70,), cache=Form(32), stored="model1"),
    "rope between factors, rows by index": LatentProblem(
        (9, 9), (70, 30), cache=Form(selected=True, padded=True), stored="v32", call=ONE
    ),
    "rope alone": LatentProblem(
        (9, 9), (70, 30), cache=Form(64, "HND"), stored=ALONE, dtype=np.float16, call=ONE
    ),
    "rope alone, whole rows": LatentProblem((9,), (70,), cache=Form(), stored=ALONE, call=ONE),
    "values of 256": LatentProblem((40,), (70,), sizes=(192, 64, 256), options={"scale": 0.1}),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.long(
    "used keys, f16",
    "compressed rows",
    "ragged",
    "pages under dense keys",
    "rope behind*",
    "rope between*",
    "rope alone*",
)
def test_mla(name: str) -> None:
    CASES[name].run()


@pytest.mark.parametrize(("query_tiles", "visits"), [(1, 2 + 1), (2, 2 * 2)])
def test_products_and_bytes_are_those_of_the_formula(
    query_tiles: int, visits: int, launches: list[Stats]
) -> None:
    """Queries 171 to 298, and 299, see 41 keys each: those of the first tile of rows lie in two tiles of
    keys, of which the second tile alone has one. Two tiles of rows in a CTA visit, and copy, the same tiles."""
    problem = LatentProblem(
        (129,), (300,), heads=(1, 1), options={"mask": am.sliding_window(40, 0)}
    )
    dataclasses.replace(problem, call={"query_tiles": query_tiles}).run()
    products, copied = 192 // 16 + 128 // 16, 128 * (192 + 128) * 2
    assert launches[-1].mma_count == visits * products
    loaded = 2 * 128 * 192 * 2 + visits // query_tiles * copied
    assert launches[-1].counters["tensor_load_bytes"] == loaded


ROPE_CASES = {
    "two query tiles, pages of factors of their own": LatentProblem(
        (130,), (140,), cache=Form(64, scales_apart=True), rope=NarrowRope((-2, 2)),
        sizes=(64, 64, 64), call={"query_tiles": 2},
    ),
    "ragged, factors of a tensor": LatentProblem(
        (9, 0, 3), (140, 7, 0), ragged="qk", rope=NarrowRope((28, 30)), device=ADVERSARIAL,
        sizes=(64, 32, 64), call=ONE,
    ),
    "rows by index, padded": LatentProblem(
        (40, 40), PAIR, cache=Form(selected=True, padded=True), rope=NarrowRope((-30, -28)),
        options={"mask": am.causal()}, call={"tile_order": "clc"},
    ),
    "values of 256 columns, with room for tiles of 64 keys": LatentProblem(
        (64,), (100,), rope=NarrowRope((-2, 2)), sizes=(64, 64, 256), call={"tile_order": "persistent"},
    ),
    "compressed rows, no factors, two query tiles": LatentProblem(
        (150,), (300,), cache=Form(16, compressed=True), rope=NarrowRope(), device=ADVERSARIAL
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROPE_CASES)
@pytest.mark.long("rows by index, padded", "compressed rows, no factors, two query tiles")
def test_rope_of_8_bits(name: str) -> None:
    """NaN in rows and factors that no position has; pages outside the pool in the tables."""
    ROPE_CASES[name].run()


FACTOR_CASES = {
    "ragged, factors of each head": LatentProblem(
        (9, 0, 3), (140, 7, 0), ragged="qk", heads=(2, 1), sizes=(128, 32, 64), dtype=E4M3,
        factors=RowFactors(29, -29, 20), device=ADVERSARIAL, call=ONE,
    ),
    "pages, two query tiles": LatentProblem(
        (130,), (140,), cache=Form(16), dtype=E4M3, factors=RowFactors(-29, 29, -20, per_head=False),
        options={"mask": am.causal()}, call={"query_tiles": 2},
    ),
    "rows by index, padded": LatentProblem(
        (40, 40), PAIR, cache=Form(selected=True, padded=True), dtype=E4M3, factors=RowFactors(),
        call={"tile_order": "clc", "out_dtype": "f32"}, device=ADVERSARIAL,
    ),
    "rope of 16 bits": LatentProblem(
        (40,), (130,), dtype=E4M3, wide_rope=True, factors=RowFactors(), call=ONE,
    ),
    "rope of 16 bits of packed rows, two query tiles": LatentProblem(
        (130,), (140,), cache=Form(16), stored="e4m3_rope16", dtype=E4M3, wide_rope=True,
        factors=RowFactors(-29, 29, -20), options={"mask": am.causal()}, call={"query_tiles": 2},
        device=ADVERSARIAL,
    ),
    "rope of 32 columns of 16 bits, ragged": LatentProblem(
        (9, 0, 3), (140, 7, 0), ragged="qk", heads=(2, 1), sizes=(128, 32, 64), dtype=E4M3,
        wide_rope=True, factors=RowFactors(29, -29, 20, per_head=False), call=ONE,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FACTOR_CASES)
@pytest.mark.long(
    "pages, two query tiles", "rows by index, padded", "rope of * packed*", "rope of 32*"
)
def test_8_bits_with_factors_of_rows(name: str) -> None:
    """NaN in factors of keys behind a sequence's end where it has a dimension of its own."""
    FACTOR_CASES[name].run()


HELD = ("ragged", "pages under dense keys", "rope of packed rows", "other sizes, a group of heads")


@pytest.mark.parametrize("name", HELD)
@pytest.mark.long("pages under dense keys", "rope of packed rows")
def test_on_hopper(name: str) -> None:
    device = {"target": "sm_90a", "schedule": "adversarial", "seed": 1}
    dataclasses.replace(CASES[name], device=device).run()


@pytest.mark.parametrize("seed", range(IN_SUITE))
def test_draws(seed: int) -> None:
    assert not (wrong := DRAWS.failure(seed)), wrong


def test_pages_of_any_size_give_the_same_bits() -> None:
    """So do rope in a tensor of its own, and a second run."""
    plain = LatentProblem((40, 40), (130, 130), options={"mask": am.causal()}, call=ONE)
    o, lse = plain.run()
    for cache in (None, Form(16), Form(128)):
        again = dataclasses.replace(plain, cache=cache).run()
        assert [x.tobytes() for x in again] == [o.tobytes(), lse.tobytes()]


def test_a_batch_in_another_order_gives_the_same_bits() -> None:
    problem = LatentProblem((40, 40), (130, 130), options={"mask": am.causal()}, call=ONE)
    operands, _ = problem.call_of(problem.sequences())
    mask, device = am.causal(), am.EmulatorDevice()

    def o_of(order: slice) -> bytes:
        given = {name: np.ascontiguousarray(array[order]) for name, array in operands.items()}
        o = am.mla(**given, scale=0.1, mask=mask, device=device, query_tiles=1)
        return o[order].tobytes()

    assert o_of(np.s_[:]) == o_of(np.s_[::-1])


def test_an_array_for_the_output_and_no_lse() -> None:
    problem = LatentProblem((40,), (130,), call=ONE)
    operands, _ = problem.call_of(problem.sequences())
    out = np.full((1, 40, 1, 128), np.nan, ml_dtypes.bfloat16)
    o = am.mla(**operands, scale=0.1, out=out, device="emulator", query_tiles=1)
    assert o is out and np.isfinite(out.astype(np.float32)).all()


@pytest.mark.parametrize("parts", [True, False])
@pytest.mark.long("False")
def test_a_case_of_flash_mlas_matrix(parts: bool) -> None:
    """Rows of two sequences, more keys than queries; `test/validation/numerics/prefill_sweep.py` has all."""
    case = prefill_sweep.Case(s=70, h=2, h_k=1, d=192, varlen=True, causal=True, parts=parts)
    assert not (wrong := prefill_sweep.run(case)), wrong


def test_the_matrix_is_whole_and_tells_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(set(prefill_sweep.cases())) == len(list(prefill_sweep.cases())) == 48

    def nothing(q: Any, *_: object, **__: object) -> tuple[Any, Any]:
        return np.zeros_like(q[..., :128]), np.zeros(q.shape[:2], np.float32)

    monkeypatch.setattr(prefill_sweep, "flash_attn_varlen_func", nothing)
    wrong = prefill_sweep.run(prefill_sweep.Case(s=20, d=192))
    assert "sequence 1: " in wrong and "out of sequence 0" in wrong and "lse of sequence 0" in wrong


def test_a_tile_of_keys_of_8_bits_takes_what_its_rows_do() -> None:
    """Rows of rope are 64 bytes: 16384 and 8192 of each 128 keys, and twice as many as where they were padded."""
    spec = am.MlaSpec(heads=2, nope_dim=128, rope_dim=64, dtype="e4m3", query_tiles=2)
    bundle = am.compile(spec, target="sm_100a")
    report: Any = bundle.report
    sizes = {x["what"]: x["end"] - x["begin"] for x in report["memory_map"]}
    assert (sizes["kv"], sizes["rope"]) == (8 * 16384, 4 * 8192)
    maps = [x for x in bundle.manifest.params if isinstance(x, TensorMapParam)]
    swizzles = {x.tensor: (x.swizzle, x.box[0]) for x in maps}
    assert swizzles["k_rope"] == ("64B", 64) and swizzles["k_nope"] == ("128B", 128)
