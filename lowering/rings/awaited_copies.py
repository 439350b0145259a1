"""Copies of chosen rows that the threads which issued them wait for: `ws.copy_rows` into slots that
`warps` or `threads` commit.

A barrier of another CTA cannot count copies of threads, so they are waited for before the commit,
which then arrives wherever the ring says. Copies into each slot are a group of their own
(`cp.async.commit_group`): a commit waits for its slot's, while those into slots that were acquired
since are under way.

```text
acquire a | copies, group | acquire b | copies, group | commit a: all but 1 group | commit b: all
```
A thread has the same 16 bytes of each 128-byte line of its rows. So a row is looked up once for all
lines, whose places are constants behind those of the first, in shared memory and in the tensor: an
instruction for each copy.
"""

from collections.abc import Sequence
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir, llvm, nvvm, scf
from attn_mlir.dialect.scalars import INT, compare, constant, i32, select
from attn_mlir.dialect.targets.limits import WARP_THREADS

from ..access.global_access import pointer_after
from ..access.values import shifted, thread_origin
from ..layouts.fragments import COLUMN, ROW, Layout, Scheme, units_of_rows
from ..layouts.shared import ATOM_ROWS, SWIZZLE_BYTES, UNIT_BYTES, line_elements, unit_elements
from ..state.handles import CopyGroup
from ..state.lowering import Lowering, element_pointer
from ..state.parameters import Stride
from .slot_users import slot_of

Value = Any
BY_BARRIER = "thread_copies"  # the agent of commits that a barrier counts


def is_awaited(op: ws.CopyRowsOp) -> bool:
    """Whether the threads that copy rows wait for them, rather than a barrier."""
    commits = [u.owner for u in slot_of(op.target).uses if isinstance(u.owner, ws.CommitOp)]
    return any(commit.by.value != BY_BARRIER for commit in commits)


def rows_of_threads(op: ws.CopyRowsOp, warps: int) -> Scheme:
    """Which rows of a line of the tile each thread copies."""
    bits = ws.element_bits(ws.TileType(op.target.type).element)
    return units_of_rows(warps, line_elements(bits), bits)


def copy_lines(low: Lowering, op: ws.CopyRowsOp) -> None:
    """Issues the copies of a tile, line by line for each row of a thread, as a group."""
    tile, element = low.tile(op.target), ws.TileType(op.target.type).element
    bits = ws.element_bits(element)
    line, (rows, columns) = line_elements(bits), tile.kind.shape
    warps = low.active.op.threads_per_group // WARP_THREADS
    layout = rows_of_threads(op, warps).layout([rows, line])
    column = shifted(thread_origin(low, layout, COLUMN), 0)
    first, left = shifted(thread_origin(low, layout, ROW), 0), tile.first_column // line
    unit = arith.DivUIOp(column, constant(unit_elements(bits))).result
    flipped = arith.XOrIOp(unit, arith.AndIOp(first, constant(ATOM_ROWS - 1)).result).result
    within = INT.add(INT.mul(first, SWIZZLE_BYTES), INT.mul(flipped, UNIT_BYTES))
    place = INT.add(tile.address, within)
    for number, row in enumerate(_rows(layout)):
        assert row % ATOM_ROWS == 0
        exists, source = _source(low, op, INT.add(first, row), column, number)
        size = select(exists, constant(UNIT_BYTES), constant(0))
        for part in range(-(-columns // line)):
            lines = (left + part) * tile.pitch + row
            if (part + 1) * line > columns:  # zeros behind the last column
                is_kept = compare("slt", column, columns - part * line)
                size = select(INT.both(exists, is_kept), constant(UNIT_BYTES), constant(0))
            nvvm.CpAsyncOp(
                low.shared_pointer(place, lines * SWIZZLE_BYTES),
                pointer_after(source, part * line, element),
                ir.IntegerAttr.get(i32(), UNIT_BYTES),
                ir.Attribute.parse("#nvvm<load_cache_modifier cg>"),
                cpSize=size,
            )
    nvvm.CpAsyncCommitGroupOp()
    low.active.copies.append(CopyGroup(slot_of(op.target), _conditions(op)))


def wait_for_copies(low: Lowering, commit: ws.CommitOp) -> None:
    """Waits for this role's copies into a slot, into those that are committed next to it, and into
    slots acquired before."""
    issued = low.active.copies
    slots = [other.slot for other in commits_together(commit)]
    own = [number for number, group in enumerate(issued) if group.slot in slots]
    if not own:
        return
    later = issued[own[-1] + 1 :]
    conditions = issued[own[-1]].conditions
    sure = [group for group in later if set(group.conditions) <= set(conditions)]
    nvvm.CpAsyncWaitGroupOp(len(sure))
    low.active.copies = later
    low.active.is_fenced = False


def commits_together(commit: ws.CommitOp) -> list[ws.CommitOp]:
    """A commit of a slot that threads have copied rows into, and such commits next to it, in order;
    else none.
    """
    found, is_own = list[ws.CommitOp](), False
    for op in commit.operation.block.operations:
        if isinstance(op, ws.CommitOp) and op.by == commit.by and _is_copied(op.slot):
            found.append(op)
            is_own |= op.operation == commit.operation
        elif is_own:
            return found
        else:
            found = []
    return found if is_own else []


def _is_copied(slot: Value) -> bool:
    return any(isinstance(user, ws.CopyRowsOp) for user in ws.users(slot))


def _rows(layout: Layout) -> Sequence[int]:
    """The rows of a thread, counted from its first one."""
    return list(dict.fromkeys(access.row for access in layout.accesses()))


def _source(
    low: Lowering, op: ws.CopyRowsOp, row: Value, column: Value, number: int
) -> tuple[Value, Value]:
    """Whether the tensor has the row that the region chooses, i1, and a pointer to this thread's
    unit of its first line.

    Args:
      row: of the tile.
      column: of the unit in a line.
      number: of the row among this thread's.
    """
    row_dim, column_dim = list[int](op.dims)
    entries = [low[entry].parts[number] for entry in op.entries]
    block = op.body.blocks[0]
    for argument, value in zip(block.arguments, [row, *entries], strict=True):
        low[argument] = value
    *body, last = block.operations
    low.lower_block(body)
    coords = [low[coord] for coord in op.coords]
    found = INT.add(coords[row_dim], low[last.value])
    exists = compare("ult", found, low.extent(op.source, row_dim))
    coords[row_dim] = constant(0)
    coords[column_dim] = INT.add(coords[column_dim], column)
    begin = element_pointer(low, op.source, coords)
    return exists, _rows_behind(low, op, begin, found)


def _rows_behind(low: Lowering, op: ws.CopyRowsOp, begin: Value, count: Value) -> Value:
    """A pointer some rows of the tensor behind another one; anywhere for a number below 0."""
    i64 = ir.IntegerType.get_signless(64)
    view = low.view(op.source)
    dim = view.dims[list[int](op.dims)[0]]
    step: Value = arith.ExtUIOp(i64, INT.mul(count, dim.step)).result
    stride = low.arguments.get(Stride(view.argument, dim.axis))
    if stride is not None:
        step = arith.MulIOp(step, stride).result
    element = ir.MemRefType(op.source.type).element_type
    size = arith.ConstantOp(i64, ir.IntegerAttr.get(i64, ws.element_bits(element) // 8)).result
    places = ir.DenseI32ArrayAttr.get([-2147483648])
    step = arith.MulIOp(step, size).result
    i8 = ir.IntegerType.get_signless(8)
    return llvm.GEPOp(begin.type, begin, [step], places, i8, 0).result


def _conditions(op: Any) -> tuple[tuple[Value, int], ...]:
    """The conditions of the branches that an operation stands in, and which side of each; of loops
    their index.
    """
    found: list[tuple[Value, int]] = []
    inner, around = op.operation, op.operation.parent
    while around is not None and around.name != ws.RoleOp.OPERATION_NAME:
        if isinstance(around.opview, scf.IfOp):
            sides = [list(region.blocks) for region in around.regions]
            side = next(n for n, blocks in enumerate(sides) if inner.block in blocks)
            found.append((around.opview.condition, side))
        elif len(arguments := inner.block.arguments):
            found.append((arguments[0], 0))
        inner, around = around, around.parent
    return tuple(found)
