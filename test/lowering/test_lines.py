"""Shared tiles in lines of 64, 32 and 16 bytes: copies, parts and products, and who reads only 128."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.dialect import ws
from attn_mlir.dialect.targets.limits import line_of_rows
from attn_mlir.dialect.ws.dialect import SHORT_LINES
from attn_mlir.errors import SpecError, VerifyError
from attn_mlir.lowering.stages import ws_to_nvvm
from attn_mlir.runtime.file.bundle import Bundle
from attn_mlir.runtime.file.recipes import TensorMapParam
from attn_mlir.validation.ws.kernels import (
    ROWS,
    bundle,
    copy_op,
    kernel,
    lowered,
    normal,
    poison,
    product,
    role,
    run,
)

BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
NAMES = {BF16: "bf16", E4M3: "f8E4M3FN"}
LINES = ["128", *map(str, SHORT_LINES)]


def in_lines(text: str, tile: str, line: str) -> str:
    """The kernel with a tile's type in lines of so many bytes."""
    begin = text.index(f"!{tile} = !ws.tile<")
    end = text.index("\n", begin)
    kind = text[begin:end]
    return text.replace(
        kind, kind if line == "128" else kind.replace('"shared"', f'"shared.{line}"')
    )


@pytest.mark.parametrize("b_line", LINES)
@pytest.mark.parametrize("a_line", ["128", "32"])
@pytest.mark.parametrize("dtype", NAMES, ids=str)
def test_products_of_operands_in_lines(dtype: Any, a_line: str, b_line: str) -> None:
    """Of one line or several, each operand in its own."""
    k, n = 64, 48
    text = product(NAMES[dtype], k, n, "nk")
    text = in_lines(in_lines(text, "a", a_line), "b", b_line)
    a, b = normal(ROWS, k, dtype=dtype), normal(n, k, dtype=dtype, seed=1)
    y = poison(ROWS, n)
    run(text, a, b, y, seed=3)
    assert (y == a.astype(np.float32) @ b.astype(np.float32).T).all()


def moved(line: int, part: bool = False) -> str:
    """y = x by the copy engine, [64, 64] of 8 bits; in parts of 16 rows."""
    tensor = "memref<?x64xf8E4M3FN>"
    kinds = f"{tensor}, !part" if part else f"{tensor}, !t"
    target = "%part" if part else "%slot"
    cut = '%part = "ws.rows"(%slot, %r) : (!t, i32) -> !part' if part else ""
    count = 4 if part else 1
    loop = f"""%step = arith.constant 16 : i32
    %all = arith.constant {16 * count} : i32
    """
    load = f"""%slot = "ws.acquire"(%ring, %c0) : (!ring, i32) -> !t
    {loop}scf.for %r = %c0 to %all step %step : i32 {{
      {cut}
      {copy_op("copy_in", "%x", target, "%r, %c0", "0, 1", kinds)}
    }}
    "ws.commit"(%slot) {{by = "copy_engine"}} : (!t) -> ()"""
    store = f"""%slot = "ws.wait"(%ring, %c0) : (!ring, i32) -> !t
    {copy_op("copy_out", "%slot", "%y", "%c0, %c0", "0, 1", f"!t, {tensor}")}
    "ws.release"(%slot) {{by = "copy_engine"}} : (!t) -> ()"""
    space = "shared" if line == ws.LINE_BYTES else f"shared.{line}"
    return kernel(
        [("x", "in", tensor, ("m", "")), ("y", "out", tensor, ("my", ""))],
        '  %ring = "ws.alloc_ring"() {label_name = "r"} : () -> !ring'
        + role("load", load, first=0)
        + role("store", store, first=1),
        types=f"""!t = !ws.tile<vector<64x64xf8E4M3FN>, "{space}">
!part = !ws.tile<vector<16x64xf8E4M3FN>, "{space}">
!ring = !ws.ring<!t, 1, 1>
""",
    )


@pytest.mark.parametrize("part", [False, True])
@pytest.mark.parametrize("line", SHORT_LINES)
@pytest.mark.parametrize("target", ["sm_100a", "sm_90a"])
def test_copies_of_lines(target: str, line: int, part: bool) -> None:
    x, y = normal(64, 64, dtype=E4M3), poison(64, 64, dtype=E4M3)
    run(moved(line, part), x, y, target=target, seed=1)
    assert x.tobytes() == y.tobytes()


def test_a_tile_takes_the_bytes_of_its_lines_and_maps_name_the_swizzle() -> None:
    """64 rows of 64 bytes: half of what lines of 128 bytes take."""
    sizes: dict[int, int] = {}
    for line, name in {128: "128B", 64: "64B", 32: "32B", 16: "none"}.items():
        manifest = Bundle.from_bytes(bundle(moved(line))).manifest
        maps = [x for x in manifest.params if isinstance(x, TensorMapParam)]
        assert {x.swizzle for x in maps} == {name}
        assert {x.box[0] for x in maps} == {line}
        sizes[line] = manifest.smem_bytes
    assert sizes[64] == sizes[32] == sizes[16] == sizes[128] - 4096


def test_other_copies_are_in_lines_of_128_bytes() -> None:
    text = moved(64).replace(
        copy_op("copy_out", "%slot", "%y", "%c0, %c0", "0, 1", "!t, memref<?x64xf8E4M3FN>"),
        copy_op(
            "reduce_out", "%slot", "%y", "%c0, %c0", "0, 1", "!t, memref<?x64xf8E4M3FN>"
        ).replace("dims =", 'kind = "add", dims ='),
    )
    message = "'ws.reduce_out' op expects lines of 128 bytes, got !ws.tile<.*, \"shared.64\">"
    with pytest.raises(VerifyError, match=message):
        lowered(text, ws_to_nvvm("sm_100a"))


def test_k_runs_along_short_lines() -> None:
    text = in_lines(product("bf16", 64, 32, "kn"), "b", "64")
    with pytest.raises(VerifyError, match="'ws.mma' op expects K along lines of 64 bytes"):
        lowered(text, ws_to_nvvm("sm_100a"))


@pytest.mark.parametrize(
    ("columns", "bits", "line"), [(64, 8, 64), (32, 8, 32), (16, 16, 32), (33, 8, 64), (64, 16, 128), (96, 8, 128)]
)  # fmt: skip
def test_the_line_of_rows(columns: int, bits: int, line: int) -> None:
    assert line_of_rows(columns, bits) == line


def test_types_have_lines_that_there_are() -> None:
    with pytest.raises(
        SpecError, match="lines of a shared tile have 128, 64, 32, 16 bytes, got 48"
    ):
        ws.tile_type([8, 8], None, "shared", 48)
    with pytest.raises(SpecError, match="lines of a tensor tile have 128 bytes, got 64"):
        ws.tile_type([8, 8], None, "tensor", 64)
