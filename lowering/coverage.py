"""What the lowering covers: refused here by name are legal `ws` operations that it has no code for.

Sources of the numbers: PTX ISA, tcgen05.mma (shapes), tcgen05.ld (.num), barrier, and CUDA driver
API, cuTensorMapEncodeTiled (box extents).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, ir
from attn_mlir.passes.check_plan import check_plan
from attn_mlir.passes.infrastructure.diagnostics import op_error
from attn_mlir.passes.plan_memory import BY_EVERY_THREAD
from attn_mlir.passes.target.limits import WARP_THREADS, WARPGROUP_WARPS, Target

from .layouts import (
    ATOM_ROWS,
    COLUMN,
    ELEMENT_CODES,
    PART_ELEMENTS,
    UNIT_BYTES,
    Layout,
    line_elements,
    mma_k,
    unit_elements,
    warpgroup,
)
from .layouts.inference import layouts_of
from .layouts.reductions import crosses_warps
from .tensors import MAX_MAP_RANK

MMA_ROWS = 128
MMA_COLUMN_STEP, MMA_MAX_COLUMNS = 8, 256
MAX_BOX_ROWS = 256
COLUMN_BITS = (8, 16, 32)  # of tiles with columns; narrow ones share a register or a cell
REGISTER_BITS = 32
NARROW_BITS, NARROW_MN_STEP = 8, 16  # of N where b has such elements and lies as kn


Layouts = Mapping[Any, Layout]  # of the fragments of a kernel


def check_kernel(kernel: ws.KernelOp, target: Target) -> Layouts:
    """Refuses a kernel that cannot be lowered, before anything is emitted.

    Returns:
      The layout of each of its fragments.

    Raises:
      VerifyError: on the operation, with what was got and what is allowed.
    """
    check_plan(kernel, target)
    roles = kernel.roles()
    if not roles:
        raise op_error(kernel, "expects at least one role")
    for op in kernel.body.blocks[0].operations:
        if isinstance(op, ws.AllocRingOp):
            _check_ring(op)
    layouts: dict[Any, Layout] = {}
    for role in roles:
        end = sum(role.warp_range)
        if end > target.warps_per_cta:
            raise op_error(
                role,
                f"expects warps below {target.warps_per_cta}, got {role.warp_range[0]}..{end - 1}",
            )
        for op in _inside(role):
            _check_lanes(role, op)
            if isinstance(op, ws.ProductOp) and target.accumulator != "registers":
                raise op_error(op, f"needs products into registers, {target.chip} has none")
        layouts.update(layouts_of(role))
        for op in _inside(role):
            check = _CHECKS.get(op.operation.name)
            if check is not None:
                check(Site(role, layouts), op)
            if isinstance(op, ws.ClaimOp) and not target.has_launch_control:
                raise op_error(op, f"needs cluster launch control, {target.chip} has none")
    return layouts


def _inside(op: Any) -> Iterator[Any]:
    for region in op.operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield inner
                yield from _inside(inner)


@dataclass(frozen=True)
class Site:
    """What is known where an operation stands: its role, and the layouts of fragments."""

    role: ws.RoleOp
    layouts: Layouts


def _check_lanes(role: ws.RoleOp, op: Any) -> None:
    if role.lane_count == 1 and any(
        isinstance(value.type, ws.FragmentType)
        for value in (*op.operation.operands, *op.operation.results)
    ):
        raise op_error(op, "expects a fragment in a role of whole warps, got one thread")


def _check_warpgroups(site: Site, op: Any, what: str) -> None:
    role = site.role
    first, count = role.warp_range
    per_group = count // role.group_count
    if role.lane_count == 1 or per_group != WARPGROUP_WARPS or first % WARPGROUP_WARPS:
        got = f"{per_group} from warp {first}" if role.lane_count > 1 else "one thread"
        raise op_error(
            op,
            f"expects {what} in a role whose groups are {WARPGROUP_WARPS} warps from a multiple "
            f"of {WARPGROUP_WARPS}, got {got}",
        )


def _check_one_thread(site: Site, op: Any) -> None:
    role = site.role
    if role.lane_count != 1:
        raise op_error(op, f"expects a role with one lane, got {role.lane_count} in {role.label}")


def _check_barrier(site: Site, op: ws.BarrierOp) -> None:
    if site.role.threads_per_group != WARP_THREADS:
        _check_warpgroups(site, op, "a barrier of several warps")


def _check_handover(site: Site, op: ws.CommitOp | ws.ReleaseOp) -> None:
    if op.by.value not in BY_EVERY_THREAD:
        _check_one_thread(site, op)


def _check_commit(site: Site, op: ws.CommitOp) -> None:
    _check_handover(site, op)
    if op.by.value == "thread_copies":
        for user in ws.users(op.slot):
            if isinstance(user, ws.StoreOp | ws.CopyInOp | ws.ClaimOp):
                name = user.operation.name
                raise op_error(
                    op, f"by thread_copies expects a slot that ws.copy_rows alone fills, got {name}"
                )


def _check_ring(op: ws.AllocRingOp) -> None:
    """The barrier of a slot is armed for one kind of producer."""
    for use in op.ring.uses:
        if isinstance(use.owner, ws.AcquireOp):
            commits = [u.owner for u in use.owner.slot.uses if isinstance(u.owner, ws.CommitOp)]
            agents = sorted({commit.by.value for commit in commits})
            if len(agents) > 1:
                raise op_error(
                    op, f"expects commits of a slot by one agent, got {', '.join(agents)}"
                )


def _parts(tile: Any) -> tuple[int, Any]:
    """Columns to the left of a tile in what it has been cut from, and that."""
    owner = tile.owner
    if isinstance(owner, ws.RowsOp):
        return _parts(owner.source)
    if not isinstance(owner, ws.ColumnsOp):
        return 0, tile
    left, whole = _parts(owner.source)
    return left + owner.first.value, whole


def _check_whole(op: Any, tile: Any) -> None:
    """The tensor core and the copy engine start at the front of a shared tile."""
    left, _ = _parts(tile)
    if left and ws.TileType(tile.type).space == "shared":
        raise op_error(op, f"expects a shared tile from its column 0 on, got one from {left}")


def _check_view(_: Site, op: ws.ViewOp) -> None:
    _check_whole(op, op.source)


def _check_rows(_: Site, op: ws.RowsOp) -> None:
    first = ws.known_first_row(op)
    if first is not None and first % ATOM_ROWS:
        raise op_error(op, f"expects a first row in {ATOM_ROWS}s, got {first}")


def _check_operand(op: Any, tile: Any) -> None:
    """Descriptors go by the rows of the operand, not by those of a tile that it is part of."""
    _check_whole(op, tile)
    rows, pitch = ws.TileType(tile.type).shape[0], ws.pitch_rows(tile)
    if rows != pitch:
        raise op_error(op, f"expects all rows of a shared tile, got {rows} of {pitch}")


def _check_mma(site: Site, op: ws.MmaOp) -> None:
    _check_one_thread(site, op)
    for tile in (op.a, op.b):
        _check_operand(op, tile)
    a, d = ws.TileType(op.a.type), ws.TileType(op.d.type)
    if str(a.element) not in ELEMENT_CODES:
        raise op_error(op, f"expects a and b of {' or '.join(ELEMENT_CODES)}, got {a.element}")
    (rows, k), columns = a.shape, d.shape[1]
    if rows != MMA_ROWS:
        raise op_error(op, f"expects M of {MMA_ROWS}, got {rows}")
    transposed = op.b_layout.value == "kn" and ws.element_bits(a.element) == NARROW_BITS
    step = NARROW_MN_STEP if transposed else MMA_COLUMN_STEP
    if columns % step or columns > MMA_MAX_COLUMNS:
        raise op_error(op, f"expects N a multiple of {step} to {MMA_MAX_COLUMNS}, got {columns}")
    step = mma_k(ws.element_bits(a.element))
    if k % step:
        raise op_error(op, f"expects K a multiple of {step}, got {k}")


def _check_product(site: Site, op: ws.ProductOp) -> None:
    _check_warpgroups(site, op, "a product")
    for operand in (op.a, op.b):
        if isinstance(operand.type, ws.TileType):
            _check_operand(op, operand)
    element = ws.TileType(op.b.type).element
    if str(element) not in ELEMENT_CODES:
        raise op_error(op, f"expects a and b of {' or '.join(ELEMENT_CODES)}, got {element}")
    rows, columns = ws.FragmentType(op.sums.type).shape
    if rows != warpgroup.ROWS:
        raise op_error(op, f"expects M of {warpgroup.ROWS}, got {rows}")
    if columns > MMA_MAX_COLUMNS:
        raise op_error(op, f"expects N of at most {MMA_MAX_COLUMNS}, got {columns}")
    bits, b_layout = ws.element_bits(element), op.b_layout.value
    k = ws.TileType(op.b.type).shape[b_layout == "nk"]
    if k % mma_k(bits):
        raise op_error(op, f"expects K a multiple of {mma_k(bits)}, got {k}")
    if bits == NARROW_BITS and b_layout != "nk":
        raise op_error(op, f"expects b of {bits} bits as nk, got {b_layout}")


def _check_tensor_access(site: Site, op: Any, tile: ws.TileType, left: int) -> None:
    _check_warpgroups(site, op, "a fragment of tensor memory")
    bits = ws.element_bits(tile.element)
    if bits not in COLUMN_BITS:
        raise op_error(op, f"expects tensor-memory columns of 8, 16 or 32 bits, got {tile}")
    registers, odd = divmod(tile.shape[1] % PART_ELEMENTS * bits, REGISTER_BITS)
    if odd or left * bits % REGISTER_BITS:
        raise op_error(op, f"expects columns that fill registers, got {tile} from column {left}")
    if registers == 1 or registers & registers - 1:
        raise op_error(
            op,
            f"expects columns in {PART_ELEMENTS}s and a rest of 0, 2, 4, 8 or 16 registers, "
            f"got {tile}",
        )


def _check_shared_access(op: Any, tile: ws.TileType, left: int, layout: Layout) -> None:
    if len(tile.shape) == 1:
        return
    bits = ws.element_bits(tile.element)
    if bits not in COLUMN_BITS:
        raise op_error(op, f"expects shared columns of 8, 16 or 32 bits, got {tile}")
    step = unit_elements(bits)
    spans = [digit.count * digit.step for _, digit in layout.moves(COLUMN)]
    from_step = max([step, *spans])
    if tile.shape[1] % step or left % from_step:
        raise op_error(op, f"expects shared columns in {step}s, got {tile} from column {left}")


def _check_load(site: Site, op: ws.LoadOp) -> None:
    tile, left = ws.TileType(op.source.type), _parts(op.source)[0]
    if tile.space == "tensor":
        _check_tensor_access(site, op, tile, left)
    else:
        _check_shared_access(op, tile, left, site.layouts[op.fragment])


def _check_store(site: Site, op: ws.StoreOp) -> None:
    tile, left = ws.TileType(op.target.type), _parts(op.target)[0]
    if tile.space == "tensor":
        _check_tensor_access(site, op, tile, left)
    else:
        _check_shared_access(op, tile, left, site.layouts[op.fragment])


def _check_reduce(site: Site, op: ws.ReduceOp) -> None:
    element = ws.FragmentType(op.fragment.type).element
    if not isinstance(element, ir.F32Type):
        raise op_error(op, f"expects elements of f32, got {element}")
    if crosses_warps(site.layouts[op.fragment], op.axis):
        raise op_error(op, "expects a reduction over what one warp holds")


def _check_any(site: Site, op: ws.AnyOp) -> None:
    if not site.layouts[op.rows].is_single:
        raise op_error(op, "expects a condition per row, got one per column")


def _check_limit(op: Any, tensor: Any) -> None:
    """The dimension that ends early is the one that rows run along, and a map has room for it."""
    owner = tensor.owner
    if not isinstance(owner, ws.LimitOp):
        return
    first, rank = list[int](op.dims)[0], ir.MemRefType(tensor.type).rank
    if owner.dim.value != first:
        raise op_error(op, f"expects a limit of dim {first}, got one of {owner.dim.value}")
    if not isinstance(op, ws.StoreGlobalOp) and rank >= MAX_MAP_RANK:
        raise op_error(op, f"expects a limited tensor of at most 4 dimensions, got {rank}")


def _check_store_global(_: Site, op: ws.StoreGlobalOp) -> None:
    _check_limit(op, op.target)
    kind = ws.FragmentType(op.fragment.type)
    if len(kind.shape) == 2 and kind.shape[1] * ws.element_bits(kind.element) % (UNIT_BYTES * 8):
        raise op_error(op, f"expects rows of whole {UNIT_BYTES}-byte units, got {kind}")
    if len(kind.shape) == 2:
        _check_dense_columns(op, op.target)


def _check_dense_columns(op: Any, tensor: Any) -> None:
    last = ir.MemRefType(tensor.type).rank - 1
    column_dim = list[int](op.dims)[-1]
    if column_dim != last:
        raise op_error(op, f"expects columns along the last dimension, {last}, got {column_dim}")


def _check_copy(site: Site, op: Any, tensor: Any, tile: Any) -> None:
    _check_one_thread(site, op)
    _check_limit(op, tensor)
    kind = ws.TileType(tile.type)
    if len(kind.shape) != 2 or ws.element_bits(kind.element) not in COLUMN_BITS:
        raise op_error(
            op, f"expects a tile of two dimensions and 8, 16 or 32-bit elements, got {kind}"
        )
    _check_dense_columns(op, tensor)
    rows = kind.shape[0]
    if rows % ATOM_ROWS or rows > MAX_BOX_ROWS:
        raise op_error(op, f"expects rows a multiple of {ATOM_ROWS} to {MAX_BOX_ROWS}, got {rows}")
    left, whole = _parts(tile)
    columns, all_columns = kind.shape[1], ws.TileType(whole.type).shape[1]
    line = line_elements(ws.element_bits(kind.element))
    ends_apart = columns % line and left + columns < all_columns
    if left % line or ends_apart:
        raise op_error(
            op,
            f"expects columns in {line}s, a line of 128 bytes each, got {left}..{left + columns} "
            f"of {all_columns}",
        )


def _check_copy_in(site: Site, op: ws.CopyInOp) -> None:
    _check_copy(site, op, op.source, op.target)
    slot = op.target
    while isinstance(slot.owner, ws.ViewOp | ws.ColumnsOp | ws.RowsOp):
        slot = slot.owner.source
    if not isinstance(slot.owner, ws.AcquireOp):
        raise op_error(op, "expects a slot from ws.acquire, whose barrier counts the bytes")
    _check_counted(op, slot)


def _check_counted(op: Any, slot: Any) -> None:
    """The slot is handed over by its bytes, and not before all of them are asked for."""
    for commit in (use.owner for use in slot.uses if isinstance(use.owner, ws.CommitOp)):
        if commit.by.value != "copy_engine":
            raise op_error(
                op, f"expects a slot that is committed by copy_engine, got {commit.by.value}"
            )
        if _stands_before(commit, op):
            raise op_error(op, "expects a slot that has not been committed")


def _stands_before(first: Any, second: Any) -> bool:
    """Whether an operation or what it is nested in stands before another in a block; operations in
    two branches of one `scf.if` do not."""
    around: list[Any] = []
    op = first.operation
    while op.parent is not None:
        around.append(op)
        op = op.parent
    op = second.operation
    while op.parent is not None:
        for other in around:
            if other.block == op.block:
                return other != op and other.is_before_in_block(op)
        op = op.parent
    return False


def _check_copy_rows(site: Site, op: ws.CopyRowsOp) -> None:
    role, kind = site.role, ws.TileType(op.target.type)
    if role.lane_count == 1:
        raise op_error(op, "expects a role of whole warps, got one thread")
    bits = ws.element_bits(kind.element)
    if bits not in COLUMN_BITS:
        raise op_error(op, f"expects elements of 8, 16 or 32 bits, got {kind.element}")
    left, slot = _parts(op.target)[0], op.target
    step = unit_elements(bits)
    if kind.shape[1] % step or left % step:
        raise op_error(op, f"expects shared columns in {step}s, got {kind} from column {left}")
    units, threads = kind.shape[0] * kind.shape[1] // step, role.threads_per_group
    if units % threads:
        raise op_error(
            op, f"expects a multiple of {threads} units of {UNIT_BYTES} bytes, as many as threads "
            f"of the group, got {units} in {kind}",
        )  # fmt: skip
    while isinstance(slot.owner, ws.ViewOp | ws.ColumnsOp | ws.RowsOp):
        slot = slot.owner.source
    commits = [use.owner for use in slot.uses if isinstance(use.owner, ws.CommitOp)]
    if not isinstance(slot.owner, ws.AcquireOp) or any(
        commit.by.value != "thread_copies" for commit in commits
    ):
        raise op_error(op, "expects a slot from ws.acquire that is committed by thread_copies")
    _check_limit(op, op.source)
    _check_dense_columns(op, op.source)
    _check_units_of_rows(op, kind, step)


def _check_units_of_rows(op: ws.CopyRowsOp, kind: ws.TileType, step: int) -> None:
    """Columns are whole units of a row, known without running the kernel."""
    tensor, column_dim = ir.MemRefType(op.source.type), list[int](op.dims)[-1]
    first = op.coords[column_dim].owner
    begin = ir.IntegerAttr(first.value).value if isinstance(first, arith.ConstantOp) else None
    if begin is None or begin < 0 or begin % step:
        got = "a value that is computed" if begin is None else begin
        raise op_error(op, f"expects a constant first column, a multiple of {step}, got {got}")
    end = begin + kind.shape[1]
    if tensor.is_dynamic_dim(column_dim) or tensor.get_dim_size(column_dim) < end:
        raise op_error(op, f"expects at least {end} columns of static extent, got {tensor}")
    if tensor.get_dim_size(column_dim) % step:
        raise op_error(op, f"expects rows of whole {UNIT_BYTES}-byte units, got {tensor}")


def _check_copy_out(site: Site, op: ws.CopyOutOp) -> None:
    """A box is of whole lines: what a line has beyond the tile has to lie outside the tensor."""
    _check_copy(site, op, op.target, op.source)
    kind, tensor = ws.TileType(op.source.type), ir.MemRefType(op.target.type)
    columns, line = kind.shape[1], line_elements(ws.element_bits(kind.element))
    last = tensor.rank - 1
    if columns % line and (tensor.is_dynamic_dim(last) or columns < tensor.get_dim_size(last)):
        raise op_error(
            op,
            f"expects columns in {line}s, a line of 128 bytes each, or all that the tensor has, "
            f"got {columns} of {tensor}",
        )


def _check_claim(site: Site, op: ws.ClaimOp) -> None:
    _check_one_thread(site, op)
    _check_counted(op, op.slot)


_CHECKS: "dict[str, Callable[[Site, Any], None]]" = {
    ws.AnyOp.OPERATION_NAME: _check_any,
    ws.BarrierOp.OPERATION_NAME: _check_barrier,
    ws.ClaimOp.OPERATION_NAME: _check_claim,
    ws.CommitOp.OPERATION_NAME: _check_commit,
    ws.CopyRowsOp.OPERATION_NAME: _check_copy_rows,
    ws.LoadOp.OPERATION_NAME: _check_load,
    ws.MmaOp.OPERATION_NAME: _check_mma,
    ws.ProductOp.OPERATION_NAME: _check_product,
    ws.ReduceOp.OPERATION_NAME: _check_reduce,
    ws.RowsOp.OPERATION_NAME: _check_rows,
    ws.ReleaseOp.OPERATION_NAME: _check_handover,
    ws.StoreGlobalOp.OPERATION_NAME: _check_store_global,
    ws.StoreOp.OPERATION_NAME: _check_store,
    ws.CopyInOp.OPERATION_NAME: _check_copy_in,
    ws.CopyOutOp.OPERATION_NAME: _check_copy_out,
    ws.ViewOp.OPERATION_NAME: _check_view,
}
