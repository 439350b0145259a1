"""Score modifiers, predicates and sinks on the emulator, every element judged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import attn_mlir as am
from attn_mlir import mods
from attn_mlir import trace as tr
from attn_mlir.reference import check_attention

Array = npt.NDArray[Any]

pytestmark = pytest.mark.slow
RANDOM = np.random.default_rng(7)
BATCH, SQ, SK, HEADS, KV_HEADS = 2, 150, 140, 2, 1
FEW = 40  # queries of which one tile holds those of both heads
LOWEST = float(np.finfo(np.float32).min)


def normal(*shape: int, dtype: Any = np.float32) -> Array:
    return RANDOM.standard_normal(shape).astype(dtype)


def operands(sq: int = SQ, sk: int = SK, dtype: Any = ml_dtypes.bfloat16) -> list[Array]:
    random = np.random.default_rng(sq * 1000 + sk)
    return [
        random.standard_normal((BATCH, length, heads, 64)).astype(dtype)
        for length, heads in ((sq, HEADS), (sk, KV_HEADS), (sk, KV_HEADS))
    ]


def holes(value: float, *, whole_rows: bool = True) -> Array:
    """A bias [batch, q, k] of few queries that hides keys, and all keys of some rows."""
    table = np.where(RANDOM.random((BATCH, FEW, SK)) < 0.3, value, 0.0).astype(np.float32)
    if whole_rows:
        table[0, 5:9] = table[1, 33:] = value
    return table


def everything(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    """Every operation that a modifier may hold."""
    x = np.exp(-abs(s)) + np.log(s * s + 1) + np.log2(abs(s) + 1) + np.exp2(-abs(s))
    x = x + np.sqrt(abs(s)) + np.floor(s) * 0.1 + np.ceil(s) * 0.1 + np.tanh(s)
    y = (q // 3) * 0.01 + (q - k) % 5 * 0.02 + ((q & 3) | (k ^ 1)) * 0.01 + (b + h) / 3
    y = y + ((q << 1) >> 2) * 0.001 - (-q) * 0.001 + abs(q - k) * 0.001 + ~k * 0.001
    y = y + np.minimum(q, k) * 0.01 + np.maximum(q, 4) * 0.01 + ((q < 5) < (k < 5))
    z = np.where((q > k) & ~(h == 1) | (s > 0) ^ (k < 3), s**3 * 0.01, 1 / (1 + abs(s)))
    z = z + np.minimum(s, 1) + np.maximum(-1, s) + (q >= k) + (s != 0) + (q <= k) + (s == s)
    return x + y + z + s.to(int) * 0.1


DISTANCES = RANDOM.integers(-128, 128, (HEADS, 80)).astype(np.int8)
BYTES = RANDOM.integers(0, 256, 80).astype(np.uint8)
SHORTS = RANDOM.integers(-(2**15), 2**15, 80).astype(np.int16)
WORDS = RANDOM.integers(0, 2**16, 80).astype(np.uint16)
DOUBLES = RANDOM.standard_normal((HEADS, 80))


def written_out(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    """What is made of multiply-adds, and of several operations; of rows, which is less code."""
    x = q * 0.37 - 1.6
    y = (
        np.sin(x)
        + np.cos(x)
        + np.log1p(abs(x))
        + np.expm1(x)
        + tr.erf(x)
        + np.round(x)
        + np.trunc(x)
    )
    y = (
        y
        + x // 0.75
        + x % -0.75
        + np.fmod(q, 3)
        + abs(x) ** 1.5
        + 0.97**q
        + np.sign(x)
        + tr.gelu(x)
    )
    return np.where(np.isfinite(s), s, 0.0) + y * 0.1 + x.half() + s.bfloat16() * 0.1


def all_kinds_of_arrays(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    """Arrays of other types than operands have, indexed in steps; narrow integers that wrap around."""
    s = s + (BYTES[q] - BYTES[k]) * 0.01 + (DISTANCES[h, q] * DISTANCES[h, k]) * 0.01
    s = s + (SHORTS[q] - SHORTS[k]) * 1e-4 + (WORDS[q] + WORDS[k]) * 1e-4
    x = DISTANCES[h][q] * 0.01 + BYTES[q] * 0.01 + SHORTS[q] * 1e-4 + WORDS[q] * 1e-4
    return s * (k < 30) + x + DOUBLES[h, k] + DOUBLES[h, 3:9][q - 2] + DOUBLES[..., ::-2][h, q]


@dataclass(frozen=True)
class Case:
    """Options of `attention`; `rows` and `keys` in tokens."""

    options: dict[str, Any] = field(default_factory=dict[str, Any])
    rows: int = SQ
    keys: int = SK
    dtype: Any = ml_dtypes.bfloat16


SINKS = np.array([3.0, -20.0], np.float32)
I32 = np.int32
DOCUMENTS = np.sort(RANDOM.integers(0, 4, (BATCH, SQ))).astype(I32)
CASES: dict[str, Case] = {
    "every operation": Case({"score_mod": everything}, 9, 40),
    "written out": Case({"score_mod": written_out}, 9, 40),
    "all kinds of arrays": Case({"score_mod": all_kinds_of_arrays}, 9, 40),
    "a softcap far above the scores": Case({"score_mod": mods.softcap(1e6)}, 9, 40),
    "softcap": Case({"score_mod": mods.softcap(2.0)}),
    "softcap causal": Case({"score_mod": mods.softcap(2.0), "mask": am.causal()}, SK, SQ),
    "alibi": Case({"score_mod": mods.alibi(HEADS), "mask": am.causal()}, dtype=np.float16),
    "alibi by batch": Case({"score_mod": mods.alibi(normal(BATCH, HEADS) / 8)}),
    "relative bias": Case({"score_mod": mods.relative_bias(normal(HEADS, 31))}),
    "relative logits": Case(
        {
            "score_mod": mods.relative_logits(
                normal(BATCH, FEW, HEADS, 16, dtype=ml_dtypes.bfloat16)
            )
        },
        FEW,
    ),
    "bias of rank 2": Case({"score_mod": mods.bias(normal(SQ, SK))}),
    "bias of rank 3": Case({"score_mod": mods.bias(normal(BATCH, SQ, SK, dtype=np.float16))}),
    "bias of rank 4": Case({"score_mod": mods.bias(normal(BATCH, HEADS, FEW, SK))}, FEW),
    "bias of -inf": Case({"score_mod": mods.bias(holes(-np.inf))}, FEW),
    "bias of the lowest float": Case({"score_mod": mods.bias(holes(LOWEST))}, FEW),
    "bias of -1e9": Case({"score_mod": mods.bias(holes(-1e9, whole_rows=False))}, FEW),
    "mask tensor": Case({"mask_mod": mods.visible_where(holes(1.0) == 0)}),
    "documents": Case({"mask_mod": mods.document(DOCUMENTS, DOCUMENTS[:, :SK])}),
    "documents causal": Case(
        {"mask_mod": mods.document(DOCUMENTS[:, :SK], DOCUMENTS), "mask": am.causal()}, SK, SQ
    ),
    "padding": Case({"mask_mod": mods.key_padding(np.array([0, 129], I32))}),
    "causal from the top": Case({"mask_mod": mods.causal_from_top}, SK, SQ),
    "combined": Case(
        {
            "score_mod": mods.compose(mods.alibi(HEADS), mods.softcap(5.0)),
            "mask_mod": mods.or_masks(
                mods.and_masks(
                    mods.causal_from_top, mods.key_padding(np.array([20, 140], np.int64))
                ),
                mods.not_mask(mods.visible_where(normal(BATCH, HEADS, FEW, SK) > -1)),
            ),
        },
        FEW,
    ),
    "nothing visible": Case({"mask_mod": lambda b, h, q, k: q < 0}, FEW),
    "sinks": Case({"sinks": SINKS}),
    "sinks of bf16, causal": Case(
        {"sinks": SINKS.astype(ml_dtypes.bfloat16), "mask": am.causal()}, dtype=np.float16
    ),
    "sinks and rows without keys": Case(
        {"sinks": SINKS, "score_mod": mods.bias(holes(-np.inf))}, FEW
    ),
    "sinks, packed heads": Case({"sinks": SINKS, "mask": am.causal()}, 9),
    "modified, packed heads": Case(
        {"sinks": SINKS, "score_mod": mods.alibi(HEADS), "mask_mod": mods.causal_from_top}, 9
    ),
    "sinks without keys": Case({"sinks": SINKS}, keys=0),
}


def judged(case: Case, device: am.EmulatorDevice) -> None:
    q, k, v = operands(case.rows, case.keys, case.dtype)
    o, lse = am.attention(q, k, v, return_lse=True, device=device, **case.options)
    verdict = check_attention(q, k, v, o, lse, **case.options)
    assert verdict.ok, str(verdict)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.long(
    "softcap",
    "softcap causal",
    "alibi by batch",
    "bias of rank 2",  # several of them are read in place below
    "bias of rank 3",
    "bias of -inf",
    "bias of -1e9",
    "documents",
    "padding",
    "causal from the top",
    "sinks of bf16, causal",
    "mask tensor",
    "relative bias",
    "documents causal",  # is drawn late below
    "sinks",
    "sinks, packed heads",
)
def test_every_element_is_right(name: str) -> None:
    judged(CASES[name], am.EmulatorDevice())


@pytest.mark.parametrize("name", ["every operation", "alibi", "documents causal", "sinks"])
@pytest.mark.long("every operation", "alibi", "sinks")
def test_every_element_is_right_whatever_the_order(name: str) -> None:
    judged(CASES[name], am.EmulatorDevice(schedule="adversarial", seed=3))


def test_one_kernel_for_all_captured_arrays() -> None:
    """What is captured is an argument: other values and other extents take the same bundle."""

    def request(table: Array) -> am.MhaSpec:
        return am.mha(heads=2, head_dim=64, score_mod=lambda s, b, h, q, k: s + table[h, q])

    assert request(normal(2, 9)) == request(normal(2, 70))
    assert request(normal(2, 9)) != request(normal(2, 9, dtype=np.float16))


def test_indices_outside_an_array() -> None:
    """As the program says: below 0 from the end, then the nearest; also where an array says so."""
    table = normal(HEADS, 11)
    wrong = RANDOM.integers(-(2**63), 2**63, SK)
    wrong[: SK // 2] = RANDOM.integers(-15, 15, SK // 2)

    def outside(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s + table[h, q - k] + table[wrong[k], wrong[k].int()] + table[-1, -3]

    judged(Case({"score_mod": outside}, 20, 40), am.EmulatorDevice())


def test_integers_of_64_bits() -> None:
    ids = (RANDOM.integers(0, 3, (BATCH, SQ)) << 32) | 5

    def far(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        x = (ids[b, q] * 3 + q - k * 2**33) // 7 % 11 + ((ids[b, k] >> 31) & 3)
        y = np.minimum(ids[b, k], 2**35) + abs(-ids[b, q]) + (q * 2.0**33).to(int) % 5
        return s + x * 0.1 + y * 1e-11

    def same(b: Any, h: Any, q: Any, k: Any) -> Any:
        return ids[b, q] == ids[b, k]

    judged(Case({"score_mod": far, "mask_mod": same}, 20, 40), am.EmulatorDevice())


def test_captured_views_are_read_in_place() -> None:
    """Whatever their strides: a last axis that is not dense, or that is one element repeated."""
    rows, keys = 30, 40
    wide, turned = normal(rows, 2, keys), normal(keys, rows).T
    spread = np.broadcast_to(normal(rows, 1), (rows, keys))
    biases = (wide[:, 1], turned, normal(rows, 2 * keys)[:, ::2], spread)
    modifier = mods.compose(*(mods.bias(table) for table in biases))
    judged(Case({"score_mod": modifier}, rows, keys), am.EmulatorDevice())


@pytest.mark.parametrize(
    ("sinks", "message"),
    [
        (SINKS[:1], r"sinks must be \[2\] of f32, bf16 or f16, got \[1\] of f32"),
        (SINKS[None], r"sinks must be \[2\] of f32, bf16 or f16, got \[1, 2\] of f32"),
        (SINKS.astype(np.float64), r"got \[2\] of f64"),
        ([0.0] * 2, "sinks must be a numpy array"),
    ],
)
def test_refused_sinks(sinks: Any, message: str) -> None:
    q, k, v = operands(3, 4)
    with pytest.raises(am.errors.SpecError, match=message):
        am.attention(q, k, v, sinks=sinks, device="emulator")


def test_arrays_that_do_not_fit_are_refused() -> None:
    q, k, v = operands(3, 4)
    with pytest.raises(
        am.errors.SpecError, match=r"bias has shape \[3, 5\], it must be \[sq, sk\]"
    ):
        am.attention(q, k, v, score_mod=mods.bias(normal(3, 5)), device="emulator")
    with pytest.raises(am.errors.SpecError, match=r"lengths has shape \[3\]"):
        lengths = np.zeros(3, I32)
        am.attention(q, k, v, mask_mod=mods.key_padding(lengths), device="emulator")
