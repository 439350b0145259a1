"""Refusals: why there is no kernel, in one form for requests and operations."""

from collections.abc import Iterable
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


class NoKernel(SpecError):
    """No schedule has a kernel for a problem: the one text of refusal.

    Attributes:
      text: what follows the subject, which is a chip, a request or an operation.
    """

    def __init__(self, subject: str, reasons: Iterable[str]):
        """With the reasons of every schedule that could have had a kernel."""
        self.text = f"has no kernel: {'; '.join(reasons)}"
        super().__init__(f"{subject} {self.text}")
