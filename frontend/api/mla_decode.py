"""`mla_decode`: latent attention after absorption, checked and planned."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attn_mlir.api.attention import output_dtype_of
from attn_mlir.api.combining import combination_step
from attn_mlir.api.latent_caches import latent_cached, latent_pool
from attn_mlir.api.lengths import told_by
from attn_mlir.api.listed_rows import ListedRows, check_no_factors, listed_rows
from attn_mlir.api.mla import model_scale
from attn_mlir.api.packed_rows import format_named, packed_cached
from attn_mlir.api.plan import Allocation, Plan, Seen, Step, named_extents, results_of
from attn_mlir.api.planners import carried_out, only_planned
from attn_mlir.arrays import dense_on_host, stream_of
from attn_mlir.caches import CACHES, ContiguousKV, PagedKV
from attn_mlir.compiling.decode_routes import (
    check_scope_splits,
    decode_schedule,
    decode_splits,
    decode_tiles,
)
from attn_mlir.compiling.dtypes import WIDE_DTYPES, refused_dtype
from attn_mlir.compiling.mla_decode import HEAD_DIMS, MlaDecodeSpec
from attn_mlir.compiling.spec import LSE_TERMS
from attn_mlir.dialect.attn.latent_formats import PLAIN
from attn_mlir.dialect.targets.limits import DEFAULT_TARGET
from attn_mlir.errors import SpecError, shown
from attn_mlir.masks import Mask
from attn_mlir.runtime.call.tensors import TensorView, view
from attn_mlir.runtime.kernel import DeviceChoice, machine_of

LAYOUT = "[batch, sq, heads, head_dim]"


@carried_out
def mla_decode(
    q: Any,
    cache: ContiguousKV | PagedKV,
    *,
    scale: float,
    mask: Mask | None = None,
    indices: Any = None,
    topk_length: Any = None,
    sinks: Any = None,
    num_splits: int = 0,
    kv_format: str = PLAIN,
    kv_scale: Any = None,
    extra_kv: Any = None,
    extra_indices: Any = None,
    extra_topk_length: Any = None,
    extra_kv_scale: Any = None,
    out: Any = None,
    device: DeviceChoice = None,
    stream: object | None = None,
) -> Plan:
    """Latent attention of a few queries over a latent cache, projections of keys and values
    absorbed.

    All heads read the same rows of the cache: a row is the key, and its first 512 columns are the
    value.

    Args:
      q: [batch, sq, heads, 576], or 512 columns where rows have none that are rotated beside the
        latent ones; bf16 or f16. Heads are a multiple of 8 up to 1024; sq is 1 or a few.
      cache: `PagedKV` or `ContiguousKV` without values, of q's dtype and columns and one head.
      scale: of the scores, finite and greater than 0: the model's, which no head size tells.
      mask: which rows of its sequence a query sees, see `masks`; `full()` when left out. With
        `causal()` the queries are the last positions of their sequence.
      indices: [batch, sq, topk] i32 or u32, in place of a mask: the rows that a query sees, page x
        page size + offset (row x positions + offset of a `ContiguousKV`). The table and lengths of
        the cache are then not looked at. An entry that is no row of the cache does not count; a row
        that no entry names is not read.
      topk_length: [batch, sq] i32 or u32, beside indices: how many entries of each list count; all
        of them when left out.
      sinks: [heads] f32, logits of a key without a value, added to the sum that the head's
        probabilities are divided by, but not to the LSE.
      num_splits: number of parts of the keys, 1 to 256, which are computed side by side; 0 chooses
        by the sizes. The same number gives the same bits.
      kv_format, kv_scale: as of `sparse_mla`: how the rows of the cache are stored, with bytes in
        the place of columns, and their factors. `bf16` is for rows of q's dtype.
      extra_kv: [pages, page, 1, columns], beside indices: further rows, stored as those of the
        cache, with pages of their own size. A query attends to these and to those of the cache at
        once.
      extra_indices, extra_topk_length, extra_kv_scale: of these rows, as `indices`, `topk_length`
        and `kv_scale` of those of the cache.
      out: an array for O, as of `attention`.
      device, stream: as of `attention`.

    Returns:
      (o, lse): o as [batch, sq, heads, 512] in q's dtype and kind of array; lse [batch, heads, sq]
      in float32, natural logarithm. A query that sees no row has o of 0 and an lse of -inf.

    Raises:
      SpecError: an argument is wrong or has no kernel; nothing was launched.
      TargetError: the device cannot run the kernel, or the toolchain is incomplete.
      LaunchError: the launch failed.
    """
    queries = view(q, "q")
    _check_queries(queries)
    if not isinstance(cache, CACHES):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SpecError(f"cache must be a PagedKV or a ContiguousKV, got {shown(cache)}")
    if format_named(kv_format, queries.shape[3]) is not None and queries.dtype != PLAIN:
        raise SpecError(f"q must be {PLAIN} for kv_format {kv_format!r}, got {queries.dtype}")
    lists = {"indices": indices, "topk_length": topk_length}
    extra_lists = {"indices": extra_indices, "topk_length": extra_topk_length}
    _check_extra(indices, extra_kv, extra_lists, extra_kv_scale)
    options: dict[str, Any] = {"mask": mask}
    spec = MlaDecodeSpec(
        heads=int(queries.shape[2]),
        head_dim=int(queries.shape[3]),
        dtype=queries.dtype,
        sinks=sinks is not None,
        **options,
    )
    if indices is None:
        if topk_length is not None:
            raise SpecError("topk_length is of the lists in indices, which are None")
        scopes = [_of_sequences(spec, queries, cache, kv_format, kv_scale)]
    else:
        name, pool = latent_pool(cache)
        rows = [listed_rows(name, pool, queries, lists, kv_format, kv_scale)]
        if extra_kv is not None:
            found, said = view(extra_kv, "extra_kv"), (kv_format, extra_kv_scale)
            rows += [listed_rows("extra_kv", found, queries, extra_lists, *said, prefix="extra_")]
        called = (name, "extra_kv")
        scopes = [
            _of_lists(spec, queries, x, kv_format, y) for x, y in zip(rows, called, strict=False)
        ]
    shared: dict[str, Any] = {"q": queries, "scale": model_scale(scale)}
    if sinks is not None:
        shared["sinks"] = dense_on_host(_sinks(sinks, queries), "sinks")
    return _planned(scopes, shared, num_splits, model=q, out=out, on=(device, stream))


plan = only_planned(mla_decode)


@dataclass(frozen=True)
class Scope:
    """Rows that queries attend to, which have a kernel of their own.

    Attributes:
      spec: the request without a schedule and without a split.
      rows: views of what rows are made of, by the names of operands.
      arrays: what tells which of them count, likewise.
      sizes: `batch`, and the longest `sq` and `sk`.
      called: the caller's name of the array that has the rows.
    """

    spec: MlaDecodeSpec
    rows: Mapping[str, TensorView]
    arrays: Mapping[str, object]
    sizes: Mapping[str, int]
    called: str

    @property
    def names(self) -> dict[str, str]:
        """As of `Step`."""
        return {"kv": self.called}


def _of_sequences(
    spec: MlaDecodeSpec,
    q: TensorView,
    cache: ContiguousKV | PagedKV,
    kv_format: object,
    kv_scale: object,
) -> Scope:
    """The rows of sequences.

    Raises:
      SpecError: an argument is wrong.
    """
    form = format_named(kv_format, spec.head_dim)
    if form is not None:
        found, stored = packed_cached(form, cache, kv_scale)
        told = told_by({"q": q, **found.operands}, cache=found)
        spec = dataclasses.replace(
            spec,
            lengths=told.kinds,
            cache=told.cache,
            kv_format=form.name,
            kv_group=stored.group,
        )
        return Scope(spec, stored.given, told.arrays, told.sizes, told.name("k"))
    check_no_factors(kv_format, kv_scale)
    found = latent_cached(cache, spec.head_dim)
    told = told_by({"q": q, **found.operands}, cache=found)
    rows = found.operands["k"]
    if rows.dtype != q.dtype:
        raise SpecError(f"{told.name('k')} is {rows.dtype}, q is {q.dtype}: both must be the same")
    spec = dataclasses.replace(spec, lengths=told.kinds, cache=told.cache)
    return Scope(spec, {"kv": rows}, told.arrays, told.sizes, told.name("k"))


def _of_lists(
    spec: MlaDecodeSpec, q: TensorView, listed: ListedRows, kv_format: str, called: str
) -> Scope:
    """The rows that lists name."""
    spec = dataclasses.replace(
        spec,
        indices=True,
        topk_length="topk_length" in listed.lists,
        kv_format=kv_format,
        kv_group=listed.group,
        kv_page=listed.page,
    )
    sizes = {"batch": q.shape[0], "sq": q.shape[1], "sk": listed.topk}
    return Scope(spec, listed.operands, listed.lists, sizes, called)


def _planned(
    scopes: Sequence[Scope],
    shared: Mapping[str, Any],
    num_splits: object,
    *,
    model: object,
    out: object,
    on: tuple[DeviceChoice, object | None],
) -> Plan:
    """One launch, or several where a kernel of its own puts parts of the keys together.

    Args:
      scopes: that queries attend to at once.
      shared: arguments of all kernels: `q`, `scale`, and `sinks` if there are any.
      num_splits, out: as of `mla_decode`.
      model: the array that results shall be like.
      on: device and stream.
    """
    device, stream = on
    q = shared["q"]
    machine = machine_of(device, q)
    target = machine.target or DEFAULT_TARGET
    schedules = [decode_schedule(x.spec, target, scope_count=len(scopes)) for x in scopes]
    specs = [
        dataclasses.replace(x.spec, schedule=y) for x, y in zip(scopes, schedules, strict=True)
    ]
    scopes = [dataclasses.replace(x, spec=y) for x, y in zip(scopes, specs, strict=True)]
    splits = check_scope_splits(num_splits, len(scopes))
    counts = [decode_splits(splits, x.spec, x.sizes, machine) for x in scopes]
    spec, rows = scopes[0].spec, {"q": q, **scopes[0].rows}
    sizes = named_extents(spec, rows)
    if out is not None:
        if (dtype := output_dtype_of(out)) != spec.dtype:
            raise SpecError(f"out has dtype {dtype}, q is {spec.dtype}: both must be the same")
        for number, scope in enumerate(scopes[1:]):
            rows |= {f"extra {number} {name}": value for name, value in scope.rows.items()}
    results = results_of(spec, sizes, out, rows)
    if len(scopes) > 1 or (counts[0] > 1 and not spec.combines_splits):
        steps, memory = _combined(scopes, shared, results, counts)
    else:
        spec = dataclasses.replace(spec, joined=counts[0] > 1)
        extents = {"splits": counts[0], "tiles": decode_tiles(spec, scopes[0].sizes)}
        memory = [Allocation.of(x, extents) for x in spec.tensors if x.role == "inout"]
        seen = {x.name: Seen(x.name, x.shape) for x in (*results, *memory)}
        given = {**shared, **scopes[0].rows, **scopes[0].arrays, **seen}
        steps = [Step(spec, given, scopes[0].names)]
    stream = stream_of(stream, device, model, q)
    return Plan(steps, results, memory, model, q, device, stream, target)


def _combined(
    scopes: Sequence[Scope],
    shared: Mapping[str, object],
    results: Sequence[Allocation],
    counts: Sequence[int],
) -> tuple[list[Step], list[Allocation]]:
    """Launches and memory where results for parts are put together by a kernel of its own.

    Args:
      scopes, shared: as of `_planned`.
      results: O and LSE.
      counts: of the parts of each scope.
    """
    o, lse = (x.shape for x in results)
    total, batch = sum(counts), o[0]
    memory = [
        Allocation("partial_o", "f32", (total * batch, *o[1:])),
        Allocation("partial_lse", "f32", (LSE_TERMS, total * batch, *lse[1:])),
    ]
    given = {name: value for name, value in shared.items() if name != "sinks"}
    steps, first = list[Step](), 0
    for scope, count in zip(scopes, counts, strict=True):
        part = dataclasses.replace(scope.spec, partial=True, sinks=False)
        rows = count * batch
        seen = {"o": memory[0].range(0, first, rows), "lse": memory[1].range(1, first, rows)}
        steps.append(Step(part, {**given, **scope.rows, **scope.arrays, **seen}, scope.names))
        first += rows
    combine = combination_step(
        parts=Seen("partial_o", (total, *o)),
        lses=Seen("partial_lse", (LSE_TERMS, total, *lse)),
        sinks=shared.get("sinks"),
        out_dtype=scopes[0].spec.dtype,
        return_lse=True,
    )
    return [*steps, combine], memory


def _check_extra(
    indices: object, extra_kv: object, lists: Mapping[str, object], kv_scale: object
) -> None:
    """Refuses further rows without lists, and lists without further rows.

    Raises:
      SpecError: names the argument.
    """
    given = {f"extra_{name}": value for name, value in lists.items()}
    if extra_kv is None:
        for name, value in {**given, "extra_kv_scale": kv_scale}.items():
            if value is not None:
                raise SpecError(f"{name} is of the rows in extra_kv, which is None")
    elif indices is None:
        raise SpecError("extra_kv needs indices, which are None")
    elif lists["indices"] is None:
        raise SpecError("extra_indices must say which rows of extra_kv are seen, got None")


def _check_queries(q: TensorView) -> None:
    """Refuses queries of the wrong rank, columns or dtype.

    Raises:
      SpecError: says what was got.
    """
    if len(q.shape) != LAYOUT.count(",") + 1:
        raise SpecError(f"q must be {LAYOUT}, got shape {list(q.shape)}")
    if q.shape[3] not in HEAD_DIMS:
        allowed = " or ".join(map(str, HEAD_DIMS))
        raise SpecError(f"q must have {allowed} columns, got {q.shape[3]}")
    if q.dtype not in WIDE_DTYPES:
        raise refused_dtype("q", q.dtype, WIDE_DTYPES)


def _sinks(sinks: object, q: TensorView) -> object:
    """Sinks themselves.

    Raises:
      SpecError: not one f32 for each head.
    """
    found = view(sinks, "sinks")
    if found.shape != (q.shape[2],) or found.dtype != "f32":
        raise SpecError(
            f"sinks must be [{q.shape[2]}] of f32, got {list(found.shape)} of {found.dtype}"
        )
    return sinks
