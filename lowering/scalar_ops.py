"""The scalar operations that kernels may hold: those the NVPTX backend has code for.

The backend aborts the process at an operation that it cannot select (`math.tan`, measured with LLVM
23), so operations that are not in this table are refused before. Some, such as `math.sin`, are
expanded before they reach the backend (`approximations`).
"""

from typing import Any

from attn_mlir.passes.infrastructure.diagnostics import op_error

_ARITH = (
    *("constant", "select", "cmpi", "cmpf", "bitcast", "index_cast"),
    *("addf", "subf", "mulf", "divf", "remf", "negf"),
    *("maximumf", "minimumf", "maxnumf", "minnumf"),
    *("addi", "subi", "muli", "andi", "ori", "xori", "shli", "shrsi", "shrui"),
    *("divsi", "divui", "remsi", "remui", "floordivsi", "ceildivsi", "ceildivui"),
    *("maxsi", "minsi", "maxui", "minui"),
    *("extf", "truncf", "extsi", "extui", "trunci", "sitofp", "uitofp", "fptosi", "fptoui"),
)
_MATH = (
    *("fma", "absf", "copysign", "sqrt", "rsqrt", "exp", "exp2", "log", "log2", "tanh"),
    *("floor", "ceil", "round", "roundeven", "trunc", "absi", "ctpop"),
    *("sin", "cos", "erf", "log1p", "expm1", "powf"),
)

SCALAR_OPS = frozenset({*(f"arith.{name}" for name in _ARITH), *(f"math.{name}" for name in _MATH)})


def check_scalar(op: Any) -> None:
    """Raises VerifyError for a scalar operation that is not in the table."""
    if op.operation.name not in SCALAR_OPS:
        raise op_error(
            op, "has no lowering to the NVVM level; lowering/scalar_ops.py lists those that have"
        )
