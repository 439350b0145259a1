"""The function that PyTorch's tracers see in place of `attn_mlir.attention`."""

from __future__ import annotations

import importlib
from typing import Any

from attn_mlir.api.attention import attention
from attn_mlir.caches import CACHES
from attn_mlir.pytorch.attention_call import ATTENTION, EAGER, attention_call_op, modified_call
from attn_mlir.pytorch.autograd import trained
from attn_mlir.pytorch.graph import traced_call
from attn_mlir.pytorch.planned import OUTPUT_DTYPES, breaks
from attn_mlir.pytorch.shapes import at_tracing_time, wants_gradient
from attn_mlir.runtime.call.torch_tensors import is_transformed

torch: Any = importlib.import_module("torch")


def attention_in_graph(*arguments: Any, **options: Any) -> Any:
    """Attention as an operator in a graph; arguments that no graph can hold break the graph."""
    named = ATTENTION.by_name(arguments, options)
    is_trained = wants_gradient(*(named.get(name) for name in ATTENTION.differentiable))
    if breaks(named, *EAGER) or (isinstance(named.get("k"), CACHES) and "v" in named):
        return (trained if is_trained else attention)(*arguments, **options)
    return_lse = bool(named.pop("return_lse", False))
    mods = {name: named.pop(name, None) for name in ("score_mod", "mask_mod")}
    flat: dict[str, Any] = {**ATTENTION.flattened(named), "return_lse": return_lse or is_trained}
    if not any(mod is not None for mod in mods.values()):
        o, lse = attention_call_op(captured=[], modifier="", **{"v": None, **flat})
    elif not torch.compiler.is_dynamo_compiling():  # modifiers are traced once, by us
        o, lse = modified_call(**mods, **flat)
    elif at_tracing_time(is_transformed):  # no rule for the higher-order operator
        return attention(*arguments, **options)
    else:
        q, k, v = flat["q"], flat["k"], flat.pop("v", None)
        values = k if v is None else v
        rows, heads = q.shape[:-2], q.shape[-2]
        lse_shape = (*rows[:-1], heads, rows[-1]) if flat["return_lse"] else (0,)
        dtype = OUTPUT_DTYPES[flat["out_dtype"]] if "out_dtype" in flat else _dtype_of_o(q)
        if v is not None:
            flat["v"] = v
        o, lse = traced_call((*q.shape[:-1], values.shape[-1]), lse_shape, dtype, **mods, **flat)
    return (o, lse) if return_lse else o


def _dtype_of_o(q: Any) -> Any:
    """The default dtype of O."""
    return q.dtype if q.dtype in OUTPUT_DTYPES.values() else torch.bfloat16
