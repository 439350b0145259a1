"""Instances of a ring by their numbers: however a role spells one, its slots come in one order."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir, make_context
from attn_mlir.errors import VerifyError
from attn_mlir.lowering.state.instances import instances_of
from attn_mlir.validation.ws.kernels import copy_op, kernel, role, run

BF16 = ml_dtypes.bfloat16
TENSOR = "memref<?x64xbf16>"
RING = '  %ring = "ws.alloc_ring"() {label_name = "r"} : () -> !ring'
TYPES = '!t = !ws.tile<vector<64x64xbf16>, "shared">\n!ring = !ws.ring<!t, 2, {instances}>\n'
ARGUMENTS = [("x", "in", TENSOR, ("m", "")), ("y", "out", TENSOR, ("my", ""))]


def load(instance: str, slot: str, row: str) -> str:
    """A slot filled with 64 rows of x."""
    return f"""{slot} = "ws.acquire"(%ring, {instance}) : (!ring, i32) -> !t
    {copy_op("copy_in", "%x", slot, f"{row}, %c0", "0, 1", f"{TENSOR}, !t")}
    "ws.commit"({slot}) {{by = "copy_engine"}} : (!t) -> ()
    """


def store(instance: str, slot: str, row: str) -> str:
    """A slot written to 64 rows of y."""
    return f"""{slot} = "ws.wait"(%ring, {instance}) : (!ring, i32) -> !t
    {copy_op("copy_out", slot, "%y", f"{row}, %c0", "0, 1", f"!t, {TENSOR}")}
    "ws.release"({slot}) {{by = "copy_engine"}} : (!t) -> ()
    """


ROWS_AT = "%c128 = arith.constant 128 : i32\n    %none = arith.subi %c1, %c1 : i32\n    "


@pytest.mark.parametrize("seed", [None, 1])
def test_one_instance_by_three_names(seed: int | None) -> None:
    """Way 0 as the group, a constant and a difference; three tiles through two stages."""
    fill = load("%g", "%a", "%c0") + load("%c0", "%b", "%c64") + load("%none", "%c", "%c128")
    empty = store("%none", "%a", "%c0") + store("%g", "%b", "%c64") + store("%c0", "%c", "%c128")
    text = kernel(
        ARGUMENTS,
        RING + role("load", ROWS_AT + fill, first=0) + role("store", ROWS_AT + empty, first=1),
        types=TYPES.format(instances=1),
    )
    x = np.random.default_rng(0).standard_normal((192, 64)).astype(BF16)
    y = np.full_like(x, np.nan)
    run(text, x, y, seed=seed)
    assert (y == x).all()


def instances(body: str, groups: int) -> list[tuple[int, ...]]:
    text = kernel(
        ARGUMENTS,
        RING + role("load", ROWS_AT + body, first=0, warps=groups, groups=groups, lanes=32),
        types=TYPES.format(instances=2),
    )
    module = ir.Module.parse(text, make_context())
    (op,) = ir.get_ops_of_type(module, ws.KernelOp)
    return list(instances_of(op).values())


def test_instances_are_numbers_of_the_groups() -> None:
    other = "%other = arith.subi %c1, %g : i32\n"
    body = other + load("%g", "%a", "%c0") + load("%other", "%b", "%c0")
    assert instances(body, 2) == [(0, 1), (1, 0)]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            load("%g", "%a", "%c0") + load("%c0", "%b", "%c0"),
            r"names instances \[0, 0\] of ring r in the role's groups, another names \[0, 1\]",
        ),
        (
            f"scf.for %i = %c0 to %c1 step %c1 : i32 {{ {load('%i', '%a', '%c0')} }}",
            "expects an instance that is constant or the role's group",
        ),
        (load("%c64", "%a", "%c0"), r"expects one of the instances 0\.\.1 of ring r, got 64"),
    ],
)
def test_instances_that_one_piece_of_code_cannot_follow(body: str, message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        instances(body, 2)
