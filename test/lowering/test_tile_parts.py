"""Parts of one slot that are copied from and to different places: pages, columns of two tensors, strips."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.errors import VerifyError
from attn_mlir.lowering.stages import ws_to_nvvm
from attn_mlir.validation.ws.kernels import (
    ROWS,
    compiled,
    copy_op,
    kernel,
    lowered,
    normal,
    poison,
    product,
    role,
    run,
    threads,
)

BF16 = ml_dtypes.bfloat16
MACHINES = [("sm_100a", None), ("sm_100a", 1), ("sm_90a", None), ("sm_90a", 2)]
RING = '  %ring = "ws.alloc_ring"() {label_name = "r"} : () -> !ring'
COMMIT = '"ws.commit"(%slot) {by = "copy_engine"} : (!t) -> ()'


def bf16(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(BF16)


def out(tensor: str, rank: int, coords: str, dims: str) -> str:
    """A slot to a box of y, one turn."""
    return f"""%slot = "ws.wait"(%ring, %c0) : (!ring, i32) -> !t
      {copy_op("copy_out", "%slot", "%y", coords, dims, f"!t, {tensor}")}
      "ws.release"(%slot) {{by = "copy_engine"}} : (!t) -> ()"""


POOL, TILES = "memref<?x16x128xbf16>", "memref<?x128x128xbf16>"
PAGE = """%page = "ws.rows"(%slot, %{at}) : (!t, i32) -> !page
        """


def paged() -> str:
    """y[i]: pages of 16 rows as table[8 i ..] names them, up to counts[i]; the last lines in columns
    of their own, as rows and columns can be cut in either order."""
    halves = f"""%left = "ws.columns"(%page) {{first = 0 : i64}} : (!page) -> !half
        {copy_op("copy_in", "%pool", "%left", "%number, %c0, %c0", "1, 2", f"{POOL}, !half")}
        %other = "ws.columns"(%slot) {{first = 64 : i64}} : (!t) -> !side
        %right = "ws.rows"(%other, %at) : (!side, i32) -> !half
        {copy_op("copy_in", "%pool", "%right", "%number, %c0, %c64", "1, 2", f"{POOL}, !half")}"""
    whole = copy_op("copy_in", "%pool", "%page", "%number, %c0, %c0", "1, 2", f"{POOL}, !page")
    load = f"""%eight = arith.constant 8 : i32
    %sixteen = arith.constant 16 : i32
    %n = "ws.extent"(%counts) {{dim = 0 : i64}} : (memref<?xi32>) -> i32
    scf.for %i = %c0 to %n step %c1 : i32 {{
      %count = "ws.element"(%counts, %i) {{operandSegmentSizes = array<i32: 1, 1>}}
        : (memref<?xi32>, i32) -> i32
      %base = arith.muli %i, %eight : i32
      %slot = "ws.acquire"(%ring, %c0) : (!ring, i32) -> !t
      scf.for %p = %c0 to %count step %c1 : i32 {{
        %entry = arith.addi %base, %p : i32
        %number = "ws.element"(%table, %entry) {{operandSegmentSizes = array<i32: 1, 1>}}
          : (memref<?xi32>, i32) -> i32
        %at = arith.muli %p, %sixteen : i32
        %page = "ws.rows"(%slot, %at) : (!t, i32) -> !page
        %odd = arith.andi %p, %c1 : i32
        %cut = arith.cmpi eq, %odd, %c1 : i32
        scf.if %cut {{
          {halves}
        }} else {{
          {whole}
        }}
      }}
      {COMMIT}
    }}"""
    store = f"""%n = "ws.extent"(%counts) {{dim = 0 : i64}} : (memref<?xi32>) -> i32
    scf.for %i = %c0 to %n step %c1 : i32 {{
      {out(TILES, 3, "%i, %c0, %c0", "1, 2")}
    }}"""
    return kernel(
        [
            ("pool", "in", POOL, ("pages", "", "")),
            ("table", "in", "memref<?xi32>", ("entries",)),
            ("counts", "in", "memref<?xi32>", ("n",)),
            ("y", "out", TILES, ("ny", "", "")),
        ],
        RING + role("load", load, first=0) + role("store", store, first=1),
        types="""!t = !ws.tile<vector<128x128xbf16>, "shared">
!page = !ws.tile<vector<16x128xbf16>, "shared">
!side = !ws.tile<vector<128x64xbf16>, "shared">
!half = !ws.tile<vector<16x64xbf16>, "shared">
!ring = !ws.ring<!t, 1, 1>
""",
    )


@pytest.mark.parametrize(("target", "seed"), MACHINES)
def test_pages_fill_the_rows_of_a_slot(target: str, seed: int | None) -> None:
    """As many as a table says, none included; what is not filled holds the turn before."""
    counts = np.array([8, 3, 0, 5], np.int32)
    table = np.random.default_rng(1).permutation(40)[:32].astype(np.int32)
    pool = bf16(40, 16, 128)
    y = np.full((4, 128, 128), np.nan, BF16)
    run(paged(), pool, table, counts, y, target=target, seed=seed)
    tile = np.full((128, 128), np.nan, BF16)
    for i, count in enumerate(counts):
        tile[: 16 * count] = pool[table[8 * i : 8 * i + count]].reshape(-1, 128)
        assert (y[i] == tile).all(), f"turn {i}"


BOXES = 8  # of 16 rows and two lines, side by side


def side_by_side() -> str:
    """y: pages of 16 rows as table names them, each a box, read as the rows of one tile."""
    copies = "".join(
        f"""%i{n} = arith.constant {n} : i32
    %page{n} = "ws.element"(%table, %i{n}) {{operandSegmentSizes = array<i32: 1, 1>}}
      : (memref<?xi32>, i32) -> i32
    %box{n} = "ws.columns"(%slot) {{first = {64 * n} : i64}} : (!t) -> !page
    {copy_op("copy_in", "%pool", f"%box{n}", f"%page{n}, %c0, %c0", "1, 2", "memref<?x16x64xf32>, !page")}
    """
        for n in range(BOXES)
    )
    load = f"""%slot = "ws.acquire"(%ring, %c0) : (!ring, i32) -> !t
    {copies}
    {COMMIT}"""
    read = """%slot = "ws.wait"(%ring, %c0) : (!ring, i32) -> !t
    %tile = "ws.view"(%slot) : (!t) -> !seen
    %f = "ws.load"(%tile) : (!seen) -> !full
    "ws.release"(%slot) {by = "threads"} : (!t) -> ()
    "ws.store_global"(%f, %y, %c0, %c0)
      {dims = array<i32: 0, 1>, operandSegmentSizes = array<i32: 1, 1, 2>}
      : (!full, memref<?x64xf32>, i32, i32) -> ()"""
    return kernel(
        [
            ("pool", "in", "memref<?x16x64xf32>", ("pages", "", "")),
            ("table", "in", "memref<?xi32>", ("entries",)),
            ("y", "out", "memref<?x64xf32>", ("rows", "")),
        ],
        RING + role("load", load, first=4) + threads(read),
        types="""!t = !ws.tile<vector<16x512xf32>, "shared">
!page = !ws.tile<vector<16x64xf32>, "shared">
!seen = !ws.tile<vector<128x64xf32>, "shared">
!ring = !ws.ring<!t, 1, 1>
""",
    )


@pytest.mark.parametrize(("target", "seed"), MACHINES[1:3])
def test_boxes_side_by_side_are_the_rows_of_a_tile(target: str, seed: int | None) -> None:
    pool, table = normal(9, 16, 64, dtype=np.float32), np.int32([3, 8, 1, 0, 4, 7, 2, 6])
    y = poison(ROWS, 64)
    run(side_by_side(), pool, table, y, target=target, seed=seed)
    assert (y == pool[table].reshape(ROWS, 64)).all()
    assert compiled(side_by_side(), target).bundle.ptx.count("cp.async.bulk.tensor") == BOXES


def computed_columns(use: str) -> str:
    """As `side_by_side`, of which some columns from the one in table[8] on are used."""
    first = """%c8 = arith.constant 8 : i32
    %first = "ws.element"(%table, %c8) {operandSegmentSizes = array<i32: 1, 1>}
      : (memref<?xi32>, i32) -> i32
    %line = "ws.columns_at"(%tile, %first) : (!seen, i32) -> !line
    %end = "ws.columns"(%line) {first = 16 : i64} : (!line) -> !end
    """
    text = side_by_side().replace('%f = "ws.load"(%tile) : (!seen) -> !full', first + use)
    text = text.replace(
        "!ring = ",
        """!line = !ws.tile<vector<128x32xf32>, "shared">
!end = !ws.tile<vector<128x16xf32>, "shared">
!piece = !ws.frag<vector<128x16xf32>>
!ring = """,
        1,
    )
    return text.replace("!full, memref", "!piece, memref")


LOAD_END = '%f = "ws.load"(%end) : (!end) -> !piece'


@pytest.mark.parametrize("first", [0, 32])
def test_columns_begin_at_a_computed_line(first: int) -> None:
    pool = normal(9, 16, 64, dtype=np.float32)
    table = np.array([3, 8, 1, 0, 4, 7, 2, 6, first], np.int32)
    y = poison(ROWS, 64)
    run(computed_columns(LOAD_END), pool, table, y, seed=1)
    found = pool[table[:BOXES]].reshape(ROWS, 64)[:, first + 16 : first + 32]
    assert (y[:, :16] == found).all()


def test_computed_columns_are_not_stored() -> None:
    text = computed_columns(
        """%f = "ws.load"(%end) : (!end) -> !piece
    "ws.store"(%f, %end) : (!piece, !end) -> ()"""
    )
    with pytest.raises(
        VerifyError, match="'ws.columns_at' op expects to be loaded or multiplied alone, got"
    ):
        lowered(text, ws_to_nvvm("sm_100a"))


def test_boxes_of_several_lines_have_a_power_of_two_of_rows() -> None:
    before, _, rest = side_by_side().partition('%f = "ws.load"')
    text = before + rest[rest.index('"ws.release"') :].partition('"ws.store_global"')[0]
    text += side_by_side().partition("f32>, i32, i32) -> ()")[2]
    text = text.replace("16x", "24x").replace("128x64", "192x64")
    with pytest.raises(
        VerifyError, match="expects a power of two of rows in several lines, got 24"
    ):
        lowered(text, ws_to_nvvm("sm_100a"))


@pytest.mark.parametrize(("target", "seed"), MACHINES)
def test_two_tensors_fill_the_columns_of_a_slot(target: str, seed: int | None) -> None:
    """128 columns of one and 64 of another, as of keys whose last part alone is rotated."""
    plain, turned, y_type = (f"memref<?x{columns}xbf16>" for columns in (128, 64, 192))
    load = f"""scf.for %i = %c0 to %c2 step %c1 : i32 {{
      %row = arith.muli %i, %c64 : i32
      %slot = "ws.acquire"(%ring, %c0) : (!ring, i32) -> !t
      %left = "ws.columns"(%slot) {{first = 0 : i64}} : (!t) -> !plain
      %right = "ws.columns"(%slot) {{first = 128 : i64}} : (!t) -> !turned
      {copy_op("copy_in", "%a", "%left", "%row, %c0", "0, 1", f"{plain}, !plain")}
      {copy_op("copy_in", "%b", "%right", "%row, %c0", "0, 1", f"{turned}, !turned")}
      {COMMIT}
    }}"""
    store = f"""scf.for %i = %c0 to %c2 step %c1 : i32 {{
      %row = arith.muli %i, %c64 : i32
      {out(y_type, 2, "%row, %c0", "0, 1")}
    }}"""
    two = "%c2 = arith.constant 2 : i32\n    "
    text = kernel(
        [
            ("a", "in", plain, ("m", "")),
            ("b", "in", turned, ("mb", "")),
            ("y", "out", y_type, ("my", "")),
        ],
        RING + role("load", two + load, first=0) + role("store", two + store, first=1),
        types="""!t = !ws.tile<vector<64x192xbf16>, "shared">
!plain = !ws.tile<vector<64x128xbf16>, "shared">
!turned = !ws.tile<vector<64x64xbf16>, "shared">
!ring = !ws.ring<!t, 2, 1>
""",
    )
    a, b = bf16(128, 128), bf16(128, 64, seed=1)
    y = np.full((128, 192), np.nan, BF16)
    run(text, a, b, y, target=target, seed=seed)
    assert (y == np.concatenate([a, b], 1)).all()
    module = str(lowered(text, ws_to_nvvm(target)))
    assert module.count("mbarrier.arrive.expect_tx") == 1  # both stand beside the acquire


@pytest.mark.parametrize(("target", "seed"), MACHINES)
def test_strips_of_a_slot_leave_to_different_places(target: str, seed: int | None) -> None:
    """256 rows, written by two groups of threads as their halves, leave in strips of 32 from the end."""
    y_type = "memref<?x64xf32>"
    fill = role(
        "fill",
        """%c128 = arith.constant 128 : i32
    %zero = arith.constant 0.0 : f32
    %c256 = arith.constant 256 : i32
    %blank = "ws.fill"(%zero) : (f32) -> !full
    scf.for %h = %c0 to %c256 step %c128 : i32 {
      %f = "ws.map"(%blank) ({
      ^bb0(%e: f32, %i: i32, %j: i32):
        %row = arith.addi %h, %i : i32
        %v = "ws.element"(%x, %row, %j) {operandSegmentSizes = array<i32: 1, 2>} : (memref<?x?xf32>, i32, i32) -> f32
        "ws.yield"(%v) : (f32) -> ()
      }) {operandSegmentSizes = array<i32: 1>} : (!full) -> !full
      "ws.store"(%f, %part) : (!full, !part) -> ()
    }
    "ws.commit"(%slot) {by = "threads"} : (!t) -> ()""".replace(
            '"ws.store"', '%part = "ws.rows"(%slot, %h) : (!t, i32) -> !part\n      "ws.store"'
        ).replace(
            "%zero =", '%slot = "ws.acquire"(%ring, %c0) : (!ring, i32) -> !t\n    %zero =', 1
        ),
        first=0,
        warps=4,
        lanes=32,
    )
    leave = f"""%c32 = arith.constant 32 : i32
    %c224 = arith.constant 224 : i32
    %c256 = arith.constant 256 : i32
    %slot = "ws.wait"(%ring, %c0) : (!ring, i32) -> !t
    scf.for %row = %c0 to %c256 step %c32 : i32 {{
      %strip = "ws.rows"(%slot, %row) : (!t, i32) -> !strip
      %target = arith.subi %c224, %row : i32
      {copy_op("copy_out", "%strip", "%y", "%target, %c0", "0, 1", f"!strip, {y_type}")}
    }}
    "ws.release"(%slot) {{by = "copy_engine"}} : (!t) -> ()"""
    text = kernel(
        [("x", "in", "memref<?x?xf32>", ("m", "n")), ("y", "out", y_type, ("my", ""))],
        RING + fill + role("leave", leave, first=4),
        types="""!t = !ws.tile<vector<256x64xf32>, "shared">
!part = !ws.tile<vector<128x64xf32>, "shared">
!strip = !ws.tile<vector<32x64xf32>, "shared">
!ring = !ws.ring<!t, 1, 1>
""",
    )
    x = normal(256, 64, dtype=np.float32)
    y = poison(256, 64)
    run(text, x, y, target=target, seed=seed)
    assert (y == x.reshape(8, 32, 64)[::-1].reshape(256, 64)).all()


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_a_product_reads_a_slot_of_pages(seed: int | None) -> None:
    """B [64, 128] as four pages of 16 rows, in the order of a table."""
    text = product("bf16", 64, 128, "kn")
    before = copy_op("copy_in", "%b", "%sb", "%c0, %c0", "0, 1", "memref<?x128xbf16>, !b")
    assert before in text
    page = copy_op("copy_in", "%b", "%page", "%from, %c0", "0, 1", "memref<?x128xbf16>, !page")
    text = text.replace(
        before,
        f"""%sixteen = arith.constant 16 : i32
    scf.for %r = %c0 to %c64 step %sixteen : i32 {{
      %last = arith.constant 48 : i32
      %from = arith.subi %last, %r : i32
      %page = "ws.rows"(%sb, %r) : (!b, i32) -> !page
      {page}
    }}""",
    )
    text = text.replace("!acc = ", '!page = !ws.tile<vector<16x128xbf16>, "shared">\n!acc = ', 1)
    a, b = normal(ROWS, 64, dtype=BF16), normal(64, 128, dtype=BF16, seed=1)
    y = poison(ROWS, 128)
    run(text, a, b, y, seed=seed)
    turned = b.reshape(4, 16, 128)[::-1].reshape(64, 128)
    assert (y == a.astype(np.float32) @ turned.astype(np.float32)).all()


def cut(part: str, kind: str, columns: int = 128) -> str:
    """A copy into a part of a slot [64, `columns`]."""
    tensor = "memref<?x128xbf16>"
    load = f"""%slot = "ws.acquire"(%ring, %c0) : (!ring, i32) -> !t
    {part}
    {copy_op("copy_in", "%x", "%part", "%c0, %c0", "0, 1", f"{tensor}, !part")}
    {COMMIT}"""
    read = """%slot = "ws.wait"(%ring, %c0) : (!ring, i32) -> !t
    "ws.release"(%slot) {by = "threads"} : (!t) -> ()"""
    return kernel(
        [("x", "in", tensor, ("m", ""))],
        RING + role("load", load, first=0) + role("read", read, first=1),
        types=f"""!t = !ws.tile<vector<64x{columns}xbf16>, "shared">
!part = !ws.tile<vector<{kind}xbf16>, "shared">
!ring = !ws.ring<!t, 1, 1>
""",
    )


FIRST_ROW = '%n = arith.constant {} : i32\n%part = "ws.rows"(%slot, %n) : (!t, i32) -> !part'
FIRST_COLUMN = '%part = "ws.columns"(%slot) {{first = {} : i64}} : (!t) -> !part'


@pytest.mark.parametrize(
    ("part", "kind", "message"),
    [
        (FIRST_ROW.format(4), "8x128", "'ws.rows' op expects a first row in 8s, got 4"),
        (FIRST_COLUMN.format(32), "64x64", r"columns in 64s, a line of 128 bytes each, got 32..96"),
        (
            FIRST_COLUMN.format(0),
            "64x32",
            r"columns in 64s, a line of 128 bytes each, got 0..32 of",
        ),
    ],
)
def test_parts_that_no_copy_fits(part: str, kind: str, message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        lowered(cut(part, kind), ws_to_nvvm("sm_100a"))


def test_a_box_of_any_number_of_rows_begins_with_a_swizzle_pattern() -> None:
    lowered(cut(FIRST_ROW.format(8), "5x128"), ws_to_nvvm("sm_100a"))


def test_the_last_columns_need_not_fill_a_line() -> None:
    lowered(cut(FIRST_COLUMN.format(64), "64x32", columns=96), ws_to_nvvm("sm_100a"))


def product_of_halves(layout: str) -> str:
    """y = a b of depth 128, a product for either half of it, whose operands are parts of a slot each."""
    halves: list[str] = []
    for first, at, adds in ((0, "%c0", "%no"), (64, "%c64", "%yes")):
        columns = f"{{first = {first} : i64}}"
        right = f'"ws.columns"(%sb) {columns} : (!b)'
        if layout == "kn":
            right = f'"ws.rows"(%sb, {at}) : (!b, i32)'
        halves.append(f"""%p{first} = "ws.columns"(%sa) {columns} : (!a) -> !half_a
      %q{first} = {right} -> !half_b
      "ws.mma"(%d, %p{first}, %q{first}, {adds}) {{b_layout = "{layout}"}}
        : (!acc, !half_a, !half_b, i1) -> ()""")
    whole = f'"ws.mma"(%d, %sa, %sb, %more) {{b_layout = "{layout}"}} : (!acc, !a, !b, i1) -> ()'
    text = product("bf16", 128, 128, layout)
    assert whole in text
    b_extents = "64x128" if layout == "kn" else "128x64"
    return f"""!half_a = !ws.tile<vector<128x64xbf16>, "shared">
!half_b = !ws.tile<vector<{b_extents}xbf16>, "shared">
{text.replace(whole, chr(10).join(halves))}"""


@pytest.mark.parametrize("layout", ["kn", "nk"])
def test_products_of_parts_of_a_slot_add_up(layout: str) -> None:
    """Of a slot some rows are K of a product, or some columns."""
    a, right, y = bf16(ROWS, 128), bf16(128, 128, seed=1), poison(ROWS, 128)
    run(product_of_halves(layout), a, right, y, seed=1)
    left, wide = a.astype(np.float64), right.astype(np.float64)
    assert np.allclose(y, left @ (wide if layout == "kn" else wide.T), atol=1e-3)
