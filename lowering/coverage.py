"""What the lowering covers: refused here by name are legal `ws` operations that it has no code for.

The register layout gives each thread one row, so fragments live in groups of four warps and have
128 rows. Sources of the other numbers: PTX ISA, tcgen05.mma (shapes), tcgen05.ld (.num),
barrier, and CUDA driver API, cuTensorMapEncodeTiled (box extents).
"""

from collections.abc import Callable, Iterator
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.passes.diagnostics import op_error
from attn_mlir.passes.target import WARP_THREADS, WARPGROUP_WARPS, Target

from .layouts import ATOM_ROWS, ELEMENT_CODES, MMA_K_ELEMENTS, UNIT_BYTES

FRAGMENT_ROWS = WARPGROUP_WARPS * WARP_THREADS
MMA_ROWS = 128
MMA_COLUMN_STEP, MMA_MAX_COLUMNS = 8, 256
MAX_BOX_ROWS = 256
SHARED_BITS = 16  # elements of shared tiles with columns
REGISTER_BITS = 32


def check_kernel(kernel: ws.KernelOp, target: Target) -> None:
    """Refuses a kernel that cannot be lowered, before anything is emitted.

    Raises:
      VerifyError: on the operation, with what was got and what is allowed.
    """
    roles = kernel.roles()
    if not roles:
        raise op_error(kernel, "expects at least one role")
    for role in roles:
        end = sum(role.warp_range)
        if end > target.warps_per_cta:
            raise op_error(
                role,
                f"expects warps below {target.warps_per_cta}, got {role.warp_range[0]}..{end - 1}",
            )
        for op in _inside(role):
            _check(role, op)


def _inside(op: Any) -> Iterator[Any]:
    for region in op.operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield inner
                yield from _inside(inner)


def _check(role: ws.RoleOp, op: Any) -> None:
    values = [*op.operation.operands, *op.operation.results]
    for value in values:
        if isinstance(value.type, ws.FragmentType):
            _check_fragment(role, op, ws.FragmentType(value.type))
    check = _CHECKS.get(op.operation.name)
    if check is not None:
        check(role, op)


def _check_fragment(role: ws.RoleOp, op: Any, kind: ws.FragmentType) -> None:
    _check_warpgroups(role, op, "a fragment")
    if kind.shape[0] != FRAGMENT_ROWS:
        raise op_error(
            op, f"expects a fragment of {FRAGMENT_ROWS} rows, one per thread, got {kind}"
        )


def _check_warpgroups(role: ws.RoleOp, op: Any, what: str) -> None:
    first, count = role.warp_range
    per_group = count // role.group_count
    if role.lane_count == 1 or per_group != WARPGROUP_WARPS or first % WARPGROUP_WARPS:
        got = f"{per_group} from warp {first}" if role.lane_count > 1 else "one thread"
        raise op_error(
            op,
            f"expects {what} in a role whose groups are {WARPGROUP_WARPS} warps from a multiple "
            f"of {WARPGROUP_WARPS}, got {got}",
        )


def _check_barrier(role: ws.RoleOp, op: ws.BarrierOp) -> None:
    _check_warpgroups(role, op, "a barrier")


def _check_mma(_: ws.RoleOp, op: ws.MmaOp) -> None:
    a, d = ws.TileType(op.a.type), ws.TileType(op.d.type)
    if str(a.element) not in ELEMENT_CODES:
        raise op_error(op, f"expects a and b of {' or '.join(ELEMENT_CODES)}, got {a.element}")
    (rows, k), columns = a.shape, d.shape[1]
    if rows != MMA_ROWS:
        raise op_error(op, f"expects M of {MMA_ROWS}, got {rows}")
    if columns % MMA_COLUMN_STEP or columns > MMA_MAX_COLUMNS:
        raise op_error(
            op, f"expects N a multiple of {MMA_COLUMN_STEP} to {MMA_MAX_COLUMNS}, got {columns}"
        )
    if k % MMA_K_ELEMENTS:
        raise op_error(op, f"expects K a multiple of {MMA_K_ELEMENTS}, got {k}")


def _check_tile_access(op: Any, tile: ws.TileType, first_column: int) -> None:
    bits = ws.element_bits(tile.element)
    if tile.space == "tensor":
        words = tile.shape[1] * bits % (FRAGMENT_CHUNK * bits) // REGISTER_BITS
        whole = tile.shape[1] * bits % REGISTER_BITS == 0
        if bits not in (SHARED_BITS, REGISTER_BITS) or not whole or words == 1 or words & words - 1:
            raise op_error(
                op,
                f"expects columns of 16 or 32 bits in registers by 32 columns and a rest of 2, 4, "
                f"8 or 16 registers, got {tile}",
            )
    elif len(tile.shape) == 2:
        step = UNIT_BYTES * 8 // SHARED_BITS
        if bits != SHARED_BITS:
            raise op_error(op, f"expects shared columns of {SHARED_BITS} bits, got {tile}")
        if tile.shape[1] % step or first_column % step:
            raise op_error(
                op,
                f"expects shared columns by {step}, got {tile.shape[1]} from column {first_column}",
            )


FRAGMENT_CHUNK = 32  # columns in one vector of registers, see `context.CHUNK`


def _first_column(tile: Any) -> int:
    """Columns to the left of a tile in its slot, views looked through as far as they count."""
    owner = tile.owner
    if isinstance(owner, ws.ColumnsOp):
        return _first_column(owner.source) + owner.first.value
    return 0


def _check_load(_: ws.RoleOp, op: ws.LoadOp) -> None:
    tile = ws.TileType(op.source.type)
    if tile.space == "shared" and len(tile.shape) == 2:
        raise op_error(op, f"expects tensor memory or shared rows, got {tile}")
    _check_tile_access(op, tile, _first_column(op.source))


def _check_store(_: ws.RoleOp, op: ws.StoreOp) -> None:
    _check_tile_access(op, ws.TileType(op.target.type), _first_column(op.target))


def _check_store_global(_: ws.RoleOp, op: ws.StoreGlobalOp) -> None:
    kind = ws.FragmentType(op.fragment.type)
    if len(kind.shape) == 2 and kind.shape[1] * ws.element_bits(kind.element) % (UNIT_BYTES * 8):
        raise op_error(op, f"expects rows of whole {UNIT_BYTES}-byte units, got {kind}")
    _check_unit_stride(op, op.target, kind.shape)


def _check_unit_stride(op: Any, tensor: Any, shape: list[int]) -> None:
    last = ir.MemRefType(tensor.type).rank - 1
    column_dim = list[int](op.dims)[-1]
    if len(shape) == 2 and column_dim != last:
        raise op_error(
            op, f"expects columns along dimension {last}, the dense one, got {column_dim}"
        )


def _check_copy(op: Any, tensor: Any, tile: ws.TileType) -> None:
    if len(tile.shape) != 2 or ws.element_bits(tile.element) != SHARED_BITS:
        raise op_error(
            op, f"expects a tile of two dimensions and {SHARED_BITS}-bit elements, got {tile}"
        )
    _check_unit_stride(op, tensor, tile.shape)
    rows = tile.shape[0]
    if rows % ATOM_ROWS or rows > MAX_BOX_ROWS:
        raise op_error(op, f"expects rows a multiple of {ATOM_ROWS} to {MAX_BOX_ROWS}, got {rows}")


def _check_tma_load(_: ws.RoleOp, op: ws.TmaLoadOp) -> None:
    _check_copy(op, op.source, ws.TileType(op.target.type))


def _check_tma_store(_: ws.RoleOp, op: ws.TmaStoreOp) -> None:
    _check_copy(op, op.target, ws.TileType(op.source.type))


_CHECKS: "dict[str, Callable[[ws.RoleOp, Any], None]]" = {
    ws.BarrierOp.OPERATION_NAME: _check_barrier,
    ws.LoadOp.OPERATION_NAME: _check_load,
    ws.MmaOp.OPERATION_NAME: _check_mma,
    ws.StoreGlobalOp.OPERATION_NAME: _check_store_global,
    ws.StoreOp.OPERATION_NAME: _check_store,
    ws.TmaLoadOp.OPERATION_NAME: _check_tma_load,
    ws.TmaStoreOp.OPERATION_NAME: _check_tma_store,
}
