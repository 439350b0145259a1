"""Gradients of tensors that score modifiers capture, on the emulator."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.dialect.attn.lengths import DENSE, Lengths
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.trace import Recorded, tanh, trace
from attn_mlir.validation.numerics import gradients as cases
from attn_mlir.validation.numerics.gradients import draw, gradients

HEADS = 2
random = np.random.default_rng(0)
SLOPES = random.standard_normal(HEADS).astype(np.float32)
GATE = random.standard_normal((2, HEADS)).astype(np.float16)
CAP = np.array(0.3, ml_dtypes.bfloat16)
TRAP = np.ones(1, np.float32)


def modified(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    """One factor for each head, one for each sequence and head, and one for all."""
    return score * GATE[b, h] + SLOPES[h] * (k - q) / 32 + tanh(score * CAP)


def trapped(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    """Infinite where the predicate hides it."""
    del b, h
    return score + TRAP[0] / (q - k + 70)


RAGGED = Lengths(ragged_q=True, ragged_k=True)
USED = Lengths(used_q=True, used_k=True)
UNITS: dict[str, float] = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def run(
    mods: Recorded,
    names: tuple[str, ...],
    sizes: list[int],
    lengths: Lengths,
    *,
    sinks: Any = None,
    kv_heads: int = 1,
    target: str = cases.TARGET,
    deterministic: bool = True,
    seed: int = 1,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What the kernels make, and the gradients of each sequence by the formula."""
    request = gradients(HEADS, kv_heads, 64, 64, am.causal(), lengths=lengths, mods=mods)
    given = [draw(request, n, n, 0.125, n, mods=mods, sinks=sinks) for n in sizes]
    options: dict[str, Any] = {"mask": am.causal(), "score_mod": mods, "captured": names}
    options["sinks"] = sinks
    fields = ("q", "k", "v", "o", "lse", "do", "dlse")
    tensors = cases.stored(lengths, given, fields)
    device = EmulatorDevice("adversarial", seed, multiprocessors=2, target=target, check="all")
    options_of_call = {**options, "deterministic": deterministic}
    found = am.attention_backward(**tensors, **options_of_call, device=device)
    true: list[dict[str, Any]] = []
    for number, one in enumerate(given):
        batch = {x: np.stack([getattr(one, x)] * (number + 1)) for x in fields}
        batch["do"][:number], batch["dlse"][:number] = 0, 0  # only the last one counts
        true.append(dict(am.reference.attention_backward_f64(**batch, **options).captured))
    return dict(found.captured), true


def check(names: Any, arrays: dict[str, Any], found: Any, parts: Any) -> None:
    """Compares gradients with those of two sequences; arrays with an axis of these have two."""
    for name in names:
        got, true = found[name], parts[0][name] + parts[1][name]
        original = arrays[name]
        assert (got.shape, got.dtype) == (original.shape, original.dtype), name
        bound = UNITS[got.dtype.name] * np.abs(true) + 2.0**-12
        assert np.all(np.abs(got.astype(np.float64) - true) <= bound), name


@pytest.mark.parametrize("target", cases.TARGETS)
@pytest.mark.parametrize("lengths", [DENSE, RAGGED, USED], ids=["dense", "ragged", "used"])
@pytest.mark.long(but=("dense-sm_90a", "used-sm_100a"))
def test_factors(lengths: Lengths, target: str) -> None:
    """Of f32, f16 and bf16, with a gradient of the LSE; with sinks as well."""
    program, arrays = trace(modified)
    assert program is not None
    sinks = None if lengths == DENSE else SLOPES
    sizes = [70, 70] if lengths == DENSE else [40, 70]
    names = ("SLOPES", "GATE", "CAP")
    mods = Recorded(program, arrays)
    found, parts = run(mods, names, sizes, lengths, sinks=sinks, target=target)
    check(names, {"SLOPES": SLOPES, "GATE": GATE, "CAP": CAP}, found, parts)


POSITIONS = {
    "BY_QUERY": random.standard_normal((HEADS, 70)).astype(np.float32),
    "BY_KEY": random.standard_normal((2, 75)).astype(ml_dtypes.bfloat16),
    "DENSE_BIAS": random.standard_normal((2, HEADS, 70, 70)).astype(np.float32),
    "BIAS": random.standard_normal((70, 70)).astype(np.float16),
    "OF_GROUPS": random.standard_normal((HEADS // 2, 1)).astype(np.float32),
}
IDS = random.integers(0, 5, (70, 70)).astype(np.int32)
TABLE, ROWS = (random.standard_normal((HEADS, 41)).astype(np.float32) for _ in range(2))


def positioned(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    """Arrays that are read by query, by key, by both, and by half a head."""
    by_query, by_key, dense, bias, groups = POSITIONS.values()
    more = by_key[b, k] + dense[b, h, q, k] + bias[q, k] + groups[h // 2, q // 100]
    return score * by_query[h, q] / 4 + more


def gathered(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    """Tables that are read by the distance of keys, and at numbers that a tensor has."""
    del b
    distance = am.trace.minimum(am.trace.maximum(q - k, -20), 20)
    return score + TABLE[h, distance + 20] + ROWS[h, IDS[q, k]] * ROWS[0, 40 - IDS[k, q]]


@pytest.mark.parametrize("target", cases.TARGETS)
@pytest.mark.parametrize("lengths", [DENSE, RAGGED, USED], ids=["dense", "ragged", "used"])
@pytest.mark.parametrize("kv_heads", [1, HEADS])
@pytest.mark.long(but=("1-dense-sm_100a", "1-used-sm_90a"))
def test_positions(kv_heads: int, lengths: Lengths, target: str) -> None:
    """The same bits in any order of warps."""
    program, arrays = trace(positioned)
    assert program is not None
    originals = {f"POSITIONS_{name}": x for name, x in POSITIONS.items()}
    sizes = [70, 70] if lengths == DENSE else [40, 70]
    mods, options = Recorded(program, arrays), {"kv_heads": kv_heads, "target": target}
    found, parts = run(mods, tuple(originals), sizes, lengths, **options)
    check(originals, originals, found, parts)


@pytest.mark.parametrize("target", cases.TARGETS)
@pytest.mark.parametrize("lengths", [DENSE, RAGGED], ids=["dense", "ragged"])
@pytest.mark.long("ragged*")
def test_tables(lengths: Lengths, target: str) -> None:
    """Several scores add to an element in memory, which has to be allowed."""
    program, arrays = trace(gathered)
    assert program is not None
    names, mods = ("TABLE", "ROWS"), Recorded(program, arrays)
    options: dict[str, Any] = {"target": target, "deterministic": False}
    found, parts = run(mods, names, [70, 70], lengths, **options)
    check(names, {"TABLE": TABLE, "ROWS": ROWS}, found, parts)


def distant(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    """A table is read at clamped distances, so that many scores read its ends; another table is
    read at indices from a tensor."""
    del b
    distance = am.trace.minimum(am.trace.maximum(q - k, -20), 20)
    return score + TABLE[h, distance + 20] + ROWS[0, IDS[q, k]]


@pytest.mark.parametrize("target", cases.TARGETS)
@pytest.mark.parametrize("lengths", [DENSE, RAGGED], ids=["dense", "ragged"])
@pytest.mark.long("ragged*")
def test_tables_in_order(lengths: Lengths, target: str) -> None:
    """Each thread adds to elements of its own, so warps may run in any order."""
    program, arrays = trace(distant)
    assert program is not None
    names, mods = ("TABLE", "ROWS"), Recorded(program, arrays)
    found, parts = run(mods, names, [70, 70], lengths, target=target)
    check(names, {"TABLE": TABLE, "ROWS": ROWS}, found, parts)
    again, _ = run(mods, names, [70, 70], lengths, target=target, seed=2)
    for name in names:
        assert np.array_equal(found[name], again[name])


def test_what_is_hidden_adds_nothing() -> None:
    program, arrays = trace(trapped, lambda b, h, q, k: q - k > -70)
    assert program is not None
    found, (true,) = run(Recorded(program, arrays), ("TRAP",), [90], DENSE)
    assert np.abs(found["TRAP"] - true["TRAP"]).max() < 2.0**-12


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("SLOPES", "captured must be a tuple of different names of arrays"),
        (("SLOPES", "SLOPES"), "captured must be a tuple of different names"),
        (("other",), "captured names 'other', score_mod captures GATE, SLOPES, CAP"),
        (("FLAT",), "captured names 'FLAT', which has no derivative"),
        (("TWICE",), "TWICE.* no order of additions, as several reads of its elements: determin"),
        (("LONG",), "LONG.* no order .* 4 parts of it .* more than 2.28 elements: deterministic=F"),
        (("COUNTS",), "captured COUNTS of i32 has no kernel"),
    ],
)
def test_other_gradients_are_refused(names: Any, message: str) -> None:
    arrays = {
        "FLAT": np.ones(2, np.float32),
        "TWICE": np.ones(2, np.float32),
        "COUNTS": np.ones(2, np.int32),
        "LONG": np.ones(2**23, np.float32),
    }
    FLAT, TWICE, COUNTS, LONG = arrays.values()

    def one(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        if names[0] in arrays:
            more = {
                "FLAT": lambda: am.trace.floor(FLAT[h]),
                "TWICE": lambda: TWICE[h] * TWICE[0],
                "COUNTS": lambda: COUNTS[h] * s,
                "LONG": lambda: LONG[q - k],
            }
            return s + more[names[0]]()
        return modified(s, b, h, q, k)

    x = np.ones((2, 5, HEADS, 64), np.float16)
    lse = np.ones((2, HEADS, 5), np.float32)
    with pytest.raises(am.errors.SpecError, match=message):
        am.attention_backward(
            x,
            x,
            x,
            x,
            lse,
            x,
            score_mod=one,
            captured=names,
            device=EmulatorDevice(target="sm_90a"),
        )
