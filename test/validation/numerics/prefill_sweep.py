"""Checks dense prefill on the emulator over FlashMLA's test matrix; `make numerics` runs this.

    python -m attn_mlir.validation.numerics.prefill_sweep                 every case, fair and adversarial
    python -m attn_mlir.validation.numerics.prefill_sweep --only d=192    cases whose text contains this
    python -m attn_mlir.validation.numerics.prefill_sweep --list          cases only

Its lengths of 4096 and 8192 are 512 and 1024 here, its 128 and 32 heads are 2, on 2 or on 1 of keys; two sequences as rows of
one tensor, of equal or of drawn lengths. Keys of 192 columns are given whole, to FlashMLA's function, and as nope and rope, with
one head of rope for all, to `am.mla`. Five runs at 512, two at 1024, have to give the same bits: all but the first late and out of
order, with the sequences the other way round, of parts of larger tensors. Judged by FlashMLA's comparison and tolerances, for which
values are a tenth of normal ones, and by ours. Exit code: 0 when every case is right, 1 when one is not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from attn_mlir.calls import mla
from attn_mlir.dialect.attn.latent.columns import ROPE_COLUMNS
from attn_mlir.flash_mla import flash_attn_varlen_func
from attn_mlir.masks import causal, full
from attn_mlir.reference import attention_f64, attention_yardstick, compare
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.validation.numerics.flash_mla_matrix import agrees, swept
from attn_mlir.validation.numerics.operands import inside

Array = NDArray[Any]

BF16: Any = ml_dtypes.bfloat16
SEQUENCES, VALUE_COLUMNS = 2, 128
LIMITS = {"out": (1e-3, 8.01 / 128, 7e-6), "lse": (1e-6, 2.01 / 65536, 7e-6)}
RUNS = {512: 5, 1024: 2}
FEWEST_RUNS = 2


class Case(NamedTuple):
    """Sizes and features of a problem, by FlashMLA's names.

    Attributes:
      s: the longest sequence of queries and of keys.
      varlen: lengths are drawn, at least as many keys as queries.
      parts: whether nope and rope are operands of their own.
    """

    s: int
    h: int = 2
    h_k: int = 2
    d: int = 128
    varlen: bool = False
    causal: bool = False
    parts: bool = False


def cases() -> Iterator[Case]:
    """The matrix."""
    flags = (False, True)
    columns = ((128, False), (192, False), (192, True))
    for s, h_k, (d, parts), varlen, is_causal in product(RUNS, (2, 1), columns, flags, flags):
        yield Case(s, 2, h_k, d, varlen, is_causal, parts)


def devices(count: int) -> list[EmulatorDevice]:
    """A fair schedule and others, of which the first has checkers as well."""
    found = [EmulatorDevice(check="all", target="sm_100a")]
    for seed in range(count - 1):
        check = "none" if seed else "all"
        found.append(EmulatorDevice("adversarial", seed, check=check, target="sm_100a"))
    return found


def _ends(lengths: Array) -> Array:
    """Where sequences of lengths [sides, sequences] begin and end, one behind the other."""
    return np.cumsum(np.pad(lengths, ((0, 0), (1, 0))), axis=1, dtype=np.int32)


def _turned(rows: Array, ends: Array, order: Sequence[int]) -> Array:
    """Rows of sequences that end there, with the sequences in another order."""
    return np.concatenate([rows[slice(*ends[number : number + 2])] for number in order])


def run(case: Case) -> str:
    """What is wrong with one case; nothing where it is right."""
    random, runs = np.random.default_rng(0), RUNS.get(case.s, FEWEST_RUNS)
    lengths = np.full((2, SEQUENCES), case.s)
    if case.varlen:
        lengths[0] = random.integers(1, case.s + 1, SEQUENCES)
        lengths[1] = random.integers(lengths[0], case.s + 1)
    ends = _ends(lengths)

    def drawn(side: int, heads: int, columns: int) -> Array:
        return random.standard_normal((ends[side, -1], heads, columns)).astype(BF16)

    q, k = drawn(0, case.h, case.d), drawn(1, case.h_k, case.d)
    v = (drawn(1, case.h_k, VALUE_COLUMNS) / 10).astype(BF16)
    options: dict[str, Any] = {"mask": causal() if case.causal else full()}
    options["scale"] = scale = (case.d + 100) ** -0.5
    nope, rope = np.s_[..., :-ROPE_COLUMNS], np.s_[..., -ROPE_COLUMNS:]
    if case.parts:
        k[rope] = k[:, :1][rope]

    def once(
        device: EmulatorDevice, order: Sequence[int], laid: Callable[[Array], Array]
    ) -> tuple[Array, Array]:
        """O and LSE, of sequences in that order, and of tensors laid so."""
        own, sides = _ends(lengths[:, order]), ((q, ends[0]), (k, ends[1]), (v, ends[1]))
        queries, keys, values = (laid(_turned(rows, side, order)) for rows, side in sides)
        if case.parts:
            operands = (queries[nope], queries[rope], keys[nope], keys[:, :1][rope], values)
            told = {"cu_seqlens_q": own[0], "cu_seqlens_k": own[1]}
            o, lse = mla(*operands, return_lse=True, device=device, **options, **told)
            lse = lse.T
        else:
            told = {"softmax_scale": scale, "causal": case.causal, "is_varlen": case.varlen}
            ragged = (*own, *lengths.max(1))
            o, lse = flash_attn_varlen_func(queries, keys, values, *ragged, **told, device=device)
        return _turned(o, own[0], order), _turned(lse, own[0], order)

    first, *others = devices(runs)
    found = [once(first, range(SEQUENCES), np.asarray)]
    found += [once(device, range(SEQUENCES)[::-1], inside) for device in others]
    bits = {(o.tobytes(), lse.tobytes()) for o, lse in found}
    reason = "" if len(bits) == 1 else "runs have different bits; "
    o, lse = found[0]
    for number in range(SEQUENCES):
        queries, keys = (slice(*side[number : number + 2]) for side in ends)
        one = (q[None, queries], k[None, keys], v[None, keys])
        truth = attention_f64(*one, **options)
        mine = {"out": o[None, queries], "lse": lse.T[None, :, queries]}
        verdict = compare(mine["out"], mine["lse"], truth, attention_yardstick(*one, **options))
        if not verdict.ok:
            reason += f"sequence {number}: {verdict}; "
        wanted = {"out": truth.o.astype(BF16), "lse": truth.lse}
        for name, limits in LIMITS.items():
            if not agrees(mine[name], wanted[name], *limits):
                reason += f"{name} of sequence {number} is not within FlashMLA's tolerances; "
    return reason


if __name__ == "__main__":
    sys.exit(swept(__doc__ or "", cases(), run, "cases of dense prefill"))
