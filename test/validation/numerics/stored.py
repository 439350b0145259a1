"""Sequences of keys and values put into caches of every form; whatever holds no position is NaN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

import attn_mlir as am

Array = npt.NDArray[Any]

MOST_PADDING = 150  # positions in front of a sequence
SPARE = 3  # pages, or rows, of no sequence
STALE = 0.5  # of the entries behind a sequence: left over from another one, as serving leaves them


@dataclass(frozen=True)
class Form:
    """A form of caches.

    Attributes:
      page_size: 0 for sequences in rows of their own.
      layout: of the pages.
      in_one_pool: whether K and V lie in one pool.
      compressed: whether pages are listed by compressed rows.
      apart: whether keys and values have tables of their own.
      counts_new: whether lengths count the new tokens.
      scales_apart: whether factors of positions have a table of their own.
      selected, padded: whether rows are told by batch_idx, and have padding in front.
    """

    page_size: int = 0
    layout: Literal["NHD", "HND"] = "NHD"
    in_one_pool: bool = False
    compressed: bool = False
    apart: bool = False
    counts_new: bool = True
    selected: bool = False
    padded: bool = False
    scales_apart: bool = False

    def stored(
        self,
        keys: Sequence[Array],
        values: Sequence[Array],
        new: Sequence[int],
        random: np.random.Generator,
        room: int,
        **fields: Any,
    ) -> am.PagedKV | am.ContiguousKV:
        """A cache that holds these sequences, at random places.

        Args:
          keys, values: of each sequence, [positions, heads, columns].
          new: queries of each sequence in this step.
          room: positions that each sequence could have: columns of a table have that many.
          fields: further ones of the cache. Factors `k_scale` and `v_scale` may be lists, of each
            sequence [positions, heads, groups]: they are stored as keys and values are, with NaN for
            all other positions.
        """
        store = _paged if self.page_size else _contiguous
        return store(self, keys, values, new, random, room, fields)


def _nothing(*shape: int, dtype: Any) -> Array:
    return np.full(
        shape, 0xFF if dtype == np.uint8 else np.nan, dtype
    )  # bytes of which NaN consists


def _of_positions(fields: dict[str, Any]) -> list[str]:
    """The factors that are told position by position."""
    return [name for name in ("k_scale", "v_scale") if isinstance(fields.get(name), list)]


def _told(form: Form, ends: Array, new: Sequence[int]) -> Array:
    """`seqused`."""
    return (ends - (0 if form.counts_new else np.array(new, np.int32))).astype(np.int32)


def _contiguous(
    form: Form,
    keys: Sequence[Array],
    values: Sequence[Array],
    new: Sequence[int],
    random: np.random.Generator,
    room: int,
    fields: dict[str, Any],
) -> am.ContiguousKV:
    batch = len(keys)
    spare = SPARE if form.selected else 0
    rows = random.permutation(batch + spare)[:batch] if form.selected else np.arange(batch)
    lengths = np.array([len(k) for k in keys], np.int32)
    most = np.minimum(room - lengths, MOST_PADDING) if form.padded else 0 * lengths
    padding = random.integers(0, most + 1).astype(np.int32)

    def in_rows(side: Sequence[Array]) -> Array:
        stored = _nothing(batch + spare, room, *side[0].shape[1:], dtype=side[0].dtype)
        for b, row in enumerate(rows):
            stored[row, padding[b] : padding[b] + lengths[b]] = side[b]
        return stored

    fields |= {name: in_rows(fields[name]) for name in _of_positions(fields)}
    return am.ContiguousKV(
        in_rows(keys),
        in_rows(values),
        _told(form, lengths + padding, new),
        batch_idx=rows.astype(np.int32) if form.selected else None,
        leftpad=padding if form.padded else None,
        counts_new=form.counts_new,
        **fields,
    )


def _paged(
    form: Form,
    keys: Sequence[Array],
    values: Sequence[Array],
    new: Sequence[int],
    random: np.random.Generator,
    room: int,
    fields: dict[str, Any],
) -> am.PagedKV:
    size, batch = form.page_size, len(keys)
    columns = -(-room // size)
    count = batch * columns + SPARE
    heads = keys[0].shape[1]
    tables = [
        random.permutation(count)[: batch * columns].reshape(batch, columns)
        for _ in range(2 if form.apart else 1)
    ]
    lengths = np.array([len(k) for k in keys], np.int32)
    used = -(-lengths // size)

    def in_pages(sides: Sequence[Sequence[Array]], tables: Sequence[Array]) -> tuple[Any, Any]:
        """K's and V's, or both in one pool and None."""
        inner = (size, heads) if form.layout == "NHD" else (heads, size)
        dtype, widths = sides[0][0].dtype, [side[0].shape[2] for side in sides]
        pool: Array | None = None
        if form.in_one_pool and widths[0] == widths[1]:
            pool = _nothing(count, 2, *inner, widths[0], dtype=dtype)
            pools = [pool[:, 0], pool[:, 1]]
        else:
            pools = [_nothing(count, *inner, width, dtype=dtype) for width in widths]
        by_position = [p if form.layout == "NHD" else p.swapaxes(1, 2) for p in pools]
        for place, side, table in zip(by_position, sides, [*tables] * 2, strict=False):
            for b in range(batch):
                for page in range(used[b]):
                    part = side[b][page * size : (page + 1) * size]
                    place[table[b, page], : len(part)] = part
        return (pool, None) if pool is not None else (pools[0], pools[1])

    arrays = in_pages((keys, values), tables)
    own = tables
    if names := _of_positions(fields):
        if form.scales_apart:
            own = [random.permutation(count)[: batch * columns].reshape(batch, columns)]
        scales = in_pages([fields[name] for name in names], own)
        fields |= dict(zip(names, scales, strict=True))
    nowhere = np.array([-1, count, -(2**31), 2**31 - 1], np.int32)
    stale = random.random((batch, columns)) < STALE  # names a page of NaN
    named = stale | (np.arange(columns) < used[:, None])
    tables = [np.where(named, x, np.resize(nowhere, columns)).astype(np.int32) for x in tables]
    table = np.stack(tables, 1) if form.apart else tables[0]
    if names and form.scales_apart:
        found = np.where(named, own[0], np.resize(nowhere, columns))
        fields["scale_table"] = found.astype(np.int32)
    fields = {"layout": form.layout, **fields}
    if not form.compressed:
        return am.PagedKV(
            *arrays,
            table,
            _told(form, lengths, new),
            counts_new=form.counts_new,
            **fields,
        )
    listed = [table[b, : used[b]] for b in range(batch)]
    return am.PagedKV(
        *arrays,
        indptr=np.cumsum([0, *used]).astype(np.int32),
        indices=np.concatenate([*listed, nowhere]).astype(np.int32),
        last_page_len=np.where(used > 0, lengths - (used - 1) * size, 1).astype(np.int32),
        **fields,
    )
