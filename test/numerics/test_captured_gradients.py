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
    mods: Recorded, names: tuple[str, ...], sizes: list[int], lengths: Lengths, *, sinks: Any = None
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What the kernels make, and the gradients of each sequence by the formula."""
    request = gradients(HEADS, 1, 64, 64, am.causal(), lengths=lengths, mods=mods)
    given = [draw(request, n, n, 0.125, n, mods=mods, sinks=sinks) for n in sizes]
    options: dict[str, Any] = {"mask": am.causal(), "score_mod": mods, "captured": names}
    options["sinks"] = sinks
    fields = ("q", "k", "v", "o", "lse", "do", "dlse")
    tensors = cases.stored(lengths, given, fields)
    device = EmulatorDevice("adversarial", 1, multiprocessors=2, target=cases.TARGET, check="all")
    found = am.attention_backward(**tensors, **options, device=device)
    true: list[dict[str, Any]] = []
    for number, one in enumerate(given):
        batch = {x: np.stack([getattr(one, x)] * (number + 1)) for x in fields}
        batch["do"][:number], batch["dlse"][:number] = 0, 0  # only the last one counts
        true.append(dict(am.reference.attention_backward_f64(**batch, **options).captured))
    return dict(found.captured), true


@pytest.mark.parametrize("lengths", [DENSE, RAGGED, USED], ids=["dense", "ragged", "used"])
@pytest.mark.long("ragged")
def test_factors(lengths: Lengths) -> None:
    """Of f32, f16 and bf16, with a gradient of the LSE; with sinks as well."""
    program, arrays = trace(modified)
    assert program is not None
    names = ("SLOPES", "CAP") if lengths.ragged_q else ("SLOPES", "GATE", "CAP")
    sinks = None if lengths == DENSE else SLOPES
    sizes = [70, 70] if lengths == DENSE else [40, 70]
    found, parts = run(Recorded(program, arrays), names, sizes, lengths, sinks=sinks)
    originals = {"SLOPES": SLOPES, "GATE": GATE, "CAP": CAP}
    for name in names:
        got, original = found[name], originals[name]
        true = parts[1][name]
        true = true + np.resize(parts[0][name], true.shape) * (
            1 if name != "GATE" else np.array([[1], [0]])
        )
        assert (got.shape, got.dtype) == (original.shape, original.dtype), name
        bound = UNITS[got.dtype.name] * np.abs(true) + 2.0**-12
        assert np.all(np.abs(got.astype(np.float64) - true) <= bound), name


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
        (
            ("BIAS",),
            r"captured BIAS \[5\], which is read by key has no kernel: gradients are those",
        ),
        (("FLAT",), "captured names 'FLAT', which has no derivative"),
        (("TWICE",), "captured TWICE with 2 indices has no kernel"),
        (("COUNTS",), "captured COUNTS of i32 has no kernel"),
        (("LONG",), r"captured LONG \[3\], which is read by head has no kernel"),
    ],
)
def test_other_gradients_are_refused(names: Any, message: str) -> None:
    arrays = {
        "BIAS": np.ones(5, np.float32),
        "FLAT": np.ones(2, np.float32),
        "TWICE": np.ones(2, np.float32),
        "COUNTS": np.ones(2, np.int32),
        "LONG": np.ones(3, np.float32),
    }
    BIAS, FLAT, TWICE, COUNTS, LONG = arrays.values()

    def one(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        if names[0] in arrays:
            more = {
                "BIAS": lambda: BIAS[k],
                "FLAT": lambda: am.trace.floor(FLAT[h]),
                "TWICE": lambda: TWICE[h] * TWICE[0],
                "COUNTS": lambda: COUNTS[h] * s,
                "LONG": lambda: LONG[h],
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


def test_targets_without_them_refuse_them() -> None:
    x, lse = np.ones((2, 5, HEADS, 64), np.float16), np.ones((2, HEADS, 5), np.float32)
    device = EmulatorDevice(target="sm_100a")
    with pytest.raises(am.errors.SpecError, match="captured must be left out"):
        am.attention_backward(
            x, x, x, x, lse, x, score_mod=modified, captured=("CAP",), device=device
        )
