"""The function that PyTorch's tracers see in place of `attn_mlir.attention`."""

from __future__ import annotations

import importlib
from typing import Any

from attn_mlir.api.attention import attention
from attn_mlir.caches import CACHES
from attn_mlir.compiling.dtypes import OUT_DTYPES, dtype_name
from attn_mlir.pytorch.attention_call import attention_call_op, modified_call
from attn_mlir.pytorch.caches import apart
from attn_mlir.pytorch.graph import traced_call
from attn_mlir.pytorch.planned import OUTPUT_DTYPES, breaks
from attn_mlir.pytorch.shapes import at_tracing_time, check_argument
from attn_mlir.runtime.call.torch_tensors import is_transformed

torch: Any = importlib.import_module("torch")


def attention_in_graph(q: Any, k: Any, v: Any = None, **options: Any) -> Any:
    """Attention as an operator in a graph; arguments that no graph can hold break the graph.

    Args:
      q, k, v, options: as in `attention`.
    """
    given = {name: value for name, value in options.items() if value is not None}
    is_cache = isinstance(k, CACHES)
    if breaks(given, "block_mask") or (is_cache and v is not None):
        return attention(q, k, v, **options)
    cache, whole = type(k).__name__ if is_cache else "", (k, v)
    if is_cache:
        k, v, fields = apart(k)
        given |= fields
    mask, return_lse = str(given.pop("mask", "full")), bool(given.pop("return_lse", False))
    if "out_dtype" in given:
        given["out_dtype"] = dtype_name(given["out_dtype"], "out_dtype", OUT_DTYPES)
    for name, value in {"q": q, "k": k, "v": v, **given}.items():
        if isinstance(value, torch.Tensor):
            check_argument(name, value)
    mods = {name: given.pop(name, None) for name in ("score_mod", "mask_mod")}
    told: dict[str, Any] = {"mask": mask, "cache": cache, "return_lse": return_lse, **given}
    if not any(mod is not None for mod in mods.values()):
        o, lse = attention_call_op(q, k, v, [], "", **told)
    elif not torch.compiler.is_dynamo_compiling():  # modifiers are traced once, by us
        o, lse = modified_call(q, k, v, **mods, **told)
    elif at_tracing_time(is_transformed):  # no rule for the higher-order operator
        return attention(q, *whole, **options)
    else:
        values = k if v is None else v
        rows, heads = q.shape[:-2], q.shape[-2]
        lse_shape = (*rows[:-1], heads, rows[-1]) if return_lse else (0,)
        dtype = OUTPUT_DTYPES[given["out_dtype"]] if "out_dtype" in given else _dtype_of_o(q)
        if v is not None:
            told["v"] = v
        o, lse = traced_call(
            (*q.shape[:-1], values.shape[-1]), lse_shape, dtype, q=q, k=k, **mods, **told
        )
    return (o, lse) if return_lse else o


def _dtype_of_o(q: Any) -> Any:
    """The default dtype of O."""
    return q.dtype if q.dtype in OUTPUT_DTYPES.values() else torch.bfloat16
