"""`mla_decode`: latent attention after absorption, checked and planned."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from attn_mlir.api.array_checks import dense_array
from attn_mlir.api.attention import output_dtype_of
from attn_mlir.api.combining import combination_step
from attn_mlir.api.indexed_rows import check_no_scales, indexed_rows
from attn_mlir.api.latent.caches import latent_cached, latent_pool
from attn_mlir.api.latent.mla import model_scale
from attn_mlir.api.latent.packed_rows import latent_format, packed_cached
from attn_mlir.api.lengths import sequence_lengths
from attn_mlir.api.plan import Allocation, Plan, PlanView, Step, named_extents, results_of
from attn_mlir.api.planners import declared_by, only_planned
from attn_mlir.caches import CACHES, ContiguousKV, PagedKV
from attn_mlir.compiling.dtypes import WIDE_DTYPES, refused_dtype
from attn_mlir.compiling.mla_decode import HEAD_DIMS, MlaDecodeSpec
from attn_mlir.compiling.routes import choice_of
from attn_mlir.compiling.spec import LSE_TERMS
from attn_mlir.compiling.splits import check_num_splits, split_count
from attn_mlir.dialect.attn.latent.formats import PLAIN
from attn_mlir.errors import SpecError, shown
from attn_mlir.masks import Mask
from attn_mlir.runtime.call.tensors import TensorView, view
from attn_mlir.runtime.kernel import DeviceChoice, machine_of

LAYOUT = "[batch, sq, heads, head_dim]"


@dataclass(frozen=True, eq=False)
class MlaDecodeCall:
    """The arguments of `mla_decode`, which says what they are."""

    q: Any
    cache: ContiguousKV | PagedKV
    _: KW_ONLY
    scale: float
    mask: Mask | None = None
    indices: Any = None
    topk_length: Any = None
    sinks: Any = None
    num_splits: int = 0
    kv_format: str = PLAIN
    kv_scale: Any = None
    extra_kv: Any = None
    extra_indices: Any = None
    extra_topk_length: Any = None
    extra_kv_scale: Any = None
    sm_margin: int = 0
    out: Any = None
    device: DeviceChoice = None
    stream: object | None = None


@declared_by(MlaDecodeCall)
def mla_decode(call: MlaDecodeCall) -> Plan:
    """Absorbed latent attention of a few queries over a latent cache.

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
      num_splits: number of splits of the keys, 1 to 256, which are computed in parallel; 0 chooses
        by the sizes. The same number gives the same bits.
      kv_format, kv_scale: as of `sparse_mla`: how the rows of the cache are stored, with bytes in
        the place of columns, and their scales. `bf16` is for rows of q's dtype.
      extra_kv: [pages, page, 1, columns], beside indices: further rows, stored as those of the
        cache, with pages of their own size. A query attends to these and to those of the cache at
        once.
      extra_indices, extra_topk_length, extra_kv_scale: of these rows, as `indices`, `topk_length`
        and `kv_scale` of those of the cache.
      out: an array for O, as of `attention`.
      sm_margin, device, stream: as of `attention`.

    Returns:
      (o, lse): o as [batch, sq, heads, 512] in q's dtype and kind of array; lse [batch, heads, sq]
      in float32, natural logarithm. A query that sees no row has o of 0 and an lse of -inf.

    Raises:
      SpecError: an argument is wrong or has no kernel; nothing was launched.
      TargetError: the device cannot run the kernel, or the toolchain is incomplete.
      LaunchError: the launch failed.
    """
    q, cache, kv_format = view(call.q, "q"), call.cache, call.kv_format
    _check_queries(q)
    if not isinstance(cache, CACHES):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SpecError(f"cache must be a PagedKV or a ContiguousKV, got {shown(cache)}")
    if latent_format(kv_format, q.shape[3]) is not None and q.dtype != PLAIN:
        raise SpecError(f"q must be {PLAIN} for kv_format {kv_format!r}, got {q.dtype}")
    _check_extra(call)
    options: dict[str, Any] = {"mask": call.mask}
    spec = MlaDecodeSpec(
        heads=int(q.shape[2]),
        head_dim=int(q.shape[3]),
        dtype=q.dtype,
        sinks=call.sinks is not None,
        **options,
    )
    if call.indices is None:
        if call.topk_length is not None:
            raise SpecError("topk_length is of the lists in indices, which are None")
        pools = [_of_sequences(spec, q, call)]
    else:
        sources = [("", *latent_pool(cache))]
        if call.extra_kv is not None:
            sources += [("extra_", "extra_kv", view(call.extra_kv, "extra_kv"))]
        pools = [_of_lists(spec, q, call, *source) for source in sources]
    shared: dict[str, Any] = {"q": q, "scale": model_scale(call.scale)}
    if call.sinks is not None:
        shared["sinks"] = dense_array("sinks", call.sinks, (q.shape[2],), "f32")
    return _planned(call, pools, shared)


plan = only_planned(mla_decode)


@dataclass(frozen=True)
class CachePool:
    """Rows that queries attend to in one kernel.

    Attributes:
      spec: the request without a schedule and without a split.
      rows: views of the rows by the names of operands.
      arrays: index arrays and lengths, likewise.
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


def _of_sequences(spec: MlaDecodeSpec, q: TensorView, call: MlaDecodeCall) -> CachePool:
    """The rows of sequences.

    Raises:
      SpecError: an argument is wrong.
    """
    form, packed = latent_format(call.kv_format, spec.head_dim), dict[str, Any]()
    if form is not None:
        cache, stored = packed_cached(form, call.cache, call.kv_scale)
        rows, packed = stored.operands, {"kv_format": form.name, "kv_group": stored.group}
    else:
        check_no_scales(call.kv_format, call.kv_scale)
        cache = latent_cached(call.cache, spec.head_dim)
        rows = {"kv": cache.operands["k"]}
    lengths = sequence_lengths({"q": q, **cache.operands}, cache=cache)
    name, dtype = lengths.name("k"), rows["kv"].dtype
    if form is None and dtype != q.dtype:
        raise SpecError(f"{name} is {dtype}, q is {q.dtype}: both must be the same")
    spec = dataclasses.replace(spec, lengths=lengths.kinds, cache=lengths.cache, **packed)
    return CachePool(spec, rows, lengths.arrays, lengths.sizes, name)


def _of_lists(
    spec: MlaDecodeSpec,
    q: TensorView,
    call: MlaDecodeCall,
    prefix: str,
    name: str,
    rows: TensorView,
) -> CachePool:
    """The rows of a pool that lists index.

    Args:
      prefix: of the arguments about them.
      name: of the pool.
    """
    lists = {x: getattr(call, prefix + x) for x in ("indices", "topk_length")}
    scale = getattr(call, f"{prefix}kv_scale")
    indexed = indexed_rows(name, rows, q, lists, call.kv_format, scale, prefix=prefix)
    spec = dataclasses.replace(
        spec,
        indices=True,
        topk_length="topk_length" in indexed.lists,
        kv_format=call.kv_format,
        kv_group=indexed.group,
        kv_page=indexed.page,
    )
    sizes = {"batch": q.shape[0], "sq": q.shape[1], "sk": indexed.topk}
    return CachePool(spec, indexed.operands, indexed.lists, sizes, name)


def _planned(call: MlaDecodeCall, pools: Sequence[CachePool], shared: Mapping[str, Any]) -> Plan:
    """One launch, or several where a second kernel combines splits of the keys.

    Args:
      pools: that queries attend to at once.
      shared: arguments of all kernels: `q`, `scale`, and `sinks` if there are any.
    """
    q, out = shared["q"], call.out
    machine = machine_of(call.device, q).without(call.sm_margin)
    changed = {"partial": True} if len(pools) > 1 else {}  # partial results of each pool
    choices = [choice_of(x.spec, x.sizes, machine, **changed) for x in pools]
    specs = [x.spec.derived(schedule=y.name) for x, y in zip(pools, choices, strict=True)]
    pools = [dataclasses.replace(x, spec=y) for x, y in zip(pools, specs, strict=True)]
    splits = check_num_splits(call.num_splits, len(pools))
    counts = [split_count(splits, choice) for choice in choices]
    spec, rows = pools[0].spec, {"q": q, **pools[0].rows}
    sizes = named_extents(spec, rows)
    if out is not None:
        if (dtype := output_dtype_of(out)) != spec.dtype:
            raise SpecError(f"out has dtype {dtype}, q is {spec.dtype}: both must be the same")
        for number, pool in enumerate(pools[1:]):
            rows |= {f"extra {number} {name}": value for name, value in pool.rows.items()}
    results = results_of(spec, sizes, out, rows)
    if len(pools) > 1 or (counts[0] > 1 and not spec.combines_splits):
        steps, memory = _combined(pools, shared, results, counts)
    else:
        spec = spec.derived(joined=counts[0] > 1)
        extents = {"splits": counts[0], "tiles": choices[0].work_tiles()}
        memory = [Allocation.of(x, extents) for x in spec.tensors if x.role == "inout"]
        views = {x.name: PlanView(x.name, x.shape) for x in (*results, *memory)}
        arguments = {**shared, **pools[0].rows, **pools[0].arrays, **views}
        steps = [Step(spec, arguments, pools[0].names)]
    plan = Plan.of(steps, results, call, call.q, q, memory)
    return dataclasses.replace(plan, sm_margin=machine.sm_margin)


def _combined(
    pools: Sequence[CachePool],
    shared: Mapping[str, object],
    results: Sequence[Allocation],
    counts: Sequence[int],
) -> tuple[list[Step], list[Allocation]]:
    """Launches and memory where a second kernel combines partial results.

    Args:
      pools, shared: as of `_planned`.
      results: O and LSE.
      counts: splits of each pool.
    """
    o, lse = (x.shape for x in results)
    total, batch = sum(counts), o[0]
    memory = [
        Allocation("partial_o", "f32", (total * batch, *o[1:])),
        Allocation("partial_lse", "f32", (LSE_TERMS, total * batch, *lse[1:])),
    ]
    arguments = {name: value for name, value in shared.items() if name != "sinks"}
    steps, first = list[Step](), 0
    for pool, count in zip(pools, counts, strict=True):
        spec = pool.spec.derived(partial=True, sinks=False)
        rows = count * batch
        views = {"o": memory[0].range(0, first, rows), "lse": memory[1].range(1, first, rows)}
        steps.append(Step(spec, {**arguments, **pool.rows, **pool.arrays, **views}, pool.names))
        first += rows
    combine = combination_step(
        parts=PlanView("partial_o", (total, *o)),
        lses=PlanView("partial_lse", (LSE_TERMS, total, *lse)),
        sinks=shared.get("sinks"),
        out_dtype=pools[0].spec.dtype,
        return_lse=True,
    )
    return [*steps, combine], memory


def _check_extra(call: MlaDecodeCall) -> None:
    """Refuses further rows without lists, and lists without further rows.

    Raises:
      SpecError: names the argument.
    """
    if call.extra_kv is None:
        for name in ("extra_indices", "extra_topk_length", "extra_kv_scale"):
            if getattr(call, name) is not None:
                raise SpecError(f"{name} is of the rows in extra_kv, which is None")
    elif call.indices is None:
        raise SpecError("extra_kv needs indices, which are None")
    elif call.extra_indices is None:
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
