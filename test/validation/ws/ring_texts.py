"""Kernels of roles that hand over slots of rings, as text: for proofs of rings, not to run."""

from __future__ import annotations

import itertools
import re

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir, make_context
from attn_mlir.passes.analysis.protocol import sums
from attn_mlir.passes.analysis.protocol.counts import Counting
from attn_mlir.passes.analysis.protocol.simulate import Network
from attn_mlir.passes.analysis.protocol.skeleton import processes
from attn_mlir.passes.analysis.protocol.trace import Trace, precedes

HEADER = """
!t = !ws.tile<vector<8x64xbf16>, "shared">
!ring = !ws.ring<!t, {stages}, {instances}>
"ws.kernel"() ({{
^bb0(%x: memref<?x?x4xbf16>):
  %a = "ws.alloc_ring"() {{label_name = "a"{producers}}} : () -> !ring
  %b = {b}
  %c = {c}
{roles}
}}) {{sym_name = "k", arg_names = ["x"], arg_roles = ["in"], arg_dims = [["m", "n", ""]],
    cluster = {ctas} : i64}} : () -> ()
"""
ROLE = """
  "ws.role"() ({{
  ^bb0(%g: i32):
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %c2 = arith.constant 2 : i32
    %c128 = arith.constant 128 : i32
    %m = "ws.extent"(%x) {{dim = 0 : i64}} : (memref<?x?x4xbf16>) -> i32
    %n = "ws.extent"(%x) {{dim = 1 : i64}} : (memref<?x?x4xbf16>) -> i32
    %four = "ws.extent"(%x) {{dim = 2 : i64}} : (memref<?x?x4xbf16>) -> i32
    {body}
  }}) {{label_name = "{label}", warps = array<i32: {first}, {warps}>, groups = {groups} : i64,
      lanes = {lanes} : i64, registers = 0 : i64}} : () -> ()
"""


def role(
    label: str, body: str, *, first: int, warps: int = 1, groups: int = 1, lanes: int = 1
) -> str:
    """A role that does `body`."""
    return ROLE.format(label=label, body=body, first=first, warps=warps, groups=groups, lanes=lanes)


NUMBERS = itertools.count()  # slots are named apart


def fill(ring: str, by: str = "copy_engine", instance: str = "%c0") -> str:
    """A slot of a ring is acquired and committed."""
    slot = f"%s{next(NUMBERS)}"
    return f"""{slot} = "ws.acquire"(%{ring}, {instance}) : (!ring, i32) -> !t
    "ws.commit"({slot}) {{by = "{by}"}} : (!t) -> ()
    """


def use(ring: str, by: str = "threads", instance: str = "%c0") -> str:
    """A slot of a ring is waited for and released."""
    slot = f"%s{next(NUMBERS)}"
    return f"""{slot} = "ws.wait"(%{ring}, {instance}) : (!ring, i32) -> !t
    "ws.release"({slot}) {{by = "{by}"}} : (!t) -> ()
    """


TAKEN = re.compile(r'(%s\d+) = "ws\.(?:acquire|wait)".*')
USED = r'\g<0> "ws.load"(\1) : (!t) -> !ws.frag<vector<8x64xbf16>>'


def _ring(name: str, is_inside: bool) -> str:
    """The declaration of a ring, which may lie in the slots of `a`."""
    if is_inside:
        return f'"ws.alloc_inside"(%a) {{label_name = "{name}"}} : (!ring) -> !ring'
    return f'"ws.alloc_ring"() {{label_name = "{name}"}} : () -> !ring'


class Kernel:
    """A parsed kernel, with its rings by label; holds the module, which nothing else does.

    Rings of those named in `inside` lie in the slots of `a`, and then all roles use their slots.
    """

    def __init__(
        self,
        *roles: str,
        stages: int = 1,
        instances: int = 1,
        producers: str = "",
        ctas: int = 1,
        inside: str = "",
    ):
        stated = f", {producers}" if producers else ""
        others = {name: _ring(name, name in inside) for name in "bc"}
        body = "".join(roles)
        if inside:
            body = TAKEN.sub(USED, body)
        text = HEADER.format(
            stages=stages, instances=instances, roles=body, producers=stated, ctas=ctas, **others
        )
        self.module = ir.Module.parse(text, make_context())
        (self.op,) = ir.get_ops_of_type(self.module, ws.KernelOp)
        declared = self.op.body.blocks[0].operations
        self.rings = {op.label: op.ring for op in declared if isinstance(op, ws.AllocRingOp)}
        self.members = processes(self.op)

    def count(self, kind: str, ring: str = "a", instance: int = 0) -> str:
        """How often the first process does a step, as text."""
        found = Counting(self.op, self.members[0]).steps()
        return sums.text(found[self.rings[ring], instance, kind])

    def run(self, **sizes: int) -> Trace:
        return Network(self.members).run({"m": 0, "n": 0, **sizes})

    def precedes(self, first: str, second: str, **sizes: int) -> bool:
        return precedes(self.run(**sizes), self.rings[first], self.rings[second])
