"""Legal kernels that the lowering has no code for are refused by name; the bounds themselves pass."""

from __future__ import annotations

import pytest

from attn_mlir.errors import VerifyError
from attn_mlir.lowering.stages import ws_to_nvvm
from attn_mlir.validation.ws.checks import check, copy, refused
from attn_mlir.validation.ws.kernels import copy_op, kernel, lowered, product, role, threads

IN_OUT = [
    ("x", "in", "memref<?x64xbf16>", ("m", "")),
    ("y", "out", "memref<?x?xf32>", ("my", "n")),
]


def access(kind: str, body: str) -> str:
    """Threads at a buffer %t of one tile type !t."""
    buffer = '  %b = "ws.alloc_buffer"() {label_name = "b"} : () -> !ws.buffer<!t, 1>'
    at = '%t = "ws.at"(%b, %c0) : (!ws.buffer<!t, 1>, i32) -> !t\n'
    return kernel(IN_OUT, buffer + threads(at + body), types=f"!t = {kind}\n")


def load_and_store(space: str, columns: int, element: str, cut: int | None = None) -> str:
    """A tile, or its columns from `cut` on, through registers; from shared memory only stored."""
    width = columns + 64 if cut is not None else columns
    part = f'!ws.tile<vector<128x{columns}x{element}>, "{space}">'
    fragment = f"!ws.frag<vector<128x{columns}x{element}>>"
    body = f'%p = "ws.columns"(%t) {{first = {cut or 0} : i64}} : (!t) -> {part}\n'
    if space == "tensor":
        body += f'%f = "ws.load"(%p) : ({part}) -> {fragment}\n'
    else:
        body += (
            f'%z = arith.constant 0.0 : {element}\n%f = "ws.fill"(%z) : ({element}) -> {fragment}\n'
        )
    body += f'"ws.store"(%f, %p) : ({fragment}, {part}) -> ()'
    return access(f'!ws.tile<vector<128x{width}x{element}>, "{space}">', body)


@pytest.mark.parametrize(
    ("k", "n", "message"),
    [
        (24, 64, "'ws.mma' op expects K a multiple of 16, got 24"),
        (8, 64, "'ws.mma' op expects K a multiple of 16, got 8"),
        (64, 264, "'ws.mma' op expects N a multiple of 8 to 256, got 264"),
        (64, 12, "'ws.mma' op expects N a multiple of 8 to 256, got 12"),
    ],
)
def test_shapes_of_a_product(k: int, n: int, message: str) -> None:
    refused(product("bf16", k, n, "kn"), message)


@pytest.mark.parametrize(("k", "n"), [(16, 64), (64, 256), (64, 8)])
def test_bounds_of_a_product(k: int, n: int) -> None:
    check(product("bf16", k, n, "kn"))


def test_bytes_of_a_product() -> None:
    check(product("f8E4M3FN", 32, 64, "nk"))
    check(product("f8E5M2", 64, 48, "kn"))
    message = "'ws.mma' op expects N a multiple of 16 to 256, got 40"
    refused(product("f8E4M3FN", 32, 40, "kn"), message)
    check(product("f8E4M3FN", 32, 40, "nk"))
    refused(product("f8E4M3FN", 48, 64, "nk"), "'ws.mma' op expects K a multiple of 32, got 48")


def test_rows_and_elements_of_a_product() -> None:
    refused(
        product("bf16", 64, 64, "kn").replace("128x", "32x"),
        "'ws.mma' op expects M of 64 or 128, got 32",
    )
    text = product("bf16", 64, 64, "kn").replace("x64xbf16", "x64xi16")
    refused(text, "'ws.mma' op expects a and b of bf16 or f16 or .*, got i16")


@pytest.mark.parametrize(
    ("space", "columns", "element", "cut", "message"),
    [
        ("tensor", 12, "f32", None, "'ws.load' op expects columns in 32s and a rest of 0, 2, 4, 8"),
        ("tensor", 33, "f32", None, "'ws.load' op expects columns in 32s"),
        ("tensor", 34, "bf16", None, "'ws.load' op expects columns in 32s"),
        ("tensor", 35, "bf16", None, "'ws.load' op expects columns that fill registers"),
        ("tensor", 34, "i8", None, "'ws.load' op expects columns that fill registers"),
        ("tensor", 32, "bf16", 3, "'ws.load' op .* fill registers, .* from column 3"),
        ("tensor", 32, "f64", None, "'ws.load' op .* tensor-memory columns of 8, 16 or 32 bits"),
        ("shared", 12, "bf16", None, "'ws.store' op expects shared columns in 8s"),
        ("shared", 16, "bf16", 4, "'ws.store' op expects shared columns in 8s, .* from column 4"),
        ("shared", 32, "f64", None, "'ws.store' op expects shared columns of 8, 16 or 32 bits"),
        ("shared", 6, "f32", None, "'ws.store' op expects shared columns in 4s"),
    ],
)
def test_columns_of_a_tile(
    space: str, columns: int, element: str, cut: int | None, message: str
) -> None:
    refused(load_and_store(space, columns, element, cut), message)


@pytest.mark.parametrize(
    ("space", "columns", "element", "cut"),
    [
        ("tensor", 2, "f32", None),
        ("tensor", 40, "f32", 3),
        ("tensor", 4, "bf16", 2),
        ("tensor", 48, "bf16", None),
        ("shared", 8, "bf16", 8),
        ("shared", 72, "f16", None),
        ("shared", 36, "f32", 4),
        ("tensor", 32, "i8", None),
    ],
)
def test_columns_that_have_code(space: str, columns: int, element: str, cut: int | None) -> None:
    check(load_and_store(space, columns, element, cut))


def reading(kind: str, body: str = "") -> str:
    """Threads that read a shared tile of a kind into a fragment %f, and go on."""
    load = f'%f = "ws.load"(%t) : (!t) -> !ws.frag<vector<{kind}>>\n'
    return access(f'!ws.tile<vector<{kind}>, "shared">', load + body)


@pytest.mark.parametrize("kind", ["128x64xf32", "128x64xbf16", "64x64xf32", "64x8xf16", "128xf32"])
def test_shared_tiles_are_read(kind: str) -> None:
    check(reading(kind))


def test_fragments_belong_to_whole_warps() -> None:
    fill = '%z = arith.constant 0.0 : f32\n%f = "ws.fill"(%z) : (f32) -> !ws.frag<vector<{}xf32>>'
    for rows, first, warps, groups in (
        ("128", 4, 8, 2),
        ("32x3", 5, 1, 1),
        ("16x8", 3, 2, 2),
        ("64x8", 2, 4, 1),
        ("64", 0, 2, 1),
        ("256x4", 0, 8, 1),
        ("40", 0, 4, 1),
    ):
        body = fill.format(rows)
        check(kernel([], role("r", body, first=first, warps=warps, groups=groups, lanes=32)))
    one = "'ws.fill' op expects a fragment in a role of whole warps, got one thread"
    refused(kernel([], role("r", fill.format("128"), first=0)), one)
    expects = "'ws.fill' op expects a fragment of 128 rows, one per thread, or of 64, in 8 columns"
    for rows in ("36", "127", "256x8", "64x12"):
        refused(kernel([], threads(fill.format(rows))), expects)


def test_layouts_that_meet_are_refused() -> None:
    """What tensor memory gives has a row per thread, or 64 rows in both halves of the lanes; 32 are neither."""
    tensor = '!ws.tile<vector<128x64xf32>, "tensor">'
    load = '%f = "ws.load"(%t) : (!t) -> !full'
    check(access(tensor, load))
    few = '!ws.tile<vector<32x64xf32>, "tensor">'
    text = access(few, load.replace("!full", "!ws.frag<vector<32x64xf32>>"))
    refused(
        text, r"'ws.load' op expects rows in multiples of 128 of one row per thread, got a .*32"
    )
    one = access(tensor, load).replace("warps = array<i32: 0, 4>", "warps = array<i32: 2, 4>")
    refused(one, "'ws.load' op expects a fragment of tensor memory in a role whose groups are 4")


def columns_of(shape: str, warps: int) -> str:
    """A sum per column of a fragment, by some warps."""
    columns = shape.partition("x")[2]
    full, line = (f"!ws.frag<vector<{kind}xf32>>" for kind in (shape, columns))
    body = f"""%z = arith.constant 0.0 : f32
    %f = "ws.fill"(%z) : (f32) -> {full}
    %i = "ws.fill"(%z) : (f32) -> {line}
    %s = "ws.reduce"(%f, %i) {{axis = "rows", kind = "add"}} : ({full}, {line}) -> {line}"""
    return kernel([], role("r", body, first=0, warps=warps, lanes=32))


def test_columns_lie_in_one_warp() -> None:
    for shape in ("32x8", "16x24"):
        check(columns_of(shape, 1))
    for shape, warps in (("128x8", 4), ("64x24", 4), ("32x8", 2)):
        refused(columns_of(shape, warps), "'ws.reduce' op expects a reduction over what one warp")


def test_conditions_of_a_group_are_of_a_warpgroup() -> None:
    body = """%f = "ws.fill"(%no) : (i1) -> !ws.frag<vector<64xi1>>
    %s = "ws.any"(%f) {scope = "group"} : (!ws.frag<vector<64xi1>>) -> i1"""
    check(kernel([], role("r", body, first=4, warps=4, lanes=32)))
    message = "'ws.any' op expects a condition of several warps in a role whose groups are 4"
    refused(kernel([], role("r", body, first=2, warps=4, lanes=32)), message)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            """%f = "ws.fill"(%z) : (f32) -> !ws.frag<vector<128x8xf32>>
    %i = "ws.fill"(%z) : (f32) -> !ws.frag<vector<8xf32>>
    %s = "ws.reduce_group"(%f, %i, %cells) {axis = "rows", kind = "add"}
      : (!ws.frag<vector<128x8xf32>>, !ws.frag<vector<8xf32>>, !cells) -> !ws.frag<vector<8xf32>>""",
            "expects scratch of at least 32 numbers, got 24",
        ),
        (
            """%f = "ws.fill"(%z) : (f32) -> !ws.frag<vector<128x6xf32>>
    %i = "ws.fill"(%z) : (f32) -> !ws.frag<vector<6xf32>>
    %s = "ws.reduce_group"(%f, %i, %cells) {axis = "rows", kind = "add"}
      : (!ws.frag<vector<128x6xf32>>, !ws.frag<vector<6xf32>>, !cells) -> !ws.frag<vector<6xf32>>""",
            "expects a result in 4s, got 6",
        ),
        (
            """%f = "ws.fill"(%z) : (f32) -> !ws.frag<vector<128x8xf32>>
    %i = "ws.fill"(%z) : (f32) -> !ws.frag<vector<128xf32>>
    %s = "ws.reduce_group"(%f, %i, %cells) {kind = "add"}
      : (!ws.frag<vector<128x8xf32>>, !row, !cells) -> !row""",
            "expects each thread to have all of the result",
        ),
    ],
)
def test_reductions_of_a_group(body: str, message: str) -> None:
    text = f"""%z = arith.constant 0.0 : f32
    %cells = "ws.at"(%b, %c0) : (!ws.buffer<!cells, 1>, i32) -> !cells
    {body}"""
    buffer = '  %b = "ws.alloc_buffer"() {label_name = "b"} : () -> !ws.buffer<!cells, 1>'
    types = '!cells = !ws.tile<vector<24xf32>, "shared">\n'
    refused(kernel([], buffer + threads(text), types=types), f"'ws.reduce_group' op {message}")


def test_columns_of_a_product_as_km() -> None:
    """Half of the rows of D or all; the first half is taken twice."""
    for columns in (64, 128):
        check(product("bf16", 64, 8, "kn", a_columns=columns))
    message = "'ws.mma' op expects 64 or 128 columns of a as km, got 32"
    refused(product("bf16", 64, 8, "kn", a_columns=32), message)


def test_barriers_belong_to_warpgroups() -> None:
    barrier = '"ws.barrier"() : () -> ()'
    check(kernel([], threads(barrier)))
    check(kernel([], role("r", barrier, first=3, warps=2, groups=2, lanes=32)))
    expects = "'ws.barrier' op expects a barrier of several warps in a role"
    refused(kernel([], role("r", barrier, first=0)), f"{expects} .*, got one thread")
    text = role("r", barrier, first=0, warps=4, groups=2, lanes=32)
    refused(kernel([], text), f"{expects} .*, got 2 from warp 0")


def test_warps_of_a_cta() -> None:
    check(kernel([], role("r", "", first=31)))
    refused(kernel([], role("r", "", first=32)), r"'ws.role' op expects warps below 32, got 32..32")
    refused(kernel([], ""), "'ws.kernel' op expects at least one role")


def test_rows_leave_in_units() -> None:
    body = """%z = arith.constant 0.0 : f32
    %f = "ws.fill"(%z) : (f32) -> !full
    "ws.store_global"(%f, %y, %c0, %c0)
      {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2>}
      : (!full, memref<?x?xf32>, i32, i32) -> ()"""
    check(kernel(IN_OUT, threads(body), columns=4))
    expects = "'ws.store_global' op expects rows of whole 16-byte units"
    refused(kernel(IN_OUT, threads(body), columns=6), expects)
    turned = body.replace("i32: 0, 1>", "i32: 1, 0>")
    expects = "'ws.store_global' op expects columns along the last dimension, 1, got 0"
    refused(kernel(IN_OUT, threads(turned), columns=4), expects)


def test_sums_are_of_f32() -> None:
    body = """%z = arith.constant 0.0 : bf16
    %f = "ws.fill"(%z) : (bf16) -> !ws.frag<vector<128x64xbf16>>
    %i = "ws.fill"(%z) : (bf16) -> !ws.frag<vector<128xbf16>>
    %r = "ws.reduce"(%f, %i) {kind = "add"}
      : (!ws.frag<vector<128x64xbf16>>, !ws.frag<vector<128xbf16>>) -> !ws.frag<vector<128xbf16>>"""
    refused(kernel([], threads(body)), "'ws.reduce' op expects elements of f32, got bf16")


def test_tiles_of_the_copy_engine() -> None:
    check(copy())
    check(copy('!ws.tile<vector<256x64xbf16>, "shared">'))
    check(copy('!ws.tile<vector<8x64xbf16>, "shared">'))
    expects = "'ws.copy_in' op expects"
    for tile, message in (
        ("264x64xbf16", "rows a multiple of 8 to 256, got 264"),
        ("12x64xbf16", "rows a multiple of 8 to 256, got 12"),
    ):
        refused(copy(f'!ws.tile<vector<{tile}>, "shared">'), f"{expects} {message}")
    check(copy('!ws.tile<vector<64x32xf32>, "shared">', "memref<?x32xf32>"))
    two = f"{expects} a tile of two dimensions and 8, 16 or 32-bit elements"
    refused(copy('!ws.tile<vector<64x32xf64>, "shared">', "memref<?x32xf64>"), two)
    refused(copy('!ws.tile<vector<64xbf16>, "shared">', "memref<?xbf16>", "0"), two)
    refused(copy(dims="1, 0"), f"{expects} columns along the last dimension, 1, got 0")


def copied_out(columns: int, tensor: str) -> str:
    """A tile of some columns, bf16, from the start of a tensor to its start."""
    ring = '  %ring = "ws.alloc_ring"() {label_name = "r"} : () -> !ring'
    fill = f"""%s = "ws.acquire"(%ring, %c0) : (!ring, i32) -> !t
    {copy_op("copy_in", "%x", "%s", "%c0, %c0", "0, 1", "memref<?x?xbf16>, !t")}
    "ws.commit"(%s) {{by = "copy_engine"}} : (!t) -> ()"""
    leave = f"""%s = "ws.wait"(%ring, %c0) : (!ring, i32) -> !t
    {copy_op("copy_out", "%s", "%y", "%c0, %c0", "0, 1", f"!t, {tensor}")}
    "ws.release"(%s) {{by = "copy_engine"}} : (!t) -> ()"""
    return kernel(
        [
            ("x", "in", "memref<?x?xbf16>", ("m", "n")),
            ("y", "out", tensor, ("my", "ny" if "?x?" in tensor else "")),
        ],
        ring + role("load", fill, first=0) + role("leave", leave, first=1),
        types=f"""!t = !ws.tile<vector<16x{columns}xbf16>, "shared">\n!ring = !ws.ring<!t, 1, 1>\n""",
    )


def test_nothing_beside_a_tile_is_written() -> None:
    """Lines are copied whole: what they have beyond the tile has to lie outside the tensor."""
    check(copied_out(64, "memref<?x?xbf16>"))
    check(copied_out(128, "memref<?x?xbf16>"))
    check(copied_out(32, "memref<?x32xbf16>"))
    check(copied_out(72, "memref<?x72xbf16>"))
    expects = "'ws.copy_out' op expects columns in 64s, a line of 128 bytes each, or all that"
    refused(copied_out(32, "memref<?x?xbf16>"), f"{expects} .*, got 32 of memref<.x.xbf16>")
    refused(copied_out(72, "memref<?x80xbf16>"), f"{expects} .*, got 72 of memref<.x80xbf16>")


def test_the_copy_engine_fills_slots() -> None:
    one = r"'ws.copy_in' op expects a role with one lane, got 32 in load"
    refused(copy(lanes=32), one)
    half = '!ws.tile<vector<64x32xbf16>, "shared">'
    cut = f'%p = "ws.columns"(%s) {{first = 0 : i64}} : (!t) -> {half}\n'
    message = r"'ws.copy_in' op expects columns in 64s, a line of 128 bytes each, got 0..32 of 64"
    refused(copy(target="%p", before=cut, kind=half), message)
    body = f"""%t = "ws.at"(%b, %c0) : (!ws.buffer<!t, 1>, i32) -> !t
    {copy_op("copy_in", "%x", "%t", "%c0, %c0", "0, 1", "memref<?x64xbf16>, !t")}"""
    text = kernel(
        IN_OUT,
        '  %b = "ws.alloc_buffer"() {label_name = "b"} : () -> !ws.buffer<!t, 1>'
        + role("load", body, first=0),
        types='!t = !ws.tile<vector<64x64xbf16>, "shared">\n',
    )
    refused(text, "'ws.copy_in' op expects a slot from ws.acquire")


def test_engines_are_driven_by_one_thread() -> None:
    ring = '  %ring = "ws.alloc_ring"() {label_name = "r"} : () -> !ring'
    types = '!t = !ws.tile<vector<8xf32>, "shared">\n!ring = !ws.ring<!t, 1, 1>\n'

    def text(commit: str, release: str, lanes: int) -> str:
        fill = f"""%s = "ws.acquire"(%ring, %c0) : (!ring, i32) -> !t
        "ws.commit"(%s) {{by = "{commit}"}} : (!t) -> ()"""
        read = f"""%s = "ws.wait"(%ring, %c0) : (!ring, i32) -> !t
        "ws.release"(%s) {{by = "{release}"}} : (!t) -> ()"""
        roles = role("fill", fill, first=0, lanes=lanes) + role("read", read, first=1, lanes=lanes)
        return kernel([], ring + roles, types=types)

    check(text("tensor_core", "tensor_core", 1))
    check(text("threads", "threads", 32))
    refused(
        text("tensor_core", "threads", 32),
        "'ws.commit' op expects a role with one lane, got 32 in fill",
    )
    refused(
        text("copy_engine", "threads", 32),
        "'ws.commit' op expects a role with one lane, got 32 in fill",
    )
    refused(
        text("threads", "copy_engine", 32),
        "'ws.release' op expects a role with one lane, got 32 in read",
    )


def test_a_ring_has_one_kind_of_producer() -> None:
    text = kernel(
        [],
        '  %ring = "ws.alloc_ring"() {label_name = "r"} : () -> !ring'
        + role(
            "fill",
            """%s = "ws.acquire"(%ring, %c0) : (!ring, i32) -> !t
    "ws.commit"(%s) {by = "tensor_core"} : (!t) -> ()
    %u = "ws.acquire"(%ring, %c0) : (!ring, i32) -> !t
    "ws.commit"(%u) {by = "threads"} : (!t) -> ()""",
            first=0,
        )
        + role(
            "read",
            """%s = "ws.wait"(%ring, %c0) : (!ring, i32) -> !t
    "ws.release"(%s) {by = "threads"} : (!t) -> ()
    %u = "ws.wait"(%ring, %c0) : (!ring, i32) -> !t
    "ws.release"(%u) {by = "threads"} : (!t) -> ()""",
            first=1,
        ),
        types='!t = !ws.tile<vector<8xf32>, "shared">\n!ring = !ws.ring<!t, 2, 1>\n',
    )
    refused(
        text,
        "'ws.alloc_ring' op expects role fill to commit slots of ring r.0. by one agent, got tensor_core, threads",
    )


def test_shared_operands_start_with_a_line() -> None:
    cut = '!ws.tile<vector<128x32xbf16>, "shared">'
    text = product("bf16", 64, 64, "kn").replace(
        '"ws.mma"(%d, %sa, %sb, %more) {b_layout = "kn"} : (!acc, !a, !b, i1)',
        f'%p = "ws.columns"(%sa) {{first = 32 : i64}} : (!a) -> {cut}\n'
        '%q = "ws.view"(%sb) : (!b) -> !ws.tile<vector<64x64xbf16>, "shared">\n'
        f'"ws.mma"(%d, %p, %q, %more) {{b_layout = "kn"}} : (!acc, {cut}, !b, i1)',
    )
    text = text.replace("!b = !ws.tile<vector<64x64xbf16>", "!b = !ws.tile<vector<32x64xbf16>")
    text = text.replace('-> !ws.tile<vector<64x64xbf16>, "shared">', "-> !b")
    refused(
        text, "'ws.mma' op expects a shared tile from a multiple of 64 columns on, got one from 32"
    )


def test_there_is_no_while() -> None:
    body = "scf.while : () -> () { scf.condition(%no) } do { scf.yield }"
    refused(kernel([], threads(body)), "'scf.while' op has no lowering to the NVVM level")


def claiming(lanes: int = 1) -> str:
    """A role that asks for a work tile."""
    answer = '!ws.tile<vector<4xi32>, "shared">'
    body = """%s = "ws.acquire"(%r, %c0) : (!answers, i32) -> !answer
    "ws.claim"(%s) : (!answer) -> ()
    "ws.commit"(%s) {by = "copy_engine"} : (!answer) -> ()
    %a = "ws.wait"(%r, %c0) : (!answers, i32) -> !answer
    "ws.release"(%a) {by = "threads"} : (!answer) -> ()"""
    ring = '  %r = "ws.alloc_ring"() {label_name = "r"} : () -> !answers\n'
    types = f"!answer = {answer}\n!answers = !ws.ring<!answer, 2, 1>\n"
    return kernel([], ring + role("claim", body, first=0, lanes=lanes), types=types)


def test_work_tiles_are_claimed_by_one_thread_of_a_blackwell() -> None:
    check(claiming())
    refused(claiming(lanes=32), "'ws.claim' op expects a role with one lane, got 32")
    with pytest.raises(VerifyError, match="'ws.claim' op needs cluster launch control, sm_90a has"):
        lowered(claiming(), ws_to_nvvm("sm_90a"))
