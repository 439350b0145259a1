"""Checks sparse latent attention on the emulator over FlashMLA's test matrix; `make numerics` runs this.

    python test/validation/numerics/sparse_sweep.py                  every case, fair and adversarial
    python test/validation/numerics/sparse_sweep.py --only topk=256  cases whose text contains this
    python test/validation/numerics/sparse_sweep.py --list           cases only

Queries are fewer than there, 3 at most, and s_q x topk at most 16384; of the cases by which it measures speed there is one. What
it has no check of numbers for, a grid of 70000 queries, is in `make test`. The caches of 8 bits are those of its decoding, and
Modular's, over the same lengths. Each case runs twice: fair, of tensors whose rows lie apart, and adversarial, of tensors without
room and with the queries in another order, which has to give the same bits; so have pages. Exit code: 0 when every case is right, 1
when one is not.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import product

import numpy as np

import attn_mlir as am
from attn_mlir.dialect.attn.latent.formats import FORMATS, GROUPS
from attn_mlir.reference.sparse_mla import SparseAttention
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.validation.numerics.flash_mla_matrix import swept
from attn_mlir.validation.numerics.sparse_cases import Case, elsewhere, problem, wrong

MOST_ENTRIES, MOST_QUERIES = 16384, 3
REGULAR = ((128, 128), (256, 256), (512, 512))  # s_kv and topk
OTHERS = ((592, 128), (1840, 256), (1592, 384), (1521, 512), (95, 128), (153, 256), (114, 384))
EMPTY_QUERIES = ((128, 128), (256, 256), (4321, 4096), (2048, 2048))
EMPTY_BLOCKS = ((32, 2048), (64, 8192))
SPEED = {  # s_kv by d_qk, heads and topk
    (576, 128, 2048): (8192, 32768, 65536, 98304, 131072),
    (512, 64, 512): (8192, 32768, 49152, 65536),
    (512, 128, 1024): (8192, 32768, 49152, 65536),
}
PAGES = (1, 16, 64, 128)
DISTINCT = (1, 2, 5, 16)  # rows that lists name again and again
FAIR, ADVERSARIAL = EmulatorDevice(check="all"), EmulatorDevice("adversarial", 1, check="all")


def cases() -> Iterator[Case]:
    """The matrix, for both sizes of a row and 64 and 128 heads."""
    flags = (False, True)
    for d_qk, heads in product((512, 576), (128, 64)):
        for s_kv, topk in (*REGULAR, *OTHERS):
            for s_q in (1, MOST_QUERIES):
                yield Case(s_q, s_kv, topk, d_qk=d_qk, heads=heads)
        for (s_kv, topk), sinks, lengths in product(OTHERS, flags, flags):
            if sinks or lengths:
                yield Case(2, s_kv, topk, d_qk=d_qk, heads=heads, sinks=sinks, lengths=lengths)
        for s_kv, topk in EMPTY_QUERIES:
            s_q = min(MOST_QUERIES, MOST_ENTRIES // topk)
            yield Case(
                s_q, s_kv, topk, d_qk=d_qk, heads=heads, sinks=True, lengths=True, empty=True
            )
        for s_kv, topk in EMPTY_BLOCKS:
            for s_q in (1, min(MOST_QUERIES, MOST_ENTRIES // topk)):
                yield Case(s_q, s_kv, topk, d_qk=d_qk, heads=heads, sinks=True, lengths=True)
        for page in PAGES:
            yield Case(2, 512, 256, d_qk=d_qk, heads=heads, lengths=True, page=page)
        for distinct in DISTINCT:
            yield Case(2, 512, 192, d_qk=d_qk, heads=heads, sinks=True, distinct=distinct)
    for (d_qk, heads, topk), lengths in SPEED.items():
        for s_kv in lengths:
            yield Case(1, s_kv, topk, d_qk=d_qk, heads=heads, sinks=True)


def formats() -> Iterator[Case]:
    """Caches of 8 bits over the pairs of s_kv and topk that no tile divides, with all features."""
    stored = [("v32", None), ("model1", None)]
    stored += [("e4m3", group) for group in (None, *GROUPS)]
    stored += [("e4m3_rope16", group) for group in (None, *GROUPS)]
    for number, (kv_format, group) in enumerate(stored):
        d_qk = FORMATS[kv_format].columns
        pairs = OTHERS if group is None else (OTHERS[number % len(OTHERS)],)
        for (s_kv, topk), heads in product(
            pairs, (64, 128) if group in (None, min(GROUPS)) else (64,)
        ):
            yield Case(
                2,
                s_kv,
                topk,
                heads,
                d_qk,
                lengths=True,
                sinks=True,
                kv_format=kv_format,
                group=group,
            )
        yield Case(
            2,
            256,
            256,
            64,
            d_qk,
            lengths=True,
            sinks=True,
            empty=True,
            kv_format=kv_format,
            group=group,
        )
        if kv_format == "e4m3" and group is None:
            for (s_kv, topk), heads in product(OTHERS, (64, 128)):
                yield Case(
                    2,
                    s_kv,
                    topk,
                    heads,
                    d_qk,
                    lengths=True,
                    sinks=True,
                    kv_format=kv_format,
                    narrow=True,
                )
            for distinct, heads in product(DISTINCT, (64, 128)):
                yield Case(
                    2,
                    512,
                    192,
                    heads,
                    d_qk,
                    kv_format=kv_format,
                    narrow=True,
                    distinct=distinct,
                )
        if group is None:
            yield Case(1, 32, 2048, 64, d_qk, lengths=True, kv_format=kv_format, group=group)


def run(case: Case) -> str:
    """What is wrong with one case; nothing where it is right."""
    given, order = problem(case), np.roll(np.arange(case.s_q), 1)
    found = SparseAttention(*am.sparse_mla(**given, device=FAIR))
    again = am.sparse_mla(**elsewhere(case, given, order), device=ADVERSARIAL)
    reason = wrong(given, found)
    if any(
        x[order].tobytes() != y.tobytes() for x, y in zip(vars(found).values(), again, strict=True)
    ):
        reason += f"; order {order} and an adversarial schedule: other bits"
    return reason


if __name__ == "__main__":
    sys.exit(swept(__doc__ or "", (*cases(), *formats()), run, "cases of sparse latent attention"))
