"""The closed forms of the masks as code: folded by MLIR, they give what Python computes."""

import itertools

import pytest

from attn_mlir.dialect._mlir import ir, make_context, passmanager
from attn_mlir.dialect.attn.masks import INTS, MASKS, Mask
from attn_mlir.dialect.scalars import IntOps


def folded(mask: Mask, row0: int, sq: int, sk: int) -> list[int]:
    """Emits tile_range (blocks of 128 rows, tiles of 64) and column_range, and folds them."""
    with make_context(), ir.Location.unknown():
        module = ir.Module.parse("func.func @f() -> () { func.return }")
        function = module.body.operations[0]
        ops = IntOps()
        with ir.InsertionPoint.at_block_terminator(function.regions[0].blocks[0]):
            row, queries, keys = (ops.const(value) for value in (row0, sq, sk))
            values = [
                *mask.tile_range(ops, row, 128, queries, keys, 64),
                *mask.column_range(ops, row, queries, keys),
            ]
            ir.Operation.create("test.use", operands=values)
        module.context.allow_unregistered_dialects = True
        passmanager.PassManager.parse("builtin.module(canonicalize)").run(module.operation)
        use = list(function.regions[0].blocks[0].operations)[-2]
        assert use.name == "test.use"
        return [ir.IntegerAttr(operand.owner.attributes["value"]).value for operand in use.operands]


@pytest.mark.parametrize("mask", [mask() for mask in MASKS], ids=lambda mask: mask.keyword)
def test_emitted_formulas_are_the_formulas(mask: Mask):
    for row0, sq, sk in itertools.product((0, 128), (129, 300), (0, 1, 77, 300, 513)):
        expected = [
            *mask.tile_range(INTS, row0, 128, sq, sk, 64),
            *mask.column_range(INTS, row0, sq, sk),
        ]
        assert folded(mask, row0, sq, sk) == expected, (row0, sq, sk)
