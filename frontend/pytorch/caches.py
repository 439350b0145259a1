"""Caches as arguments of operators: their arrays under the names of fields, and their class."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from attn_mlir.caches import CACHES
from attn_mlir.errors import SpecError

FIRST = 2  # the first fields of a cache of any class hold the keys and the values
TYPES = {
    "Any": "Tensor?", "bool": "bool?", "str": "str?", "str | None": "str?", "int": "int?",
    "bool | None": "bool?", "Sequence[str] | None": "str[]?",
    "int | None": "int?", "float | None": "Scalar?", "object": "str?",  # out_dtype, by name
}  # fmt: skip
"""Types in a schema, by their spelling in Python signatures; None stands for the default there."""

CACHES_BY_NAME = {cache.__name__: cache for cache in CACHES}


def _fields_of(cache: Any) -> dict[str, str]:
    """The fields of a class of caches after the first two, with their types in the schema."""
    return {x.name: TYPES[str(x.type)] for x in dataclasses.fields(cache)[FIRST:]}


FIELDS = {name: _fields_of(cache) for name, cache in CACHES_BY_NAME.items()}


def declared(options: Mapping[str, str]) -> dict[str, str]:
    """These options and the optional fields of all caches, by name with their types."""
    arguments = dict(options)
    for fields in FIELDS.values():
        arguments |= fields
    return arguments


def flatten_cache(cache: Any) -> tuple[Any, Any, dict[str, Any]]:
    """Flattens a cache: keys, values, and its other fields that are set, by name."""
    k, v, *values = [getattr(cache, field.name) for field in dataclasses.fields(cache)]
    pairs = zip(FIELDS[type(cache).__name__], values, strict=True)
    return k, v, {name: value for name, value in pairs if value is not None}


def rebuild_cache(kind: str, k: Any, v: Any, values: Mapping[str, Any]) -> Any:
    """Rebuilds a cache of this class, the inverse of `flatten_cache`.

    Args:
      values: the fields that are set, by name, and maybe other arguments.
    """
    fields: dict[str, Any] = {
        "seqused": None,
        **{name: values[name] for name in FIELDS[kind] if name in values},
    }
    return CACHES_BY_NAME[kind](k, v, **fields)


def check_fields(names: Mapping[str, Any], kind: str, allowed: Mapping[str, Any]) -> None:
    """Refuses fields of another class of caches.

    Args:
      names: the given arguments by name.
      kind: class of the cache; "" without one.
      allowed: names that are no fields.

    Raises:
      SpecError: names the field.
    """
    for name in names:
        if name not in allowed and name not in FIELDS.get(kind, {}):
            raise SpecError(f"{name} is no field of {kind or 'k and v as tensors'}: leave it out")
