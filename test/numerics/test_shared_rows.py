"""Values that are the front of the rows of keys, under few queries: what has no kernel.

What has one is latent attention after absorption: see `test_mla_decode`.
"""

from __future__ import annotations

from typing import Any

import pytest

from attn_mlir.dialect._mlir import ir, make_context
from attn_mlir.errors import VerifyError
from attn_mlir.passes.infrastructure.pipeline import run_pipeline

HEADS, COLUMNS, VALUES = 16, 576, 512
KEYS = f"tensor<?x?x1x{COLUMNS}xbf16>"


def module(*, values: int = VALUES, first: int = 0) -> str:
    """Attention with values from the rows of keys, as text."""
    q, o = (f"tensor<?x?x{HEADS}x{columns}xbf16>" for columns in (COLUMNS, values))
    view, lse = f"!attn.view<tensor<?x?x1x{values}xbf16>, {KEYS}>", f"tensor<?x{HEADS}x?xf32>"
    return f"""module attributes {{attn.target = "sm_90a"}} {{
func.func @latent(%q: {q}, %k: {KEYS}, %scale: f32) -> ({o}, {lse}) {{
  %v = "attn.columns"(%k) {{first = {first} : i64}} : ({KEYS}) -> {view}
  %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({{
  ^bb0(%s: f32, %n: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }}) {{attn.schedule = "mha-streaming", mask = #attn.causal}}
    : ({q}, {KEYS}, {view}, f32) -> ({o}, {lse})
  func.return %o, %lse : {o}, {lse}
}} }}"""


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"first": 64}, "mha-streaming: head_dim must be a multiple of 8 up to 256, got 576"),
        ({"values": 256}, "mha-streaming: v_head_dim must be at least 257, got 256"),
        (
            {"values": 520},
            "mha-streaming: v_head_dim must be a multiple of 8 up to 512, got 520",
        ),
    ],
)
def test_what_has_no_kernel(options: dict[str, Any], told: str) -> None:
    with make_context() as context, pytest.raises(VerifyError, match=told):
        run_pipeline(ir.Module.parse(module(**options), context), "attn-to-ws")


def test_listed_rows_that_hold_no_values() -> None:
    q, rows, lists = "tensor<?x?x16x64xbf16>", "tensor<?x64xbf16>", "tensor<?x?x?xi32>"
    view, lse = f"!attn.view<tensor<?x?x1x64xbf16>, {rows}>", "tensor<?x16x?xf32>"
    gathered = f"""(%k, %lists) {{operandSegmentSizes = array<i32: 1, 1, 0>}}
      : ({rows}, {lists}) -> {view}"""
    text = f"""module attributes {{attn.target = "sm_90a"}} {{
func.func @listed(%q: {q}, %k: {rows}, %scale: f32, %lists: {lists}) -> ({q}, {lse}) {{
  %keys = "attn.gathered"{gathered}
  %values = "attn.gathered"{gathered}
  %o, %lse = "attn.mha"(%q, %keys, %values, %scale) ({{
  ^bb0(%s: f32, %n: i32, %h: i32, %i: i32, %j: i32):
    "attn.yield"(%s) : (f32) -> ()
  }}) {{attn.schedule = "mha-streaming", mask = #attn.null}}
    : ({q}, {view}, {view}, f32) -> ({q}, {lse})
  func.return %o, %lse : {q}, {lse}
}} }}"""
    told = "has no kernel: rows that lists name must hold values too"
    with make_context() as context, pytest.raises(VerifyError, match=told):
        run_pipeline(ir.Module.parse(text, context), "attn-to-ws")
