"""`attn-check-names`: checks the names of arguments and results, of which a bundle has tensors."""

from dataclasses import dataclass
from typing import Any, ClassVar

from attn_mlir.dialect._mlir import func, ir
from attn_mlir.dialect.attn.names import NAME, check_names
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.passes.infrastructure.registry import register


@register
@dataclass(frozen=True)
class CheckNames:
    """Refuses functions whose arguments do not all have the names that a bundle needs."""

    name: ClassVar[str] = "attn-check-names"

    def run(self, module: Any) -> None:
        """Changes nothing.

        Raises:
          VerifyError: a missing, malformed or duplicate name; the message names the argument.
        """
        for function in ir.get_ops_of_type(module, func.FuncOp):
            entry = function.sym_name.value  # of the kernel, and of its file beside others
            if not NAME.fullmatch(entry):
                raise op_error(
                    function, f"expects a symbol of letters, digits, _ and ., got '{entry:.80}'"
                )
            check_names(function, all_named=True)
