"""The table of operations that can be requested; a new one is added here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attn_mlir.compiling.appending import AppendSpec
from attn_mlir.compiling.backward.accumulators import RoundRowsSpec, ZeroRowsSpec
from attn_mlir.compiling.backward.gradients import (
    DeltaSpec,
    GradientsSpec,
    KvGradientsSpec,
    QGradientsSpec,
)
from attn_mlir.compiling.backward.mla_gradients import MlaKvGradientsSpec, MlaQGradientsSpec
from attn_mlir.compiling.backward.row_sums import SinkDeltaSpec, SumPartsSpec, SumRowsSpec
from attn_mlir.compiling.combination import CombineSpec
from attn_mlir.compiling.latent import MlaSpec
from attn_mlir.compiling.mla_decode import MlaDecodeSpec
from attn_mlir.compiling.request import Request
from attn_mlir.compiling.sparse_mla import SparseMlaSpec
from attn_mlir.compiling.spec import MhaSpec
from attn_mlir.errors import SpecError, shown

OPERATIONS: Mapping[str, type[Request]] = {
    request.operation: request
    for request in (
        MhaSpec,
        CombineSpec,
        AppendSpec,
        SparseMlaSpec,
        MlaSpec,
        MlaDecodeSpec,
        DeltaSpec,
        SinkDeltaSpec,
        SumPartsSpec,
        SumRowsSpec,
        GradientsSpec,
        KvGradientsSpec,
        QGradientsSpec,
        MlaKvGradientsSpec,
        MlaQGradientsSpec,
        RoundRowsSpec,
        ZeroRowsSpec,
    )
}


def request_of(fields: Mapping[str, Any]) -> Request:
    """The request for these fields of a canonical form.

    Raises:
      SpecError: an unknown operation, or no canonical form; values of wrong types may raise any
        error.
    """
    operation = fields.get("op")
    if not isinstance(operation, str) or operation not in OPERATIONS:
        raise SpecError(f"op must be one of {', '.join(OPERATIONS)}, got {shown(operation, 40)}")
    return OPERATIONS[operation].from_fields(fields)
