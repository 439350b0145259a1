"""The registry of checks, and conditions that several of them share.

A check refuses a valid `ws` operation for which the lowering has no code. Each family of lowerings
registers its own with `legality_check`. A table says which feature of a target an operation needs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.dialect.targets.features import Feature
from attn_mlir.dialect.targets.limits import WARPGROUP_WARPS, Target

from ..layouts import Layout, line_elements
from .tensors import view_of

# Allowed element widths of tiles with columns; narrow elements share a register or cell.
COLUMN_BITS = (8, 16, 32)
MMA_MAX_COLUMNS = 256  # N of one instruction; PTX ISA, wgmma and tcgen05.mma
FP8_BITS = 8  # element width for which only some products accept b as kn

Layouts = Mapping[Any, Layout]  # element types of fragments


@dataclass(frozen=True)
class OpContext:
    """The context of an operation under check: its role and the layouts of fragments."""

    role: ws.RoleOp
    layouts: Layouts

    def check_inout(self, op: Any, tensor: Any) -> None:
        """Raises VerifyError if the tensor, which an operation reads and writes, is not `inout`."""
        kernel = self.role.operation.parent.opview
        argument = view_of(kernel, tensor).argument
        role = kernel.io_roles[kernel.names.index(argument)]
        if role != "inout":
            raise op_error(op, f"expects an argument of role inout, {argument} is of role {role}")


Check = Callable[[OpContext, Any], None]  # raises VerifyError


_CHECKS: dict[str, list[Check]] = {}
_NEEDS = {
    operation.OPERATION_NAME: feature
    for operation, feature in (
        (ws.MmaOp, Feature.TENSOR_MEMORY),
        (ws.ProductOp, Feature.WARPGROUP_PRODUCTS),
        (ws.SettleOp, Feature.WARPGROUP_PRODUCTS),
        (ws.CopyInOp, Feature.COPY_ENGINE),
        (ws.CopyOutOp, Feature.COPY_ENGINE),
        (ws.ReduceOutOp, Feature.COPY_ENGINE),
        (ws.PrefetchBoxOp, Feature.COPY_ENGINE),
        (ws.GatherInOp, Feature.GATHER_COPIES),
        (ws.CopyAcrossOp, Feature.CLUSTERS),
        (ws.ClaimOp, Feature.LAUNCH_CONTROL),
    )
}


def legality_check(operation: Any) -> Callable[[Check], Check]:
    """Registers the decorated function as a legality check of an operation class."""

    def register(check: Check) -> Check:
        _CHECKS.setdefault(operation.OPERATION_NAME, []).append(check)
        return check

    return register


def check_features(op: Any, target: Target) -> None:
    """Raises VerifyError if the target lacks a feature that an operation needs."""
    if lacking := target.missing(features_for(op)):
        raise op_error(op, f"needs {lacking}, {target.chip} has none")


def features_for(op: Any) -> tuple[Feature, ...]:
    """The features that an operation needs."""
    if isinstance(op, ws.DotOp):
        bits = ws.element_bits(ws.FragmentType(op.a.type).element)
        is_fp8 = bits == FP8_BITS
        return (Feature.NARROW_WARP_PRODUCTS if is_fp8 else Feature.WARP_PRODUCTS,)
    if isinstance(op, ws.RoleOp):
        return (Feature.REGISTER_BUDGETS,) if op.register_count else ()
    feature = _NEEDS.get(op.operation.name)
    return () if feature is None else (feature,)


def check_operation(context: OpContext, op: Any) -> None:
    """Runs the checks of an operation's class, in the order of their registration."""
    for check in _CHECKS.get(op.operation.name, ()):
        check(context, op)


def check_warpgroups(context: OpContext, op: Any, what: str) -> None:
    """Raises VerifyError if a group of the role is not the four warps of one warpgroup."""
    role = context.role
    first, count = role.warp_range
    per_group = count // role.group_count
    if role.lane_count == 1 or per_group != WARPGROUP_WARPS or first % WARPGROUP_WARPS:
        got = f"{per_group} from warp {first}" if role.lane_count > 1 else "one thread"
        raise op_error(
            op,
            f"expects {what} in a role whose groups are {WARPGROUP_WARPS} warps from a multiple "
            f"of {WARPGROUP_WARPS}, got {got}",
        )


def check_one_thread(context: OpContext, op: Any) -> None:
    """Raises VerifyError if the role has several lanes."""
    role = context.role
    if role.lane_count != 1:
        raise op_error(op, f"expects a role with one lane, got {role.lane_count} in {role.label}")


def cut_from(tile: Any) -> tuple[int, Any]:
    """A tile's first column in the slot or buffer that contains it, and that slot or buffer."""
    owner = tile.owner
    if isinstance(owner, ws.RowsOp | ws.ColumnsAtOp):
        return cut_from(owner.source)
    if not isinstance(owner, ws.ColumnsOp):
        return 0, tile
    column, whole = cut_from(owner.source)
    return column + owner.first.value, whole


def check_whole(op: Any, tile: Any) -> None:
    """Checks that a tile for an engine begins at the first column of its slot."""
    column, _ = cut_from(tile)
    if column and ws.TileType(tile.type).space == "shared":
        raise op_error(op, f"expects a shared tile from its column 0 on, got one from {column}")


def check_line(op: Any, tile: Any) -> None:
    """Checks that a tile for the tensor core begins with a line of columns of its slot."""
    column, _ = cut_from(tile)
    kind = ws.TileType(tile.type)
    line = line_elements(ws.element_bits(kind.element), kind.line_bytes)
    if column % line and kind.space == "shared":
        raise op_error(
            op, f"expects a shared tile from a multiple of {line} columns on, got one from {column}"
        )


def check_all_rows(op: Any, tile: Any) -> None:
    """Checks that an operand has all rows of its tile, as descriptors have no other pitch."""
    rows, pitch = ws.TileType(tile.type).shape[0], ws.pitch_rows(tile)
    if rows != pitch:
        raise op_error(op, f"expects all rows of a shared tile, got {rows} of {pitch}")


def check_dense_columns(op: Any, tensor: Any) -> None:
    """Raises VerifyError if columns do not run along the last dimension."""
    last = ir.MemRefType(tensor.type).rank - 1
    column_dim = list[int](op.dims)[-1]
    if column_dim != last:
        raise op_error(op, f"expects columns along the last dimension, {last}, got {column_dim}")
