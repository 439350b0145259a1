"""Drawn calls of `attention_backward`, judged on the emulator; a failure prints its command.

    python -m attn_mlir.validation.numerics.gradient_draws 17           one draw, by its number
    python -m attn_mlir.validation.numerics.gradient_draws --count 300  draws 0 to 299; `make numerics`

Each draw says which lengths, heads and head sizes there are, how sequences lie in memory, the mask, the modifier
with the arrays whose gradients are wanted, sinks, gradients of the LSE, elements, chip and order of warps. Exit code:
0 when all passed, 1 when one failed.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

import attn_mlir as am
from attn_mlir.dialect.attn.lengths import DENSE, Lengths
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.kernel import DeviceChoice
from attn_mlir.trace import Recorded, clip, tanh, trace
from attn_mlir.validation.numerics import gradients as cases
from attn_mlir.validation.numerics.drawn_runs import DrawnRuns
from attn_mlir.validation.numerics.gradients import TARGETS, gradients

Array = npt.NDArray[Any]
LENGTHS = (1, 63, 64, 65, 127, 128, 129, 191)
HEADS = ((1, 1), (4, 1), (6, 2), (2, 2))
SIZES = ((64, 64), (32, 64), (96, 96), (128, 64), (64, 128), (128, 128), (40, 72))
FORMS = {
    "dense": DENSE,
    "ragged": Lengths(ragged_q=True, ragged_k=True),
    "used": Lengths(used_q=True, used_k=True),
}
MASKS: dict[str, am.Mask] = {
    "full": am.full(),
    "causal": am.causal(),
    "window": am.sliding_window(50, 10),
    "not causal": ~am.causal(),
    "causal window": am.causal() & am.sliding_window(70),
    "causal or window": am.causal() | am.sliding_window(9, 30),
}
DISTANCE = 30  # most that a table knows
UNITS = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


@dataclass
class Modified:
    """A drawn modifier.

    Attributes:
      mods: its program with its arrays; None without one.
      captured: names of arrays whose gradients are wanted.
    """

    mods: Recorded | None = None
    captured: tuple[str, ...] = ()


@dataclass
class Arrays:
    """Arrays that modifiers read, for so many heads, queries and keys."""

    numbers: np.random.Generator
    heads: int
    sq: int
    sk: int
    slopes: Array = field(init=False)
    by_query: Array = field(init=False)
    by_key: Array = field(init=False)
    bias: Array = field(init=False)
    dense: Array = field(init=False)
    table: Array = field(init=False)

    def __post_init__(self) -> None:
        def normal(*shape: int, dtype: Any = np.float32) -> Array:
            return self.numbers.standard_normal(shape).astype(dtype)

        self.slopes, self.by_query = normal(self.heads), normal(self.heads, self.sq)
        self.by_key = normal(self.sk, dtype=cases.NUMPY["bf16"])
        self.bias, self.dense = normal(self.sq, self.sk), normal(1, self.heads, self.sq, self.sk)
        self.table = normal(self.heads, 2 * DISTANCE + 1)


def modified(name: str, arrays: Arrays) -> Modified:
    """The modifier of a name among `MODIFIERS`; some also hide scores."""
    if name == "none":
        return Modified()
    slopes, by_query, by_key = arrays.slopes, arrays.by_query, arrays.by_key
    bias, dense, table = arrays.bias, arrays.dense, arrays.table
    functions: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
        "softcap": (lambda s, b, h, q, k: 5 * tanh(s / 5), ()),
        "flat": (lambda s, b, h, q, k: s * 0 + (q % 3), ()),
        "slopes": (lambda s, b, h, q, k: s * (1 + slopes[h] / 8) + slopes[h] * (k - q) / 64, ()),
        "by query": (lambda s, b, h, q, k: s * by_query[h, q] / 4, ("by_query",)),
        "by key": (lambda s, b, h, q, k: s + by_key[k], ("by_key",)),
        "bias": (lambda s, b, h, q, k: s + bias[q, k], ("bias",)),
        "dense": (lambda s, b, h, q, k: tanh(s) + dense[0, h, q, k], ("dense",)),
        "alibi": (lambda s, b, h, q, k: s + slopes[h] * (k - q) / 64, ("slopes",)),
        "table": (
            lambda s, b, h, q, k: s + table[h, clip(q - k, -DISTANCE, DISTANCE) + DISTANCE],
            ("table",),
        ),
        "hidden": (lambda s, b, h, q, k: s + slopes[h] / (q - k + 300), ("slopes",)),
    }
    function, captured = functions[name]
    keep = (lambda b, h, q, k: (q * 7 + k * 3 + h) % 5 < 3) if name == "hidden" else None
    program, read = trace(function, keep)
    assert program is not None
    return Modified(Recorded(program, read), captured)


MODIFIERS = (
    "none", "none", "softcap", "flat", "slopes", "by query", "by key", "bias", "dense", "alibi",
    "table", "hidden",
)  # fmt: skip


def attempt(
    number: int, device: DeviceChoice = None, target: str = "", *, is_judged: bool = True
) -> str:
    """Runs a draw; returns what it was.

    Args:
      device: where; by default an emulator whose order of warps is drawn.
      target: the chip; by default one that is drawn.
      is_judged: whether results are compared; not on a device that computes nothing.

    Raises:
      AssertionError: a gradient is wrong.
    """
    rng, numbers = random.Random(f"gradients:{number}"), np.random.default_rng(number)
    form, (heads, kv_heads) = rng.choice([*FORMS]), rng.choice(HEADS)
    (d, dv), mask = rng.choice(SIZES), rng.choice([*MASKS])
    name, dtype = rng.choice(MODIFIERS), rng.choice(["bf16", "f16"])
    batch, is_square = rng.randint(1, 2 if form == "dense" else 3), rng.random() < 0.5
    pairs = [(rng.choice(LENGTHS), rng.choice(LENGTHS)) for _ in range(batch)]
    pairs = [(sk if is_square else sq, sk) for sq, sk in pairs]
    if form == "dense":
        pairs = pairs[:1] * batch
    elif form == "ragged" and rng.random() < 0.3:
        pairs[rng.randrange(batch)] = (0, rng.choice(LENGTHS))
    if not any(sq for sq, _ in pairs):
        pairs[0] = (5, 5)
    sinks = numbers.standard_normal(heads).astype(np.float32) if rng.random() < 0.4 else None
    with_dlse, order = rng.random() < 0.5, rng.choice(["fair", "adversarial"])
    target = target or rng.choice(TARGETS)
    longest = [max(x) for x in zip(*pairs, strict=True)]
    mod = modified(name, Arrays(numbers, heads, *longest))
    request = gradients(
        heads, kv_heads, d, dv, MASKS[mask], dtype, lengths=FORMS[form], mods=mod.mods
    )
    scale = d**-0.5
    made: dict[str, Any] = {"with_dlse": with_dlse, "mods": mod.mods, "sinks": sinks}
    given = [
        cases.draw(request, sq, sk, scale, 1000 * number + i, **made)
        for i, (sq, sk) in enumerate(pairs)
    ]
    options: dict[str, Any] = {"mask": MASKS[mask], "scale": scale, "score_mod": mod.mods}
    options |= {"sinks": sinks, "captured": mod.captured}
    names = ["q", "k", "v", "o", "lse", "do", *(["dlse"] * with_dlse)]
    tensors = cases.stored(FORMS[form], given, names)
    if device is None:
        device = EmulatorDevice(order, number, multiprocessors=2, target=target, check="all")
    same_bits = rng.random() < 0.7
    found = am.attention_backward(**tensors, **options, deterministic=same_bits, device=device)
    words = [form, mask, name, dtype, target, order, f"{heads}/{kv_heads}", f"{d}x{dv}"]
    words += [f"{pairs}", f"sinks {sinks is not None}", f"dlse {with_dlse}"]
    if not is_judged:
        return ", ".join(words)
    results = {x: getattr(found, x) for x in ("dq", "dk", "dv")}
    sums = {x: y for x, y in {"dsinks": found.dsinks, **found.captured}.items() if y is not None}
    truth = {name: np.zeros(x.shape) for name, x in sums.items()}
    parts = cases.taken_apart(FORMS[form], given, results)
    for one, part in zip(given, parts, strict=True):
        if not (one.q.size and one.k.size):
            continue
        wanted = cases.expected(request, one, scale, mod.mods, sinks)
        for x, got in part.rows.items():
            true, bound = wanted[x]
            error = np.abs(got.astype(np.float64) - true)
            assert np.all(error <= bound), f"{x}: {np.nanmax(error - bound)} beyond its bound"
        alone = {x: getattr(one, x)[None] for x in names}
        for x, true in _sums_of(am.reference.attention_backward_f64(**alone, **options)).items():
            truth[x] += true
    for x, got in sums.items():
        bound = UNITS[got.dtype.name] * np.abs(truth[x]) + 2.0**-11 * (1 + np.abs(truth[x]).max())
        error = np.abs(got.astype(np.float64) - truth[x])
        assert np.all(error <= bound), f"{x}: {np.nanmax(error - bound)} beyond its bound"
    return ", ".join(words)


def _sums_of(found: Any) -> Mapping[str, Array]:
    """The gradients that all sequences add to."""
    return {**({} if found.dsinks is None else {"dsinks": found.dsinks}), **found.captured}


@dataclass(frozen=True)
class Attempt:
    """A draw."""

    number: int

    def run(self) -> str:
        """As `attempt`."""
        return attempt(self.number)


DRAWS = DrawnRuns("attn_mlir.validation.numerics.gradient_draws", Attempt)

if __name__ == "__main__":
    sys.exit(DRAWS.command(__doc__ or ""))
