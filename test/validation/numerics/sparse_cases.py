"""Problems of sparse latent attention, and what is wrong with a result: FlashMLA's tests in small.

So are the inputs: strided tensors, entries that do not count drawn from the numbers that it draws, and
rows of the cache that nothing names filled with NaN. A cache of 8 bits is packed by FlashMLA's rule, and
its bytes are what the truth is computed from.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from attn_mlir.api.latent.formats import pack_latent
from attn_mlir.dialect.attn.latent.formats import FORMATS, GROUPS, PLAIN, LatentFormat
from attn_mlir.latent_rows import rows_f64
from attn_mlir.reference.sparse_mla import (
    SparseAttention,
    check_sparse_mla,
    counting,
    sparse_mla_f64,
)
from attn_mlir.validation.numerics.flash_mla_matrix import agrees

BF16: Any = ml_dtypes.bfloat16
E4M3: Any = ml_dtypes.float8_e4m3fn
SCALE = 0.5
MOST_PAGE = 16  # rows of a page
NAN_BYTE = 0xFF  # every element and factor of such bytes is NaN
LINE_LIMITS = (1e-6, 2.01 / 65536)  # absolute and relative, of LSE and of the largest logits
FILLERS = (
    -(2**31),
    -123456,
    -1,
    114514,
    1919810,
    2147480000,
    2**31 - 1,
)  # and the first row too many


class Case(NamedTuple):
    """Sizes and features of a problem; the names are FlashMLA's.

    Attributes:
      distinct: rows that lists name, again and again; 0 where they name each once.
      page: rows of a page of `elsewhere`; 0 for rows without pages.
    """

    s_q: int = 1
    s_kv: int = 128
    topk: int = 128
    heads: int = 64
    d_qk: int = 576
    lengths: bool = False
    sinks: bool = False
    empty: bool = False  # queries without an entry that counts
    kv_format: str = PLAIN
    group: int | None = None  # columns that share a factor of `kv_scale`
    narrow: bool = False  # queries of 8 bits as well, and products
    half: bool = False  # queries and rows of f16
    distinct: int = 0
    page: int = 0


def strided(array: NDArray[Any], room: int = 64) -> NDArray[Any]:
    """The same numbers in memory whose rows lie apart."""
    wide = np.zeros((*array.shape[:-1], array.shape[-1] + room), array.dtype)
    wide[..., : array.shape[-1]] = array
    return wide[..., : array.shape[-1]]


def problem(case: Case, seed: int = 0) -> dict[str, Any]:
    """The arguments of a call."""
    random = np.random.default_rng(seed)

    def drawn(*shape: int) -> NDArray[Any]:
        numbers = random.standard_normal(shape)
        numbers /= 10
        numbers += random.uniform(-0.05, 0.05)
        return np.clip(numbers, -10, 10, out=numbers).astype(BF16)

    fillers = np.array([*FILLERS, case.s_kv], np.int64)
    indices = random.choice(fillers, (case.s_q, case.topk))
    count = case.topk if case.distinct else min(case.topk, case.s_kv)
    for row in indices:
        order = random.permutation(case.s_kv)
        row[:count] = np.resize(order[: case.distinct], count) if case.distinct else order[:count]
        random.shuffle(row)
    if case.empty:
        indices[::2] = random.choice(fillers, indices[::2].shape)
    options: dict[str, Any] = {"scale": SCALE}
    if case.lengths:
        most = max(case.topk, 63) + 1
        options["topk_length"] = random.integers(0, most, case.s_q).clip(0, case.topk).astype("i4")
    if case.sinks:
        sinks = random.standard_normal(case.heads).astype(np.float32)
        sinks[random.random(case.heads) < 0.3] = np.inf
        sinks[random.random(case.heads) < 0.3] = -np.inf
        options["sinks"] = sinks
    element = E4M3 if case.narrow else np.float16 if case.half else BF16
    kv = drawn(case.s_kv, case.d_qk)
    unnamed = np.arange(case.s_kv)
    for rows in counting(indices, case.s_kv, options.get("topk_length")):
        unnamed = np.setdiff1d(unnamed, rows)
    return {
        "q": strided(drawn(case.s_q, case.heads, case.d_qk).astype(element)),
        **_cache(case, kv, unnamed),
        "indices": strided(indices.astype(np.int32), 4),
        **options,
    }


def elsewhere(case: Case, given: dict[str, Any], order: NDArray[Any]) -> dict[str, Any]:
    """The same problem of tensors without room, with queries in another order, and rows in pages of `case.page`.

    Pages are at random places, and a query sees those of one sequence; its entries are positions.
    """
    of_queries = ("q", "indices", "topk_length")
    found = given | {name: given[name][order] for name in of_queries if name in given}
    if not case.page:
        return found
    table = np.random.default_rng(case.page).permutation(case.s_kv // case.page).astype(np.int32)
    rows = given["kv"].reshape(len(table), case.page, 1, -1)
    pool = np.empty_like(rows)
    pool[table] = rows
    sequences = np.zeros(case.s_q, np.int32)
    return found | {"kv": pool, "page_table": table[None], "batch_of_query": sequences}


def _cache(case: Case, kv: NDArray[Any], unnamed: NDArray[Any]) -> dict[str, Any]:
    """The cache with NaN, in elements and factors, in the rows that nothing names."""
    if case.kv_format == PLAIN:
        kv[unnamed] = np.nan
        return {"kv": strided(kv.astype(np.float16) if case.half else kv)[:, None]}
    form, rows = FORMATS[case.kv_format], kv[:, None]
    if form.is_in_pages:
        page = next(size for size in range(MOST_PAGE, 0, -1) if case.s_kv % size == 0)
        rows = rows.reshape(-1, page, 1, case.d_qk)
        packed = pack_latent(rows, case.kv_format).kv
        poison(packed, form, unnamed)
        return {"kv": packed, "kv_format": case.kv_format}
    packed, scale = pack_latent(rows, case.kv_format, group=case.group)
    poison(packed, form, unnamed)
    given = {"kv": strided(packed), "kv_format": case.kv_format}
    if scale is None:
        return given
    scale[unnamed] = np.nan
    return given | {"kv_scale": strided(scale, 3)}


def poison(packed: NDArray[Any], form: LatentFormat, rows: NDArray[Any]) -> None:
    """Puts NaN into the elements and factors of these rows of a packed cache, as `pack_latent` makes it."""
    page = packed.shape[1] if packed.ndim > len(("rows", "heads", "bytes")) else len(packed)
    pages = packed.reshape(-1, page * form.token_bytes, copy=False)
    tail = form.token_bytes - form.row_bytes
    for outer, inner in zip(*np.divmod(rows, page), strict=True):
        begin, end = inner * form.row_bytes, page * form.row_bytes + inner * tail
        pages[outer, begin : begin + form.row_bytes] = NAN_BYTE
        pages[outer, end : end + tail] = NAN_BYTE


def rows_of(given: dict[str, Any]) -> NDArray[Any]:
    """The rows of the cache of a call, [rows, columns], as they are stored."""
    form = FORMATS.get(given.get("kv_format", PLAIN))
    if form is None:
        return given["kv"][:, 0]
    scale = given.get("kv_scale")
    if scale is not None:
        groups = {form.groups(group): group for group in reversed(GROUPS)}
        form = form.with_scales(groups[scale.shape[-1]])
    return rows_f64(given["kv"], form, scale)


def wrong(given: dict[str, Any], found: SparseAttention) -> str:
    """What is wrong with a result, by our measure or by FlashMLA's; nothing where every element is right.

    Args:
      given: the arguments of the call, without pages.
    """
    plain: dict[str, Any] = {**given, "kv": rows_of(given)}
    for name in ("kv_format", "kv_scale"):
        plain.pop(name, None)
    reasons = [str(verdict) for verdict in check_sparse_mla(found, **plain) if not verdict.ok]
    if plain["q"].dtype == E4M3:  # FlashMLA has no such products
        return "; ".join(reasons)
    truth = sparse_mla_f64(**plain)
    limits = {"o": (8e-4, 3.01 / 128), "lse": LINE_LIMITS, "max_logits": LINE_LIMITS}
    for name, tolerances in limits.items():
        if not agrees(getattr(found, name), getattr(truth, name), *tolerances):
            reasons.append(f"{name} is not within FlashMLA's tolerances")
    return "; ".join(reasons)
