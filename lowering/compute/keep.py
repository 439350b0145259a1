"""`ws.keep`: replaces the elements of a fragment whose bit is not set.

Each bit is tested right before its select: then ptxas moves seven bits at a time to predicates
(`R2P`), and an element costs one select and no comparison. If all bits are tested first, as by a
vector operation, each test is an instruction. Measured with ptxas 13.5 on a causal tile of 128
columns: 5.3 instead of 6.0 instructions per score, and 5.9 with comparisons instead of bits
(`bench/sass.py`).
"""

from typing import Any

from attn_mlir.dialect import ws
from attn_mlir.dialect._mlir import arith, vector
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.dialect.scalars import compare, constant, select
from attn_mlir.dialect.ws.compute import WORD_BITS

from ..access.values import mask_words, parts_of_strips
from ..state.handles import Fragment
from ..state.lowering import Lowering, lowers

Value = Any


@lowers(ws.KeepOp)
def _keep(low: Lowering, op: ws.KeepOp) -> None:
    """Raises VerifyError for elements that are not 32 bits wide."""
    source, other = low[op.fragment], low[op.other]
    if ws.element_bits(source.kind.element) != WORD_BITS:
        raise op_error(op, f"has a lowering for 32-bit elements, got {source.kind.element}")
    parts: list[Value] = []
    for words, strip in zip(
        mask_words(low, low[op.bits], source.layout), parts_of_strips(source), strict=True
    ):
        bits = iter(source.layout.mask_bits())
        for part in strip:
            elements: list[Value] = []
            for i, (word, bit) in zip(range(part.type.shape[0]), bits, strict=False):
                mask = constant(1 << bit if bit < WORD_BITS - 1 else -(1 << bit))
                is_set = compare("ne", arith.AndIOp(words[word], mask).result, 0)
                elements.append(select(is_set, vector.ExtractOp(part, [], [i]).result, other))
            parts.append(vector.FromElementsOp(part.type, elements).result)
    low[op.kept] = Fragment(source.kind, source.layout, tuple(parts))
