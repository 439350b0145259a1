"""`ws.reduce_out`: CTAs that add to one tensor by the copy engine, executed and refused."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.errors import LaunchError
from attn_mlir.validation.ws.checks import check, refused
from attn_mlir.validation.ws.kernels import compiled, copy_op, kernel, normal, role, run

DTYPES = {
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "i32": np.int32,
}


def reduced(element: str, columns: int, role_of_y: str = "inout", op: str = "") -> str:
    """y += x[part] for all parts, a CTA each; tiles of 16 rows."""
    tensor, sums = f"memref<?x?x?x{element}>", f"memref<?x?x{element}>"
    add = copy_op("reduce_out", "%slot", "%y", "%c0, %c0", "0, 1", f"!t, {sums}")
    add = add.replace("{dims", '{kind = "add", dims')

    def tiles(body: str) -> str:
        return f"""%parts = "ws.extent"(%x) {{dim = 0 : i64}} : ({tensor}) -> i32
    "ws.tiles"(%parts) ({{
    ^bb0(%part: i32):
      {body}
    }}) {{order = "single", operandSegmentSizes = array<i32: 1, 0, 0>}} : (i32) -> ()"""

    load = f"""%slot = "ws.acquire"(%ring, %c0) : (!ring, i32) -> !t
      {copy_op("copy_in", "%x", "%slot", "%part, %c0, %c0", "1, 2", f"{tensor}, !t")}
      "ws.commit"(%slot) {{by = "copy_engine"}} : (!t) -> ()"""
    leave = f"""%slot = "ws.wait"(%ring, %c0) : (!ring, i32) -> !t
      {op or add}
      "ws.release"(%slot) {{by = "copy_engine"}} : (!t) -> ()"""
    return kernel(
        [("x", "in", tensor, ("parts", "m", "n")), ("y", role_of_y, sums, ("my", "ny"))],
        '  %ring = "ws.alloc_ring"() {label_name = "r"} : () -> !ring'
        + role("load", tiles(load), first=0)
        + role("leave", tiles(leave), first=1),
        types=f"""!t = !ws.tile<vector<16x{columns}x{element}>, "shared">
!ring = !ws.ring<!t, 1, 1>
""",
    )


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize(
    ("element", "columns", "m", "n"),
    [
        ("f32", 32, 16, 32),
        ("f32", 96, 11, 72),  # three boxes; rows and columns end within the tile
        ("f16", 64, 16, 64),
        ("bf16", 128, 5, 128),
        ("i32", 32, 16, 32),
    ],
)
def test_ctas_add_to_one_tensor(
    element: str, columns: int, m: int, n: int, seed: int | None, target: str
) -> None:
    """Small numbers, whose sums are exact in any order; what is around y stays as it is."""
    dtype = DTYPES[element]
    x, wide = (normal(*shape, dtype=dtype) for shape in ((5, m, n), (24, n + 8)))
    before = wide.copy()
    run(reduced(element, columns), x, wide[:m, :n], seed=seed, target=target)
    before[:m, :n] += x.astype(np.float32).sum(axis=0).astype(dtype)
    assert (wide == before).all()


def test_stores_instead_of_additions_are_a_race() -> None:
    """The checkers tell what adds at once from what overwrites."""
    store = copy_op("copy_out", "%slot", "%y", "%c0, %c0", "0, 1", "!t, memref<?x?xf32>")
    x, y = normal(3, 16, 32, dtype=np.float32), np.zeros((16, 32), np.float32)
    with pytest.raises(LaunchError, match="race"):
        run(reduced("f32", 32, op=store), x, y)


def test_the_manifest_agrees_with_the_boxes() -> None:
    found = compiled(reduced("f32", 32)).bundle
    assert "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add" in found.ptx
    assert [tensor.role for tensor in found.manifest.tensors] == ["in", "inout"]


def test_what_cannot_be_added_to() -> None:
    check(reduced("f32", 32))
    for given in ("in", "out"):
        expects = "'ws.reduce_out' op expects an argument of role inout, y is of role"
        refused(reduced("f32", 32, given), f"{expects} {given}")
    expects = "'ws.reduce_out' op expects elements of f32, f16, bf16, i32, got f8E4M3FN"
    refused(reduced("f8E4M3FN", 128), expects)
    expects = "'ws.reduce_out' op expects columns in 32s, a line of 128 bytes each, or all that"
    refused(reduced("f32", 16), expects)
