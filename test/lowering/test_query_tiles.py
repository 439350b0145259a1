"""A kernel with a key tile for each CTA, which visits the mask's query tiles, on the emulator."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.attn.masks import (
    CausalMask,
    ChunkedMask,
    Mask,
    NullMask,
    PrefixMask,
    WindowMask,
)
from attn_mlir.dialect.ws.compute import WORD_BITS
from attn_mlir.lowering.compile import compile_kernel
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.kernel import load
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.softmax.mask import WORDS

COLUMNS, ROWS = 128, 64  # of a key tile, of which each thread has a column; of a query tile
HIDDEN, SEEN, UNTESTED = 0.0, 1.0, 2.0


def visits(mask: Mask) -> Callable[[], None]:
    """Builds `seen` [sk, sq] = SEEN or HIDDEN in tested tiles, UNTESTED in other visited ones."""

    def build() -> None:
        arguments = [b.Argument("seen", "inout", ir.Type.parse("memref<?x?xf32>"), ("sk", "sq"))]
        kernel = b.declare_kernel("k", arguments)
        with ir.InsertionPoint(kernel.body.blocks[0]):
            (seen,) = kernel.body.blocks[0].arguments
            with b.role("visit", first=0, warps=4):
                sk, sq = b.extent(seen, 0), b.extent(seen, 1)
                with b.tiles([b.INT.ceildiv(sk, COLUMNS)], "single") as (tile,):
                    column0 = b.INT.mul(tile, COLUMNS)
                    span = mask.query_tile_range(b.INT, column0, COLUMNS, sq, sk, ROWS)

                    def store(value: float, number: b.Value, *, is_tested: bool) -> list[b.Value]:
                        row0 = b.INT.mul(number, ROWS)
                        found = b.fill([COLUMNS, ROWS], b.f32_constant(value))

                        def word(column: b.Value, place: b.Value) -> b.Value:
                            row = b.INT.add(row0, b.INT.mul(place, WORD_BITS))
                            column = b.INT.add(column0, column)
                            return mask.transposed_element(WORDS, row, column, sq, sk)

                        if is_tested:
                            words = b.generate(word, [COLUMNS, ROWS // WORD_BITS], b.i32())
                            found = b.mask_select(found, words, b.f32_constant(HIDDEN))
                        b.store_global(found, seen, [column0, row0], [0, 1])
                        return []

                    def tested(number: b.Value) -> list[b.Value]:
                        return store(SEEN, number, is_tested=True)

                    def untested(number: b.Value) -> list[b.Value]:
                        return store(UNTESTED, number, is_tested=False)

                    b.loop(span.begin, span.full_begin, [], tested)
                    b.loop(span.full_begin, span.full_end, [], untested)
                    b.loop(span.full_end, span.end, [], tested)

    return build


@pytest.mark.parametrize(
    ("mask", "is_exact"),
    [
        (NullMask(), True),
        (CausalMask(), True),
        (WindowMask(70, 9), True),
        (PrefixMask(100), True),
        ((ChunkedMask(96) & CausalMask()) | WindowMask(20, 0), True),
        (~CausalMask() & ChunkedMask(150), False),
    ],
    ids=str,
)
def test_a_kernel_visits_the_query_tiles_of_its_key_tile(mask: Mask, is_exact: bool) -> None:
    kernel = load(compile_kernel("k", visits(mask), target="sm_90a"))
    for sq, sk in ((4, 1), (64, 64), (132, 200), (300, 77), (76, 300)):
        seen = np.full((sk, sq), np.nan, np.float32)
        kernel(seen, device=EmulatorDevice(check="all"))
        truth = np.asarray(mask.visible(np.arange(sq), np.arange(sk)[:, None], sq, sk))
        assert np.array_equal(np.nan_to_num(seen) > 0, truth)  # what is not visited is NaN
        for k in range(0, sk, COLUMNS):
            for q in range(0, sq, ROWS):
                got, wanted = (x[k : k + COLUMNS, q : q + ROWS] for x in (seen, truth))
                assert len(np.unique(np.isnan(got))) == 1 and (got != UNTESTED).all() | wanted.all()
                if is_exact:
                    expected = UNTESTED if wanted.all() else SEEN if wanted.any() else np.nan
                    np.testing.assert_array_equal(got.max(), np.float32(expected))
