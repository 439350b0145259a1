"""Checks decoding on the emulator over FlashMLA's test matrix; `make numerics` runs this.

    python -m attn_mlir.validation.numerics.decode_sweep                  every case, fair and adversarial
    python -m attn_mlir.validation.numerics.decode_sweep --only topk=64   cases whose text contains this
    python -m attn_mlir.validation.numerics.decode_sweep --list           cases only

By FlashMLA's function, with its comparison and tolerances, for `sm_100a`; batches are of 1 and 4 sequences, and s_q x topk
is at most 16384. Exit code: 0 when every case is right, 1 when one is not.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from attn_mlir.api.latent_formats import pack_latent, unpack_latent
from attn_mlir.dialect.attn.latent import ROW_COLUMNS
from attn_mlir.dialect.attn.latent_formats import FORMATS
from attn_mlir.flash_mla import flash_mla_with_kvcache, get_mla_metadata
from attn_mlir.masks import causal, full
from attn_mlir.reference import mla_decode_f64
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.validation.numerics.flash_mla_matrix import agrees, swept
from attn_mlir.validation.numerics.sparse_cases import poison

BF16: Any = ml_dtypes.bfloat16
PLAIN = ((512, 64, 2), (512, 64, 64), (512, 64, 69), (1024, 576, 2), (1024, 576, 61), (2046, 2048, 2),
         (2046, 2048, 64), (2046, 2048, 576))  # s_k, topk and page_block_size  # fmt: skip
CORNERS = ((512, 64, 61), (650, 576, 53))
LIMITS = {"out": (1e-3, 2.01 / 128, 5e-6), "lse": (1e-6, 8.01 / 65536, 7e-6)}
DENSE_PAGE = 64
DEVICES = (
    EmulatorDevice(check="all", target="sm_100a"),
    EmulatorDevice("adversarial", 1, check="all", target="sm_100a"),
)


class Case(NamedTuple):
    """Sizes and features of a problem, by FlashMLA's names; whole sequences where topk is 0.

    Attributes:
      feature: `sink`; `invalid`: no entry counts; `empty`: sequences of length 0; `varlen`: any lengths;
        `lengths`: lists with lengths of their own.
      extra: s_k, topk and page_block_size of a second cache; zeros without.
    """

    b: int
    s_q: int
    h: int
    d: int
    s_k: int
    topk: int
    page: int
    feature: str = ""
    causal: bool = False
    fp8: bool = True
    extra: tuple[int, int, int] = (0, 0, 0)


def cases() -> Iterator[Case]:
    """The matrix."""
    for d, (s_k, topk, page) in product((576, 512), PLAIN):
        yield Case(4, 1, 64, d, s_k, topk, page)
        yield Case(1, 3, 128, d, s_k, topk, page, "sink")
        yield Case(1, 2, 64, d, s_k, topk, page, fp8=False)
    for d, (s_k, topk, page), feature in product((576, 512), CORNERS, ("invalid", "empty", "sink")):
        yield Case(4, 1, 64, d, s_k, topk, page, feature)
    for (s_k, topk, page), extra in zip(PLAIN, (*PLAIN[3:], *PLAIN[:3]), strict=True):
        yield Case(4, 1, 64, 512, s_k, topk, page, "sink", extra=extra)
        yield Case(1, 3, 128, 512, s_k, topk, page, "lengths", extra=extra)
    for sizes, feature in product(CORNERS, ("invalid", "empty", "lengths")):
        yield Case(4, 1, 64, 512, *sizes, feature, extra=CORNERS[0])
    for h, s_q, is_causal in product((16, 32, 64, 128), (1, 2), (False, True)):
        yield Case(4, s_q, h, 576, 300, 0, DENSE_PAGE, "varlen", is_causal, False)
    yield Case(4, 2, 64, 576, 512, 0, DENSE_PAGE, "empty", True, False)


class Drawn(NamedTuple):
    """A cache and what a call sees of it.

    Attributes:
      cache: as it is passed; NaN in rows that nothing names.
      pool: its rows, [rows, d], as they are read.
      rows: of each position of each sequence.
      table, lengths: of the sequences.
      indices: as they are passed; None for whole sequences.
      counts: how many entries of each list of a sequence count.
      live: indices, -1 where an entry does not count.
    """

    cache: NDArray[Any]
    pool: NDArray[Any]
    rows: NDArray[Any]
    table: NDArray[Any]
    lengths: NDArray[Any]
    indices: NDArray[Any] | None
    counts: NDArray[Any]
    live: NDArray[Any]


def normal(random: np.random.Generator, *shape: int) -> NDArray[Any]:
    """Numbers as FlashMLA's test draws them."""
    return (random.standard_normal(shape) / 10).clip(-1, 1).astype(BF16)


def drawn(random: np.random.Generator, case: Case, s_k: int, topk: int, page: int) -> Drawn:
    """A cache of these sizes, with the features of a case."""
    columns = -(-s_k // page)
    table = random.permutation(case.b * columns).reshape(case.b, columns).astype(np.int32)
    lengths = np.full(case.b, s_k, np.int32)
    if case.feature == "varlen":
        lengths = random.integers(0, s_k + 1, case.b).astype(np.int32)
    if case.feature == "empty":
        lengths[::2] = 0
    rows = table[:, :, None] * page + np.arange(page, dtype=np.int32)
    rows = rows.reshape(case.b, -1)
    counts = np.full(case.b, topk, np.int32)
    if case.feature == "lengths":
        counts = random.integers(0, topk + 1, case.b).astype(np.int32)
    indices = np.full((case.b, case.s_q, topk), -1, np.int32)
    for (b, i), count in np.ndenumerate(np.minimum(lengths, topk)[:, None].repeat(case.s_q, 1)):
        if case.feature != "invalid":
            indices[b, i, :count] = random.permutation(rows[b, : lengths[b]])[:count]
            random.shuffle(indices[b, i])
    live = np.where(np.arange(topk) < counts[:, None, None], indices, -1)
    named = np.unique(live[live >= 0])
    if not topk:
        named = np.concatenate([rows[b, :count] for b, count in enumerate(lengths)])
    pool = np.full((case.b * columns * page, case.d), np.nan, BF16)
    pool[named] = normal(random, len(named), case.d)
    cache = pool.reshape(-1, page, 1, case.d)
    if case.fp8:
        form = "v32" if case.d == ROW_COLUMNS else "model1"
        pool[np.isnan(pool[:, 0].astype(np.float32))] = 0
        cache = pack_latent(cache, form).kv
        pool = unpack_latent(cache, form).reshape(pool.shape)
        poison(cache, FORMATS[form], np.setdiff1d(np.arange(len(pool)), named))
    return Drawn(cache, pool, rows, table, lengths, indices if topk else None, counts, live)


def run(case: Case) -> str:
    """What is wrong with one case; nothing where it is right."""
    random = np.random.default_rng(0)
    q = normal(random, case.b, case.s_q, case.h, case.d)
    options: dict[str, Any] = {"is_fp8_kvcache": True} if case.fp8 else {}
    if case.feature == "sink":
        sinks = random.standard_normal(case.h).astype(np.float32)
        kind = random.standard_normal(case.h)
        options["attn_sink"] = np.where(
            np.abs(kind) > 0.5, np.copysign(np.inf, kind), sinks
        ).astype("f4")
    own = drawn(random, case, case.s_k, case.topk, case.page)
    pool, live = own.pool, own.live
    if case.topk:
        options |= {"indices": own.indices, "topk_length": own.counts}
    else:
        options["causal"] = case.causal
    if any(case.extra):
        extra = drawn(random, case, *case.extra)
        options |= {"extra_k_cache": extra.cache, "extra_indices_in_kvcache": extra.indices}
        options["extra_topk_length"] = extra.counts
        behind = np.where(extra.live < 0, -1, extra.live + len(pool))
        pool, live = np.concatenate([pool, extra.pool]), np.concatenate([live, behind], 2)
    scale = case.d**-0.55
    found = [
        flash_mla_with_kvcache(
            q,
            own.cache,
            own.table,
            own.lengths,
            512,
            get_mla_metadata()[0],
            softmax_scale=scale,
            device=device,
            **options,
        )
        for device in DEVICES
    ]
    reason = (
        ""
        if all(x.tobytes() == y.tobytes() for x, y in zip(*found, strict=True))
        else "an adversarial schedule has other bits; "
    )
    told: dict[str, Any] = {"scale": scale, "sinks": options.get("attn_sink")}
    if case.topk:
        truths = [mla_decode_f64(q, pool, indices=live, **told)]
    else:
        told["mask"] = causal() if case.causal else full()
        truths = [
            mla_decode_f64(q[b : b + 1], pool[own.rows[b, :count]][None, :, None], **told)
            for b, count in enumerate(own.lengths)
        ]
    truth = {"out": np.concatenate([x.o for x in truths]).astype(BF16)}
    truth["lse"] = np.concatenate([x.lse for x in truths])
    truth["lse"][np.isneginf(truth["lse"])] = np.inf
    for (name, limits), array in zip(LIMITS.items(), found[0], strict=True):
        if not agrees(array, truth[name], *limits):
            reason += f"{name} is not within FlashMLA's tolerances; "
    return reason


if __name__ == "__main__":
    sys.exit(swept(__doc__ or "", cases(), run, "cases of decoding"))
