"""The registers of fragments in the operand order of `wgmma` and `mma.sync`.

16 rows of an accumulator are two strips, 8 rows apart. Register i of D is element i % 2 of strip
i / 2 % 2 in block i / 4 of 8 columns; A of one K step is word 0 of either strip, then word 1.

An accumulator rounded to a narrower type is A without moving elements. With 16 bits its columns are
in order. With 8 bits the register of A for columns 4 q .. 4 q + 3 has columns 2 q, 2 q + 1, 2 q + 8
and 2 q + 9: the rows of B have to be in the same order, see `ws.interleave`.

Source: PTX ISA, wgmma register fragments, mma.sync m16n8k16 and m16n8k32.
"""

from collections.abc import Sequence
from typing import Any

from attn_mlir.dialect import ws

from ..layouts.fragments import AXES, Layout, in_fours
from ..state.handles import Fragment
from .values import strip_vectors, words_of_strips

Value = Any

_FOURS = (0, 2, 1, 3)  # four columns of a row in two instructions, see `in_fours`; self-inverse

A_REGISTERS, B_REGISTERS = 4, 2  # registers of A per thread and instruction
A_STRIPS = 2  # strips in 16 rows
D_PAIR = 2  # neighbouring columns of D in a thread


def accumulator_registers(fragment: Fragment) -> list[list[Value]]:
    """For each 16 rows of a warp, the f32 registers of D in the order of the operand."""
    strips = [_reordered(strip, fragment.layout) for strip in words_of_strips(fragment)]
    return [
        [
            register
            for first in range(0, len(strips[0]), D_PAIR)
            for strip in strips[block : block + A_STRIPS]
            for register in strip[first : first + D_PAIR]
        ]
        for block in range(0, len(strips), A_STRIPS)
    ]


def from_accumulator_registers(
    kind: ws.FragmentType, layout: Layout, blocks: Sequence[Sequence[Value]]
) -> Fragment:
    """The fragment whose `accumulator_registers` are `blocks`."""
    parts: list[Value] = []
    for registers in blocks:
        for number in range(A_STRIPS):
            strip = [
                register
                for first in range(number * D_PAIR, len(registers), A_STRIPS * D_PAIR)
                for register in registers[first : first + D_PAIR]
            ]
            parts += strip_vectors(_reordered(strip, layout), layout)
    return Fragment(kind, layout, tuple(parts))


def _reordered(strip: list[Value], layout: Layout) -> list[Value]:
    """A row's accumulators in the order of the instructions' columns, and back; see `in_fours`."""
    if layout.threads[: len(AXES)] != in_fours().block.threads:
        return strip
    step = len(_FOURS)
    return [strip[first + i] for first in range(0, len(strip), step) for i in _FOURS]


def a_registers(fragment: Fragment) -> list[list[list[Value]]]:
    """For each 16 rows of a warp and each K step, the four i32 of A."""
    words = words_of_strips(fragment)
    per_step = A_REGISTERS // A_STRIPS
    return [
        [
            [strip[first + i] for i in range(per_step) for strip in words[block : block + A_STRIPS]]
            for first in range(0, len(words[0]), per_step)
        ]
        for block in range(0, len(words), A_STRIPS)
    ]


def b_registers(fragment: Fragment) -> list[list[list[Value]]]:
    """For each 8 of N and each K step, the two i32 of B."""
    return [
        [strip[first : first + B_REGISTERS] for first in range(0, len(strip), B_REGISTERS)]
        for strip in words_of_strips(fragment)
    ]
