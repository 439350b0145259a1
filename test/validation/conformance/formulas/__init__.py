"""What is right, by the name of a `Kernel` case's program."""

from attn_mlir.validation.conformance.formulas import (
    attention,
    flashinfer,
    nvcc,
    products,
    rows,
    triton,
)
from attn_mlir.validation.conformance.formulas.base import (
    DTYPES,
    TRUTH,
    YARDSTICK,
    Array,
    Arrays,
    Formula,
    Precision,
    Sizes,
)

FORMULAS = {
    **attention.FORMULAS,
    **flashinfer.FORMULAS,
    **nvcc.FORMULAS,
    **products.FORMULAS,
    **rows.FORMULAS,
    **triton.FORMULAS,
}

__all__ = [
    "DTYPES",
    "FORMULAS",
    "TRUTH",
    "YARDSTICK",
    "Array",
    "Arrays",
    "Formula",
    "Precision",
    "Sizes",
]
