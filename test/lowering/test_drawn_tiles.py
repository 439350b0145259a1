"""Work tiles drawn from a counter: each once, in sections, and the counter is 0 again."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.validation.ws.checks import check, refused
from attn_mlir.validation.ws.kernels import compiled, copy_op, kernel, role

ORDER = '{order = "counter", operandSegmentSizes = array<i32: 3, 0, 1>}'
SIZES = "%blocks, %heads, %batch, %section"


def drawing(lanes: int = 1) -> str:
    """y[batch, head, block] = how many tiles the one CTA has had before: warp 0 counts, warp 4 draws.

    Args:
      lanes: of the role that draws.
    """
    kind, tensor = "!ws.frag<vector<32xf32>>", "memref<?x?x?x32xf32>"
    place = "%n, %h, %b, %c0"
    sizes = "\n    ".join(
        f'%{name} = "ws.extent"(%y) {{dim = {dim} : i64}} : ({tensor}) -> i32'
        for dim, name in enumerate(("batch", "heads", "blocks"))
    )
    ends = """%slot = "ws.wait"(%answers, %c0) : (!answers, i32) -> !answer
      "ws.next_tile"(%slot) : (!answer) -> ()
      "ws.release"(%slot) {by = "threads"} : (!answer) -> ()"""

    def loop(body: str) -> str:
        return f"""{sizes}
    "ws.tiles"({SIZES}) ({{
    ^bb0(%b: i32, %h: i32, %n: i32):
      {body}
      {ends}
    }}) {ORDER} : (i32, i32, i32, i32) -> ()"""

    load = '"ws.load_global"(%count, %c0) {dims = array<i32: 0>, operandSegmentSizes = array<i32: 1, 1>}'
    count = f"""%f = {load} : (memref<?xf32>, i32) -> {kind}
      %more = "ws.map"(%f) ({{
      ^bb0(%e: f32, %i: i32):
        %one = arith.constant 1.0 : f32
        %v = arith.addf %e, %one : f32
        "ws.yield"(%v) : (f32) -> ()
      }}) {{operandSegmentSizes = array<i32: 1>}} : ({kind}) -> {kind}
      {copy_op("store_global", "%f", "%y", place, "3", f"{kind}, {tensor}")}
      {copy_op("store_global", "%more", "%count", "%c0", "0", f"{kind}, memref<?xf32>")}"""
    draw = """%ask = "ws.acquire"(%answers, %c0) : (!answers, i32) -> !answer
      "ws.draw"(%ask, %counter) : (!answer, memref<1xi32>) -> ()
      "ws.commit"(%ask) {by = "threads"} : (!answer) -> ()"""
    return kernel(
        [
            ("count", "inout", "memref<?xf32>", ("n",)),
            ("counter", "inout", "memref<1xi32>", ("",)),
            ("section", "scalar", "i32", ()),
            ("y", "out", tensor, ("batch", "heads", "blocks", "")),
        ],
        '  %answers = "ws.alloc_ring"() {label_name = "answers"} : () -> !answers\n'
        + role("count", loop(count), first=0, lanes=32)
        + role("draw", loop(draw), first=4, lanes=lanes),
        types='!answer = !ws.tile<vector<4xi32>, "shared">\n!answers = !ws.ring<!answer, 1, 1>\n',
    )


def expected(batch: int, heads: int, blocks: int, section: int) -> list[tuple[int, int, int]]:
    """The order: heads of a section side by side, last blocks first."""
    places = list(itertools.product(range(batch), range(heads)))
    parts = [places[i : i + section] for i in range(0, len(places), section)]
    return [(n, h, b) for part in parts for b in reversed(range(blocks)) for n, h in part]


@pytest.mark.parametrize(
    ("batch", "heads", "blocks", "section"),
    [(2, 3, 4, 2), (1, 5, 3, 3), (2, 2, 1, 7), (1, 1, 1, 1)],
)
def test_tiles_come_in_sections(batch: int, heads: int, blocks: int, section: int) -> None:
    """One CTA, which draws all but its first; the second launch finds the counter as the first did."""
    counter = np.zeros(1, np.int32)
    for _ in range(2):
        count, y = np.zeros(32, np.float32), np.full((batch, heads, blocks, 32), -1, np.float32)
        device = EmulatorDevice(multiprocessors=1, target="sm_90a")
        compiled(drawing(), "sm_90a")(count, counter, y, section=section, device=device)
        assert count[0] == batch * heads * blocks and counter[0] == 0
        order = np.array([y[place][0] for place in expected(batch, heads, blocks, section)])
        assert (order == np.arange(len(order))).all()


def test_draws_that_have_no_code() -> None:
    check(drawing())
    refused(drawing(lanes=32), "'ws.draw' op expects a role with one lane, got 32 in draw")
    expects = "'ws.draw' op expects an argument of role inout, counter is of role in"
    refused(drawing().replace('"inout", "inout"', '"inout", "in"'), expects)
