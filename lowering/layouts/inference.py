"""Infers the layout of each fragment of a role from the operations that define and use it.

Operands and results of an element-wise operation share a layout. Reductions, broadcasts,
repetitions and masks link a layout to one derived from it: without an axis, of runs of columns, or
of a mask's words. Layouts that instructions fix (a load from tensor memory, the accumulator of a
product) are propagated first; fragments that these do not reach get a default by their extents. Two
instructions that fix one fragment in different ways are an error, as only operations made for it
move elements between threads.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import scf
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.dialect.targets.limits import HALF_ROWS, WARP_THREADS, WARPGROUP_WARPS

from .fragments import (
    AXES,
    COLUMN,
    ROW,
    Layout,
    Scheme,
    accumulator,
    pairs_of_rows,
    row_per_lane,
    row_per_thread,
)

FP8_BITS = 8  # elements that `ldmatrix` transposes in pairs
Value = Any
View = Callable[[Layout], Layout]

_RULES: dict[str, "Callable[[Constraints, Any], None]"] = {}


def constrains(
    operation: Any,
) -> "Callable[[Callable[[Constraints, Any], None]], Callable[[Constraints, Any], None]]":
    """Registers the decorated function as the layout rule of an operation class.

    An operation without a rule accepts any layout of its fragments.
    """

    def register(function: "Callable[[Constraints, Any], None]") -> Any:
        _RULES[operation.OPERATION_NAME] = function
        return function

    return register


@dataclass
class _Group:
    """Fragments that share one layout.

    Attributes:
      number: the group's number in its role.
      shape: extents of the fragments.
      first: the operation at which the first of them was found.
      fixed, preferred: layout schemes that operations demand or prefer, each with its operation.
      layout, scheme: the layout once it is known, and the scheme it comes from.
    """

    number: int
    shape: list[int]
    first: Any
    fixed: list[tuple[Scheme, Any]] = field(default_factory=list[tuple[Scheme, Any]])
    preferred: tuple[Scheme, Any] | None = None
    layout: Layout | None = None
    scheme: Scheme | None = None


@dataclass(frozen=True)
class _Link:
    """The layout of `derived` is `view` of that of `whole`."""

    whole: Value
    derived: Value
    view: View
    op: Any


@dataclass(frozen=True)
class _Permutation:
    """The layout of `moved` follows from that of `value`, by functions of layouts and schemes."""

    op: Any
    value: Value
    moved: Value
    layout: View
    scheme: Callable[[Scheme], Scheme]


class Constraints:
    """Collects the constraints that a role's operations put on layouts, and solves them.

    Attributes:
      warps: warps of a group of the role.
    """

    def __init__(self, role: ws.RoleOp):
        _, count = role.warp_range
        self.warps = count // role.group_count
        self._groups: list[_Group] = []
        self._numbers: dict[Value, int] = {}
        self._owners: list[int] = []  # for each group the one it was merged into, or itself
        self._links: list[_Link] = []
        self._permutations: list[_Permutation] = []
        for op in ws.inside(role):
            values = [*op.operation.operands, *op.operation.results]
            for value in values:
                if isinstance(value.type, ws.FragmentType):
                    self._meet(value, op)
            rule = _RULES.get(op.operation.name)
            if rule is not None:
                rule(self, op)

    def _meet(self, value: Value, op: Any) -> _Group:
        """The group of a fragment; a new one for a new fragment."""
        if value not in self._numbers:
            number = self._numbers[value] = len(self._groups)
            self._owners.append(number)
            self._groups.append(_Group(number, ws.FragmentType(value.type).shape, op))
        return self._group(value)

    def _owner(self, number: int) -> int:
        while self._owners[number] != number:
            number = self._owners[number]
        return number

    def _group(self, value: Value) -> _Group:
        return self._groups[self._owner(self._numbers[value])]

    def same(self, op: Any, values: Sequence[Value]) -> None:
        """Demands that fragments share one layout: merges their groups."""
        root, *others = (self._meet(value, op) for value in values)
        for merged in others:
            if merged.number != root.number:
                root.fixed += merged.fixed
                root.preferred = root.preferred or merged.preferred
                self._owners[merged.number] = root.number

    def view(self, op: Any, whole: Value, derived: Value, view: View) -> None:
        """Demands that the layout of `derived` is `view` of the layout of `whole`."""
        self._links.append(_Link(whole, derived, view, op))

    def transposes(self, op: Any, value: Value, turned: Value) -> None:
        """The layout of either fragment is that of the other with its axes exchanged."""
        self._permutations += [
            _Permutation(op, *pair, Layout.transposed, Scheme.transposed)
            for pair in ((value, turned), (turned, value))
        ]

    def interleave_axis(self, op: Any, value: Value, interleaved: Value, axis: int) -> None:
        """The layout of either fragment is that of the other, interleaved along an axis or back."""
        layout: View = partial(Layout.interleaved, axis=axis)
        scheme = partial(Scheme.interleaved, axis=axis)
        self._permutations += [
            _Permutation(op, value, interleaved, layout, scheme),  # three times is not at all
            _Permutation(
                op, interleaved, value, lambda x: layout(layout(x)), lambda x: scheme(scheme(x))
            ),
        ]

    def fixes(self, op: Any, value: Value, scheme: Scheme) -> None:
        """Demands a scheme: the operation works with no other layout."""
        self._meet(value, op).fixed.append((scheme, op))

    def prefers(self, op: Any, value: Value, scheme: Scheme) -> None:
        """Prefers a scheme, if nothing fixes another layout; the operation works with any."""
        group = self._meet(value, op)
        group.preferred = group.preferred or (scheme, op)

    def solve(self) -> Mapping[Value, Layout]:
        """The layout of every fragment.

        Raises:
          VerifyError: a fragment gets two layouts, or its extents fit none; on the operation.
        """
        groups = [g for number, g in enumerate(self._groups) if self._owners[number] == number]
        for group in groups:
            for scheme, op in group.fixed:
                _assign(group, _whole(group, scheme, op), scheme, op)
        for group in groups:
            if group.preferred is not None and group.layout is None:
                scheme, op = group.preferred
                _assign(group, _whole(group, scheme, op), scheme, op)
        self._propagate()
        derived = {self._group(link.derived).number for link in self._links}
        for group in sorted(groups, key=lambda group: group.number in derived):
            if group.layout is None:
                scheme, layout = self._default(group)
                _assign(group, layout, scheme, group.first)
                self._propagate()
        solution: dict[Value, Layout] = {}
        for value in self._numbers:
            layout = self._group(value).layout
            assert layout is not None
            solution[value] = layout
        return solution

    def _propagate(self) -> None:
        """Propagates layouts over links to a fixed point, first from whole to derived fragments."""
        is_news = True
        while is_news:
            is_news = False
            for link in self._links:
                is_news |= self._down(link)
            for permutation in self._permutations:
                group = self._group(permutation.value)
                if group.layout is not None and group.scheme is not None:
                    derived = permutation.layout(group.layout), permutation.scheme(group.scheme)
                    is_news |= _assign(self._group(permutation.moved), *derived, permutation.op)
            is_news = is_news or any(self._up(link) for link in self._links)

    def _down(self, link: _Link) -> bool:
        whole = self._group(link.whole)
        if whole.layout is None or whole.scheme is None:
            return False
        layout = link.view(whole.layout)
        return _assign(self._group(link.derived), layout, whole.scheme, link.op)

    def _up(self, link: _Link) -> bool:
        whole, derived = self._group(link.whole), self._group(link.derived)
        if whole.layout is not None or derived.scheme is None:
            return False
        layout = _whole(whole, derived.scheme, link.op)
        return _assign(whole, layout, derived.scheme, link.op)

    def _default(self, group: _Group) -> tuple[Scheme, Layout]:
        """The layout for a group's extents if nothing fixes one."""
        rows, scheme = group.shape[0], accumulator(self.warps)
        if rows == self.warps * WARP_THREADS:
            scheme = row_per_thread(self.warps)
            return scheme, _whole(group, scheme, group.first)
        block_rows, block_columns = (scheme.block.extent(axis) for axis in AXES)
        if rows == block_rows and not _misfit(group, scheme):
            return scheme, _whole(group, scheme, group.first)
        if len(group.shape) == self.warps == 1 and rows % WARP_THREADS == 0:
            scheme = row_per_lane(1)
            return scheme, scheme.layout([rows, 1]).without(COLUMN)
        if len(group.shape) == 1 and rows % block_columns == 0:
            return scheme, scheme.layout([block_rows, rows]).without(ROW)
        if group.shape[1:] == [self.warps * WARP_THREADS]:
            scheme = row_per_thread(self.warps).transposed()
            return scheme, _whole(group, scheme, group.first)
        raise op_error(
            group.first,
            f"expects a fragment of {self.warps * WARP_THREADS} rows, one per thread, or of "
            f"{block_rows}, in {block_columns} columns or a multiple, got {group.shape}",
        )


def _assign(group: _Group, layout: Layout, scheme: Scheme, op: Any) -> bool:
    """Sets a group's layout; returns whether it had none. Raises VerifyError if it had another."""
    if group.layout is None:
        group.layout, group.scheme = layout, scheme
        return True
    if group.layout.merged != layout.merged:
        assert group.scheme is not None
        raise op_error(
            op,
            f"expects a fragment of {group.shape} as {scheme.name}, where another operation "
            f"has it as {group.scheme.name}; store it and load it again",
        )
    return False


def _misfit(group: _Group, scheme: Scheme) -> str:
    """Extents that a scheme expects instead of a group's ([rows] if of rank 1); "" if they fit."""
    columns = [scheme.block.extent(COLUMN)]
    return scheme.misfit(group.shape if len(group.shape) == 2 else group.shape + columns)


def _whole(group: _Group, scheme: Scheme, op: Any) -> Layout:
    """The layout that a scheme has for a group's extents; raises VerifyError if they do not fit."""
    misfit = _misfit(group, scheme)
    if misfit:
        raise op_error(op, f"expects {misfit} of {scheme.name}, got a fragment of {group.shape}")
    if len(group.shape) == 2:
        return scheme.layout(group.shape)
    return scheme.layout([*group.shape, scheme.block.extent(COLUMN)]).without(COLUMN)


def layouts_of(role: ws.RoleOp) -> Mapping[Value, Layout]:
    """The layout of every fragment of a role.

    Raises:
      VerifyError: a fragment gets two layouts, or its extents fit none; on the operation.
    """
    return Constraints(role).solve()


@constrains(ws.MapOp)
def _map(c: Constraints, op: ws.MapOp) -> None:
    c.same(op, [*op.inputs, op.fragment])


@constrains(ws.PinOp)
def _pin(c: Constraints, op: ws.PinOp) -> None:
    c.same(op, [op.fragment, op.pinned])


@constrains(ws.BehindOp)
def _behind(c: Constraints, op: ws.BehindOp) -> None:
    c.same(op, [op.fragment, op.behind])


@constrains(ws.Exp2Op)
def _exp2(c: Constraints, op: ws.Exp2Op) -> None:
    c.same(op, [op.exponent, op.fragment])


@constrains(ws.KeepOp)
def _keep(c: Constraints, op: ws.KeepOp) -> None:
    c.same(op, [op.fragment, op.kept])
    c.view(op, op.fragment, op.bits, Layout.mask)


@constrains(ws.ReduceOp)
def _reduce(c: Constraints, op: ws.ReduceOp) -> None:
    c.same(op, [op.init, op.totals])
    c.view(op, op.fragment, op.totals, partial(Layout.without, axis=op.axis))


@constrains(ws.ReduceGroupOp)
def _reduce_group(c: Constraints, op: ws.ReduceGroupOp) -> None:
    c.same(op, [op.init, op.totals])
    c.view(op, op.fragment, op.totals, partial(Layout.without, axis=op.axis))


@constrains(ws.TurnOp)
def _turn(c: Constraints, op: ws.TurnOp) -> None:
    c.transposes(op, op.fragment, op.turned)


@constrains(ws.InterleaveOp)
def _interleave(c: Constraints, op: ws.InterleaveOp) -> None:
    c.interleave_axis(op, op.fragment, op.interleaved, op.axis)
    kind = ws.FragmentType(op.fragment.type)
    if op.axis == ROW and ws.element_bits(kind.element) == FP8_BITS:
        c.prefers(op, op.fragment, pairs_of_rows(c.warps))


@constrains(ws.FoldOp)
def _fold(c: Constraints, op: ws.FoldOp) -> None:
    c.same(op, [op.init, op.totals])
    columns = ws.FragmentType(op.totals.type).shape[1]
    c.view(op, op.fragment, op.totals, partial(Layout.narrowed, columns=columns))


@constrains(ws.BroadcastOp)
def _broadcast(c: Constraints, op: ws.BroadcastOp) -> None:
    c.view(op, op.fragment, op.line, partial(Layout.without, axis=op.axis))


def _of_tensor_memory(c: Constraints, op: Any, tile: ws.TileType) -> None:
    """A tile in tensor memory fixes the layout of the fragment that is loaded or stored."""
    if tile.space == "tensor":
        make = accumulator if tile.shape[0] == HALF_ROWS else row_per_thread
        c.fixes(op, op.fragment, make(WARPGROUP_WARPS))


@constrains(ws.LoadOp)
def _load(c: Constraints, op: ws.LoadOp) -> None:
    _of_tensor_memory(c, op, ws.TileType(op.source.type))


@constrains(ws.StoreOp)
def _store(c: Constraints, op: ws.StoreOp) -> None:
    _of_tensor_memory(c, op, ws.TileType(op.target.type))


def _carried(c: Constraints, op: Any, *lists: Sequence[Value]) -> None:
    for values in zip(*lists, strict=True):
        if isinstance(values[0].type, ws.FragmentType):
            c.same(op, values)


@constrains(scf.ForOp)
def _for(c: Constraints, op: Any) -> None:
    block = op.region.blocks[0]
    *_, last = block.operations
    arguments, results = list(block.arguments)[1:], list(op.operation.results)
    _carried(c, op, list(op.initArgs), arguments, list(last.operation.operands), results)


@constrains(scf.IfOp)
def _if(c: Constraints, op: Any) -> None:
    for region in op.operation.regions:
        if len(region.blocks):
            *_, last = region.blocks[0].operations
            _carried(c, op, list(last.operation.operands), list(op.operation.results))
