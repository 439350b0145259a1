"""Configurations of operations: frozen dataclasses, stored as the dictionary `attn.config`."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Self

from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.diagnostics import op_error

CONFIG = "attn.config"  # attribute of an operation


@dataclass(frozen=True)
class Entries:
    """Base class of configurations: its fields, int or str, become the entries of the dictionary."""

    def to_attr(self) -> ir.DictAttr:
        """Returns the dictionary of 32-bit integers and strings, in the current context."""
        i32 = ir.IntegerType.get_signless(32)
        return ir.DictAttr.get(
            {
                name: ir.StringAttr.get(value)
                if isinstance(value, str)
                else ir.IntegerAttr.get(i32, value)
                for name, value in dataclasses.asdict(self).items()
            }
        )

    @classmethod
    def of(cls, op: Any) -> Self:
        """Reads the configuration of an operation.

        Raises:
          VerifyError: there is none, or it is not made of known entries.
        """
        if CONFIG not in op.attributes:
            raise op_error(op, f"has no '{CONFIG}': run attn-configure first")
        return cls(**cls.given(op))

    @classmethod
    def given(cls, op: Any) -> dict[str, Any]:
        """The entries that an operation already carries, which may be fewer than the fields.

        Raises:
          VerifyError: it is no dictionary, or an entry is unknown or of another kind.
        """
        if CONFIG not in op.attributes:
            return {}
        attr = op.attributes[CONFIG]
        if not isinstance(attr, ir.DictAttr):
            raise op_error(op, f"expects '{CONFIG}' to be a dictionary, got {attr}")
        kinds: dict[str, type] = {
            f.name: str if f.type is str else int for f in dataclasses.fields(cls)
        }
        entries: dict[str, Any] = {}
        for index in range(len(attr)):
            named = attr[index]
            if named.name not in kinds:
                known = ", ".join(kinds)
                raise op_error(
                    op, f"has unknown entry '{named.name}' in '{CONFIG}': known are {known}"
                )
            kind = ir.StringAttr if kinds[named.name] is str else ir.IntegerAttr
            if not isinstance(named.attr, kind):
                word = "a string" if kind is ir.StringAttr else "an integer"
                raise op_error(op, f"expects {named.name} to be {word}, got {named.attr}")
            entries[named.name] = named.attr.value
        return entries
