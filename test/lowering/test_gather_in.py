"""`ws.gather_in`: rows that the copy engine takes from where a table says, executed and refused."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.errors import VerifyError
from attn_mlir.lowering.stages import ws_to_nvvm
from attn_mlir.validation.ws.checks import check, refused
from attn_mlir.validation.ws.kernels import bundle, copy_op, kernel, lowered, normal, role, run

DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


def gathered(rows: int, columns: int, element: str, column: str = "%c0", tensor: str = "") -> str:
    """y[i] = x[table[i], first column on], or zeros where there is no such row; tile by tile."""
    tensor = tensor or f"memref<?x?x{element}>"
    gather = f""""ws.gather_in"(%x, %slot, %c0, {column}) ({{
      ^bb0(%row: i32):
        %at = arith.addi %first, %row : i32
        %from = "ws.element"(%table, %at) {{operandSegmentSizes = array<i32: 1, 1>}} : (memref<?xi32>, i32) -> i32
        "ws.yield"(%from) : (i32) -> ()
      }}) {{dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2>}}
        : ({tensor}, !t, i32, i32) -> ()"""

    def loop(body: str) -> str:
        return f"""%tile = arith.constant {rows} : i32
    %n = "ws.extent"(%table) {{dim = 0 : i64}} : (memref<?xi32>) -> i32
    scf.for %first = %c0 to %n step %tile : i32 {{
      {body}
    }}"""

    load = f"""%slot = "ws.acquire"(%ring, %c0) : (!ring, i32) -> !t
      {gather}
      "ws.commit"(%slot) {{by = "copy_engine"}} : (!t) -> ()"""
    leave = f"""%slot = "ws.wait"(%ring, %c0) : (!ring, i32) -> !t
      {copy_op("copy_out", "%slot", "%y", "%first, %c0", "0, 1", f"!t, memref<?x{columns}x{element}>")}
      "ws.release"(%slot) {{by = "copy_engine"}} : (!t) -> ()"""
    return kernel(
        [
            ("x", "in", tensor, ("m", "" if f"x{columns}x" in tensor else "n")),
            ("table", "in", "memref<?xi32>", ("entries",)),
            ("y", "out", f"memref<?x{columns}x{element}>", ("my", "")),
        ],
        '  %ring = "ws.alloc_ring"() {label_name = "r"} : () -> !ring'
        + role("load", loop(load), first=0)
        + role("leave", loop(leave), first=1),
        types=f"""!t = !ws.tile<vector<{rows}x{columns}x{element}>, "shared">
!ring = !ws.ring<!t, 2, 1>
""",
    )


@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize(
    ("rows", "columns", "element", "n", "first"),
    [
        (8, 64, "bf16", 64, "%c0"),
        (32, 128, "f16", 128, "%c0"),  # two lines of a row
        (16, 64, "bf16", 200, "%c64"),  # in the middle of the tensor's columns
        (128, 96, "f32", 40, "%c0"),  # the last columns are not there
    ],
)
def test_rows_by_a_table(
    rows: int, columns: int, element: str, n: int, first: str, seed: int | None
) -> None:
    x = normal(50, n, dtype=DTYPES[element])
    table = np.random.default_rng(1).integers(-3, 55, 3 * rows).astype(np.int32)
    y = np.full((3 * rows, columns), np.nan, DTYPES[element])
    run(gathered(rows, columns, element, first), x, table, y, seed=seed)
    exists = (table >= 0) & (table < 50)
    assert exists.any() and not exists.all()
    begin = 64 if first == "%c64" else 0
    part = np.where(exists[:, None], x[table.clip(0, 49), begin : begin + columns], 0)
    assert (y[:, : part.shape[1]] == part).all() and (y[:, part.shape[1] :] == 0).all()


def test_a_copy_takes_four_rows() -> None:
    text = bundle(gathered(8, 64, "bf16")).partition(b".visible .entry")[2]
    assert b"cp.async.bulk.tensor.2d.shared::cluster.global.tile::gather4.mbarrier" in text
    assert b"cvta.to.shared::cluster" not in text  # addresses of 32 bits


def test_what_has_no_code() -> None:
    check(gathered(8, 64, "bf16"))
    with pytest.raises(VerifyError, match="'ws.gather_in' op needs gather copies, sm_90a has none"):
        lowered(gathered(8, 64, "bf16"), ws_to_nvvm("sm_90a"))
    refused(
        gathered(12, 64, "bf16"), "'ws.gather_in' op expects rows a multiple of 8 to 256, got 12"
    )
    several = gathered(8, 64, "bf16").replace("lanes = 1", "lanes = 32")
    refused(several, "'ws.gather_in' op expects a role with one lane, got 32 in load")
    part = '%part = "ws.limit"(%x, %c1) {dim = 0 : i64} : (memref<?x?xbf16>, i32) -> memref<?x?xbf16>\n'
    limited = gathered(8, 64, "bf16").replace('"ws.gather_in"(%x', f'{part}"ws.gather_in"(%part')
    refused(
        limited,
        "'ws.gather_in' op expects a tensor argument or its ws.collapse, got another view of one",
    )
    taken = gathered(8, 64, "bf16").replace(
        '"ws.commit"(%slot) {by = "copy_engine"}', '"ws.commit"(%slot) {by = "threads"}'
    )
    refused(taken, "'ws.gather_in' op expects a slot that is committed by copy_engine, got threads")
    both = "[array<i32: 0, 1>, array<i32: 0, 1>]"
    crossing = gathered(8, 64, "bf16").replace(
        '"ws.alloc_ring"() {', f'"ws.alloc_ring"() {{full_at = {both}, empty_at = {both}, '
    )
    crossing = crossing.replace('sym_name = "k"', 'cluster = 2 : i64, sym_name = "k"')
    refused(
        crossing,
        r"expects the commits of CTA 0 at the full barriers of its receivers \[0\] or of one half of "
        r"their pairs, got \[0, 1\]",
    )
