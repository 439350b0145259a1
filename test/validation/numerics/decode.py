"""Problems of latent attention after absorption: caches, lists of rows, and their judge."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

import attn_mlir as am
from attn_mlir.reference import check_mla_decode
from attn_mlir.runtime.kernel import DeviceChoice
from attn_mlir.validation.numerics.operands import inside
from attn_mlir.validation.numerics.stored import Form

Array = npt.NDArray[Any]

SCALE = 576**-0.5
SHARE = 0.8  # of the entries of a list name a row, if it has no other
OUTSIDE = (-1, -123, -(2**31), 2**31 - 1)  # entries that are no rows; and those behind the last row
INFINITE = 0.3  # of sinks, each of either sign, where some are
EXACT_FROM = (
    1e3  # scales that show rounding of sums: queries have one column then, and scores one product
)


class Call(NamedTuple):
    """What `mla_decode` is called with.

    Attributes:
      q: [batch, queries, heads, columns].
      cache: as it is stored; NaN wherever no row lies that a query may see.
      rows: of each sequence, [positions, 1, columns]; with lists all rows of the cache, once.
      lists: `indices` and `topk_length`, where there are any.
      sinks: [heads]; None without.
    """

    q: Array
    cache: am.PagedKV | am.ContiguousKV
    rows: list[Array]
    lists: dict[str, Array]
    sinks: Array | None


@dataclass(frozen=True)
class DecodeProblem:
    """A call of `mla_decode`.

    Attributes:
      queries: of each sequence.
      keys: rows of each sequence; with lists, of the whole cache together.
      cache: its form; with lists its pages alone matter, which may have any size.
      heads, columns: of q.
      topk: entries of each list; 0 for sequences without lists.
      has_lengths: whether lists have lengths of their own, with entries behind them that name rows
        of NaN.
      share: of the entries of lists that name a row.
      distinct: rows of the cache that lists name, again and again; 0 for all.
      is_inside: whether q, lists and the cache are parts of larger arrays.
      sinks: none, `finite` or some `infinite` ones, or all of them `inf` or `-inf`.
      magnitude: of the elements of q.
      options: of `mla_decode` and of the reference; `call` of the former alone.
      device: of `EmulatorDevice`.
      seed: of the numbers.
    """

    queries: int = 1
    keys: tuple[int, ...] = (70,)
    cache: Form = dataclasses.field(default_factory=lambda: Form(16))
    heads: int = 16
    columns: int = 576
    dtype: Any = ml_dtypes.bfloat16
    topk: int = 0
    has_lengths: bool = False
    share: float = SHARE
    distinct: int = 0
    is_inside: bool = False
    sinks: str = ""
    magnitude: float = 1.0
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    call: dict[str, Any] = field(default_factory=dict[str, Any])
    device: dict[str, Any] = field(default_factory=dict[str, Any])
    seed: int = 0

    def made(self) -> Call:
        """The operands."""
        random = np.random.default_rng(self.seed)

        def normal(*shape: int) -> Array:
            return random.standard_normal(shape).astype(np.float32)

        batch = len(self.keys)
        q = self.magnitude * normal(batch, self.queries, self.heads, self.columns)
        rows = [normal(count, 1, self.columns).astype(self.dtype) for count in self.keys]
        sinks = normal(self.heads) if self.sinks else None
        if sinks is not None and self.sinks == "infinite":
            kind = random.random(self.heads)
            sinks[kind < INFINITE], sinks[kind > 1 - INFINITE] = -np.inf, np.inf
        if sinks is not None and self.sinks in ("inf", "-inf"):
            sinks[:] = float(self.sinks)
        if self.options.get("scale", SCALE) >= EXACT_FROM:
            q = _in_one_column(q, random)
        make = self._listed if self.topk else self._stored
        made = make(q.astype(self.dtype), rows, sinks, random)
        return _inside(made) if self.is_inside else made

    def _stored(
        self, q: Array, rows: list[Array], sinks: Array | None, random: np.random.Generator
    ) -> Call:
        """Sequences in a cache."""
        size = max(self.cache.page_size, 1)
        room = -(-max(*self.keys, 1) // size) * size
        made = self.cache.stored(rows, rows, [self.queries] * len(rows), random, room)
        values = "v_pages" if isinstance(made, am.PagedKV) else "v"
        return Call(q, dataclasses.replace(made, **{values: None}), rows, {}, sinks)

    def _listed(
        self, q: Array, rows: list[Array], sinks: Array | None, random: np.random.Generator
    ) -> Call:
        """Lists of rows of one pool, of which those that count alone are no NaN."""
        size = max(self.cache.page_size, 1)
        pages = -(-sum(self.keys) // size)
        count, shape = pages * size, (len(q), self.queries, self.topk)
        indices = random.integers(0, count, shape)
        if self.distinct:
            indices = random.permutation(count)[: self.distinct][
                indices % min(count, self.distinct)
            ]
        indices[random.random(shape) > self.share] = -1
        fillers = random.choice([*OUTSIDE, count, min(count + 123, OUTSIDE[-1])], shape)
        indices = np.where(indices < 0, fillers, indices).astype(np.int32)
        lists = {"indices": indices}
        if self.has_lengths:
            lengths = random.integers(-3, self.topk + 4, shape[:2]).clip(0, self.topk)
            lists["topk_length"] = lengths.astype(np.int32)
        live = (
            np.arange(self.topk)
            < lists.get("topk_length", np.full(shape[:2], self.topk))[..., None]
        )
        named = indices[live & (indices >= 0) & (indices < count)]
        pool = np.full((count, self.columns), np.nan, self.dtype)
        pool[named] = random.standard_normal((len(named), self.columns)).astype(self.dtype)
        table = np.zeros((len(q), 1), np.int32)
        inner = (size, 1) if self.cache.layout == "NHD" else (1, size)
        stored = pool.reshape(pages, *inner, self.columns)
        cache = am.PagedKV(stored, None, table, layout=self.cache.layout)
        if not self.cache.page_size:
            cache = am.ContiguousKV(pool.reshape(1, count, 1, self.columns), None, None)
        return Call(q, cache, [pool], lists, sinks)

    def run(self) -> tuple[Array, Array]:
        """O and LSE on the emulator.

        Raises:
          AssertionError: an element is wrong.
        """
        made = self.made()
        o, lse = self.launched(made, am.EmulatorDevice(**self.device))
        wrong = self.wrong(made, o, lse)
        assert not wrong, wrong
        return o, lse

    def launched(self, made: Call, device: DeviceChoice) -> tuple[Array, Array]:
        """O and LSE on any device, not judged."""
        options: dict[str, Any] = {"scale": SCALE, **self.options, **self.call, **made.lists}
        return am.mla_decode(made.q, made.cache, sinks=made.sinks, device=device, **options)

    def wrong(self, made: Call, o: Array, lse: Array) -> str:
        """What is wrong with the first sequence that is, or nothing; every element is judged."""
        options = {"scale": SCALE, **self.options, "sinks": made.sinks}
        if made.lists:
            verdict = check_mla_decode(made.q, made.rows[0], o, lse, **options, **made.lists)
            return "" if verdict.ok else str(verdict)
        for number, rows in enumerate(made.rows):
            one = np.s_[number : number + 1]
            verdict = check_mla_decode(made.q[one], rows[None], o[one], lse[one], **options)
            if not verdict.ok:
                return f"sequence {number}: {verdict}"
        return ""


def every_other_head_rises(device: dict[str, Any], block: int = 64) -> str:
    """What is wrong where maxima of every other head rise from block to block, as they are visited from the last one on."""
    problem = DecodeProblem(
        keys=(3 * block,), heads=64, columns=512, cache=Form(64), device=device,
        options={"scale": 0.25}, call={"num_splits": 1},
    )  # fmt: skip
    made = problem.made()
    sign = np.where(np.arange(64) % 2, 1, -1)[None, None, :, None]
    q = np.broadcast_to(sign / 4, made.q.shape).astype(made.q.dtype)
    steps = np.repeat(np.arange(3)[::-1], block)[:, None, None] / 2
    rows = (made.rows[0].astype(np.float32) / 8 + steps).astype(made.q.dtype)
    cache = am.ContiguousKV(rows[None], None, np.array([3 * block], np.int32))
    made = made._replace(q=q, rows=[rows], cache=cache)
    return problem.wrong(made, *problem.launched(made, am.EmulatorDevice(**device)))


def _in_one_column(q: Array, random: np.random.Generator) -> Array:
    """The queries with one column that is not 0."""
    column = random.integers(0, q.shape[-1], (*q.shape[:-1], 1))
    found = np.zeros_like(q)
    np.put_along_axis(found, column, np.take_along_axis(q, column, axis=-1), axis=-1)
    return found


def _inside(made: Call) -> Call:
    """The same call with arrays that are parts of larger ones, behind others and between other columns."""

    name = "k_pages" if isinstance(made.cache, am.PagedKV) else "k"
    changed: dict[str, Any] = {name: inside(getattr(made.cache, name))}
    lists = {**made.lists}
    if "indices" in lists:
        lists["indices"] = inside(lists["indices"], -1)
    cache = dataclasses.replace(made.cache, **changed)
    return made._replace(q=inside(made.q), cache=cache, lists=lists)
