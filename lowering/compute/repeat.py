"""`ws.repeat`: broadcasts one value per run of columns to the columns of the run.

A thread holds the values of its own runs; nothing moves between threads.
"""

from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import vector
from attn_mlir.dialect.diagnostics import op_error

from ..access.values import parts_of_strips, strip_vectors
from ..layouts import Layout
from ..layouts.inference import Constraints, constrains
from ..state.handles import Fragment
from ..state.lowering import Lowering, lowers

Value = Any


@constrains(ws.RepeatOp)
def _constrain(c: Constraints, op: ws.RepeatOp) -> None:
    def runs(whole: Layout) -> Layout:
        layout = whole.runs(op.count)
        if layout is None:
            raise op_error(
                op, f"expects runs of {op.count} columns of a layout that goes with them"
            )
        return layout

    c.view(op, op.fragment, op.runs, runs)


@lowers(ws.RepeatOp)
def _repeat(low: Lowering, op: ws.RepeatOp) -> None:
    kind, layout = ws.FragmentType(op.fragment.type), low.layouts[op.fragment]
    runs: Fragment = low[op.runs]
    numbers = {offset: number for number, offset in enumerate(runs.layout.element_offsets)}
    parts: list[Value] = []
    for strip in parts_of_strips(runs):
        values = [
            vector.ExtractOp(part, [], [i]).result
            for part in strip
            for i in range(part.type.shape[0])
        ]
        offsets = layout.element_offsets
        parts += strip_vectors((values[numbers[x // op.count]] for x in offsets), layout)
    low[op.fragment] = Fragment(kind, layout, tuple(parts))
