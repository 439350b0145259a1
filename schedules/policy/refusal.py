"""Reasons why there is no kernel, in one form for requests and operations.

`errors.no_kernel` makes the text of a refusal of them.
"""

from typing import NamedTuple

from attn_mlir.errors import SpecError


class Mismatch(NamedTuple):
    """The first thing about a problem, or a setting, that a schedule has no kernel for.

    Attributes:
      what: its name.
      domain: what there are kernels for.
      got: what it is; None where it has to be left out.
    """

    what: str
    domain: str
    got: object

    def __str__(self) -> str:
        """As part of a sentence."""
        got = "" if self.got is None else f", got {self.got}"
        return f"{self.what} must be {self.domain}{got}"


class DoesNotFit(SpecError):
    """No tiles of a schedule fit a target; callers say for whom.

    Attributes:
      reason: what exceeds what.
    """

    def __init__(self, reason: str):
        self.reason = reason
        super().__init__(reason)
