"""Findings of the checkers, one for each pair of PTX lines, and the error that has them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from attn_mlir.errors import SpecError

from ..core.launch_errors import KernelFault, quoted

CheckMode = Literal["raise", "collect"]

CHECKS = {
    "race": "two accesses to the same bytes or cells that nothing orders, at least one a write",
    "proxy": "the async proxy uses bytes written, or overwrites bytes read, through the generic "
    "one without a proxy fence",
    "tensor": "tensor memory is used before what orders it: tcgen05.wait, commit or tcgen05.fence",
    "unpromised": "PTX does not promise it; the assembler and silicon do it nevertheless",
    "mbarrier": "an mbarrier used before its init is visible, waited on too late, overwritten, or "
    "sent unannounced bytes",
    "barrier": "the cluster's barrier waited on by who did not arrive, or arrived on twice",
    "wgmma": "registers of wgmma used without wgmma.fence before, or changed before the wait for "
    "it",
    "warp": "a warp-wide instruction whose member mask and lanes do not go together",
    "uninitialised": "shared, tensor or local memory or registers read before any write",
    "start": "the shared memory of a CTA that may not have begun is used",
    "exit": "a CTA that ends before copies, or other CTAs, are done with its memory",
}


def checks_named(check: str | Iterable[str]) -> frozenset[str]:
    """The checks that "all", "none", one name or several names stand for; "-name" leaves one out
    again.

    Raises:
      SpecError: a name is unknown.
    """
    try:
        names = check.replace(",", " ").split() if isinstance(check, str) else list(check)
    except TypeError:
        raise SpecError(f"check must be a str or several, got {type(check).__name__}") from None
    chosen: set[str] = set()
    left_out: set[str] = set()
    for name in names:
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SpecError(f"check must be a str or several, got one of {type(name).__name__}")
        if name == "all":
            chosen.update(CHECKS)
        elif name in CHECKS:
            chosen.add(name)
        elif name.startswith("-") and name[1:] in CHECKS:
            left_out.add(name[1:])
        elif name != "none":
            raise SpecError(f"check '{name}' is unknown: all, none, {', '.join(CHECKS)}")
    return frozenset(chosen - left_out)


User = tuple[str, Any, bool]  # the accessor in words, its line, whether it writes


@dataclass(frozen=True, slots=True)
class Access:
    """One side of a finding.

    Attributes:
      who: a thread or an engine, such as "cta (0,0,0) warp 3 lane 5".
      action: what it did, such as "writes".
      line, text: the number of the PTX line, from 1 (0 if unknown), and its text.
      origin: the source of the line, such as an operation of the `ws` dialect, if known.
    """

    who: str
    action: str
    line: int
    text: str
    origin: str = ""

    def __str__(self) -> str:
        return f"{self.who} {self.action}{quoted(self.line, self.text, self.origin)}"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that the architecture does not guarantee to work.

    Attributes:
      check: a key of `CHECKS`.
      message: what is wrong, and what would correct it.
      place: the memory or object concerned, with its address range.
      address, byte_count: that range: bytes of shared or global memory; for tensor memory the
        first column and the number of columns.
      current: the access at which it was noticed.
      earlier: the access that it conflicts with, if any.
    """

    check: str
    message: str
    place: str
    address: int
    byte_count: int
    current: Access
    earlier: Access | None = None

    def __str__(self) -> str:
        parts = [f"{self.check}: {self.message}", f"{self.place}:", str(self.current)]
        if self.earlier is not None:
            parts += ["after", str(self.earlier)]
        return "\n".join(parts)


class CheckError(KernelFault):
    """Checkers found something.

    Attributes:
      findings: in the order in which they were found.
    """

    def __init__(self, findings: Sequence[Finding]):
        first = findings[0]
        super().__init__(
            "\n\n".join(str(finding) for finding in findings),
            kind=first.check,
            line=first.current.line,
            text=first.current.text,
            where=first.current.who,
            origin=first.current.origin,
        )
        self.findings = tuple(findings)
