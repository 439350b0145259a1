"""Legality of operations at each stage of the lowering.

A stage is checked after the passes that lead to it. An operation that a pass did not convert is
reported there by its name, not ten passes later as something else.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.diagnostics import diagnostics_of, op_error
from attn_mlir.passes.infrastructure.registry import register

_SCALAR = ("arith.", "math.")
_REGISTER_LEVEL = (*_SCALAR, "vector.", "scf.", "ub.")


@dataclass(frozen=True)
class Stage:
    """The legal operations of a stage.

    Attributes:
      name: the stage's name in `attn-check-stage{stage=...}`.
      allowed: dialects, as prefixes that end in a dot, and single operations.
      forbidden: exceptions from `allowed`, written in the same way.
    """

    name: str
    allowed: tuple[str, ...]
    forbidden: tuple[str, ...] = ()

    def permits(self, operation: str) -> bool:
        """Whether an operation of this name may occur."""
        return _matches(operation, self.allowed) and not _matches(operation, self.forbidden)


def _matches(operation: str, prefixes: tuple[str, ...]) -> bool:
    return any(
        operation.startswith(prefix) if prefix.endswith(".") else operation == prefix
        for prefix in prefixes
    )


ATTN = Stage("attn", ("builtin.", "func.", "attn.", *_SCALAR, "tensor."))
WS = Stage("ws", ("builtin.", "ws.", *_REGISTER_LEVEL), ("builtin.unrealized_conversion_cast",))
NVVM = Stage(
    "nvvm",
    ("builtin.", "gpu.", "nvgpu.", "nvvm.", "llvm.", "memref.", "cf.", *_REGISTER_LEVEL),
)
LLVM = Stage(
    "llvm",
    ("builtin.module", "gpu.module", "llvm.", "nvvm."),
    ("builtin.unrealized_conversion_cast",),
)
BINARY = Stage("binary", ("builtin.module", "gpu.binary"))

STAGES = {stage.name: stage for stage in (ATTN, WS, NVVM, LLVM, BINARY)}


def illegal_operations(module: Any, stage: Stage) -> list[Any]:
    """Returns the operations of an ir.Module that a stage does not permit, outermost first."""
    illegal: list[Any] = []
    permits: dict[str, bool] = {}  # a module has thousands of operations, but only dozens of names

    def visit(operation: Any) -> Any:
        name = operation.name
        permitted = permits.get(name)
        if permitted is None:
            permitted = permits[name] = stage.permits(name)
        if not permitted:
            illegal.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    return illegal


def check_stage(module: Any, stage: Stage) -> None:
    """Checks that a module is at a stage.

    Raises:
      VerifyError: it holds an operation that the stage does not permit; the message names the
        first one, the notes up to nine more.
    """
    illegal = illegal_operations(module, stage)
    if not illegal:
        return
    others = (
        diagnostics_of(op_error(operation, "is not legal either")) for operation in illegal[1:10]
    )
    dialects = ", ".join(prefix.rstrip(".") for prefix in stage.allowed)
    raise op_error(
        illegal[0],
        f"is not legal at stage '{stage.name}', which holds {dialects}",
        notes=tuple(diagnostic.render() for (diagnostic,) in others),
    )


@register
@dataclass(frozen=True)
class CheckStage:
    """Checks that the module is at a stage; changes nothing.

    Attributes:
      stage: the stage; errors name the first operation that does not belong to it.
    """

    name: ClassVar[str] = "attn-check-stage"
    is_analysis: ClassVar[bool] = True
    stage: Literal["attn", "ws", "nvvm", "llvm", "binary"] = "attn"

    def run(self, module: Any) -> None:
        """Raises VerifyError where an operation does not belong to the stage."""
        check_stage(module, STAGES[self.stage])
