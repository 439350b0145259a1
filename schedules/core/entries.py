"""Configurations of operations: frozen dataclasses, stored as the dictionary `attn.config`."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.diagnostics import op_error

CONFIG = "attn.config"  # attribute of an operation


@dataclass(frozen=True)
class Entries:
    """Base class of configurations: its fields, int or str, are the entries of the dictionary."""

    @classmethod
    def of(cls, op: Any) -> Self:
        """Reads the configuration of an operation.

        Raises:
          VerifyError: there is none, or it is not made of known entries.
        """
        if CONFIG not in op.attributes:
            raise op_error(op, f"has no '{CONFIG}': run attn-configure first")
        return cls(**cls.present(op))

    @classmethod
    def present(cls, op: Any) -> dict[str, Any]:
        """The entries that an operation already has; as `entries_of`."""
        kinds = {f.name: "" if f.type is str else 0 for f in dataclasses.fields(cls)}
        return entries_of(op, kinds)

    def to_attr(self) -> ir.DictAttr:
        """The dictionary of the fields; see `to_attr`."""
        return to_attr(dataclasses.asdict(self))


def to_attr(entries: Mapping[str, int | str]) -> ir.DictAttr:
    """The dictionary of 32-bit integers and strings, in the current context."""
    i32 = ir.IntegerType.get_signless(32)
    return ir.DictAttr.get(
        {
            name: ir.StringAttr.get(value)
            if isinstance(value, str)
            else ir.IntegerAttr.get(i32, value)
            for name, value in entries.items()
        }
    )


def entries_of(op: Any, kinds: Mapping[str, int | str]) -> dict[str, Any]:
    """The entries that an operation already has; some may be missing.

    Args:
      kinds: a value of the right type for each name.

    Raises:
      VerifyError: it is no dictionary, or an entry is unknown or of another kind.
    """
    if CONFIG not in op.attributes:
        return {}
    attr = op.attributes[CONFIG]
    if not isinstance(attr, ir.DictAttr):
        raise op_error(op, f"expects '{CONFIG}' to be a dictionary, got {attr}")
    entries: dict[str, Any] = {}
    for index in range(len(attr)):
        entry = attr[index]
        if entry.name not in kinds:
            names = ", ".join(kinds)
            raise op_error(op, f"has unknown entry '{entry.name}' in '{CONFIG}': known are {names}")
        is_text = isinstance(kinds[entry.name], str)
        if not isinstance(entry.attr, ir.StringAttr if is_text else ir.IntegerAttr):
            kind = "a string" if is_text else "an integer"
            raise op_error(op, f"expects {entry.name} to be {kind}, got {entry.attr}")
        entries[entry.name] = entry.attr.value
    return entries
