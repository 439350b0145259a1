"""Sparse latent attention over caches of 8 bits: the formats, and what kernels get wrong with them.

Tests of traps are named after them, as in `test_sparse_mla_traps.py`.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.compiling.sparse_mla import SparseMlaSpec
from attn_mlir.dialect.attn.latent.formats import FORMATS
from attn_mlir.reference.sparse_mla import SparseAttention, check_sparse_mla, of_pages
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.file.manifest import TensorMapParam
from attn_mlir.validation.numerics.sparse_cases import Case, problem, rows_of, wrong

BF16: Any = ml_dtypes.bfloat16
E4M3: Any = ml_dtypes.float8_e4m3fn
FAIR = EmulatorDevice(check="all")
E4M3_NAN = (0x7F, 0xFF)


def attend(given: dict[str, Any], device: EmulatorDevice = FAIR) -> SparseAttention:
    """What the kernel makes of the arguments of a call."""
    return SparseAttention(*am.sparse_mla(**given, device=device))


def bits(found: SparseAttention) -> list[bytes]:
    return [array.tobytes() for array in vars(found).values()]


def judge(given: dict[str, Any], device: EmulatorDevice = FAIR) -> SparseAttention:
    """Every element against the formula, from the bytes of the cache."""
    found = attend(given, device)
    plain = {name: given[name] for name in ("q", "indices", "scale")}
    for verdict in check_sparse_mla(found, kv=rows_of(given), **plain):
        assert verdict.ok, verdict
    return found


def raw(kv_format: str = "v32", rows: int = 48, heads: int = 8, seed: int = 0) -> dict[str, Any]:
    """A call whose cache has any bytes that are finite: elements of all sizes, scales near to 1."""
    random, form = np.random.default_rng(seed), FORMATS[kv_format]
    kv = random.integers(0, 256, (rows, 1, form.token_bytes), np.uint8)
    kv[np.isin(kv, E4M3_NAN)] = 0
    if form.wide:
        rope = (random.standard_normal((rows, 1, form.wide)) / 4).astype(BF16)
        kv[..., form.wide_at : form.wide_at + 2 * form.wide] = rope.view(np.uint8)
    if form.scales.place == "row":
        set_scales(kv, np.exp2(random.uniform(-9, -5, (rows, 4))))
    q = (random.standard_normal((1, heads, form.columns)) / 8).astype(BF16)
    indices = random.integers(0, rows, (1, 64), np.int32)
    return {"q": q, "kv": kv, "indices": indices, "scale": 0.1, "kv_format": kv_format}


def set_scales(kv: Any, scales: Any) -> None:
    """The scales of rows as `v32` has them."""
    form = FORMATS["v32"]
    end = form.scales_at + 4 * form.scales.stored
    kv[:, 0, form.scales_at : end] = np.ascontiguousarray(scales, np.float32).view(np.uint8)


@pytest.mark.parametrize(
    "case",
    [
        Case(s_q=2, s_kv=95, heads=8, lengths=True, sinks=True, kv_format="v32"),
        Case(s_q=2, s_kv=112, d_qk=512, heads=8, empty=True, kv_format="model1"),
        Case(s_kv=32, topk=256, heads=8, kv_format="e4m3_rope16", group=128),
    ],
    ids=str,
)
def test_every_element(case: Case) -> None:
    given = problem(case)
    assert not wrong(given, attend(given))


def test_late_and_out_of_order() -> None:
    case = Case(s_kv=200, topk=150, heads=8, lengths=True, sinks=True, kv_format="v32")
    given = problem(case)
    assert bits(attend(given, EmulatorDevice("adversarial", 1, check="all"))) == bits(attend(given))


def test_products_of_8_bits() -> None:
    """Fair, and late and out of order."""
    case = Case(s_q=2, s_kv=200, topk=150, heads=8, lengths=True, sinks=True, kv_format="e4m3")
    given = problem(case._replace(narrow=True))
    found = attend(given)
    assert not wrong(given, found)
    assert bits(attend(given, EmulatorDevice("adversarial", 2, check="all"))) == bits(found)


def test_products_of_8_bits_on_the_same_rows_again_and_again() -> None:
    """Weights of equal rows are all rounded alike: their errors do not average out."""
    case = Case(topk=64, heads=16, kv_format="e4m3", narrow=True, distinct=6)
    given = problem(case, seed=1)
    assert not wrong(given, attend(given))


@pytest.mark.parametrize("heads", [8, 128])
def test_t27_sinks_have_the_power_of_two_of_the_weights(heads: int) -> None:
    """P of 8 bits is 2^6 at a maximum: so is a sink that equals it, which halves O and no LSE."""
    rows = np.full((64, 1, 576), 0x38, np.uint8)  # 1
    q, half = np.zeros((1, heads, 576), E4M3), heads // 2
    q[:, half:] = 1.0
    sinks = np.log(64.0) + np.repeat([0.0, 576.0], half)
    given = {
        "q": q,
        "kv": rows,
        "indices": np.arange(64, dtype=np.int32)[None],
        "scale": 1.0,
        "kv_format": "e4m3",
        "sinks": sinks.astype(np.float32),
        "topk_length": np.array([64], np.int32),
    }
    found = attend(given)
    assert np.abs(found.o.astype(np.float32) - 0.5).max() < 2.0**-8
    assert np.allclose(found.lse[0], np.repeat([np.log(64.0), np.log(64.0) + 576], half), atol=1e-4)
    assert np.array_equal(found.max_logits[0], np.repeat([0.0, 576.0], half))


def test_pages_are_rows_elsewhere() -> None:
    """Tables of any contents; the bits are those of the same rows named by their numbers."""
    random, pages, size = np.random.default_rng(0), 5, 16
    kv = (random.standard_normal((pages, size, 1, 512)) / 8).astype(BF16)
    table = np.stack([random.permutation(pages), np.array([2, 99, -1, 0, 1])]).astype(np.int32)
    sequences = np.array([1, 0], np.int32)
    positions = random.integers(-3, pages * size + 3, (2, 64)).astype(np.int32)
    given = {
        "q": (random.standard_normal((2, 8, 512)) / 8).astype(BF16),
        "kv": am.pack_latent(kv, "model1").kv,
        "indices": positions,
        "scale": 0.3,
        "kv_format": "model1",
    }
    paged = attend(given | {"page_table": table, "batch_of_query": sequences})
    rows = of_pages(positions, table, sequences, size, pages).astype(np.int32)
    assert bits(judge(given | {"indices": rows})) == bits(paged)


def test_pages_one_behind_the_other_are_rows() -> None:
    given = raw()
    flat = bits(attend(given))
    assert bits(attend(given | {"kv": given["kv"].reshape(6, 8, 1, -1)})) == flat
    apart = np.zeros((48, 1, 704), np.uint8)
    apart[..., :656] = given["kv"]
    assert bits(attend(given | {"kv": apart[..., :656].view("i1")})) == flat


def test_t2_columns_of_16_bits_behind_those_of_8() -> None:
    """What a row has of rope alone decides over the scores."""
    given = raw()
    given["q"][..., :512] = 0
    given["q"][..., 512:] *= BF16(16)
    judge(given)


def test_t12_scales_of_rows_that_do_not_count_are_not_read() -> None:
    given = raw()
    given["indices"][:, ::2] = -5
    unnamed = np.setdiff1d(np.arange(48), given["indices"])
    assert len(unnamed)
    given["kv"][unnamed] = 0xFF
    judge(given)


@pytest.mark.parametrize("heads", [64, 128])
def test_t19_bytes_of_8_bits_wait_in_registers(heads: int) -> None:
    """None is staged where the tile will be, or anywhere in shared memory: what is there is there with 16
    bits as well, and what copies rows there is gone."""
    narrow, wide = (
        am.compile(SparseMlaSpec(heads=heads, kv_format=name), target="sm_100a")
        for name in ("v32", "bf16")
    )
    found, known = (
        {x["what"]: x["end"] - x["begin"] for x in made.report["memory_map"]}
        for made in (narrow, wide)
    )
    small = {"rows", "seen", "counted", "barriers"}
    assert {n: x for n, x in found.items() if n not in small} == {
        n: x for n, x in known.items() if n not in small
    }
    assert all(found[name] < 2048 for name in small & found.keys())
    maps = [x.tensor for x in narrow.manifest.params if isinstance(x, TensorMapParam)]
    assert {*maps} == {"q", "o"}
    copies = ("gather4", "cp.async.cg.shared", "cp.async.ca.shared")
    assert not any(copy in narrow.ptx for copy in copies)
    assert any(copy in wide.ptx for copy in copies)


@pytest.mark.parametrize(("heads", "group"), [(8, 32), (8, 128), (128, 32), (128, 128)])
@pytest.mark.long("8-128", "128-32")
def test_t20_scales_follow_the_columns_of_the_row(heads: int, group: int) -> None:
    """A row of 576 columns has a scale more than its 512 columns of values, where groups are small; in a
    pair of CTAs the second one's values begin with column 256, and keys come in chunks of 192."""
    given = raw("e4m3", heads=heads, seed=group)
    random = np.random.default_rng(group)
    count = FORMATS["e4m3"].groups(group)
    given["kv_scale"] = np.exp2(random.uniform(-10, -6, (48, count))).astype(np.float32)
    judge(given)


def test_t25_scales_are_no_powers_of_two() -> None:
    given = raw()
    set_scales(given["kv"], np.full((48, 4), 1.99 / 256))
    one = judge(given)
    set_scales(given["kv"], np.full((48, 4), 1 / 256))
    assert bits(judge(given)) != bits(one)


def test_scales_of_any_size() -> None:
    """Of columns that the queries do not look at; values are as large and as small as f32 has them."""
    given, random = raw(), np.random.default_rng(1)
    scales = np.exp2(random.uniform(-9, -5, (48, 4)))
    scales[:, 3] = np.exp2(random.integers(-149, 118, 48).astype(np.float64))
    set_scales(given["kv"], scales)
    given["q"][..., 384:512] = 0
    judge(given)


def test_what_is_no_number_stays_none() -> None:
    """NaN as a scale of 8 bits, and as an element, of a row that counts: in its columns of O, and in the scores."""
    packed = am.pack_latent(np.ones((1, 16, 1, 512), BF16), "model1").kv
    flat = packed.reshape(1, -1, copy=False)
    flat[0, 16 * 576 + 3 * 8 + 2] = 0xFF  # row 3, the third group
    flat[0, 5 * 576 + 7] = 0x7F
    q = np.zeros((2, 8, 512), BF16)
    for name, row in (("scale", 3), ("element", 5)):
        indices = np.array([[0, row, 1], [0, 1, 2]], np.int32)
        found = attend(
            {"q": q, "kv": packed, "indices": indices, "scale": 1.0, "kv_format": "model1"}
        )
        assert np.isnan(found.o[0].astype(np.float32)).any(), name
        assert np.array_equal(found.o[1].astype(np.float32), np.ones((8, 512))), name


def test_calls_that_come_again_see_the_cache_that_they_are_given() -> None:
    first, second = raw(seed=1), raw(seed=2)
    expected = [bits(attend(given)) for given in (first, second)]
    assert [bits(attend(given)) for given in (second, first)] == expected[::-1]
