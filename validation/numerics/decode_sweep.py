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
from attn_mlir.validation.numerics.sparse_cases import agrees, poison
from attn_mlir.validation.numerics.sparse_sweep import swept

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
      feature: `sink`; `invalid`: no entry counts; `empty`: sequences of length 0; `varlen`: any lengths.
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


def cases() -> Iterator[Case]:
    """The matrix."""
    for d, (s_k, topk, page) in product((576, 512), PLAIN):
        yield Case(4, 1, 64, d, s_k, topk, page)
        yield Case(1, 3, 128, d, s_k, topk, page, "sink")
        yield Case(1, 2, 64, d, s_k, topk, page, fp8=False)
    for d, (s_k, topk, page), feature in product((576, 512), CORNERS, ("invalid", "empty", "sink")):
        yield Case(4, 1, 64, d, s_k, topk, page, feature)
    for h, s_q, is_causal in product((16, 32, 64, 128), (1, 2), (False, True)):
        yield Case(4, s_q, h, 576, 300, 0, DENSE_PAGE, "varlen", is_causal, False)
    yield Case(4, 2, 64, 576, 512, 0, DENSE_PAGE, "empty", True, False)


def run(case: Case) -> str:
    """What is wrong with one case; nothing where it is right."""
    random = np.random.default_rng(0)

    def drawn(*shape: int) -> NDArray[Any]:
        return (random.standard_normal(shape) / 10).clip(-1, 1).astype(BF16)

    columns = -(-case.s_k // case.page)
    table = random.permutation(case.b * columns).reshape(case.b, columns).astype(np.int32)
    lengths = np.full(case.b, case.s_k, np.int32)
    if case.feature == "varlen":
        lengths = random.integers(0, case.s_k + 1, case.b).astype(np.int32)
    if case.feature == "empty":
        lengths[::2] = 0
    q = drawn(case.b, case.s_q, case.h, case.d)
    pool = np.full((case.b * columns * case.page, case.d), np.nan, BF16)
    options: dict[str, Any] = {}
    if case.feature == "sink":
        sinks = random.standard_normal(case.h).astype(np.float32)
        kind = random.standard_normal(case.h)
        options["attn_sink"] = np.where(
            np.abs(kind) > 0.5, np.copysign(np.inf, kind), sinks
        ).astype("f4")
    rows = table[:, :, None] * case.page + np.arange(case.page, dtype=np.int32)
    rows = rows.reshape(case.b, -1)  # of each position
    if case.topk:
        options["indices"] = indices = np.full((case.b, case.s_q, case.topk), -1, np.int32)
        for (b, i), count in np.ndenumerate(
            np.minimum(lengths, case.topk)[:, None].repeat(case.s_q, 1)
        ):
            if case.feature != "invalid":
                indices[b, i, :count] = random.permutation(rows[b, : lengths[b]])[:count]
                random.shuffle(indices[b, i])
        named = np.unique(indices[indices >= 0])
    else:
        options["causal"] = case.causal
        named = np.concatenate([rows[b, :count] for b, count in enumerate(lengths)])
    pool[named] = drawn(len(named), case.d)
    cache = pool.reshape(-1, case.page, 1, case.d)
    if case.fp8:
        form = "v32" if case.d == ROW_COLUMNS else "model1"
        pool[np.isnan(pool[:, 0].astype(np.float32))] = 0
        cache = pack_latent(cache, form).kv
        pool = unpack_latent(cache, form).reshape(pool.shape)
        poison(cache, FORMATS[form], np.setdiff1d(np.arange(len(pool)), named))
        options["is_fp8_kvcache"] = True
    scale = case.d**-0.55
    found = [
        flash_mla_with_kvcache(
            q,
            cache,
            table,
            lengths,
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
        truths = [mla_decode_f64(q, pool, indices=options["indices"], **told)]
    else:
        told["mask"] = causal() if case.causal else full()
        truths = [
            mla_decode_f64(q[b : b + 1], pool[rows[b, :count]][None, :, None], **told)
            for b, count in enumerate(lengths)
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
