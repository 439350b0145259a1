"""The `attn` dialect. Names are imported at their first use, so that masks do not need MLIR."""

import importlib
from typing import Any

_OPERATION_MODULES = (
    "yield_",
    "keep",
    "sink",
    "blocks",
    "join",
    "tile_counter",
    "offsets",
    "storage",
    "scaled",
    "columns",
    "mha",
    "mla",
    "combine",
    "append",
    "latent_rows",
    "sparse_mla",
    "mla_decode",
    "delta",
    "sum_rows",
    "slope",
    "adjoint",
    "row_weights",
    "gradients",
)  # what defines the operations; `DIALECT` needs them all
_HOMES = {
    "AttnDialect": "dialect",
    "MASK_ATTRIBUTES": "attributes",
    "mask_to_attr": "attributes",
    "attr_to_mask": "attributes",
    "AdjointOp": "adjoint",
    "AppendOp": "append",
    "CombineOp": "combine",
    "DeltaOp": "delta",
    "SinkDeltaOp": "delta",
    "make_delta": "delta",
    "make_sink_delta": "delta",
    "SumRowsOp": "sum_rows",
    "make_sum_rows": "sum_rows",
    "KvGradientsOp": "gradients",
    "make_kv_gradients": "gradients",
    "QGradientsOp": "gradients",
    "make_q_gradients": "gradients",
    "MhaOp": "mha",
    "LatentRowsOp": "latent_rows",
    "make_latent_rows": "latent_rows",
    "SparseMlaOp": "sparse_mla",
    "make_mha": "mha",
    "MlaOp": "mla",
    "MlaDecodeOp": "mla_decode",
    "make_mla": "mla",
    "STORAGE_OPERATIONS": "storage",
    "GatheredOp": "storage",
    "LimitedOp": "storage",
    "PagedCsrOp": "storage",
    "PagedOp": "storage",
    "RaggedOp": "storage",
    "SelectedOp": "storage",
    "TrimmedOp": "storage",
    "ScaledOp": "scaled",
    "make_scaled": "scaled",
    "ColumnsOp": "columns",
    "columns_type": "columns",
    "make_columns": "columns",
    "ViewType": "storage",
    "gathered_type": "storage",
    "logical_type": "storage",
    "paged_type": "storage",
    "ragged_type": "storage",
    "stored_type": "storage",
    "view_type": "storage",
    "Block": "block",
    "BlocksOp": "blocks",
    "JoinOp": "join",
    "KeepOp": "keep",
    "OffsetsOp": "offsets",
    "RowWeightsOp": "row_weights",
    "SinkOp": "sink",
    "SlopeOp": "slope",
    "TileCounterOp": "tile_counter",
    "YieldOp": "yield_",
    "build_module": "builder",
    "emit_append": "builder",
    "emit_combine": "builder",
    "emit_mha": "builder",
    "emit_sparse_mla": "builder",
}


def __getattr__(name: str) -> Any:
    """Imports the module that defines an exported name (PEP 562)."""
    if name == "DIALECT":
        for module in _OPERATION_MODULES:
            importlib.import_module(f"{__name__}.{module}")
        return importlib.import_module(f"{__name__}.dialect").AttnDialect
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
