"""Small tensors of the shapes that public functions take."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

torch: Any = importlib.import_module("torch")

Calls = dict[str, tuple[Callable[..., Any], dict[str, Any]]]
"""Functions by name, a form behind a comma, and arrays by the names of arguments."""

HEADS, DIM, PAGE = 2, 16, 64
BF16, F32, I32 = torch.bfloat16, torch.float32, torch.int32


def real(*shape: int, dtype: Any = BF16) -> Any:
    return torch.ones(shape, dtype=dtype)


def whole(*values: int) -> Any:
    return torch.tensor(values, dtype=I32)


def dense() -> dict[str, Any]:
    return {name: real(1, 8, HEADS, DIM) for name in "qkv"}


def rows() -> dict[str, Any]:
    return {name: real(8, HEADS, DIM) for name in "qkv"}


def heads_first() -> dict[str, Any]:
    return {name: real(1, HEADS, 8, DIM) for name in ("query", "key", "value")}


PAGED = {
    "k_pages": real(2, PAGE, HEADS, DIM), "v_pages": real(2, PAGE, HEADS, DIM),
    "page_table": whole(0).reshape(1, 1), "seqused": whole(8),
}  # fmt: skip
POOLS = {name: PAGED[name] for name in ("k_pages", "v_pages")}
LATENT = {
    "k_pages": real(2, PAGE, 1, 576),
    "page_table": whole(0).reshape(1, 1),
    "seqused": whole(8),
}
LENGTHS = {"cu_seqlens_q": whole(0, 8), "cu_seqlens_k": whole(0, 8)}
NEW = {"k_new": real(2, HEADS, DIM), "v_new": real(2, HEADS, DIM)}
SCRATCH = torch.empty(0, dtype=torch.uint8)
