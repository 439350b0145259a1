"""The closed forms of the masks as code: folded by MLIR, they give what Python computes."""

from __future__ import annotations

import itertools

import pytest

from attn_mlir.dialect._mlir import ir, make_context, passmanager
from attn_mlir.dialect.attn.masks import (
    INTS,
    CausalMask,
    ChunkedMask,
    Mask,
    NullMask,
    PrefixMask,
    WindowMask,
)
from attn_mlir.dialect.scalars import IntOps

MASKS = (
    NullMask(),
    CausalMask(),
    WindowMask(70, -1),
    WindowMask(-1, 9),
    WindowMask(70, 9),
    ChunkedMask(96),
    PrefixMask(100),
    ChunkedMask(96) & CausalMask(),
    ChunkedMask(96) | WindowMask(70, 0),
    ~CausalMask(),
    ~WindowMask(70, -1),
    (~ChunkedMask(96) & CausalMask()) | PrefixMask(10),
)


def folded(mask: Mask, row0: int, sq: int, sk: int, columns: list[int]) -> list[int]:
    """Emits ranges of tiles (blocks of 128, tiles of 64) and element tests, and folds them.

    In both directions: the row is also the first column of a block of keys, and columns are rows.
    """
    with make_context(), ir.Location.unknown():
        module = ir.Module.parse("func.func @f() -> () { func.return }")
        function = module.body.operations[0]
        ops = IntOps()
        with ir.InsertionPoint.at_block_terminator(function.regions[0].blocks[0]):
            row, queries, keys = (ops.const(value) for value in (row0, sq, sk))
            values = [
                *mask.tile_range(ops, row, 128, queries, keys, 64),
                *(mask.element(ops, row, ops.const(k), queries, keys) for k in columns),
                *mask.query_tile_range(ops, row, 128, queries, keys, 64),
                *(mask.transposed_element(ops, ops.const(q), row, queries, keys) for q in columns),
            ]
            ir.Operation.create("test.use", operands=values)
        module.context.allow_unregistered_dialects = True
        passmanager.PassManager.parse("builtin.module(canonicalize)").run(module.operation)
        use = list(function.regions[0].blocks[0].operations)[-2]
        assert use.name == "test.use"
        return [
            abs(ir.IntegerAttr(operand.owner.attributes["value"]).value)  # true is -1
            for operand in use.operands
        ]


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.long(
    "~window:70,inf",
    "chunked:96|window:70,0",
    "causal&chunked:96",
    "window:70,9",
    "window:inf,9",
    "chunked:96",
    "prefix:100",
)
def test_emitted_formulas_are_the_formulas(mask: Mask):
    columns = [0, 30, 31, 99, 100, 129, 138, 139, 299, 400]
    for row0, sq, sk in itertools.product((0, 128), (129, 300), (0, 1, 77, 300, 513)):
        expected = [
            *mask.tile_range(INTS, row0, 128, sq, sk, 64),
            *(int(mask.element(INTS, row0, k, sq, sk)) for k in columns),
            *mask.query_tile_range(INTS, row0, 128, sq, sk, 64),
            *(int(mask.transposed_element(INTS, q, row0, sq, sk)) for q in columns),
        ]
        assert folded(mask, row0, sq, sk, columns) == expected, (row0, sq, sk)
