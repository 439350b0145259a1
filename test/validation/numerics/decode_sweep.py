"""Checks decoding on the emulator over FlashMLA's test matrix; `make numerics` runs this.

    python -m attn_mlir.validation.numerics.decode_sweep                  every case, fair and adversarial
    python -m attn_mlir.validation.numerics.decode_sweep --only topk=64   cases whose text contains this
    python -m attn_mlir.validation.numerics.decode_sweep --list           cases only

By FlashMLA's function, with its comparison and tolerances, for `sm_100a`; batches are of 1 and 4 sequences, and s_q x topk
is at most 16384. Each case runs twice: fair, of tensors whose rows lie apart, and adversarial, with the sequences in another
order, in pages of another size and at other places, which has to give the same bits. Exit code: 0 when every case is right, 1
when one is not.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator
from itertools import product

import numpy as np

from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.validation.numerics.decode_cases import Case, Problem
from attn_mlir.validation.numerics.flash_mla_matrix import swept

PLAIN = ((512, 64, 2), (512, 64, 64), (512, 64, 69), (1024, 576, 2), (1024, 576, 61), (2046, 2048, 2),
         (2046, 2048, 64), (2046, 2048, 576))  # s_k, topk and page_block_size  # fmt: skip
CORNERS = ((512, 64, 61), (650, 576, 53))
LONGEST, MOST_ENTRIES = 32768, 16384  # of the cases by which it measures speed
SCOPES = ((512, 64), (1024, 64), (512, 2), (1024, 2))  # topk and page of a second cache there
DENSE_PAGE = 64
PAGES = (1, 16, 64, 128)  # of the second run
DENSE_PAGES = (16, 32, 128)
FAIR = EmulatorDevice(check="all", target="sm_100a")
ADVERSARIAL = EmulatorDevice("adversarial", 1, check="all", target="sm_100a")


def cases() -> Iterator[Case]:
    """The matrix."""
    for d, (s_k, topk, page) in product((576, 512), PLAIN):
        yield Case(4, 1, 64, d, s_k, topk, page)
        yield Case(4, 1, 64, d, s_k, topk, page, "varlen")
        yield Case(1, 3, 128, d, s_k, topk, page, "sink")
        yield Case(1, 3, 64, d, s_k, topk, page, "lengths")
        yield Case(1, 2, 64, d, s_k, topk, page, fp8=False)
    features = ("invalid", "empty", "sink", "varlen", "lengths")
    for d, sizes, feature in product((576, 512), CORNERS, features):
        yield Case(4, 1, 64, d, *sizes, feature)
        yield Case(2, 3, 128, d, *sizes, feature)
    for (s_k, topk, page), extra in zip(PLAIN, (*PLAIN[3:], *PLAIN[:3]), strict=True):
        yield Case(4, 1, 64, 512, s_k, topk, page, "sink", extra=extra)
        yield Case(1, 3, 128, 512, s_k, topk, page, "lengths", extra=extra)
    for sizes, feature in product(CORNERS, features):
        yield Case(4, 1, 64, 512, *sizes, feature, extra=CORNERS[0])
    for h, s_q, is_causal in product((16, 32, 64, 128), (1, 2), (False, True)):
        yield Case(4, s_q, h, 576, 300, 0, DENSE_PAGE, "varlen", is_causal, False)
    yield Case(4, 2, 64, 576, 512, 0, DENSE_PAGE, "empty", True, False)
    yield Case(1, 2, 128, 576, LONGEST, 2048, 64)
    for h, d in product((64, 128), (576, 512)):
        yield Case(1, 1, h, d, LONGEST, MOST_ENTRIES, 64)
    for h, (topk, page) in product((64, 128), SCOPES):
        yield Case(1, 2, h, 512, LONGEST, 128, 256, extra=(LONGEST, topk, page))


def run(case: Case) -> str:
    """What is wrong with one case; nothing where it is right."""
    problem, order = Problem(case), np.roll(np.arange(case.b), 1)
    pages = PAGES if case.topk else DENSE_PAGES
    page = pages[zlib.crc32(str(case).encode()) % len(pages)]
    found = problem.launched(FAIR)
    reasons = problem.wrong(*found)
    elsewhere = problem.launched_elsewhere(order, page, ADVERSARIAL)
    if any(x.tobytes() != y.tobytes() for x, y in zip(found, elsewhere, strict=True)):
        reasons.append(f"order {order}, pages of {page} and an adversarial schedule: other bits")
    return "; ".join(reasons)


if __name__ == "__main__":
    sys.exit(swept(__doc__ or "", cases(), run, "cases of decoding"))
