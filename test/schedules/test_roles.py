"""A list of roles: which warps each gets, and what reaches `ws.role`."""

from __future__ import annotations

from collections.abc import Sequence

from attn_mlir.dialect._mlir import ir, make_context
from attn_mlir.schedules import emit as b


def emitted(
    roles: Sequence[b.Role], *, has_budgets: bool = True
) -> list[tuple[str, int, int, int]]:
    """The label, first warp, number of warps and registers of each role of a verified kernel."""
    with make_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            scale = b.Argument("scale", "scalar", ir.F32Type.get(), ())
            kernel = b.declare_kernel("k", [scale])
        with ir.InsertionPoint(kernel.body.blocks[0]):
            b.emit_roles(roles, has_budgets=has_budgets)
        assert module.operation.verify()
        return [(role.label, *role.warp_range, role.register_count) for role in kernel.roles()]


def nothing(_: b.Value) -> None:
    """No body."""


def test_roles_follow_one_another() -> None:
    roles = [b.Role("attend", nothing, warps=8, groups=2), b.Role("leave", nothing, lanes=1)]
    assert emitted([*roles, b.Role("load", nothing, warps=2)]) == [
        ("attend", 0, 8, 0),
        ("leave", 8, 1, 0),
        ("load", 9, 2, 0),
    ]


def test_a_role_may_begin_a_warpgroup() -> None:
    widen = b.Role("widen", nothing, warps=4, begins_warpgroup=True)
    assert emitted([b.Role("load", nothing), widen])[1] == ("widen", 4, 4, 0)
    assert emitted([b.Role("softmax", nothing, warps=4), widen])[1] == ("widen", 4, 4, 0)


def test_registers_need_budgets_of_the_target() -> None:
    roles = [b.Role("attend", nothing, warps=4, registers=216)]
    assert emitted(roles) == [("attend", 0, 4, 216)]
    assert emitted(roles, has_budgets=False) == [("attend", 0, 4, 0)]


def test_a_body_gets_the_number_of_its_group() -> None:
    numbers: list[str] = []
    emitted([b.Role("attend", lambda number: numbers.append(str(number.type)), warps=2, groups=2)])
    assert numbers == ["i32"]
