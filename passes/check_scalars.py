"""The scalar operations that kernels may hold: those with a lowering down to the NVPTX backend.

The backend aborts the process at an operation that it cannot select (`math.tan`, `math.exp2` of
f64, measured with LLVM 23), so other operations are refused at their location: in regions of `attn`
operations before these become kernels, elsewhere before a kernel is lowered. Some, such as
`math.sin`, are expanded to f32 operations before they reach the backend
(`lowering/compute/approximations.py`).
"""

from collections.abc import Sequence
from typing import Any

from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.element_types import NARROW_MLIR

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
DIALECTS = {"arith": _ARITH, "math": _MATH}
SCALAR_OPS = frozenset(f"{dialect}.{name}" for dialect, names in DIALECTS.items() for name in names)

FLOATS = ("f16", "bf16", "f32", "f64")
MAX_INTEGER_BITS = 64
_FLOATS_OF = {
    **dict.fromkeys(
        (f"arith.{name}" for name in ("extf", "truncf", "bitcast", "constant", "select")),
                    (*FLOATS, *NARROW_MLIR)),  # narrow ones are converted alone
    "math.exp2": FLOATS[:3],
    **dict.fromkeys(("arith.remf", *(f"math.{name}" for name in
                     "exp log log2 tanh sin cos erf log1p expm1 powf".split())), ("f32",)),
}  # fmt: skip


def check_name(op: Any) -> None:
    """Raises VerifyError for a scalar operation that is not in the table."""
    name = op.operation.name
    if name not in SCALAR_OPS:
        dialect = name.partition(".")[0]
        supported = DIALECTS.get(dialect)
        instead = f": of {dialect} there are {', '.join(supported)}" if supported else ""
        raise op_error(op, f"has no code in a kernel{instead}")


def check_scalar(op: Any, floats: Sequence[str] = (*FLOATS, *NARROW_MLIR)) -> None:
    """Raises VerifyError for a scalar operation that is not in the table, or of another type.

    Args:
      floats: the floating-point types that may occur at all.
    """
    check_name(op)
    operation = op.operation
    for value in (*operation.results[:1], *operation.operands[:1]):  # others are of these types too
        kind = value.type
        if isinstance(kind, ir.ShapedType):
            kind = kind.element_type
        if isinstance(kind, ir.IndexType):
            continue
        if not isinstance(kind, ir.IntegerType):
            allowed = [x for x in _FLOATS_OF.get(operation.name, FLOATS) if x in floats]
            if str(kind) not in allowed:
                raise op_error(op, f"has code for {', '.join(allowed)} in a kernel, got {kind}")
        elif kind.width > MAX_INTEGER_BITS:
            raise op_error(op, f"has code for {MAX_INTEGER_BITS} bits in a kernel, got {kind}")


def check_regions(op: Any) -> None:
    """Checks the scalar operations in the regions of an `attn` operation.

    Raises:
      VerifyError: on the first operation without a lowering.
    """
    for region in op.operation.regions:
        for inner in (inner for block in region.blocks for inner in block.operations):
            if inner.operation.name.partition(".")[0] in DIALECTS:
                check_scalar(inner, FLOATS)
                _check_region_types(inner)
            check_regions(inner)


def _check_region_types(op: Any) -> None:
    """Refuses shapes and computed indices: a region is evaluated per score, on i32 and floats."""
    for value in (*op.operation.results, *op.operation.operands):
        if isinstance(value.type, ir.ShapedType):
            raise op_error(op, f"expects numbers in a region, got {value.type}")
    may_have_index = op.operation.name in ("arith.index_cast", "arith.constant")
    if not may_have_index and any(isinstance(x.type, ir.IndexType) for x in op.operation.results):
        raise op_error(op, "expects i32 in a region, got index: arith.index_cast comes last")
