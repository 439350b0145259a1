"""Values that are the front of the rows of keys: a latent cache, 576 columns wide, under few queries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.dialect._mlir import ir, make_context
from attn_mlir.errors import VerifyError
from attn_mlir.passes.infrastructure.pipeline import run_pipeline
from attn_mlir.runtime.bundle import Bundle
from attn_mlir.runtime.kernel import Kernel

HEADS, COLUMNS, VALUES = 16, 576, 512
PAGE = 16
DENSE = f"tensor<?x?x1x{COLUMNS}xbf16>"
POOL = f"tensor<?x{PAGE}x1x{COLUMNS}xbf16>"
VIEW = f"!attn.view<{DENSE}, {POOL}>"
WORKSPACE = {
    "part_sums": "tensor<?x?x16x16x32xf32>",
    "part_extremes": "tensor<2x?x?x1x16xf32>",
    "part_arrivals": "tensor<?x1xi32>",
}


def module(
    target: str, *, paged: bool = False, joined: bool = False, values: int = VALUES, first: int = 0
) -> str:
    """Attention with values from the rows of keys, as text."""
    stored, keys, told = (POOL, VIEW, "%keys") if paged else (DENSE, DENSE, "%k")
    given = {"q": f"tensor<?x?x{HEADS}x{COLUMNS}xbf16>", "k": stored, "scale": "f32"}
    given |= {"page_table": "tensor<?x?xi32>", "seqused_k": "tensor<?xi32>"} if paged else {}
    given |= WORKSPACE if joined else {}
    arguments = ", ".join(
        f'%{name}: {kind} {{attn.name = "{name}"}}' for name, kind in given.items()
    )
    view = f"!attn.view<tensor<?x?x1x{values}xbf16>, {stored}>"
    o, lse = f"tensor<?x?x{HEADS}x{values}xbf16>", f"tensor<?x{HEADS}x?xf32>"
    storage = f"""
  %pages = "attn.paged"(%k, %page_table) : ({POOL}, tensor<?x?xi32>) -> {VIEW}
  %keys = "attn.limited"(%pages, %seqused_k) {{counted = "all"}} : ({VIEW}, tensor<?xi32>) -> {VIEW}"""
    kinds = ", ".join(WORKSPACE.values())
    names = ", ".join(f"%{name}" for name in WORKSPACE)
    join = f'"attn.join"({names}) : ({kinds}) -> ()'
    return f"""module attributes {{attn.target = "{target}"}} {{
func.func @latent({arguments}) -> ({o} {{attn.name = "o"}}, {lse} {{attn.name = "lse"}}) {{
  {storage if paged else ""}
  %v = "attn.columns"({told}) {{first = {first} : i64}} : ({keys}) -> {view}
  %o, %lse = "attn.mha"(%q, {told}, %v, %scale) ({{
  ^bb0(%s: f32, %n: i32, %h: i32, %i: i32, %j: i32):
    {join if joined else ""}
    "attn.yield"(%s) : (f32) -> ()
  }}) {{attn.schedule = "mha-streaming", mask = #attn.causal}}
    : ({given["q"]}, {keys}, {view}, f32) -> ({o}, {lse})
  func.return %o, %lse : {o}, {lse}
}} }}"""


def compiled(folder: Path, text: str) -> Bundle:
    """The bundle of a module."""
    with make_context() as context:
        run_pipeline(
            ir.Module.parse(text, context), f"attn-to-bundle{{output={folder}/latent.attn}}"
        )
    return Bundle.load(folder / "latent.attn")


def in_pages(rows: Any) -> tuple[Any, Any]:
    """The rows of each sequence in pages of a pool, and its table; NaN where there are none."""
    batch, keys = rows.shape[:2]
    columns = -(-keys // PAGE) + 1
    pool = np.full((batch * columns + 2, PAGE, 1, COLUMNS), np.nan, rows.dtype)
    table = np.random.default_rng(1).permutation(batch * columns + 2)[: batch * columns]
    table = table.reshape(batch, columns).astype(np.int32)
    for b in range(batch):
        for position in range(keys):
            pool[table[b, position // PAGE], position % PAGE] = rows[b, position]
    table[:, -1] = np.iinfo(np.int32).max
    return pool, table


@pytest.mark.ptxas
def test_rows_of_keys_and_values(tmp_path: Path) -> None:
    """One read of the rows serves both products, here in pages and for parts; nothing is spilled."""
    bundle = compiled(tmp_path, module("sm_90a", paged=True, joined=True))
    assert bundle.report["spill_bytes"] == 0
    rng = np.random.default_rng(0)
    batch, keys, parts = 1, 70, 2
    q, rows = (
        rng.standard_normal((batch, n, heads, COLUMNS)).astype(ml_dtypes.bfloat16)
        for n, heads in ((1, HEADS), (keys, 1))
    )
    pool, table = in_pages(rows)
    given: dict[str, Any] = {
        "q": q,
        "k": pool,
        "page_table": table,
        "seqused_k": np.full(batch, keys, np.int32),
        "part_sums": np.full((parts, batch, 16, 16, 32), np.nan, np.float32),
        "part_extremes": np.full((2, parts, batch, 1, 16), np.nan, np.float32),
        "part_arrivals": np.zeros((batch, 1), np.int32),
    }
    o = np.full((batch, 1, HEADS, VALUES), np.nan, ml_dtypes.bfloat16)
    lse = np.full((batch, HEADS, 1), np.nan, np.float32)
    device = am.EmulatorDevice("adversarial", 1, multiprocessors=2, target="sm_90a")
    Kernel(bundle)(**given, o=o, lse=lse, scale=COLUMNS**-0.5, device=device)
    verdict = am.reference.check_attention(q, rows, rows[..., :VALUES], o, lse, mask=am.causal())
    assert verdict.ok, str(verdict)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"first": 64}, "has no kernel for head_dim 576: supported are multiples of 8 up to 256"),
        ({"values": 256}, "expects v_head_dim above 256 as head_dim is, got 256"),
        (
            {"values": 520},
            "has no kernel for v_head_dim 520: supported are multiples of 8 up to 512",
        ),
    ],
)
def test_what_has_no_kernel(options: dict[str, Any], told: str) -> None:
    with make_context() as context, pytest.raises(VerifyError, match=told):
        run_pipeline(ir.Module.parse(module("sm_90a", **options), context), "attn-to-ws")
