"""`ws.repeat`: numbers of runs of columns, in the threads that have elements of the runs.

A thread holds what it has once, however many of its elements a run has; nothing moves between
threads.
"""

from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import ir, vector
from attn_mlir.dialect.diagnostics import op_error

from ..access.values import parts_of_strips
from ..layouts import Layout
from ..layouts.inference import Constraints, constrains
from ..state.handles import Fragment
from ..state.lowering import Lowering, lowers

Value = Any


@constrains(ws.RepeatOp)
def _constrain(c: Constraints, op: ws.RepeatOp) -> None:
    def runs(whole: Layout) -> Layout:
        found = whole.runs(op.count)
        if found is None:
            raise op_error(
                op, f"expects runs of {op.count} columns of a layout that goes with them"
            )
        return found

    c.view(op, op.fragment, op.runs, runs)


@lowers(ws.RepeatOp)
def _repeat(low: Lowering, op: ws.RepeatOp) -> None:
    kind, layout = ws.FragmentType(op.fragment.type), low.layouts[op.fragment]
    runs: Fragment = low[op.runs]
    numbers = {place: number for number, place in enumerate(runs.layout.element_offsets)}
    parts: list[Value] = []
    for strip in parts_of_strips(runs):
        known = [
            vector.ExtractOp(part, [], [i]).result
            for part in strip
            for i in range(part.type.shape[0])
        ]
        rest = [known[numbers[place // op.count]] for place in layout.element_offsets]
        for width in layout.part_widths:
            some, rest = rest[:width], rest[width:]
            shape = ir.VectorType.get([width], kind.element)
            parts.append(vector.FromElementsOp(shape, some).result)
    low[op.fragment] = Fragment(kind, layout, tuple(parts))
