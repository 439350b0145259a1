"""Mask attributes: `#attn.null`, `#attn.causal`, made from the classes in `masks/`.

A mask's integer fields become the attribute's parameters, in order, as 64-bit integers; a mask
without fields prints as its keyword alone.
"""

import dataclasses
from typing import Any

from attn_mlir.dialect._mlir import ext, ir
from attn_mlir.dialect.attn.dialect import AttnDialect
from attn_mlir.dialect.attn.masks import MASKS, Mask


def _define(mask: type[Any]) -> type[ext.Attribute]:
    """Defines the attribute of one mask class."""
    fields = {field.name: ir.IntegerAttr for field in dataclasses.fields(mask)}
    namespace = {
        "__annotations__": fields,
        "__doc__": f"`#attn.{mask.keyword}`: {mask.__doc__}",
        "__module__": __name__,
    }
    name = mask.__name__.removesuffix("Mask") + "Attr"
    make: Any = type(AttnDialect.Attribute)
    return make(name, (AttnDialect.Attribute,), namespace, name=mask.keyword)


_BY_MASK: dict[type[Mask], type[ext.Attribute]] = {mask: _define(mask) for mask in MASKS}

MASK_ATTRIBUTES: tuple[type[ext.Attribute], ...] = tuple(_BY_MASK.values())


def mask_to_attr(mask: Mask) -> ir.Attribute:
    """Returns the attribute of a mask, in the current context."""
    i64 = ir.IntegerType.get_signless(64)
    values = (getattr(mask, field.name) for field in dataclasses.fields(mask))  # pyright: ignore
    return _BY_MASK[type(mask)].get(*(ir.IntegerAttr.get(i64, value) for value in values))


def attr_to_mask(attr: ir.Attribute) -> Mask:
    """Returns the mask that an attribute stands for; the inverse of `mask_to_attr`.

    Raises:
      KeyError: the attribute is not a mask; the verifier of the operation refuses those.
    """
    for mask, attribute in _BY_MASK.items():
        if isinstance(attr, attribute):
            return mask(*(ir.IntegerAttr(value).value for value in attr.params))
    raise KeyError(str(attr))
