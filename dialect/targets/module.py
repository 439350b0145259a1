"""The target of a module: an attribute, set by the first pass that depends on it.

A pass with a `target` option is given a chip or takes the module's. The module keeps the chip's
name, so that later passes are for the same one.
"""

from typing import Any

from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.targets.limits import DEFAULT_TARGET, Target, target_named
from attn_mlir.errors import TargetError

TARGET = "attn.target"  # module attribute: the chip


def target_of(module: Any, chip: str = "", *, keep: bool = True) -> Target:
    """The target of a module, which is stored on it.

    Args:
      module: an ir.Module.
      chip: the pass's option; "" for the module's chip, or the default if it has none.
      keep: whether to store it on the module: true unless the pass changes nothing.

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
