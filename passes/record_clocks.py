"""`ws-record-clocks`: makes a kernel record clock readings of one of its roles.

The kernel gets one more output, `clocks` [coordinates of the work tile, groups, entries] of i32.
Each group of the role writes its readings of the cycle counter:

| entry | when |
| --- | --- |
| 0 | the work tile begins |
| 1 | the first product outside of loops may begin: its operands have arrived |
| 2 | the first loop begins |
| 3 + 2 i | loop i has ended; entry 4 + 2 i is its number of iterations |
| the last but one | before the output slot is acquired, outside of loops |
| the last | the output slot is committed |

Loops are the outermost ones. Nothing is written within them, so that an iteration takes as long as
in the kernel without clocks, apart from other register assignments. A role without a product
outside of loops writes entry 1 as entry 2, and one without an output there writes the last two at
the end of the work tile, as roles that only copy do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir, scf
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.dialect.scalars import constant, i32
from attn_mlir.errors import VerifyError
from attn_mlir.passes.infrastructure.registry import register

CLOCKS = "clocks"  # name of the output
BEGIN, OPERANDS, LOOPS = 0, 1, 2  # entries; those of loops follow, then two of the output
FIXED_ENTRIES = 5


def entry_count(loops: int) -> int:
    """Entries of a group for a role with this number of loops."""
    return FIXED_ENTRIES + 2 * loops


@register
@dataclass(frozen=True)
class RecordClocks:
    """Adds the output `clocks` to each kernel that has the role.

    Attributes:
      role: the role that is recorded.
    """

    name: ClassVar[str] = "ws-record-clocks"
    role: str = "attend"

    def run(self, module: Any) -> None:
        """Changes kernels; their other operations stay as they are.

        Raises:
          VerifyError: no kernel has the role, it has no loop over work tiles, or that loop no
            inner one.
        """
        roles = [
            (kernel, role)
            for kernel in ir.get_ops_of_type(module, ws.KernelOp)
            for role in kernel.roles()
            if role.label == self.role
        ]
        if not roles:
            raise VerifyError(f"'builtin.module' op holds no kernel with a role {self.role}")
        for kernel, role in roles:
            _record(kernel, role)


def _record(kernel: ws.KernelOp, role: ws.RoleOp) -> None:
    """Adds the output and the stores to it."""
    tiles = next((op for op in ws.inside(role) if isinstance(op, ws.TilesOp)), None)
    if tiles is None:
        raise op_error(role, "expects a loop over work tiles, whose times are recorded")
    outer_ops = [op for op in ws.inside(tiles) if not _is_nested(op)]  # of inner loops
    products = [op for op in outer_ops if isinstance(op, ws.ProductOp | ws.MmaOp | ws.DotOp)]
    loops = [op for op in outer_ops if isinstance(op, scf.ForOp)]
    outputs = [op for op in outer_ops if isinstance(op, ws.AcquireOp)]
    commits = [op for op in outer_ops if isinstance(op, ws.CommitOp)]
    if not loops:
        raise op_error(tiles, "expects a loop in a role whose times are recorded")
    coordinates = list(tiles.body.blocks[0].arguments)
    clocks = _argument(kernel, len(coordinates), role.group_count, entry_count(len(loops)))
    position = [*coordinates, role.body.blocks[0].arguments[0]]

    def put(value: Any, entry: int) -> None:
        ws.StoreEntryOp(value, clocks, [*position, constant(entry)])

    def read(entry: int) -> None:
        put(ws.ClockOp().cycles, entry)

    with ir.InsertionPoint.at_block_begin(tiles.body.blocks[0]):
        read(BEGIN)
    with ir.InsertionPoint((products or loops)[0]):
        read(OPERANDS)
    with ir.InsertionPoint(loops[0]):
        read(LOOPS)
    for number, loop in enumerate(loops):
        with ir.InsertionPoint.after(loop):
            read(LOOPS + 1 + 2 * number)
            iterations = arith.SubIOp(loop.upperBound, loop.lowerBound).result
            iterations = arith.MaxSIOp(iterations, constant(0)).result
            put(iterations, LOOPS + 2 + 2 * number)
    last = entry_count(len(loops)) - 1
    end = ir.InsertionPoint(tiles.body.blocks[0])
    with ir.InsertionPoint(outputs[-1]) if outputs else end:
        read(last - 1)
    with ir.InsertionPoint.after(commits[-1]) if commits else end:
        read(last)


def _is_nested(loop: Any) -> bool:
    """Whether a loop lies in another loop."""
    parent = loop.operation.parent
    while not isinstance(parent.opview, ws.TilesOp):
        if isinstance(parent.opview, scf.ForOp | scf.WhileOp):
            return True
        parent = parent.operation.parent
    return False


def _argument(kernel: ws.KernelOp, coordinates: int, groups: int, entries: int) -> Any:
    """The new output of the kernel."""
    if CLOCKS in kernel.names:
        raise op_error(kernel, f"has an argument {CLOCKS} already")
    dims = [f"{CLOCKS}_{axis}" for axis in range(coordinates)]
    dynamic = ir.ShapedType.get_dynamic_size()
    kind = ir.MemRefType.get([*[dynamic] * coordinates, groups, entries], i32())
    _append(kernel, "arg_names", ir.StringAttr.get(CLOCKS))
    _append(kernel, "arg_roles", ir.StringAttr.get("out"))
    names = [ir.StringAttr.get(name) for name in (*dims, "", "")]
    _append(kernel, "arg_dims", ir.ArrayAttr.get(names))
    return kernel.body.blocks[0].add_argument(kind, kernel.operation.location)


def _append(kernel: ws.KernelOp, name: str, value: Any) -> None:
    entries: Sequence[Any] = list(ir.ArrayAttr(kernel.operation.attributes[name]))
    kernel.operation.attributes[name] = ir.ArrayAttr.get([*entries, value])
