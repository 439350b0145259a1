"""Boxes from any first column of a tensor, whose columns are static or dynamic, both ways."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from attn_mlir.validation.ws.kernels import compiled, copy_op, kernel, normal, poison, role, run

ROWS = 16
FIRST = {
    "constant": "%first = arith.constant {column} : i32",
    "computed": """%rows = "ws.extent"(%like) {{dim = 0 : i64}} : (memref<?xi32>) -> i32
    %unit = arith.constant 8 : i32
    %first = arith.muli %rows, %unit : i32""",
}
SHAPES = [(64, 64), (128, 64), (192, 128)]  # columns of the tensor and of the box
CASES = [
    *product((True, False), FIRST, (8, 32, 64, 96), SHAPES),
    *product((True, False), ["constant"], [0], SHAPES),
]


def moved(way: str, columns: int, wide: str, first: str) -> str:
    """y = x[:, first:], or y[:, first:] = x or += x; the tensor that is cut has type `wide`."""
    whole = f"memref<?x{columns}xf16>"
    source, target = (wide, whole) if way == "copy_in" else (whole, wide)
    starts = ("%c0, %first", "%c0, %c0") if way == "copy_in" else ("%c0, %c0", "%c0, %first")
    leave = copy_op("copy_out" if way == "copy_in" else way, "%slot", "%y", starts[1], "0, 1",
                    f"!t, {target}")  # fmt: skip
    if way == "reduce_out":
        leave = leave.replace("{dims", '{kind = "add", dims')
    ahead = f""""ws.prefetch_box"(%x, {starts[0]})
      {{dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 2>, tile = !t}}
      : ({source}, i32, i32) -> ()"""
    load = f"""{ahead}
    %slot = "ws.acquire"(%ring, %c0) : (!ring, i32) -> !t
    {copy_op("copy_in", "%x", "%slot", starts[0], "0, 1", f"{source}, !t")}
    "ws.commit"(%slot) {{by = "copy_engine"}} : (!t) -> ()"""
    store = f"""%slot = "ws.wait"(%ring, %c0) : (!ring, i32) -> !t
    {leave}
    "ws.release"(%slot) {{by = "copy_engine"}} : (!t) -> ()"""

    def named(name: str, given: str, kind: str) -> tuple[str, str, str, tuple[str, str]]:
        return name, given, kind, (f"{name}m", f"{name}n" if "?xf16" in kind else "")

    return kernel(
        [
            named("x", "in", source),
            named("y", "inout" if way == "reduce_out" else "out", target),
            ("like", "in", "memref<?xi32>", ("eighths",)),
        ],
        '  %ring = "ws.alloc_ring"() {label_name = "r"} : () -> !ring'
        + role("load", first + load, first=0)
        + role("store", first + store, first=1),
        types=f"""!t = !ws.tile<vector<{ROWS}x{columns}xf16>, "shared">
!ring = !ws.ring<!t, 1, 1>
""",
    )


def text_of(way: str, columns: int, width: int, *, is_static: bool, first: str) -> str:
    wide = f"memref<?x{width if is_static else '?'}xf16>"
    return moved(way, columns, wide, first)


@pytest.mark.parametrize(("is_static", "made", "column", "shape"), CASES)
@pytest.mark.parametrize("way", ["copy_in", "copy_out", "reduce_out"])
def test_a_box_from_any_column(
    way: str, is_static: bool, made: str, column: int, shape: tuple[int, int]
) -> None:
    """A box that begins within a line of the tensor, or ends past the tensor's last column."""
    width, columns = shape
    text = text_of(
        way, columns, width, is_static=is_static, first=FIRST[made].format(column=column)
    )
    like = np.zeros(column // 8 or 1, np.int32)
    exists = min(columns, max(0, width - column))
    if way == "copy_in":
        x, y = normal(ROWS, width, dtype=np.float16), poison(ROWS, columns, dtype=np.float16)
        run(text, x, y, like)
        assert (y[:, :exists] == x[:, column : column + exists]).all()
        assert (y[:, exists:] == 0).all()
    else:
        x, y = (
            normal(ROWS, columns, dtype=np.float16),
            normal(ROWS, width, dtype=np.float16, seed=1),
        )
        expected = y.copy()
        part = expected[:, column : column + exists]
        part[:] = x[:, :exists] + (part if way == "reduce_out" else 0)
        run(text, x, y, like)
        assert (y == expected).all()


@pytest.mark.parametrize("column", [0, 32, 64])
def test_a_prefetch_has_the_map_of_its_copy(column: int) -> None:
    first = FIRST["constant"].format(column=column)
    found = compiled(text_of("copy_in", 64, 128, is_static=True, first=first)).bundle
    recipes = [p for p in found.manifest.params if getattr(p, "tensor", "") == "x"]
    assert len(recipes) == 1
