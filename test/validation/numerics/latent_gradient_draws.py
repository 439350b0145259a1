"""Drawn calls of `mla_backward`, judged on the emulator; a failure prints its command.

    python -m attn_mlir.validation.numerics.latent_gradient_draws 17           one draw, by its number
    python -m attn_mlir.validation.numerics.latent_gradient_draws --count 100  draws 0 to 99; `make numerics`

Each draw says which lengths, heads and columns there are, how sequences lie in memory and whether operands are parts of
larger tensors, the mask, gradients of the LSE, which gradients are wanted, elements, chip and order of warps. Exit
code: 0 when all passed, 1 when one failed.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import attn_mlir as am
from attn_mlir.api.latent.mla_backward import MLA_WANTED
from attn_mlir.dialect.attn.lengths import DENSE, Lengths
from attn_mlir.masks import Mask
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.kernel import DeviceChoice
from attn_mlir.validation.numerics import gradients as cases
from attn_mlir.validation.numerics.drawn_runs import DrawnRuns
from attn_mlir.validation.numerics.gradient_draws import FORMS, HEADS, LENGTHS, MASKS
from attn_mlir.validation.numerics.gradients import TARGETS

Array = npt.NDArray[Any]
SIZES = ((128, 64, 128), (128, 64, 128), (64, 64, 64), (64, 32, 72), (128, 16, 40), (192, 16, 64))
ROPE_UNIT = 2.0**-20  # of f32 parts, which are added in order


@dataclass(frozen=True)
class LatentGradients:
    """A call of `mla_backward`.

    Attributes:
      pairs: numbers of queries and keys of each sequence.
      sizes: columns of nope, rope and values.
    """

    pairs: Sequence[tuple[int, int]]
    heads: tuple[int, int] = (2, 2)
    sizes: tuple[int, int, int] = (128, 64, 128)
    mask: Mask = MASKS["full"]
    dtype: str = "bf16"
    lengths: Lengths = DENSE
    with_dlse: bool = True
    are_parts: bool = False
    wanted: tuple[str, ...] = MLA_WANTED
    target: str = TARGETS[0]
    order: str = "adversarial"
    seed: int = 1

    def run(self, device: DeviceChoice = None, *, is_judged: bool = True) -> list[dict[str, Array]]:
        """The gradients of each sequence, which are as near to the formula as they have to be.

        Args:
          device: where; by default an emulator.
          is_judged: whether they are compared; not on a device that computes nothing.

        Raises:
          AssertionError: a gradient is wrong.
        """
        nope, rope, columns = self.sizes
        scale = (nope + rope) ** -0.5
        request = cases.gradients(
            *self.heads, nope + rope, columns, self.mask, self.dtype, lengths=self.lengths
        )
        given = [
            cases.draw(
                request, *x, scale, 1000 * self.seed + n, with_dlse=self.with_dlse, own_columns=nope
            )
            for n, x in enumerate(self.pairs)
        ]
        names = ["q", "k", "v", "o", "lse", "do", *(["dlse"] * self.with_dlse)]
        tensors = cases.stored(self.lengths, given, names)
        q, k = tensors.pop("q"), tensors.pop("k")
        tensors |= {"q_nope": q[..., :nope], "q_rope": q[..., nope:]}
        tensors |= {"k_nope": k[..., :nope], "k_rope": k[..., :1, nope:]}
        if not self.are_parts:
            tensors = {name: _dense(x) for name, x in tensors.items()}
        if device is None:
            device = EmulatorDevice(
                self.order, self.seed, multiprocessors=2, target=self.target, check="all"
            )
        options: dict[str, Any] = {"mask": self.mask, "scale": scale, "device": device}
        made = am.mla_backward(**tensors, **options, wanted=self.wanted)
        for name in MLA_WANTED:
            assert (getattr(made, f"d{name}") is None) == (name not in self.wanted), name
        found = {f"d{name}": getattr(made, f"d{name}") for name in self.wanted}
        parts = cases.taken_apart(self.lengths, given, found)
        for one, part in zip(given, parts, strict=True):
            if not (is_judged and one.q.size and one.k.size):
                continue
            wanted = _expected(cases.expected(request, one, scale), nope, self.dtype)
            for name, got in part.rows.items():
                true, bound = wanted[name]
                error = np.abs(got.astype(np.float64) - true)
                assert got.shape == true.shape and np.all(error <= bound), (
                    f"{name}: {np.nanmax(error - bound)} beyond its bound"
                )
        return [x.rows for x in parts]


def _dense(array: Any) -> Any:
    return np.ascontiguousarray(array) if isinstance(array, np.ndarray) else array


def _expected(
    whole: Mapping[str, cases.Expected], nope: int, dtype: str
) -> dict[str, cases.Expected]:
    """The gradients of the parts of rows, from those of whole rows of each head.

    That of rope of keys is rounded once, behind the sum over heads.
    """
    (dq, of_dq), (dk, of_dk), dv = (whole[name] for name in ("dq", "dk", "dv"))
    unit, least = cases.ROUNDING[dtype], cases.LEAST[dtype]
    rope, of_rope = dk[..., nope:], of_dk[..., nope:]
    total = rope.sum(1, keepdims=True)
    exact = (of_rope - unit * np.abs(rope) - least).sum(1, keepdims=True)
    exact += ROPE_UNIT * np.abs(rope).sum(1, keepdims=True)
    return {
        "dq_nope": cases.Expected(dq[..., :nope], of_dq[..., :nope]),
        "dq_rope": cases.Expected(dq[..., nope:], of_dq[..., nope:]),
        "dk_nope": cases.Expected(dk[..., :nope], of_dk[..., :nope]),
        "dk_rope": cases.Expected(total, exact + unit * np.abs(total) + least),
        "dv": dv,
    }


def drawn(number: int) -> LatentGradients:
    """The call of a number."""
    rng = random.Random(f"latent gradients:{number}")
    form, batch = rng.choice([*FORMS]), rng.randint(1, 3)
    pairs = [(rng.choice(LENGTHS), rng.choice(LENGTHS)) for _ in range(batch)]
    if form == "dense":
        pairs = pairs[:1] * rng.randint(1, 2)
    elif form == "ragged" and rng.random() < 0.3:
        pairs.append(rng.choice([(0, 65), (65, 0)]))
    wanted = tuple(name for name in MLA_WANTED if rng.random() < 0.7)
    return LatentGradients(
        pairs,
        heads=rng.choice(HEADS),
        sizes=rng.choice(SIZES),
        mask=MASKS[rng.choice([*MASKS])],
        dtype=rng.choice(["bf16", "f16"]),
        lengths=FORMS[form],
        with_dlse=rng.random() < 0.5,
        are_parts=rng.random() < 0.5,
        wanted=wanted if wanted and rng.random() < 0.3 else MLA_WANTED,
        target=rng.choice(TARGETS),
        order=rng.choice(["fair", "adversarial"]),
        seed=number,
    )


DRAWS = DrawnRuns("attn_mlir.validation.numerics.latent_gradient_draws", drawn)

if __name__ == "__main__":
    sys.exit(DRAWS.command(__doc__ or ""))
