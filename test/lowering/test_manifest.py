"""What the bundle says about a kernel: grid, tensors, scalars, parameters."""

from __future__ import annotations

import pytest

import attn_mlir as am
from attn_mlir.dialect.attn.lengths import Lengths
from attn_mlir.errors import VerifyError
from attn_mlir.lowering.manifest import attach, attached
from attn_mlir.lowering.stages import ws_to_nvvm
from attn_mlir.validation.ws.checks import manifest
from attn_mlir.validation.ws.kernels import copy_op, kernel, lowered, role, threads


def with_tiles(extents: str, *, order: str = "single", code: str = "") -> str:
    """A kernel of y [batch, 3, rows] whose tile space has these extents."""
    count = len(extents.split(","))
    block = ", ".join(f"%t{n}: i32" for n in range(count))
    body = f"""%n2 = arith.constant 2 : i32
    %n128 = arith.constant 128 : i32
    %b = "ws.extent"(%y) {{dim = 0 : i64}} : (memref<?x3x?xf32>) -> i32
    %h = "ws.extent"(%y) {{dim = 1 : i64}} : (memref<?x3x?xf32>) -> i32
    %m = "ws.extent"(%y) {{dim = 2 : i64}} : (memref<?x3x?xf32>) -> i32
    {code}
    "ws.tiles"({extents}) ({{
    ^bb0({block}):
    }}) {{order = "{order}", operandSegmentSizes = array<i32: {count}, 0, 0>}}
      : ({", ".join(["i32"] * count)}) -> ()"""
    return kernel([("y", "out", "memref<?x3x?xf32>", ("batch", "", "rows"))], threads(body))


def test_the_grid_is_the_tile_space() -> None:
    code = "%tiles = arith.ceildivsi %m, %n128 : i32"
    found = manifest(with_tiles("%tiles, %h, %b", code=code))
    assert found["grid"] == [["ceildiv", "rows", 128], 3, "batch"]
    assert found["symbols"] == ["batch", "rows"]
    assert not found["persistent"]
    assert manifest(with_tiles("%b"))["grid"] == ["batch", 1, 1]
    assert manifest(kernel([], threads("")))["grid"] == [1, 1, 1]


def test_a_persistent_grid_counts_the_tiles() -> None:
    found = manifest(with_tiles("%m, %h, %b", order="persistent"))
    assert found["persistent"] and found["grid"] == [["mul", ["mul", "rows", 3], "batch"], 1, 1]


def test_a_ragged_grid_counts_the_blocks_of_all_sequences() -> None:
    """So many as rows fill, and one more for each sequence; parts of the keys along z."""
    body = """%size = arith.constant 128 : i32
    %one = arith.constant 1 : i32
    %rows = "ws.extent"(%x) {dim = 0 : i64} : (memref<?x64xf32>) -> i32
    %n = "ws.extent"(%ends) {dim = 0 : i64} : (memref<?xi32>) -> i32
    %count = arith.subi %n, %one : i32
    "ws.tiles"(%rows, %size, %count, %ends, %count, %rows, %size) ({
    ^bb0(%block: i32, %head: i32, %sequence: i32):
    }) {order = "ragged", operandSegmentSizes = array<i32: 3, 1, 3>}
      : (i32, i32, i32, memref<?xi32>, i32, i32, i32) -> ()"""
    tensors = [
        ("x", "in", "memref<?x64xf32>", ("total", "")),
        ("ends", "in", "memref<?xi32>", ("n",)),
    ]
    count = ["sub", "n", 1]
    blocks = ["add", ["floordiv", "total", 128], count]
    found = manifest(kernel(tensors, threads(body)))
    assert found["grid"] == [blocks, 128, ["floordiv", count, ["max", count, 1]]]
    assert {"kind": "pointer", "tensor": "ends"} in found["params"]


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        ("addi", "add"), ("subi", "sub"), ("muli", "mul"), ("ceildivsi", "ceildiv"),
        ("floordivsi", "floordiv"), ("maxsi", "max"), ("minsi", "min"),
    ],
)  # fmt: skip
def test_every_operator_of_an_expression(operation: str, name: str) -> None:
    code = f"%inner = arith.addi %m, %b : i32\n%x = arith.{operation} %inner, %n2 : i32"
    assert manifest(with_tiles("%x", code=code))["grid"][0] == [name, ["add", "rows", "batch"], 2]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("%x = arith.xori %m, %n2 : i32", "'arith.xori' op decides over ring operations, but"),
        (
            "%x = arith.addi %g, %n2 : i32",
            "'ws.tiles' op expects extents known at launch, got one of group",
        ),
    ],
)
def test_extents_must_be_known_at_launch(code: str, message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        manifest(with_tiles("%x", code=code))


def tensors_text() -> str:
    """A kernel that meets each way of using a tensor."""
    copy = role(
        "copy",
        f"""%s = "ws.acquire"(%ring, %c0) : (!ring, i32) -> !t
    {copy_op("copy_in", "%mapped", "%s", "%c0, %c0, %c0", "0, 2", "memref<?x4x64xbf16>, !t")}
    "ws.commit"(%s) {{by = "copy_engine"}} : (!t) -> ()""",
        first=4,
    )
    read = role(
        "read",
        """%s = "ws.wait"(%ring, %c0) : (!ring, i32) -> !t
    "ws.release"(%s) {by = "threads"} : (!t) -> ()""",
        first=5,
    )
    rows = threads("""%f = "ws.fill"(%scale) : (f32) -> !row
    %wide = "ws.broadcast"(%f) : (!row) -> !full
    "ws.store_global"(%f, %narrow, %c0, %c0)
      {dims = array<i32: 0>, operandSegmentSizes = array<i32: 1, 1, 2>}
      : (!row, memref<?x?xf32>, i32, i32) -> ()
    "ws.store_global"(%wide, %matrix, %c0, %c0)
      {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2>}
      : (!full, memref<?x64xf32>, i32, i32) -> ()
    %bit = "ws.element"(%flags, %c0) {operandSegmentSizes = array<i32: 1, 1>} : (memref<?xi8>, i32) -> i8
    %sum = arith.addi %count, %c1 : i32""")
    text = kernel(
        [
            ("mapped", "in", "memref<?x4x64xbf16>", ("m", "", "")),
            ("flags", "in", "memref<?xi8>", ("f",)),
            ("unused", "in", "memref<?xf32>", ("u",)),
            ("scale", "scalar", "f32", ()),
            ("narrow", "out", "memref<?x?xf32>", ("m", "k")),
            ("matrix", "out", "memref<?x64xf32>", ("m", "")),
            ("count", "scalar", "i32", ()),
        ],
        '  %ring = "ws.alloc_ring"() {label_name = "r"} : () -> !ring' + copy + read + rows,
        types='!t = !ws.tile<vector<8x64xbf16>, "shared">\n!ring = !ws.ring<!t, 1, 1>\n',
    )
    defaults = '{ws.defaults = {scale = 5.000000e-01 : f32}, sym_name = "k"'
    return text.replace('{sym_name = "k"', defaults)


def test_tensors() -> None:
    """Alignment is 16 bytes where more than an element is moved at a time."""
    found = {entry["name"]: entry for entry in manifest(tensors_text())["tensors"]}
    assert list(found) == ["mapped", "flags", "unused", "narrow", "matrix"]
    assert found["mapped"] == {
        "name": "mapped", "role": "in", "dtype": "bf16", "shape": ["m", 4, 64],
        "unit_stride_axis": 2, "alignment_bytes": 16,
    }  # fmt: skip
    assert found["flags"]["dtype"] == "bool"
    assert [entry["alignment_bytes"] for entry in found.values()] == [16, 1, 4, 4, 16]
    assert [entry["role"] for entry in found.values()] == ["in", "in", "in", "out", "out"]


def test_scalars() -> None:
    assert manifest(tensors_text())["scalars"] == [
        {"name": "scale", "dtype": "f32", "default": 0.5, "min_exclusive": 0.0, "max": 2e38},
        {"name": "count", "dtype": "i32"},
    ]


def test_parameters_are_what_the_kernel_uses_in_a_fixed_order() -> None:
    found = manifest(tensors_text())["params"]
    line, rows, chunks, other = (
        {"extent": 64, "axis": 2, "step": 1},
        {"extent": "m", "axis": 0, "step": 1},
        {"extent": 1, "axis": 2, "step": 64},
        {"extent": 4, "axis": 1, "step": 1},
    )
    assert found[0] == {
        "kind": "tensor_map", "tensor": "mapped", "box": [64, 8, 1, 1], "swizzle": "128B",
        "dims": [line, rows, chunks, other],
    }  # fmt: skip
    texts = [" ".join(str(value) for value in entry.values()) for entry in found[1:]]
    assert texts == [
        "pointer flags",
        "pointer narrow",
        "pointer matrix",
        "stride narrow 0 i64",
        "stride matrix 0 i64",
        "symbol m i32",
        "symbol k i32",
        "symbol f i32",
        "scalar scale f32",
        "scalar count i32",
    ]


def test_roles_and_memory_are_reported() -> None:
    report = manifest(tensors_text())["report"]
    assert {role["role"]: role["warps"] for role in report["roles"]} == {
        "copy": "4-4", "read": "5-5", "rows": "0-3",
    }  # fmt: skip
    assert report["memory_map"] == [
        {"space": "shared", "unit": "B", "begin": 0, "end": 1024, "what": "r"},
        {"space": "shared", "unit": "B", "begin": 1024, "end": 1048, "what": "barriers"},
    ]


def test_manifests_of_several_kernels_are_kept_apart() -> None:
    module = lowered(kernel([], threads("")), ws_to_nvvm("sm_100a"))
    with module.context:
        attach(module, {"entry": "other", "grid": [1, 1, 1]})
    assert sorted(attached(module)) == ["k", "other"]
    assert attached(module)["other"]["grid"] == [1, 1, 1]


def test_the_grid_may_divide_a_number_of_the_call() -> None:
    """Such as the greatest length of unequal ones, of CTAs that loop over the work tiles."""
    lengths = Lengths(ragged_q=True, ragged_k=True)
    spec = am.mha(heads=2, head_dim=64, lengths=lengths, tile_order="persistent")
    assert "max_seqlen_q" in str(am.compile(spec).manifest.grid)
