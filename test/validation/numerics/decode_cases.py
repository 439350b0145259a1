"""Problems of decoding, and what is wrong with a result: FlashMLA's tests in small.

Rows of sequences are drawn without pages, so that the same problem can be stored in pages of any size, and its
sequences in any order. Whatever no entry names that counts, and no sequence has, is NaN.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from attn_mlir.api.latent.formats import pack_latent, unpack_latent
from attn_mlir.dialect.attn.latent.columns import ROW_COLUMNS
from attn_mlir.dialect.attn.latent.formats import FORMATS, LatentFormat
from attn_mlir.flash_mla import flash_mla_with_kvcache, get_mla_metadata
from attn_mlir.masks import causal, full
from attn_mlir.reference import mla_decode_f64
from attn_mlir.runtime.kernel import DeviceChoice
from attn_mlir.validation.numerics.flash_mla_matrix import agrees
from attn_mlir.validation.numerics.sparse_cases import NAN_BYTE, poison, strided

Array = NDArray[Any]

BF16: Any = ml_dtypes.bfloat16
LIMITS = {"out": (1e-3, 2.01 / 128, 5e-6), "lse": (1e-6, 8.01 / 65536, 7e-6)}
PAGE_UNIT = 576  # FlashMLA's pages of MODEL1 take a multiple of so many bytes


class Case(NamedTuple):
    """Sizes and features of a problem, by FlashMLA's names; whole sequences where topk is 0.

    Attributes:
      feature: `sink`; `invalid`: no entry counts; `empty`: sequences of length 0; `varlen`: any lengths;
        `lengths`: lists with lengths of their own, and rows of NaN behind them.
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

    @property
    def form(self) -> LatentFormat | None:
        """How rows of 8 bits are stored."""
        return FORMATS["v32" if self.d == ROW_COLUMNS else "model1"] if self.fp8 else None


class Sequences(NamedTuple):
    """The rows of a cache by sequence, and the lists of their positions.

    Attributes:
      rows: [b, s_k, d], as they are given to be stored.
      named: [b, s_k], which of them count in some list.
      lengths: of the sequences.
      positions: [b, s_q, topk], -1 for no row.
      counts: how many entries of each list of a sequence count.
    """

    rows: Array
    named: Array
    lengths: Array
    positions: Array
    counts: Array

    def seen(self, form: LatentFormat | None) -> Array:
        """Rows [b * s_k, d] as a kernel reads them."""
        rows = self.rows[:, :, None]
        if form is not None:
            rows = unpack_latent(pack_latent(rows, form.name).kv, form.name)
        return rows.reshape(-1, rows.shape[-1])

    def live(self) -> Array:
        """The entries that count, as numbers of `seen`; -1 for others."""
        found = np.where(_counting(self.positions, self.counts), self.positions, -1)
        first = _column(len(found)) * self.rows.shape[1]
        return np.where(found < 0, -1, first + found)

    def turned(self, order: Array) -> Sequences:
        """The same sequences in another order."""
        return Sequences(*(array[order] for array in self))


class Stored(NamedTuple):
    """Sequences in pages, as a call has them; `indices` are of rows of the pool."""

    cache: Array
    table: Array
    indices: Array


def normal(random: np.random.Generator, *shape: int) -> Array:
    """Numbers as FlashMLA's test draws them."""
    return (random.standard_normal(shape) / 10).clip(-1, 1).astype(BF16)


def drawn(random: np.random.Generator, case: Case, s_k: int, topk: int) -> Sequences:
    """Sequences of these sizes, with the features of a case."""
    lengths = np.full(case.b, s_k, np.int32)
    if case.feature == "varlen":
        lengths = random.integers(0, s_k + 1, case.b).astype(np.int32)
    if case.feature == "empty":
        lengths[::2] = 0
    counts = np.full(case.b, topk, np.int32)
    if case.feature == "lengths":
        counts = random.integers(0, topk + 1, case.b).astype(np.int32)
    positions = np.full((case.b, case.s_q, topk), -1, np.int32)
    for (b, i), count in np.ndenumerate(np.minimum(lengths, topk)[:, None].repeat(case.s_q, 1)):
        if case.feature != "invalid":
            positions[b, i, :count] = random.permutation(lengths[b])[:count]
            random.shuffle(positions[b, i])
    named = np.arange(s_k) < lengths[:, None]
    if topk:
        live = np.where(_counting(positions, counts), positions, -1)
        named = np.stack([np.isin(np.arange(s_k), own) for own in live])
    rows = normal(random, case.b, s_k, case.d)
    return Sequences(rows, named, lengths, positions, counts)


def stored(
    random: np.random.Generator, given: Sequences, page: int, form: LatentFormat | None
) -> Stored:
    """Sequences in pages of a size, at random places."""
    b, s_k, d = given.rows.shape
    columns = -(-s_k // page)
    table = random.permutation(b * columns).reshape(b, columns).astype(np.int32)
    places = (table[:, :, None] * page + np.arange(page, dtype=np.int32)).reshape(b, -1)[:, :s_k]
    pool = np.zeros((b * columns * page, d), BF16)
    pool[places] = given.rows
    unnamed = np.ones(len(pool), bool)
    unnamed[places] = ~given.named
    cache = pool.reshape(-1, page, 1, d)
    if form is None:
        pool[unnamed] = np.nan
    else:
        cache = pack_latent(cache, form.name).kv
        poison(cache, form, np.flatnonzero(unnamed))
        cache = _apart(cache) if form.is_in_pages else cache
    indices = np.where(given.positions < 0, -1, places[_column(b), given.positions])
    return Stored(cache, table, indices.astype(np.int32))


def _counting(positions: Array, counts: Array) -> Array:
    """Which entries of lists [b, s_q, topk] stand before their end."""
    topk: int = positions.shape[2]
    return np.arange(topk) < counts.reshape(-1, 1, 1)


def _column(count: int) -> Array:
    """The numbers of sequences, beside lists."""
    numbers: Array = np.arange(count)
    return numbers.reshape(-1, 1, 1)


def _apart(pages: Array) -> Array:
    """Packed pages as far apart as FlashMLA has them, NaN in between."""
    taken = pages[0].size
    room = np.full((len(pages), -(-taken // PAGE_UNIT) * PAGE_UNIT), NAN_BYTE, pages.dtype)
    room[:, :taken] = pages.reshape(len(pages), -1)
    strides = (room.strides[0], pages.shape[3], pages.shape[3], 1)
    return np.lib.stride_tricks.as_strided(room, pages.shape, strides)


class Problem:
    """A case, drawn."""

    def __init__(self, case: Case):
        self._case, self._random = case, np.random.default_rng(0)
        self._q = normal(self._random, case.b, case.s_q, case.h, case.d)
        self._sinks = _sinks(self._random, case.h) if case.feature == "sink" else None
        self._scale = case.d**-0.55
        self._scopes = [drawn(self._random, case, case.s_k, case.topk)]
        self._pages = [case.page]
        if any(case.extra):
            s_k, topk, page = case.extra
            self._scopes.append(drawn(self._random, case, s_k, topk))
            self._pages.append(page)

    def launched(self, device: DeviceChoice) -> tuple[Array, Array]:
        """(out, lse) in the pages of the case, of tensors whose rows lie apart."""
        return self._called(self._scopes, self._pages, strided, self._q, device)

    def launched_elsewhere(
        self, order: Array, page: int, device: DeviceChoice
    ) -> tuple[Array, Array]:
        """The same of tensors without room, with sequences in another order and other pages."""
        scopes = [scope.turned(order) for scope in self._scopes]
        pages = [page for _ in scopes]
        found = self._called(scopes, pages, np.ascontiguousarray, self._q[order], device)
        out, lse = (np.empty_like(array) for array in found)
        out[order], lse[order] = found
        return out, lse

    def _called(
        self, scopes: list[Sequences], pages: list[int], laid: Any, q: Array, device: DeviceChoice
    ) -> tuple[Array, Array]:
        case, own = self._case, scopes[0]
        kept = [
            stored(self._random, scope, page, case.form)
            for scope, page in zip(scopes, pages, strict=True)
        ]
        options: dict[str, Any] = {"is_fp8_kvcache": True} if case.fp8 else {}
        if self._sinks is not None:
            options["attn_sink"] = self._sinks
        if case.topk:
            options |= {"indices": laid(kept[0].indices), "topk_length": own.counts}
        else:
            options["causal"] = case.causal
        for scope, extra in zip(scopes[1:], kept[1:], strict=True):
            options |= {
                "extra_k_cache": extra.cache,
                "extra_indices_in_kvcache": laid(extra.indices),
                "extra_topk_length": scope.counts,
            }
        return flash_mla_with_kvcache(
            laid(q),
            kept[0].cache,
            laid(kept[0].table),
            own.lengths,
            512,
            get_mla_metadata()[0],
            softmax_scale=self._scale,
            device=device,
            **options,
        )

    def wrong(self, out: Array, lse: Array) -> list[str]:
        """The results that are not within FlashMLA's tolerances."""
        case = self._case
        told: dict[str, Any] = {"scale": self._scale, "sinks": self._sinks}
        pools = [scope.seen(case.form) for scope in self._scopes]
        if case.topk:
            firsts = np.cumsum([0, *(len(pool) for pool in pools)])
            lists = [
                np.where((live := scope.live()) < 0, -1, live + first)
                for scope, first in zip(self._scopes, firsts, strict=False)
            ]
            both = np.concatenate(lists, 2)
            truths = [mla_decode_f64(self._q, np.concatenate(pools), indices=both, **told)]
        else:
            rows = pools[0].reshape(case.b, -1, 1, case.d)
            mask = causal() if case.causal else full()
            truths = [
                mla_decode_f64(self._q[b : b + 1], rows[b : b + 1, :count], mask=mask, **told)
                for b, count in enumerate(self._scopes[0].lengths)
            ]
        truth = {"out": np.concatenate([x.o for x in truths]).astype(BF16)}
        truth["lse"] = np.concatenate([x.lse for x in truths])
        truth["lse"][np.isneginf(truth["lse"])] = np.inf
        return [
            f"{name} is not within FlashMLA's tolerances"
            for (name, limits), array in zip(LIMITS.items(), (out, lse), strict=True)
            if not agrees(array, truth[name], *limits)
        ]


def _sinks(random: np.random.Generator, heads: int) -> Array:
    """A third of either infinity."""
    sinks, kind = random.standard_normal(heads), random.standard_normal(heads)
    return np.where(np.abs(kind) > 0.5, np.copysign(np.inf, kind), sinks).astype(np.float32)
