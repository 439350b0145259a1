"""`sparse_mla`: check the operands of sparse latent attention, and plan its launch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attn_mlir.api.plan import Allocation, Plan, Seen, Step, carried_out
from attn_mlir.arrays import dense_on_host, stream_of
from attn_mlir.compiling.sparse_mla import DTYPES, HEAD_DIMS, V_DIM, SparseMlaSpec
from attn_mlir.dialect.attn.scale import MAX_SCALE
from attn_mlir.errors import SpecError, shown
from attn_mlir.passes.target.limits import DEFAULT_TARGET
from attn_mlir.runtime.binding import f32_number
from attn_mlir.runtime.kernel import DeviceChoice, machine_of
from attn_mlir.runtime.scalars import MAX_I32, integer
from attn_mlir.runtime.tensors import TensorView, view

KV_FORMATS = ("bf16", "v32", "model1", "e4m3", "e4m3_rope16")  # of which the first has a kernel


@carried_out
def sparse_mla(
    q: Any,
    kv: Any,
    indices: Any,
    *,
    scale: float,
    v_dim: int = V_DIM,
    topk_length: Any = None,
    sinks: Any = None,
    page_table: None = None,
    batch_of_query: None = None,
    kv_format: str = "bf16",
    kv_scale: None = None,
    device: DeviceChoice = None,
    stream: object | None = None,
) -> Plan:
    """Latent attention of each query over the rows of a cache that its list of indices names.

    All heads of a query share its list, and the cache has one head: a row is the key, and its first
    512 columns are the value. An entry counts if it is a row of the cache, from 0 on, and stands
    before `topk_length`; what the others name is never read, and may be NaN. The order of a list
    and entries that do not count change no result but by rounding.

    Args:
      q: [s_q, heads, d_qk] bf16: heads a multiple of 8 up to 64, or of 64; d_qk 576 or 512.
      kv: [s_kv, 1, d_qk] bf16. Rows may lie apart, by multiples of 16 bytes.
      indices: [s_q, topk] i32, rows of `kv`; any other number, such as -1, does not count.
      scale: of the scores, finite and greater than 0. It is never derived: absorbed projections
        keep the scale of the heads that they come from.
      v_dim: 512.
      topk_length: [s_q] i32, how many entries of each list count, 0 to topk; all if None.
      sinks: [heads] f32: a logit per head, for a key without a value. It counts in O alone.
      page_table, batch_of_query: None.
      kv_format: `bf16`.
      kv_scale: None.
      device, stream: as of `attention`.

    Returns:
      (o, lse, max_logits): o [s_q, heads, 512] bf16, the others [s_q, heads] f32: natural logarithm of
      the sum of the exponentials, and the largest scaled score, both without the sink. For a query
      without an entry that counts o is 0 and the others are -inf.

    Raises:
      SpecError: an argument is wrong or has no kernel; nothing was launched.
      TargetError: the device cannot run the kernel, or the toolchain is incomplete.
      LaunchError: the launch failed.
    """
    operands = {"q": view(q, "q"), "kv": view(kv, "kv"), "indices": view(indices, "indices")}
    _refuse(kv_format, kv_scale, {"page_table": page_table, "batch_of_query": batch_of_query})
    integer("v_dim", v_dim, V_DIM, V_DIM)
    _check(operands)
    s_q, heads, head_dim = operands["q"].shape
    optional = {"topk_length": (topk_length, "i32", s_q), "sinks": (sinks, "f32", heads)}
    lines = {
        name: dense_on_host(_line(name, *told), name)
        for name, told in optional.items()
        if told[0] is not None
    }
    spec = SparseMlaSpec(
        heads=heads,
        head_dim=head_dim,
        dtype=operands["q"].dtype,
        topk_length="topk_length" in lines,
        sinks="sinks" in lines,
    )
    sizes = {"s_q": s_q}
    results = [Allocation.of(x, sizes) for x in spec.operands if x.role == "out"]
    rows, _, columns = operands["kv"].shape
    step, _, inner = operands["kv"].strides
    given = {
        "q": q,
        "kv": operands["kv"].reshaped((rows, columns), (step, inner)),
        "indices": indices,
        "scale": f32_number("scale", scale, 0.0, MAX_SCALE),
        **lines,
        **{result.name: Seen(result.name, result.shape) for result in results},
    }
    target = machine_of(device, operands["q"]).target or DEFAULT_TARGET
    stream = stream_of(stream, device, q, operands["q"])
    plan = [Step(spec, given)]
    return Plan(plan, results, [], q, operands["q"], device, stream, target)


def _refuse(kv_format: object, kv_scale: object, absent: Mapping[str, object]) -> None:
    """Refuses what has no kernel yet."""
    if not isinstance(kv_format, str) or kv_format not in KV_FORMATS:
        allowed = ", ".join(KV_FORMATS)
        raise SpecError(f"kv_format must be one of {allowed}, got {shown(kv_format, 40)}")
    if kv_format != KV_FORMATS[0]:
        raise SpecError(f"kv_format {kv_format!r} has no kernel: allowed is {KV_FORMATS[0]!r}")
    if kv_scale is not None:
        raise SpecError(f"kv_scale must be None for kv_format {kv_format!r}, got {shown(kv_scale)}")
    for name, value in absent.items():
        if value is not None:
            raise SpecError(f"{name} has no kernel: allowed is None, got {shown(value)}")


def _check(operands: Mapping[str, TensorView]) -> None:
    """Refuses tensors of the wrong shape or dtype.

    Raises:
      SpecError: names the tensor.
    """
    q, kv, indices = operands["q"], operands["kv"], operands["indices"]
    layouts = {"q": "[s_q, heads, d_qk]", "kv": "[s_kv, 1, d_qk]", "indices": "[s_q, topk]"}
    for name, layout in layouts.items():
        if len(operands[name].shape) != layout.count(",") + 1:
            raise SpecError(f"{name} must be {layout}, got {list(operands[name].shape)}")
    if q.shape[2] not in HEAD_DIMS:
        allowed = " or ".join(map(str, HEAD_DIMS))
        raise SpecError(f"q must have {allowed} columns, got {q.shape[2]}")
    if kv.shape[1:] != (1, q.shape[2]) or not 1 <= kv.shape[0] <= MAX_I32:
        wanted = f"[s_kv, 1, {q.shape[2]}]"
        raise SpecError(
            f"kv must be {wanted} with 1 to {MAX_I32} rows beside this q, got {list(kv.shape)}"
        )
    if indices.shape[0] != q.shape[0] or not indices.shape[1]:
        raise SpecError(
            f"indices must be [{q.shape[0]}, topk] with an entry at least beside this q, got "
            f"{list(indices.shape)}"
        )
    for name in ("q", "kv"):
        if operands[name].dtype not in DTYPES:
            allowed = " or ".join(DTYPES)
            raise SpecError(f"{name} must be {allowed}, got {operands[name].dtype}")
    if indices.dtype != "i32":
        raise SpecError(f"indices must be i32, got {indices.dtype}")


def _line(name: str, value: object, dtype: str, count: int) -> object:
    """An array [count] itself.

    Raises:
      SpecError: none of that shape and dtype.
    """
    found = view(value, name)
    if found.shape != (count,) or found.dtype != dtype:
        raise SpecError(
            f"{name} must be [{count}] of {dtype}, got {list(found.shape)} of {found.dtype}"
        )
    return value
