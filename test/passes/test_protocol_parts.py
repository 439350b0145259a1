"""The ring protocol: tiles in parts, which are filled and awaited one after the other."""

from __future__ import annotations

import pytest

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir, make_context
from attn_mlir.errors import VerifyError
from attn_mlir.passes.analysis.protocol.recurrence import Skip
from attn_mlir.passes.analysis.protocol.simulate import Network
from attn_mlir.passes.analysis.protocol.skeleton import processes
from attn_mlir.passes.plan_memory import placed_item
from attn_mlir.passes.verify_rings import prove
from attn_mlir.validation.ws.kernels import kernel, role, threads

MANY = 10_000  # turns that take long to run

TYPES = """!s = !ws.tile<vector<128x64xf32>, "tensor">
!p = !ws.tile<vector<128x32xbf16>, "tensor">
!k = !ws.tile<vector<64x64xbf16>, "shared">
!q = !ws.tile<vector<128x64xbf16>, "shared">
!v = !ws.tile<vector<32x64xbf16>, "shared">
!ss = !ws.ring<!s, 1, 1>
!ps = !ws.ring<!p, 2, 1>
!ks = !ws.ring<!k, 4, 1>
!part = !ws.frag<vector<128x32xbf16>>
"""
RINGS = """  %s = "ws.alloc_ring"() {known_empty, label_name = "s"} : () -> !ss
  %p = "ws.alloc_inside"(%s) {known_empty, label_name = "p"} : (!ss) -> !ps
  %k = "ws.alloc_ring"() {label_name = "k"} : () -> !ks
  %o = "ws.alloc_buffer"() {label_name = "o"} : () -> !ws.buffer<!s, 1>
  %q = "ws.alloc_buffer"() {label_name = "q"} : () -> !ws.buffer<!q, 1>
  %v = "ws.alloc_buffer"() {label_name = "v"} : () -> !ws.buffer<!v, 1>"""

# What roles do, by a short name; `{0}` is the number of a slot, or `{0}` and `{1}` are of two.
STEPS = {
    "K": """%k{0} = "ws.acquire"(%k, %c0) : (!ks, i32) -> !k
      "ws.commit"(%k{0}) {{by = "copy_engine"}} : (!k) -> ()""",
    "take": '%k{0} = "ws.wait"(%k, %c0) : (!ks, i32) -> !k',
    "S": '%s{0} = "ws.acquire"(%s, %c0) : (!ss, i32) -> !s',
    "QK": '"ws.mma"(%s{0}, %tq, %k{1}, %no) {{b_layout = "nk"}} : (!s, !q, !k, i1) -> ()',
    "back": '"ws.release"(%k{0}) {{by = "tensor_core"}} : (!k) -> ()',
    "full": '"ws.commit"(%s{0}) {{by = "tensor_core"}} : (!s) -> ()',
    "P": '%p{0} = "ws.wait"(%p, %c0) : (!ps, i32) -> !p',
    "PV": """"ws.mma"(%to, %p{0}, %tv, %yes) {{b_layout = "kn"}} : (!s, !p, !v, i1) -> ()
      "ws.release"(%p{0}) {{by = "tensor_core"}} : (!p) -> ()""",
    "scores": """%s{0} = "ws.wait"(%s, %c0) : (!ss, i32) -> !s
      %f{0} = "ws.load"(%s{0}) : (!s) -> !full""",
    "read": '"ws.release"(%s{0}) {{by = "threads"}} : (!s) -> ()',
    "place": '%p{0} = "ws.acquire"(%p, %c0) : (!ps, i32) -> !p',
    "store": """"ws.store"(%x, %p{0}) : (!part, !p) -> ()
      "ws.commit"(%p{0}) {{by = "threads"}} : (!p) -> ()""",
}  # fmt: skip
LOAD = "K:0 K:1 K:2 K:3"
SCORES = (
    "take:0 S:0 QK:0,0 take:1 QK:0,1 back:0 full:0 back:1",
    "take:2 S:1 QK:1,2 take:3 QK:1,3 back:2 full:1 back:3",
)
MMA = f"{SCORES[0]} P:0 PV:0 P:1 PV:1 {SCORES[1]} P:2 PV:2 P:3 PV:3"
FIRST = "scores:0 read:0 place:0 place:1 store:0 store:1"
SOFT = f"{FIRST} scores:1 read:1 place:2 place:3 store:2 store:3"


def turns(steps: str) -> str:
    """The loop of a role, in each turn of which these steps are two turns of rings."""
    lines: list[str] = []
    for step in steps.split():
        name, _, numbers = step.partition(":")
        lines.append(STEPS[name].format(*numbers.split(",")))
    body = "\n      ".join(lines)
    return f"""%m = "ws.extent"(%input) {{dim = 0 : i64}} : (memref<?xf32>) -> i32
    scf.for %i = %c0 to %m step %c1 : i32 {{
      {body}
    }}"""


def text(load: str = LOAD, mma: str = MMA, soft: str = SOFT) -> str:
    """Scores of keys in two parts, and what is made of them, in two parts in their place."""
    tiles = """%tq = "ws.at"(%q, %c0) : (!ws.buffer<!q, 1>, i32) -> !q
    %tv = "ws.at"(%v, %c0) : (!ws.buffer<!v, 1>, i32) -> !v
    %to = "ws.at"(%o, %c0) : (!ws.buffer<!s, 1>, i32) -> !s
    """
    fragment = """%h = arith.constant 1.0 : bf16
    %x = "ws.fill"(%h) : (bf16) -> !part
    """
    roles = (
        role("load", turns(load), first=4),
        role("mma", tiles + turns(mma), first=5),
        threads(fragment + turns(soft)),
    )
    arguments = [("input", "in", "memref<?xf32>", ("m",))]
    return kernel(arguments, RINGS + "".join(roles), types=TYPES)


class Parsed:
    """A kernel, whose module lives as long."""

    def __init__(self, made: str):
        self._module = ir.Module.parse(made, make_context())
        (self.op,) = ir.get_ops_of_type(self._module, ws.KernelOp)


def test_parts_are_handed_over_one_by_one() -> None:
    assert prove(Parsed(text()).op)


def test_parts_lie_one_behind_the_other_in_the_slot_that_lends_its_place() -> None:
    parsed = Parsed(text())
    found = [placed_item(x) for x in parsed.op.body.blocks[0].operations]
    items = {x.label: (x.extent, x.step, x.count) for x in found if x is not None}
    assert (items["s"], items["p"]) == ((64, 64, 1), (16, 32, 2))


def test_turns_of_parts_are_left_out_where_they_repeat() -> None:
    """Of the ring that borrows its place two handovers are a turn, of the other one."""
    parsed = Parsed(text())
    skips: list[Skip] = []
    Network(processes(parsed.op)).run({"m": MANY}, skips=skips)
    assert sum(skip.times for skip in skips) > MANY - 20


WRONG = {
    "scores over a part of P that is not awaited": (
        {"mma": f"{SCORES[0]} P:0 PV:0 {SCORES[1]} P:1 PV:1 P:2 PV:2 P:3 PV:3"},
        r"role mma takes turn 1 of ring s\[0\] in the place of turn 1 of ring p\[0\], which role rows may "
        "still fill",
    ),
    "scores over P that is awaited and not multiplied yet": (
        {"mma": f"{SCORES[0]} P:0 PV:0 P:1 {SCORES[1]} PV:1 P:2 PV:2 P:3 PV:3"},
        r"role mma takes turn 1 of ring s\[0\] in the place of turn 1 of ring p\[0\], which role mma may "
        "still read",
    ),
    "the first part of P over scores that are not read": (
        {"soft": SOFT.replace("read:0 place:0", "place:0 read:0")},
        r"role rows takes turn 0 of ring p\[0\] in the place of turn 0 of ring s\[0\], which role rows may "
        "still read",
    ),
    "the last part of P over scores that are not read": (
        {"soft": SOFT.replace("scores:1 read:1 place:2 place:3", "scores:1 place:2 place:3 read:1")},
        r"role rows takes turn 2 of ring p\[0\] in the place of turn 1 of ring s\[0\], which role rows may "
        "still read",
    ),
    "parts of P in another order": (
        {"soft": SOFT.replace("store:0 store:1", "store:1 store:0")},
        "hands over a slot of ring p that is out of turn",
    ),
    "a part of P that is never there": (
        {"soft": SOFT.replace("place:1", "").replace("store:1", "")},
        r"a wait by role mma for each commit of ring p\[0\] by role rows: .* mma waits for 4 slots of 3",
    ),
    "one part of keys for a tile": (
        {"mma": MMA.replace("take:1 QK:0,1", "").replace("back:1", "")},
        r"ring k\[0\]",
    ),
    "parts of keys handed back in another order": (
        {"mma": MMA.replace("back:0 full:0 back:1", "back:1 full:0 back:0")},
        "hands over a slot of ring k that is out of turn",
    ),
    "P that is awaited before its scores are there": (
        {"mma": MMA.replace("full:0", "").replace("P:1 PV:1", "P:1 PV:1 full:0")},
        r"role mma needs a full slot of ring p\[0\]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_roles_that_do_not_agree_about_parts(name: str) -> None:
    changed, message = WRONG[name]
    parsed = Parsed(text(**changed))
    with pytest.raises(VerifyError, match=message):
        prove(parsed.op)
