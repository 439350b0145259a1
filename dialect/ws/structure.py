"""The operations for a kernel and its roles, and for run-time sizes."""

from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

from attn_mlir.dialect._mlir import I32, Pure, ext, ir

from .cluster import CLUSTER, cta_count, is_ranks
from .dialect import WS, fail

ARGUMENT_ROLES = ("in", "out", "inout", "scalar")
DEFAULTS = "ws.defaults"


def _strings(attribute: Any) -> list[str]:
    return [ir.StringAttr(item).value for item in attribute]


def _are_strings(attribute: Any) -> bool:
    return isinstance(attribute, ir.ArrayAttr) and all(
        isinstance(item, ir.StringAttr) for item in attribute
    )


class KernelOp(WS.Operation, name="kernel", traits=[ir.NoTerminatorTrait]):
    """One GPU kernel.

    The region has one block, whose arguments are the tensors (memrefs with any strides, but 1 for
    the last dimension) and scalars of the call. It declares rings and buffers, then roles.

    Attributes:
      sym_name: entry name of the kernel.
      arg_names: a name per argument.
      arg_roles: `in`, `out`, `inout` or `scalar` per argument; an `inout` tensor is read and
        written, such as a workspace, and keeps its elements from one launch to the next.
      arg_dims: for each argument, a list with the name of each dimension's run-time size, "" if
        static.
      ws.defaults (optional): default values, floats, of scalars by name.
      cluster (optional): CTAs of a cluster, which share work tiles; 1 by default.

    Memory effects: those of its roles. Hardware: that of what it holds.

    Example:
      "ws.kernel"() ({
      ^bb0(%x: memref<?x64xbf16>, %scale: f32):
        "ws.role"() ({
        ^bb0(%group: i32):
          "ws.barrier"() : () -> ()
        })
          {label_name = "rows", warps = array<i32: 0, 4>,
           groups = 1 : i64, lanes = 32 : i64, registers = 0 : i64}
          : () -> ()
      })
        {sym_name = "k", arg_names = ["x", "scale"],
         arg_roles = ["in", "scalar"], arg_dims = [["m", ""], []]}
        : () -> ()
    """

    OPTIONAL_ATTRIBUTES = MappingProxyType({DEFAULTS: ir.DictAttr, CLUSTER: ir.IntegerAttr})

    sym_name: ir.StringAttr
    arg_names: ir.ArrayAttr
    arg_roles: ir.ArrayAttr
    arg_dims: ir.ArrayAttr
    body: ext.Region

    @staticmethod
    def verify_region_invariants(op: "KernelOp") -> bool:
        """Checks for one block, attributes for each argument, and roles that do not share warps."""
        if len(op.body.blocks) != 1:
            return fail(op, f"expects one block, got {len(op.body.blocks)}")
        arguments = list(op.body.blocks[0].arguments)
        for label in ("arg_names", "arg_roles", "arg_dims"):
            if len(op.attributes[label]) != len(arguments):
                count = len(op.attributes[label])
                return fail(op, f"expects {len(arguments)} entries in {label}, got {count}")
        if not all(map(_are_strings, (op.arg_names, op.arg_roles, *op.arg_dims))):
            return fail(op, "expects strings in arg_names, arg_roles and the lists of arg_dims")
        names = op.names
        if len(set(names)) < len(names):
            return fail(op, f"expects distinct arg_names, got {', '.join(names)}")
        for name, argument, role, dims in zip(names, arguments, op.io_roles, op.dims, strict=True):
            if role not in ARGUMENT_ROLES:
                allowed = ", ".join(ARGUMENT_ROLES)
                return fail(op, f"expects argument roles of {allowed}, got {role}")
            is_tensor = isinstance(argument.type, ir.MemRefType)
            if is_tensor == (role == "scalar"):
                return fail(op, f"argument of type {argument.type} cannot have role {role}")
            rank = ir.MemRefType(argument.type).rank if is_tensor else 0
            if len(dims) != rank:
                return fail(op, f"expects {rank} names in arg_dims, got {len(dims)}")
            for number, size in enumerate(dims):
                if argument.type.is_dynamic_dim(number) != bool(size):
                    kind = "static" if size else "run-time"
                    return fail(
                        op,
                        f"expects names for run-time dimensions, {name} has {kind} dimension "
                        f"{number} and name '{size}'",
                    )
        for entry in op.attributes[DEFAULTS] if DEFAULTS in op.attributes else ():
            if not isinstance(entry.attr, ir.FloatAttr):
                return fail(op, f"expects floats in {DEFAULTS}, got {entry.attr} for {entry.name}")
        if (count := cta_count(op)) < 1:
            return fail(op, f"expects a cluster of at least 1 CTA, got {count}")
        taken: dict[int, str] = {}
        for role in op.roles():
            first, count = role.warp_range
            for warp in range(first, first + count):
                if warp in taken:
                    return fail(
                        op, f"warp {warp} belongs to role {taken[warp]} and to role {role.label}"
                    )
                taken[warp] = role.label
        return True

    def roles(self) -> "list[RoleOp]":
        """The kernel's roles, in order."""
        return [op for op in self.body.blocks[0].operations if isinstance(op, RoleOp)]

    @property
    def names(self) -> list[str]:
        """Argument names."""
        return _strings(self.arg_names)

    @property
    def io_roles(self) -> list[str]:
        """`in`, `out`, `inout` or `scalar` per argument."""
        return _strings(self.arg_roles)

    @property
    def dims(self) -> list[list[str]]:
        """Names of the run-time sizes of each argument's dimensions."""
        return [_strings(ir.ArrayAttr(item)) for item in self.arg_dims]


class RoleOp(WS.Operation, name="role", traits=[ir.NoTerminatorTrait]):
    """The code of one set of warps, which runs concurrently with the other roles.

    The warps are divided into `groups` of equal size; the region's block has one i32 argument, the
    number of the group that the warp belongs to. With `lanes` = 1 one elected thread of the role's
    only warp runs the region.

    Attributes:
      label_name: the role's name in messages, traces and maps.
      warps: first warp and number of warps.
      groups: number of groups, which run the same code on different instances of rings and buffers.
      lanes: threads per warp that run the region, 32 or 1.
      registers: registers per thread, a multiple of 8 in 24..256; 0 keeps those of the launch.
      ranks (optional): the CTAs of a cluster that run this role; by default all.

    Memory effects: those of its region. Hardware: any; a register budget needs sm_90 on.

    Example:
      "ws.kernel"() ({
      ^bb0:
        "ws.role"() ({
        ^bb0(%group: i32):
          "ws.barrier"() : () -> ()
        })
          {label_name = "softmax", warps = array<i32: 0, 8>,
           groups = 2 : i64, lanes = 32 : i64, registers = 192 : i64}
          : () -> ()
      }) {sym_name = "k", arg_names = [], arg_roles = [], arg_dims = []} : () -> ()
    """

    ATTRIBUTE_CLASSES = MappingProxyType({"warps": ir.DenseI32ArrayAttr})
    OPTIONAL_ATTRIBUTES = MappingProxyType({"ranks": ir.DenseI32ArrayAttr})

    label_name: ir.StringAttr
    warps: Any
    groups: ir.IntegerAttr
    lanes: ir.IntegerAttr
    registers: ir.IntegerAttr
    body: ext.Region

    @staticmethod
    def verify_region_invariants(op: "RoleOp") -> bool:
        """Checks for an enclosing kernel, one i32 block argument, and attributes in range."""
        if not isinstance(op.operation.parent.opview, KernelOp):
            return fail(op, "expects ws.kernel as parent")
        blocks = op.body.blocks
        if len(blocks) != 1 or [str(a.type) for a in blocks[0].arguments] != ["i32"]:
            return fail(op, "expects one block with one i32 argument, the group")
        if len(op.warps) != 2 or op.warps[0] < 0 or op.warps[1] < 1:
            return fail(op, "expects warps of first and count, count at least 1")
        if op.group_count < 1 or op.warps[1] % op.group_count:
            return fail(op, f"expects groups to divide {op.warps[1]} warps, got {op.group_count}")
        if op.lane_count not in (1, 32):
            return fail(op, f"expects lanes of 1 or 32, got {op.lane_count}")
        if op.lane_count == 1 and op.warps[1] != 1:
            return fail(op, f"expects one warp when lanes is 1, got {op.warps[1]}")
        budget = op.register_count
        if budget and (budget % 8 or not 24 <= budget <= 256):
            return fail(op, f"expects registers of 0 or a multiple of 8 in 24..256, got {budget}")
        count = cta_count(op)
        if not op.ranks or not is_ranks(op.ranks, count):
            return fail(op, f"expects ranks below {count} that ascend, got {op.ranks}")
        return True

    @property
    def label(self) -> str:
        """The role's name."""
        return self.label_name.value

    @property
    def warp_range(self) -> tuple[int, int]:
        """First warp and number of warps."""
        return self.warps[0], self.warps[1]

    @property
    def ranks(self) -> list[int]:
        """The CTAs of a cluster that run this role."""
        attributes = self.operation.attributes
        if "ranks" not in attributes:
            return list(range(cta_count(self)))
        return list(ir.DenseI32ArrayAttr(attributes["ranks"]))

    @property
    def group_count(self) -> int:
        """Number of groups."""
        return self.groups.value

    @property
    def lane_count(self) -> int:
        """Threads per warp that run the region."""
        return self.lanes.value

    @property
    def register_count(self) -> int:
        """Registers per thread; 0 keeps those of the launch."""
        return self.registers.value

    @property
    def threads_per_group(self) -> int:
        """Threads of one group that run the region: the arrivals of a handover by threads."""
        return self.warps[1] // self.group_count * self.lane_count


class ExtentOp(WS.Operation, name="extent", traits=[Pure]):
    """Run-time size of dimension `dim` of a tensor argument, as i32.

    Operands:
      source: tensor argument.

    Attributes:
      dim: the dimension.

    Memory effects: none. Hardware: any.

    Example:
      %keys = "ws.extent"(%k) {dim = 1 : i64} : (memref<?x?x4x64xbf16>) -> i32
    """

    source: ext.Operand[Any]
    dim: ir.IntegerAttr
    size: ext.Result[I32] = ext.infer_result()

    @staticmethod
    def verify_invariants(op: "ExtentOp") -> bool:
        """Checks that `source` is a memref and `dim` one of its dimensions."""
        if not isinstance(op.source.type, ir.MemRefType):
            return fail(op, f"expects a memref, got {op.source.type}")
        rank = ir.MemRefType(op.source.type).rank
        if not 0 <= op.dim.value < rank:
            return fail(op, f"expects dim in 0..{rank - 1}, got {op.dim.value}")
        return True


def inside(op: Any) -> Iterator[Any]:
    """The operations nested in an operation, at any depth, in the order of the text."""
    for region in op.operation.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield inner
                if len(inner.operation.regions):
                    yield from inside(inner)
