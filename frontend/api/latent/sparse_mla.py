"""`sparse_mla`: check the operands of sparse latent attention, and plan its launch."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

from attn_mlir.api.array_checks import dense_array, index_array
from attn_mlir.api.attention import out_dtype_of
from attn_mlir.api.latent.mla import model_scale
from attn_mlir.api.latent.packed_rows import (
    PackedOperands,
    as_rows,
    latent_format,
    stored_rows,
)
from attn_mlir.api.lengths import check_list_lengths
from attn_mlir.api.plan import Plan, PlanView, Step, results_of
from attn_mlir.api.planners import declared_by
from attn_mlir.arrays import as_i32
from attn_mlir.compiling.options import MAX_PAGE
from attn_mlir.compiling.sparse_mla import (
    DTYPES,
    HEAD_DIMS,
    NATIVE,
    V_DIM,
    SparseMlaSpec,
)
from attn_mlir.dialect.attn.latent.formats import FORMATS, PLAIN
from attn_mlir.errors import SpecError, shown
from attn_mlir.runtime.call.scalars import MAX_I32, integer
from attn_mlir.runtime.call.tensors import TensorView, view
from attn_mlir.runtime.kernel import DeviceChoice


@dataclass(frozen=True, eq=False)
class SparseMlaCall:
    """The arguments of `sparse_mla`, which says what they are."""

    q: Any
    kv: Any
    indices: Any
    _: KW_ONLY
    scale: float
    v_dim: int = V_DIM
    topk_length: Any = None
    sinks: Any = None
    page_table: Any = None
    batch_of_query: Any = None
    kv_format: str = PLAIN
    kv_scale: Any = None
    out_dtype: object = None
    out: Any = None
    device: DeviceChoice = None
    stream: object | None = None


@declared_by(SparseMlaCall)
def sparse_mla(call: SparseMlaCall) -> Plan:
    """Latent attention of each query over the rows of a cache that its list of indices names.

    All heads of a query share its list, and the cache has one head: a row is the key, and its first
    512 columns are the value. An entry counts if it is a row of the cache, from 0 on, and stands
    before `topk_length`; what the others name is never read, and may be NaN. The order of a list
    and entries that do not count change no result but by rounding.

    Args:
      q: [s_q, heads, d_qk] bf16 or f16: heads a multiple of 8 up to 64, or of 64; d_qk 576 or 512.
        Or e4m3,
        for a cache of `e4m3` without `kv_scale`: then both products are of 8 bits.
      kv: [s_kv, 1, d_qk] of q's dtype. Rows may lie apart, by multiples of 16 bytes. Or pages,
        [pages, page, 1, d_qk], one behind the other in memory. With a `kv_format` of 8 bits bytes,
        u8, i8 or e4m3, in the place of columns; `pack_latent` makes them.
      indices: [s_q, topk] i32 or u32, as all arrays of indices and lengths: rows of `kv`, of pages
        page x size + offset; any other number, such as -1, does not count. With `page_table`
        positions of the query's sequence.
      scale: of the scores, finite and greater than 0. It is never derived: absorbed projections
        keep the scale of the heads that they come from.
      v_dim: 512.
      topk_length: [s_q] i32, how many entries of each list count, 0 to topk; all if None.
      sinks: [heads] f32: a logit per head, for a key without a value. It counts in O alone.
      page_table: [batch, columns] i32: position p of sequence b is offset p % size of the page
        page_table[b, p / size]. A page that `kv` does not have holds no row that counts.
      batch_of_query: [s_q] i32, the sequence of each query; with `page_table`.
      kv_format: how rows are stored: `bf16`, for rows of q's dtype; FlashMLA's `v32`, 656 bytes for
        d_qk 576, and `model1`, pages of 576 bytes a row and behind them 8 a row, for 512; `e4m3`,
        576 bytes, and `e4m3_rope16`, 640 bytes, for 576. 8 bits are widened to bf16 on the way,
        times their scales, unless `q` is of 8 bits as well.
      kv_scale: with `e4m3` and `e4m3_rope16` the scales of 8-bit columns, [s_kv, n] or
        [pages, page, n] of f32: n of 1, 2, 3, 5, 9, 18 or 1, 2, 4, 8, 16, for all columns or every
        512, 256, 128, 64, 32 of them; None for 1. Else None.
      out_dtype: of O: bf16, f16 or f32, in any spelling; when left out that of `out`, else q's, or
        bf16 for e4m3.
      out: an array for O, as of `attention`.
      device, stream: as of `attention`.

    Returns:
      (o, lse, max_logits): o [s_q, heads, 512] of `out_dtype`, the others [s_q, heads] f32: natural
      logarithm of the sum of the exponentials, and the largest scaled score, both without the sink.
      For a query without an entry that counts o is 0 and the others are -inf.

    Raises:
      SpecError: an argument is wrong or has no kernel; nothing was launched.
      TargetError: the device cannot run the kernel, or the toolchain is incomplete.
      LaunchError: the launch failed.
    """
    lists = as_i32(call.indices, "indices")
    q, kv, indices = view(call.q, "q"), view(call.kv, "kv"), view(lists, "indices")
    integer("v_dim", call.v_dim, V_DIM, V_DIM)
    page_size = _page_size(kv, call.page_table, call.batch_of_query)
    _check(q, indices)
    stored = _stored(kv, q, call.kv_format, call.kv_scale)
    s_q, heads, head_dim = q.shape
    optional = dict[str, object]()
    for name in ("topk_length", "batch_of_query"):
        if (value := getattr(call, name)) is not None:
            optional[name] = index_array(name, value, (s_q,))
    if call.sinks is not None:
        optional["sinks"] = dense_array("sinks", call.sinks, (heads,), "f32")
    if call.topk_length is not None:
        check_list_lengths("topk_length", call.topk_length, indices.shape[1])
    if call.page_table is not None:
        optional["page_table"] = _table(call.page_table)
    spec = SparseMlaSpec(
        heads=heads,
        head_dim=head_dim,
        dtype=q.dtype,
        topk_length=call.topk_length is not None,
        sinks=call.sinks is not None,
        page_size=page_size,
        out_dtype=out_dtype_of(call.out, call.out_dtype),
        kv_format=call.kv_format,
        kv_group=stored.group,
        kv_page=stored.page,
    )
    results = results_of(
        spec, {"s_q": s_q}, call.out, {"q": q, **stored.operands, "indices": indices}
    )
    arguments = {
        "q": call.q,
        **stored.operands,
        "indices": lists,
        "scale": model_scale(call.scale),
        **optional,
        **{result.name: PlanView(result.name, result.shape) for result in results},
    }
    return Plan.of([Step(spec, arguments)], results, call, call.q, q)


def _page_size(kv: TensorView, page_table: object, batch_of_query: object) -> int | None:
    """Rows of a page, where there is a table; None without.

    Raises:
      SpecError: a table without the sequences of queries, or without pages.
    """
    if (page_table is None) != (batch_of_query is None):
        missing = "page_table" if page_table is None else "batch_of_query"
        raise SpecError(f"page_table and batch_of_query go together, {missing} is None")
    if page_table is None:
        return None
    if len(kv.shape) != 4:
        raise SpecError(
            f"kv must be [pages, page, 1, d_qk] with a page_table, got {list(kv.shape)}"
        )
    return integer("rows of a page of kv", kv.shape[1], 1, MAX_PAGE)


def _stored(kv: TensorView, q: TensorView, kv_format: str, kv_scale: object) -> PackedOperands:
    """The cache as the operands of a kernel for these queries.

    Raises:
      SpecError: it is none of that format, or not for queries of that dtype.
    """
    columns = q.shape[2]
    if kv_format in FORMATS and q.dtype not in (PLAIN, NATIVE):
        raise SpecError(f"q must be {PLAIN} for kv_format {kv_format!r}, got {q.dtype}")
    if q.dtype == NATIVE and (kv_format != NATIVE or kv_scale is not None):
        raise SpecError(
            f"q must be {PLAIN} or f16 unless kv_format is {NATIVE!r} without kv_scale, got "
            f"{q.dtype} for {kv_format!r}"
        )
    form = latent_format(kv_format, columns)
    if form is not None:
        return stored_rows(form, kv, kv_scale)
    if kv_scale is not None:
        raise SpecError(f"kv_scale must be None for kv_format {kv_format!r}, got {shown(kv_scale)}")
    rows = as_rows("kv", kv)
    if len(rows.shape) != len(("rows", "heads", "columns")):
        raise SpecError(f"kv must be [s_kv, 1, d_qk], got {list(kv.shape)}")
    (count, *row), (step, _, inner) = rows.shape, rows.strides
    if row != [1, columns] or not 1 <= count <= MAX_I32:
        raise SpecError(
            f"kv must be [s_kv, 1, {columns}] with 1 to {MAX_I32} rows beside this q, got "
            f"{list(kv.shape)}"
        )
    if rows.dtype != q.dtype:
        raise SpecError(f"kv is {rows.dtype}, q is {q.dtype}: both must be the same")
    return PackedOperands({"kv": rows.reshaped((count, columns), (step, inner))}, None, None)


def _table(value: object) -> object:
    """A table of pages itself.

    Raises:
      SpecError: it is none.
    """
    value = as_i32(value, "page_table")
    table = view(value, "page_table")
    if len(table.shape) != 2 or 0 in table.shape or table.dtype != "i32":
        raise SpecError(
            "page_table must be [batch, columns] of i32 with an entry at least, got "
            f"{list(table.shape)} of {table.dtype}"
        )
    return value


def _check(q: TensorView, indices: TensorView) -> None:
    """Refuses queries and lists of the wrong shape or dtype.

    Raises:
      SpecError: names the tensor.
    """
    for name, tensor, axes in (
        ("q", q, ("s_q", "heads", "d_qk")),
        ("indices", indices, ("s_q", "topk")),
    ):
        if len(tensor.shape) != len(axes):
            raise SpecError(f"{name} must be [{', '.join(axes)}], got {list(tensor.shape)}")
    if q.shape[2] not in HEAD_DIMS:
        allowed = " or ".join(map(str, HEAD_DIMS))
        raise SpecError(f"q must have {allowed} columns, got {q.shape[2]}")
    if indices.shape[0] != q.shape[0] or not indices.shape[1]:
        raise SpecError(
            f"indices must be [{q.shape[0]}, topk] with an entry at least beside this q, got "
            f"{list(indices.shape)}"
        )
    if q.dtype not in DTYPES:
        raise SpecError(f"q must be {' or '.join(DTYPES)}, got {q.dtype}")
    if indices.dtype != "i32":
        raise SpecError(f"indices must be i32 or u32, got {indices.dtype}")
