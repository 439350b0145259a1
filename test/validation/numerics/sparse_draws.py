"""Drawn problems of sparse latent attention, judged on the emulator; a failure prints its command.

    python -m attn_mlir.validation.numerics.sparse_draws 17           one draw, by its number
    python -m attn_mlir.validation.numerics.sparse_draws --count 200  draws 0 to 199; `make numerics`

Exit code: 0 when all passed, 1 when one failed.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

import attn_mlir as am
from attn_mlir.dialect.attn.latent.formats import FORMATS, GROUPS, PLAIN
from attn_mlir.reference.sparse_mla import SparseAttention, check_sparse_mla
from attn_mlir.validation.numerics.drawn_runs import DrawnRuns
from attn_mlir.validation.numerics.operands import inside
from attn_mlir.validation.numerics.sparse_cases import SCALE, Case, problem, rows_of, wrong

HEADS = (8, 8, 16, 24, 40, 64, 128)
QUERIES = (0, 1, 1, 2, 3, 5)
ROWS = (1, 2, 7, 64, 96, 130, 513)
ENTRIES = (1, 2, 63, 64, 65, 128, 200)
DISTINCT = (0, 0, 1, 2, 5, 16)
SCALES = (SCALE, SCALE, 0.02, 1e-30, 30.0, 1e30)
EXACT_FROM = (
    1e3  # scales that show rounding of sums: queries have one column then, and scores one product
)
OUT_DTYPES = (None, None, "bf16", "f16", "f32")
HALF_SHARE = 0.3  # of draws of rows of 16 bits: those of f16
MAGNITUDES = (1.0, 1.0, 10.0, 100.0)
NONE, ALL = "none counts", "all count"
LISTS = ("", "", "", NONE, ALL)
SINKS = ("", "some", "some", "inf", "-inf")
PAGES = (0, 0, 0, 1, 2, 5, 16)
NO_PAGES = (-1, -(2**31), 2**31 - 1)  # in columns of tables behind all pages


@dataclass(frozen=True)
class SparseProblem:
    """A call of `sparse_mla`.

    Attributes:
      case: sizes, features and how rows are stored; of pages `page` is not looked at.
      lists: whether no entry counts, or all do, whatever `topk_length` says of them.
      sinks: of all heads, where they are not drawn.
      page: rows of a page, named by tables of some sequences; 0 without tables.
      is_inside: whether the cache is a part of a larger tensor, in both directions.
      out_dtype: of O; as of `sparse_mla`.
      scale: of the scores, and `magnitude` of the elements of q.
      device: of `EmulatorDevice`.
      seed: of the numbers.
    """

    case: Case
    lists: str = ""
    sinks: str = ""
    page: int = 0
    is_inside: bool = False
    out_dtype: str | None = None
    scale: float = SCALE
    magnitude: float = 1.0
    device: dict[str, Any] = field(default_factory=dict[str, Any])
    seed: int = 0

    def flat(self) -> dict[str, Any]:
        """The arguments of a call, without tables."""
        case = self.case
        given: dict[str, Any] = {**problem(case, self.seed), "scale": self.scale}
        q = given["q"].astype(np.float32) * self.magnitude
        if self.scale >= EXACT_FROM:
            column = np.random.default_rng(self.seed).integers(0, case.d_qk, (*q.shape[:2], 1))
            kept = np.take_along_axis(q, column, axis=2)
            q = np.zeros_like(q)
            np.put_along_axis(q, column, kept, axis=2)
        given["q"] = q.astype(given["q"].dtype)
        if self.lists == NONE:
            given["indices"][...] = np.where(given["indices"] < case.s_kv, -1, given["indices"])
        if self.lists == ALL:
            given["indices"][...] = _last_named(given, case.s_kv)
        if self.sinks in ("inf", "-inf"):
            given["sinks"] = np.full(case.heads, float(self.sinks), np.float32)
        if self.is_inside:
            kv = given["kv"]
            given["kv"] = inside(kv, 0xFF if kv.dtype == np.uint8 else np.nan)
        return given

    def in_pages(self, given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The call with tables, and the one without of which it has the results.

        The cache is that of the call; each of a few sequences has its pages in another order, and behind
        them columns without a page. There are queries of no sequence.
        """
        random, case = np.random.default_rng(self.seed), self.case
        count, batch = case.s_kv // self.page, int(random.integers(1, 4))
        tables = np.stack([random.permutation(count) for _ in range(batch)])
        sequences = random.integers(-1, batch + 1, case.s_q)
        rows = given["indices"].astype(np.int64)
        is_row = (rows >= 0) & (rows < case.s_kv)
        pages, offsets = np.divmod(np.where(is_row, rows, 0), self.page)
        column_of = np.argsort(tables, axis=1)[sequences.clip(0, batch - 1)]
        columns = np.take_along_axis(column_of, pages, axis=1)
        positions = np.where(is_row, columns * self.page + offsets, rows)
        has_none = (sequences < 0) | (sequences >= batch)
        flat = given | {"indices": np.where(has_none[:, None], -1, rows).astype(np.int32)}
        kv, scale = given["kv"], given.get("kv_scale")
        beyond = np.tile(NO_PAGES, (batch, 1))
        factors = {} if scale is None else {"kv_scale": scale.reshape(count, self.page, -1)}
        return given | factors | {
            "kv": kv if kv.ndim == 4 else kv.reshape(count, self.page, 1, -1),
            "page_table": np.concatenate([tables, beyond], axis=1).astype(np.int32),
            "batch_of_query": sequences.astype(np.int32),
            "indices": positions.astype(np.int32),
        }, flat

    def run(self) -> SparseAttention:
        """The results on the emulator.

        Raises:
          AssertionError: an element is wrong.
        """
        given = flat = self.flat()
        if self.page:
            given, flat = self.in_pages(flat)
        device = am.EmulatorDevice(check="all", **self.device)
        found = SparseAttention(*am.sparse_mla(**given, out_dtype=self.out_dtype, device=device))
        assert not (reason := self.wrong(flat, found)), reason
        return found

    def wrong(self, given: dict[str, Any], found: SparseAttention) -> str:
        """What is wrong with a result; FlashMLA's tolerances are for problems of its sizes."""
        if self.scale == SCALE and self.magnitude == 1.0 and self.case.s_q:
            return wrong(given, found)
        plain = {**given, "kv": rows_of(given)}
        for name in ("kv_format", "kv_scale"):
            plain.pop(name, None)
        verdicts = check_sparse_mla(found, **plain)
        return "; ".join(str(verdict) for verdict in verdicts if not verdict.ok)


def _last_named(given: dict[str, Any], rows: int) -> NDArray[np.int32]:
    """Lists in which entries that are no rows, or stand behind the end, name the first row that counts."""
    indices, lengths = given["indices"].copy(), given.get("topk_length")
    for number, entries in enumerate(indices):
        end = len(entries) if lengths is None else int(lengths[number])
        live = entries[:end][(entries[:end] >= 0) & (entries[:end] < rows)]
        if len(live):
            entries[(entries < 0) | (entries >= rows)] = live[0]
            entries[end:] = live[0]
    return indices


def drawn(seed: int) -> SparseProblem:
    """The problem of a seed."""
    choose = random.Random(seed)
    kv_format = choose.choice((PLAIN, PLAIN, "v32", "model1", "e4m3", "e4m3", "e4m3_rope16"))
    narrow = kv_format == "e4m3" and choose.random() < 0.7
    group = choose.choice((None, *GROUPS)) if kv_format.startswith("e4m3") else None
    page = choose.choice(PAGES)
    s_kv = choose.choice(ROWS)
    if page:
        s_kv = -(-s_kv // page) * page
    form, of_types = FORMATS.get(kv_format), random.Random(f"types {seed}")
    if form is not None and form.is_in_pages and page:
        page = next(size for size in range(16, 0, -1) if s_kv % size == 0)  # as it is packed
    case = Case(
        s_q=choose.choice(QUERIES),
        s_kv=s_kv,
        topk=choose.choice(ENTRIES),
        heads=choose.choice(HEADS),
        d_qk=form.columns if form is not None else choose.choice((576, 512)),
        lengths=choose.random() < 0.5,
        sinks=(sinks := choose.choice(SINKS)) == "some",
        empty=choose.random() < 0.2,
        kv_format=kv_format,
        group=None if narrow else group,
        narrow=narrow,
        distinct=choose.choice(DISTINCT),
        half=kv_format == PLAIN and of_types.random() < HALF_SHARE,
    )
    device: dict[str, Any] = {}
    if choose.random() < 0.5:
        device = {"schedule": "adversarial", "seed": seed % 1000}
    return SparseProblem(
        case,
        lists=choose.choice(LISTS),
        sinks="" if case.sinks else sinks,
        page=page,
        is_inside=not page and kv_format != "model1" and choose.random() < 0.5,
        out_dtype=of_types.choice(OUT_DTYPES),
        scale=choose.choice(SCALES),
        magnitude=choose.choice(MAGNITUDES),
        device=device,
        seed=seed,
    )


DRAWS = DrawnRuns("attn_mlir.validation.numerics.sparse_draws", drawn)

if __name__ == "__main__":
    sys.exit(DRAWS.command(__doc__ or ""))
