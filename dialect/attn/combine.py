"""`attn.combine`: puts the results for parts of the keys together."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from attn_mlir.dialect._mlir import Pure, ext, ir
from attn_mlir.dialect.attn.dialect import AttnDialect
from attn_mlir.dialect.attn.mha import LSE_TERMS

OUTPUT_TYPES = ("bf16", "f16", "f32")
SINK_TYPES = ("bf16", "f16", "f32")
LSES_RANK = 4  # rank of `lses` if each LSE is one number
HEADS_ALONG_ROWS = "attn.heads_along_rows"  # attribute, a hint for few queries


class CombineOp(AttnDialect.Operation, name="combine", traits=[Pure]):
    """Computes the result for all keys from the results for parts of them.

        lse = ln sum_p e^lse_p            o = sum_p e^(lse_p - lse) o_p

    A part without a visible key has an LSE of -inf, or of +inf where each LSE is one number, and
    its o is ignored, even NaN. A row without a visible key in any part is 0 with an LSE of -inf. A
    sink's weight is added to the sum that o is divided by, but not to the LSE.

    Results:
      o: [batch, sq, heads, v_head_dim], bf16, f16 or f32.
      lse: [batch, heads, sq], f32, natural logarithm.

    Operands:
      parts: [splits, batch, sq, heads, v_head_dim], f32.
      lses: [splits, batch, heads, sq], f32, natural logarithms; or [2, splits, batch, heads, sq]:
        two numbers whose sum is the logarithm, as a partial `attn.mha` writes them. The second is
        finite, and 0 where the first is -inf.
      sinks: none, or [heads], bf16, f16 or f32: a logit per head.

    Attributes:
      attn.heads_along_rows (optional, unit): a hint for few queries: a kernel's tile has many heads
        of one query instead of many queries of one head.

    Memory effects: none. Hardware: any.

    Example:
      %o, %lse = "attn.combine"(%parts, %lses) {operandSegmentSizes = array<i32: 1, 1, 0>}
        : (tensor<?x?x?x16x128xf32>, tensor<?x?x16x?xf32>)
          -> (tensor<?x?x16x128xbf16>, tensor<?x16x?xf32>)
    """

    OPTIONAL_ATTRIBUTES = MappingProxyType({HEADS_ALONG_ROWS: ir.UnitAttr})

    o: ext.Result[Any]
    lse: ext.Result[Any]
    parts: ext.Operand[Any]
    lses: ext.Operand[Any]
    sinks: Sequence[ext.Operand[Any]]

    @property
    def lse_terms(self) -> int:
        """1, or 2 if an LSE of a part is stored as two numbers to be added."""
        kind = self.lses.type
        is_sum = isinstance(kind, ir.RankedTensorType) and kind.rank == LSES_RANK + 1
        return LSE_TERMS if is_sum else 1

    def verify_invariants(self) -> bool:
        """Checks ranks, element types and heads; each part has the shape of o."""
        lead = self.lse_terms - 1  # dimensions before that of the parts
        ranks = {"parts": 5, "lses": LSES_RANK + lead, "o": 4, "lse": 3}
        for name, rank in ranks.items():
            kind = getattr(self, name).type
            if not isinstance(kind, ir.RankedTensorType) or kind.rank != rank:
                return self._fail(f"{name} to be a tensor of rank {rank}, got {kind}")
        for name in ("parts", "lses", "lse"):
            element = getattr(self, name).type.element_type
            if str(element) != "f32":
                return self._fail(f"{name} elements of type f32, got {element}")
        if str(self.o.type.element_type) not in OUTPUT_TYPES:
            got = self.o.type.element_type
            return self._fail(f"o elements of type {', '.join(OUTPUT_TYPES)}, got {got}")
        for axis in (3, 4):
            if self.parts.type.is_dynamic_dim(axis):
                return self._fail(f"static heads and columns in parts, got {self.parts.type}")
        (batch, sq, heads, _), lse = list(self.parts.type.shape)[1:], [*self.lse.type.shape]
        if [*self.o.type.shape] != [*self.parts.type.shape][1:]:
            return self._fail(f"o of the shape of a part, got {self.o.type}")
        lses = [*self.lses.type.shape]
        if lead and lses[0] != LSE_TERMS:
            return self._fail(f"lses of {LSE_TERMS} terms, got {self.lses.type}")
        if lse != [batch, heads, sq] or lses[lead + 1 :] != lse:
            return self._fail(
                f"lse [batch, heads, sq] and lses of as many parts, got {self.lse.type} and "
                f"{self.lses.type}"
            )
        return self._check_sinks(heads)

    def _check_sinks(self, heads: int) -> bool:
        if len(self.sinks) > 1:
            return self._fail(f"at most one tensor of sinks, got {len(self.sinks)}")
        for sinks in self.sinks:
            kind = sinks.type
            fits = isinstance(kind, ir.RankedTensorType) and [*kind.shape] == [heads]
            if not fits or str(kind.element_type) not in SINK_TYPES:
                allowed = ", ".join(SINK_TYPES)
                return self._fail(f"sinks to be a tensor [{heads}] of {allowed}, got {kind}")
        return True

    def _fail(self, message: str) -> bool:
        self.location.emit_error(f"'{self.OPERATION_NAME}' op expects {message}")
        return False
