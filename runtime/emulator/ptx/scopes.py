"""Names of one kernel: registers, variables and labels, scoped by `{ }` blocks.

Inline assembly repeats names (`LAB_WAIT`, `P1`) in block after block, so every block is a scope.
A label may be used before it is declared; its uses are bound when its block closes.
"""

from dataclasses import dataclass, field

from .ast import Label, Register, Variable, Vec


@dataclass(slots=True)
class Scope:
    """One block's own names, and where to look further."""

    parent: "Scope | None" = None
    registers: dict[str, Register] = field(default_factory=dict[str, Register])
    ranges: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])
    vectors: dict[str, Vec] = field(default_factory=dict[str, Vec])
    variables: dict[str, Variable] = field(default_factory=dict[str, Variable])
    labels: dict[str, Label] = field(default_factory=dict[str, Label])

    def variable(self, name: str) -> Variable | None:
        """The innermost variable of that name."""
        scope: Scope | None = self
        while scope is not None:
            variable = scope.variables.get(name)
            if variable is not None:
                return variable
            scope = scope.parent
        return None

    def vector(self, name: str) -> Vec | None:
        """The elements of the innermost vector register (`.reg .v4 .b32 name`) of that name."""
        scope: Scope | None = self
        while scope is not None:
            vector = scope.vectors.get(name)
            if vector is not None:
                return vector
            scope = scope.parent
        return None

    def register(self, name: str, pool: list[Register]) -> Register | None:
        """The innermost register of that name; `%r<10>` ranges make theirs on first use.

        Args:
          pool: the kernel's registers; new ones are appended.
        """
        scope: Scope | None = self
        while scope is not None:
            register = scope.registers.get(name)
            if register is not None:
                return register
            if scope.ranges:
                stem = name.rstrip("0123456789")
                span = scope.ranges.get(stem)
                digits = name[len(stem) :]
                if span is not None and digits and int(digits) < span[1]:
                    register = Register(name, span[0], len(pool))
                    pool.append(register)
                    scope.registers[name] = register
                    return register
            scope = scope.parent
        return None

    def label(self, name: str) -> Label | None:
        """The innermost declared label of that name."""
        scope: Scope | None = self
        while scope is not None:
            label = scope.labels.get(name)
            if label is not None:
                return label
            scope = scope.parent
        return None
