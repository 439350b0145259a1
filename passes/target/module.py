"""The target that a module is for: an attribute of it, set by the first pass that has to know.

A pass with a `target` option names a chip or leaves it to the module; the module keeps the name, so
that everything after it is for the same chip.
"""

from typing import Any

from attn_mlir.dialect._mlir import ir
from attn_mlir.errors import TargetError
from attn_mlir.passes.target.limits import DEFAULT_TARGET, Target, target_named

TARGET = "attn.target"  # module attribute: the chip


def target_of(module: Any, chip: str = "", *, keep: bool = True) -> Target:
    """The target of a module, which is kept on it.

    Args:
      module: an ir.Module.
      chip: the one that is asked for; "" takes the module's, or the default for one without.
      keep: whether anything is done for it, so that the module is for this chip from now on.

    Raises:
      TargetError: a chip that is not known, or not the module's.
    """
    attributes = module.operation.attributes
    own = attributes[TARGET] if TARGET in attributes else None
    if own is not None and not isinstance(own, ir.StringAttr):
        raise TargetError(f"expects '{TARGET}' of the module to be a chip's name, got {own}")
    if own is not None and chip not in ("", own.value):
        raise TargetError(f"the module is for {own.value}, got target {chip}")
    target = target_named(chip or (DEFAULT_TARGET if own is None else own.value))
    if keep:
        with module.context:
            attributes[TARGET] = ir.StringAttr.get(target.chip)
    return target
