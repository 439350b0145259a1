"""The score modifier of an attention operation, emitted once more wherever a kernel needs it."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect._mlir import arith, ir, tensor
from attn_mlir.dialect.attn import AdjointOp, KeepOp, SinkOp, SlopeOp
from attn_mlir.dialect.attn.modifier.region import inside
from attn_mlir.dialect.attn.programs.program import ARGUMENTS
from attn_mlir.dialect.diagnostics import op_error

from .. import emit as b

Value = Any
_CAST = "builtin.unrealized_conversion_cast"  # drops the sign of an element type


class Modifier:
    """The region of an `attn.mha`, with the kernel arguments that it reads.

    Attributes:
      changes: the region returns another score than it was given, or hides by the score.
      hides: the region hides scores (`attn.keep`).
      reads: number of elements of tensors that the result depends on.
      readings: number of those indexed by both query and key.
      gathers: whether an index combines query and key, as a distance does.
      has_sink: each row also sees a sink, a key without a value.
      has_slope: the derivative by the score is not 1 (`attn.slope`).
      adjoints: of the tensors whose gradients are wanted.
    """

    def __init__(
        self,
        op: attn.MhaOp | attn.KvGradientsOp | attn.QGradientsOp,
        captured: Mapping[Value, Value],
    ):
        """Prepares the region for use in a kernel.

        Args:
          op: the operation.
          captured: values defined outside the region -> arguments of the kernel.
        """
        self.hides = op.hides_scores
        self._block = op.score_mod.blocks[0]
        self._captured = captured
        self._predicates = [x.condition for x in self._block.operations if isinstance(x, KeepOp)]
        score = self._block.arguments[0]
        _, needed = self._needed(self._predicates)
        operations, _ = self._needed([self._result, *self._predicates])
        readings = [inner for inner in operations if isinstance(inner, tensor.ExtractOp)]
        self.reads = len(readings)
        *_, q, k = self._block.arguments
        by_q, by_k = (self._dependents(x, operations) for x in (q, k))
        chosen = [set(inner.operands) for inner in readings]
        self.readings = sum(bool(by_q & some) and bool(by_k & some) for some in chosen)
        of_both = by_q & by_k
        self.gathers = any(of_both & some for some in chosen)
        self.changes = self._result != score or score in needed
        self._sink, self._slope = (next(iter(inside(op, kind)), None) for kind in (SinkOp, SlopeOp))
        self.adjoints = tuple(
            Adjoint(self, x, captured[x.target]) for x in inside(op, AdjointOp) if captured
        )
        self.has_sink, self.has_slope = self._sink is not None, self._slope is not None

    def __call__(
        self, score: Value, batch: Value, head: Value, q: Value, k: Value, *, masked: bool
    ) -> Value:
        """The modified score at the insertion point.

        Args:
          score: multiplied by the scale if the modifier `changes` scores, else raw.
          masked: whether `attn.keep` is evaluated, which makes hidden scores -inf.

        Raises:
          VerifyError: the region holds something that is not element-wise.
        """
        roots = [self._result, *(self._predicates if masked else [])]
        result, *conditions = self.values(roots, (score, batch, head, q, k))
        hidden = b.f32_constant(float("-inf"))
        for condition in conditions:
            result = b.select(condition, result, hidden)
        return result

    def sink(self, batch: Value, head: Value, q: Value) -> Value:
        """The logit of the sink, at the insertion point.

        Raises:
          VerifyError: it depends on the score or the key, or is not element-wise.
        """
        assert self._sink is not None
        (logit,) = self.values([self._sink.logit], (None, batch, head, q, None), self._sink)
        return logit

    def slope(self, score: Value, batch: Value, head: Value, q: Value, k: Value) -> Value:
        """The derivative by the score, which is multiplied by the scale, at the insertion point.

        Raises:
          VerifyError: the region holds something that is not element-wise.
        """
        assert self._slope is not None
        (slope,) = self.values([self._slope.value], (score, batch, head, q, k))
        return slope

    @property
    def _result(self) -> Value:
        """The value of the region that is the modified score."""
        return list(self._block.operations)[-1].value

    def _needed(self, roots: Sequence[Value]) -> tuple[list[Any], set[Value]]:
        """The operations of the region that compute `roots`, in order, and all values they read."""
        needed: set[Value] = set(roots)
        operations: list[Any] = []
        for op in reversed(list(self._block.operations)):
            if any(result in needed for result in op.operation.results):
                operations.append(op)
                needed.update(op.operation.operands)
        return operations[::-1], needed

    def _dependents(self, value: Value, operations: Sequence[Any]) -> set[Value]:
        """The value, and the results that depend on it."""
        made: set[Value] = {value}
        for op in operations:
            if made.intersection(op.operation.operands):
                made.update(op.operation.results)
        return made

    def values(
        self, roots: Sequence[Value], arguments: Sequence[Value | None], of: Any = None
    ) -> list[Value]:
        """Copies the operations that compute values of the region to the insertion point.

        Args:
          roots: values of the region to compute.
          arguments: values for the arguments of the region; None where `roots` may not depend on
            one.
          of: the operation that they are operands of, which errors are on.

        Raises:
          VerifyError: they depend on an argument that is None, or on what is not element-wise.
        """
        operations, needed = self._needed(roots)
        pairs = list(zip(self._block.arguments, arguments, strict=True))
        if any(value is None and argument in needed for argument, value in pairs):
            known = [name for name, x in zip(ARGUMENTS, arguments, strict=True) if x is not None]
            raise op_error(of, f"expects values that depend on {', '.join(known)} alone")
        values: dict[Value, Any] = dict(self._captured)
        values.update(zip(self._block.arguments, arguments, strict=True))
        for op in operations:
            with op.operation.location:
                values[op.operation.results[0]] = _copied(op, values)
        return [values[value] for value in roots]


class Adjoint(NamedTuple):
    """An `attn.adjoint` of a modifier.

    Attributes:
      target: the memory, an argument of the kernel.
    """

    modifier: Modifier
    op: AdjointOp
    target: Value

    @property
    def is_per_row(self) -> bool:
        """Whether it is a sum along a row, not a part of a score."""
        return self.op.is_per_row

    @property
    def adds(self) -> bool:
        """Whether several are added to an element."""
        return self.op.adds

    def value(self, *arguments: Value) -> Value:
        """The derivative, at the insertion point; arguments and errors as of `Modifier.slope`."""
        (value,) = self.modifier.values([self.op.value], arguments, self.op)
        return value

    def place(self, *arguments: Value | None) -> Value:
        """The position in the target in row-major order; arguments and errors as of
        `Modifier.values`.
        """
        place = b.constant(0)
        for axis, coord in enumerate(self.modifier.values(self.op.coords, arguments, self.op)):
            extent = b.extent(self.target, axis)
            inside = b.INT.max(b.INT.min(coord, b.INT.sub(extent, 1)), 0)
            place = b.INT.add(b.INT.mul(place, extent), inside)
        return place


class Unmodified(Modifier):
    """The modifier of an operation that changes no score."""

    def __init__(self) -> None:
        self.changes = self.hides = self.has_sink = self.has_slope = False
        self.reads, self.readings, self.gathers = 0, 0, False
        self.adjoints = ()


def modifier_of(op: Any, captured: Mapping[Value, Value]) -> Modifier:
    """The modifier of an operation that may have none; arguments as of `Modifier`."""
    return Modifier(op, captured) if any(x.blocks for x in op.regions) else Unmodified()


def _copied(op: Any, values: Mapping[Value, Value]) -> Value:
    """A copy of one operation of the region at the insertion point."""
    operation = op.operation
    if len(operation.regions) or len(operation.results) != 1:
        raise op_error(op, "is not element-wise, so a score_mod cannot hold it")
    operands = [values[operand] for operand in operation.operands]
    (result,) = operation.results
    if isinstance(op, arith.IndexCastOp) or operation.name == _CAST:  # coordinates stay i32
        return operands[0]
    if isinstance(op, tensor.DimOp):
        if not isinstance(op.index.owner, arith.ConstantOp):
            raise op_error(op, "expects a constant dimension")
        return b.extent(operands[0], ir.IntegerAttr(op.index.owner.value).value)
    if isinstance(op, tensor.ExtractOp):
        source, *coords = operands
        return ws.ElementOp(source, coords, ws.signless(result.type)).value
    if operation.name.startswith(("arith.", "math.")):
        attributes = dict(operation.attributes.items())
        made = ir.Operation.create(
            operation.name, results=[result.type], operands=operands, attributes=attributes
        )
        return made.result
    raise op_error(op, "is not element-wise, so a score_mod cannot hold it")
