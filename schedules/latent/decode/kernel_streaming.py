"""From `attn.mla_decode` to a `ws.kernel` by the streaming schedule of `attn.mha`.

It is `attn.mha` of one key-value head whose values are the first columns of keys (`attn.columns`):
a work tile has 16 rows, of heads and tokens.
"""

from collections.abc import Iterable
from typing import Any, ClassVar

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect._mlir import arith, ir, tensor
from attn_mlir.dialect.targets.limits import Target
from attn_mlir.schedules.attention.streaming.kernel import MhaStreaming
from attn_mlir.schedules.core.entries import CONFIG
from attn_mlir.schedules.latent.decode.policy import DECODE_STREAMING
from attn_mlir.schedules.policy.base import Policy
from attn_mlir.schedules.registry import register

NAMES = {"k": "kv"}  # of the kernel's arguments, where they differ from those of `attn.mha`

LISTS = {"indices": ("batch", "sq", "topk"), "topk_length": ("batch", "sq")}  # extents of these


@register
class MlaDecodeStreaming:
    """Latent attention after absorption, with accumulators in the registers of single warps."""

    policy: ClassVar[Policy] = DECODE_STREAMING

    def build(self, function: Any, op: attn.MlaDecodeOp, target: Target) -> ws.KernelOp:
        """Builds the kernel of a function of one operation, which has `attn.config`.

        Raises:
          VerifyError: the function has other operations, or the operation has no configuration.
        """
        inner, lists = _attention(op), LISTS if op.is_listed else {}
        for mine, other in zip(op.operation.results, inner.operation.results, strict=True):
            mine.replace_all_uses_with(other)
        op.operation.erase()
        kernel = MhaStreaming().build(function, inner, target)
        names = [NAMES.get(name, name) for name in kernel.names]
        kernel.attributes["arg_names"] = _strings(names)
        named_dims = zip(names, kernel.arg_dims, strict=True)
        dims = [
            _strings(lists[name]) if name in lists else dims_of_name
            for name, dims_of_name in named_dims
        ]
        kernel.attributes["arg_dims"] = ir.ArrayAttr.get(dims)
        return kernel


def _strings(texts: Iterable[str]) -> ir.ArrayAttr:
    return ir.ArrayAttr.get([ir.StringAttr.get(text) for text in texts])


def _attention(op: attn.MlaDecodeOp) -> attn.MhaOp:
    """The equivalent `attn.mha` before the operation, with its configuration."""

    def modified(
        score: ir.Value, batch: ir.Value, head: ir.Value, q: ir.Value, k: ir.Value
    ) -> ir.Value:
        """The score itself; the region also has the operations of splits, sinks and indices."""
        if memory := op.memory:
            attn.JoinOp(*memory)
        for sinks in op.sinks:
            index = arith.IndexCastOp(ir.IndexType.get(), head).result
            attn.SinkOp(tensor.ExtractOp(sinks, [index]).result)
        for indices in op.indices:
            coords = [arith.IndexCastOp(ir.IndexType.get(), x).result for x in (batch, q, k)]
            entry = tensor.ExtractOp(indices, coords).result
            zero = arith.ConstantOp(ir.IndexType.get(), 0).result
            rows = arith.IndexCastOp(k.type, tensor.DimOp(op.kv, zero).result).result
            attn.KeepOp(arith.CmpIOp(arith.CmpIPredicate.ult, entry, rows).result)
        return score

    with ir.InsertionPoint(op.operation), op.location:
        keys = op.kv
        for indices in op.indices:
            kind = attn.gathered_type(op.kv.type)
            keys = attn.GatheredOp(op.kv, indices, list(op.topk_length), kind).view
        values = attn.make_columns(keys, 0, op.v_head_dim)
        operands = (op.q, keys, values, op.scale)
        inner = attn.make_mha(*operands, mask=op.mask_rule, score_mod=modified)
    if CONFIG in op.attributes:
        inner.attributes[CONFIG] = op.attributes[CONFIG]
    return inner
