"""`mla_decode`: latent attention after absorption, checked and planned."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from attn_mlir.api.attention import output_dtype_of
from attn_mlir.api.combining import combination_step
from attn_mlir.api.latent_caches import latent_cached, latent_pool, latent_rows
from attn_mlir.api.lengths import NONE_TOLD, Told, told_by
from attn_mlir.api.mla import model_scale
from attn_mlir.api.packed_rows import StoredRows, format_named, stored_rows
from attn_mlir.api.plan import (
    Allocation,
    Plan,
    Seen,
    Step,
    carried_out,
    named_extents,
    only_planned,
)
from attn_mlir.arrays import dense_on_host, given_output, stream_of
from attn_mlir.caches import CACHES, ContiguousKV, PagedKV
from attn_mlir.compiling.decode_routes import decode_schedule, decode_splits, decode_tiles
from attn_mlir.compiling.dtypes import WIDE_DTYPES
from attn_mlir.compiling.mla_decode import HEAD_DIMS, MlaDecodeSpec
from attn_mlir.compiling.spec import LSE_TERMS
from attn_mlir.dialect.attn.latent_formats import PLAIN
from attn_mlir.errors import SpecError, shown
from attn_mlir.masks import Mask
from attn_mlir.passes.target.limits import DEFAULT_TARGET
from attn_mlir.runtime.kernel import DeviceChoice, machine_of
from attn_mlir.runtime.scalars import MAX_I32
from attn_mlir.runtime.tensors import TensorView, view

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
    out: Any = None,
    device: DeviceChoice = None,
    stream: object | None = None,
) -> Plan:
    """Latent attention of a few queries over a latent cache, projections of keys and values absorbed.

    All heads read the same rows of the cache: a row is the key, and its first 512 columns are the value.

    Args:
      q: [batch, sq, heads, 576], or 512 columns where rows have none that are rotated beside the latent
        ones; bf16 or f16. Heads are a multiple of 8 up to 1024; sq is 1 or a few.
      cache: `PagedKV` or `ContiguousKV` without values, of q's dtype and columns and one head.
      scale: of the scores, finite and greater than 0: the model's, which no head size tells.
      mask: which rows of its sequence a query sees, see `masks`; `full()` when left out. With `causal()`
        the queries are the last positions of their sequence.
      indices: [batch, sq, topk] i32, in place of a mask: the rows that a query sees, page x page size +
        offset (row x positions + offset of a `ContiguousKV`). The table and lengths of the cache are
        then not looked at. An entry that is no row of the cache does not count; a row that no entry
        names is not read.
      topk_length: [batch, sq] i32, beside indices: how many entries of each list count; all of them
        when left out.
      sinks: [heads] f32, logits of a key without a value, added to the sum that the head's
        probabilities are divided by, but not to the LSE.
      num_splits: number of parts of the keys, 1 to 256, which are computed side by side; 0 chooses by
        the sizes. The same number gives the same bits.
      kv_format, kv_scale: as of `sparse_mla`, beside indices: how the rows of the cache are stored, with
        bytes in the place of columns, and their factors. `bf16` is for rows of q's dtype.
      out: an array for O, as of `attention`.
      device, stream: as of `attention`.

    Returns:
      (o, lse): o as [batch, sq, heads, 512] in q's dtype and kind of array; lse [batch, heads, sq] in
      float32, natural logarithm. A query that sees no row has o of 0 and an lse of -inf.

    Raises:
      SpecError: an argument is wrong or has no kernel; nothing was launched.
      TargetError: the device cannot run the kernel, or the toolchain is incomplete.
      LaunchError: the launch failed.
    """
    queries = view(q, "q")
    _check_queries(queries)
    if not isinstance(cache, CACHES):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SpecError(f"cache must be a PagedKV or a ContiguousKV, got {shown(cache)}")
    columns = queries.shape[3]
    lists = {"indices": indices, "topk_length": topk_length}
    told, arrays = NONE_TOLD, {}
    stored = _packed(cache, columns, kv_format, kv_scale)
    if indices is None:
        if stored is not None:
            raise SpecError(f"kv_format {kv_format!r} needs indices, which are None")
        found = latent_cached(cache, columns)
        rows = found.operands["k"]
        told = told_by({"q": queries, **found.operands}, cache=found)
        name = told.name("k")
    else:
        rows = latent_rows(cache, columns) if stored is None else stored.given["kv"]
        name = "k_pages" if isinstance(cache, PagedKV) else "k"
        told = dataclasses.replace(told, sizes=_sizes(queries, rows, view(indices, "indices")))
    if topk_length is not None and indices is None:
        raise SpecError("topk_length is of the lists in indices, which are None")
    arrays = {
        label: dense_on_host(_list(label, array, queries), label)
        for label, array in lists.items()
        if array is not None
    }
    if sinks is not None:
        arrays["sinks"] = dense_on_host(_sinks(sinks, queries), "sinks")
    if stored is None and rows.dtype != queries.dtype:
        raise SpecError(f"{name} is {rows.dtype}, q is {queries.dtype}: both must be the same")
    options: dict[str, Any] = {"mask": mask}
    spec = MlaDecodeSpec(
        heads=int(queries.shape[2]),
        head_dim=int(columns),
        dtype=queries.dtype,
        indices=indices is not None,
        topk_length=topk_length is not None,
        sinks=sinks is not None,
        lengths=told.kinds,
        cache=told.cache,
        kv_format=kv_format,
        kv_group=None if stored is None else stored.group,
        kv_page=None if stored is None else stored.page,
        **options,
    )
    operands = {"q": queries, "kv": rows, **({} if stored is None else stored.given)}
    arguments = {**operands, **arrays, **told.arrays, "scale": model_scale(scale)}
    return _planned(
        spec, arguments, operands, told, num_splits, model=q, out=out, on=(device, stream)
    )


plan = only_planned(mla_decode)


def _planned(
    spec: MlaDecodeSpec,
    arguments: Mapping[str, object],
    operands: Mapping[str, TensorView],
    told: Told,
    num_splits: object,
    *,
    model: object,
    out: object,
    on: tuple[DeviceChoice, object | None],
) -> Plan:
    """One launch, or two where a kernel of its own puts parts of the keys together.

    Args:
      spec: the request without a schedule.
      arguments: of the kernel, but for results and workspace.
      operands: those of them that are arrays with elements of Q and the cache.
      told: the sizes of the call.
      num_splits, out: as of `mla_decode`.
      model: the array that results shall be like.
      on: device and stream.
    """
    device, stream = on
    q = operands["q"]
    machine = machine_of(device, q)
    target = machine.target or DEFAULT_TARGET
    spec = dataclasses.replace(spec, schedule=decode_schedule(spec, target))
    count = decode_splits(num_splits, spec, told.sizes, machine)
    given = None
    if out is not None:
        if (dtype := output_dtype_of(out)) != spec.dtype:
            raise SpecError(f"out has dtype {dtype}, q is {spec.dtype}: both must be the same")
        o = next(x for x in spec.tensors if x.name == "o")
        given = given_output(out, (*q.shape[:3], int(o.extents[-1])), spec.dtype, operands)
    sizes = named_extents(spec, operands)
    results = [Allocation.of(x, sizes) for x in spec.tensors if x.role == "out"]
    results[0] = dataclasses.replace(results[0], given=given)
    if count > 1 and not spec.is_streamed:
        steps, memory = _combined(spec, arguments, results, count)
    else:
        spec = dataclasses.replace(spec, joined=count > 1)
        extents = {"splits": count, "tiles": decode_tiles(spec, told.sizes)}
        memory = [Allocation.of(x, extents) for x in spec.tensors if x.role == "inout"]
        seen = {x.name: Seen(x.name, x.shape) for x in (*results, *memory)}
        steps = [Step(spec, {**arguments, **seen})]
    stream = stream_of(stream, device, model, q)
    return Plan(steps, results, memory, model, q, device, stream, target)


def _combined(
    spec: MlaDecodeSpec, arguments: Mapping[str, object], results: Sequence[Allocation], count: int
) -> tuple[list[Step], list[Allocation]]:
    """Launches and memory where results for parts are put together by a kernel of its own.

    Args:
      spec: the request without a split.
      arguments: of its kernel, but for results.
      results: O and LSE.
      count: of parts.
    """
    o, lse = (x.shape for x in results)
    part = dataclasses.replace(spec, partial=True, sinks=False)
    memory = [
        Allocation("partial_o", "f32", (count * o[0], *o[1:])),
        Allocation("partial_lse", "f32", (LSE_TERMS, count * lse[0], *lse[1:])),
    ]
    seen = {"o": Seen("partial_o", memory[0].shape), "lse": Seen("partial_lse", memory[1].shape)}
    given = {name: value for name, value in arguments.items() if name != "sinks"}
    combine = combination_step(
        parts=Seen("partial_o", (count, *o)),
        lses=Seen("partial_lse", (LSE_TERMS, count, *lse)),
        sinks=arguments.get("sinks"),
        out_dtype=spec.dtype,
        return_lse=True,
    )
    return [Step(part, {**given, **seen}), combine], memory


def _packed(
    cache: ContiguousKV | PagedKV, columns: int, kv_format: object, kv_scale: object
) -> StoredRows | None:
    """A cache of 8 bits as the operands of a kernel, beside queries of so many columns; None of 16 bits.

    Raises:
      SpecError: it is none of that format.
    """
    form = format_named(kv_format, columns)
    if form is not None:
        return stored_rows(form, latent_pool(cache)[1], kv_scale)
    if kv_scale is not None:
        raise SpecError(f"kv_scale must be None for kv_format {kv_format!r}, got {shown(kv_scale)}")
    return None


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
        raise SpecError(f"q has dtype {q.dtype}, allowed are {', '.join(WIDE_DTYPES)}")


def _sizes(q: TensorView, rows: TensorView, indices: TensorView) -> dict[str, int]:
    """The sizes of a call with lists: the keys of a query are its entries.

    Raises:
      SpecError: more rows than an index can name.
    """
    if rows.shape[0] > MAX_I32:
        raise SpecError(f"indices name at most {MAX_I32} rows, the cache has {rows.shape[0]}")
    return {"batch": q.shape[0], "sq": q.shape[1], "sk": indices.shape[-1] if indices.shape else 0}


def _list(name: str, value: object, q: TensorView) -> object:
    """Lists for each query, or their lengths, themselves.

    Raises:
      SpecError: another shape or dtype.
    """
    found = view(value, name)
    axes = [*map(str, q.shape[:2]), *(["topk"] if name == "indices" else [])]
    if found.dtype != "i32" or len(found.shape) != len(axes) or found.shape[:2] != q.shape[:2]:
        raise SpecError(
            f"{name} must be [{', '.join(axes)}] of i32 beside this q, got {list(found.shape)} of "
            f"{found.dtype}"
        )
    return value


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
