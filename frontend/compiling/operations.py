"""The operations that there are requests for: a new one is added to the table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attn_mlir.compiling.appending import AppendSpec
from attn_mlir.compiling.combination import CombineSpec
from attn_mlir.compiling.latent import MlaSpec
from attn_mlir.compiling.request import Request
from attn_mlir.compiling.sparse_mla import SparseMlaSpec
from attn_mlir.compiling.spec import MhaSpec
from attn_mlir.errors import SpecError, shown

OPERATIONS: Mapping[str, type[Request]] = {
    request.operation: request
    for request in (MhaSpec, CombineSpec, AppendSpec, SparseMlaSpec, MlaSpec)
}


def request_of(fields: Mapping[str, Any]) -> Request:
    """The request whose canonical form these fields are.

    Raises:
      SpecError: an operation that is not known, or not the canonical form; values of other types
        may raise anything.
    """
    operation = fields.get("op")
    if not isinstance(operation, str) or operation not in OPERATIONS:
        raise SpecError(f"op must be one of {', '.join(OPERATIONS)}, got {shown(operation, 40)}")
    return OPERATIONS[operation].from_fields(fields)
