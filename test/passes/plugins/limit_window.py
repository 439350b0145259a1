"""A plug-in of the tests: a pass of another project, with an option, and a pipeline of it."""

from dataclasses import dataclass
from typing import Any, ClassVar

from attn_mlir.dialect import attn
from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.attn.attributes import mask_to_attr
from attn_mlir.dialect.attn.masks import WindowMask
from attn_mlir.passes.infrastructure.registry import register, register_pipeline


@register
@dataclass(frozen=True)
class LimitWindow:
    """Limits what queries of every `attn.mha` see to a window.

    Attributes:
      left: keys in front of its own that a query sees.
    """

    name: ClassVar[str] = "limit-window"
    left: int = 127

    def run(self, module: Any) -> None:
        """Intersects masks with the window."""
        for op in ir.get_ops_of_type(module, attn.MhaOp):
            limited = op.mask_rule & WindowMask(self.left, 0)
            op.operation.attributes["mask"] = mask_to_attr(limited)


register_pipeline("limited", "limit-window{left=63},cse", help="Limits windows to 64 keys.")
