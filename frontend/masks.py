"""Which keys a query sees: small values that name a mask attribute of the `attn` dialect."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mask:
    """A mask.

    Attributes:
      name: of the attribute, without `#attn.`: `null` or `causal`.
    """

    name: str

    @property
    def attribute(self) -> str:
        """The attribute in the text of the IR, such as `#attn.causal`."""
        return f"#attn.{self.name}"

    def __str__(self) -> str:
        return self.name


def full() -> Mask:
    """Every query sees every key."""
    return Mask("null")


def causal() -> Mask:
    """Query i of sq sees keys 0 ... i + sk - sq: the last query sees the last key.

    A query that sees no key gives 0 and an LSE of minus infinity.
    """
    return Mask("causal")
