"""Mask attributes: `#attn.causal`, `#attn.window<127, 0>`, made from the classes in `masks/`.

A mask's fields become the attribute's parameters, in order: integers as 64-bit integers, masks as
mask attributes, as in `#attn.and<#attn.causal, #attn.chunked<512>>`. A mask without fields
prints as its keyword alone.
"""

import dataclasses
from typing import Any

from attn_mlir.dialect._mlir import ext, ir
from attn_mlir.dialect.attn.dialect import AttnDialect
from attn_mlir.dialect.attn.masks import MASKS, Mask
from attn_mlir.errors import SpecError


def _fields(mask: type[Mask] | Mask) -> list[Any]:
    return list(dataclasses.fields(mask))  # pyright: ignore[reportArgumentType]


def _define(mask: type[Any]) -> type[ext.Attribute]:
    """Defines the attribute of one mask class."""
    kinds = {field.name: Any if field.type is Mask else ir.IntegerAttr for field in _fields(mask)}
    namespace = {
        "__annotations__": kinds,
        "__doc__": f"`#attn.{mask.keyword}`: {mask.__doc__}",
        "__module__": __name__,
    }
    name = mask.__name__.removesuffix("Mask") + "Attr"
    make: Any = type(AttnDialect.Attribute)
    return make(name, (AttnDialect.Attribute,), namespace, name=mask.keyword)


_BY_MASK: dict[type[Mask], type[ext.Attribute]] = {mask: _define(mask) for mask in MASKS}

MASK_ATTRIBUTES: tuple[type[ext.Attribute], ...] = tuple(_BY_MASK.values())


def mask_to_attr(mask: Mask) -> ir.Attribute:
    """Returns the attribute of a mask, in the current context.

    Raises:
      SpecError: a mask whose class was registered after the dialect had been made.
    """
    if type(mask) not in _BY_MASK:
        raise SpecError(f"mask {mask} came too late: import its module before a kernel is made")
    i64 = ir.IntegerType.get_signless(64)
    values = (getattr(mask, field.name) for field in _fields(mask))
    return _BY_MASK[type(mask)].get(
        *(
            mask_to_attr(value) if isinstance(value, Mask) else ir.IntegerAttr.get(i64, value)
            for value in values
        )
    )


def attr_to_mask(attr: ir.Attribute) -> Mask:
    """Returns the mask that an attribute stands for; the inverse of `mask_to_attr`.

    Raises:
      KeyError: the attribute, or one within it, is not a mask.
      SpecError: a parameter that the mask does not allow.
    """
    for mask, attribute in _BY_MASK.items():
        if isinstance(attr, attribute):
            return mask(*map(_value, _fields(mask), attr.params))
    raise KeyError(str(attr))


def mask_misfit(attr: ir.Attribute) -> str:
    """The error in an attribute that is to be a mask; "" if none."""
    if not isinstance(attr, MASK_ATTRIBUTES):
        allowed = ", ".join(f"#{attribute.attr_name}" for attribute in MASK_ATTRIBUTES)
        return f"mask to be one of {allowed}, got {attr}"
    try:
        attr_to_mask(attr)
    except KeyError as error:
        return f"masks within its mask, got {error.args[0]}"
    except SpecError as error:
        return f"a mask that exists: {error}"
    return ""


def _value(field: Any, parameter: Any) -> int | Mask:
    """The value of a mask's field; parameters come as plain attributes."""
    known = parameter.maybe_downcast()
    return attr_to_mask(known) if field.type is Mask else known.value
