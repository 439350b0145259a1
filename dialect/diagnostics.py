"""MLIR's errors as ours: `ir.MLIRError` becomes `VerifyError`, with its notes kept.

A diagnostic is four facts (severity, `file:line:col`, text, notes), so that the command line, the
tests and the library print the same thing whichever side found the error.
"""

import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from attn_mlir.dialect._mlir import ir
from attn_mlir.errors import ResourceError, VerifyError

_OP_NAME = re.compile(r"'([a-z_][\w$.]*\.[\w$.]+)' op\b")
_RENDERED = re.compile(r"(\S+:\d+:\d+): (?:note|error|warning|remark): (.*)", re.DOTALL)
_SEEN_OPERATION = "see current operation"  # an upstream note that only repeats the operation


@dataclass(frozen=True)
class Diagnostic:
    """One message about one place.

    Attributes:
      severity: `error`, `warning`, `remark` or `note`.
      location: `file:line:col`, or None where none is known.
      message: the text, without its severity.
      notes: further diagnostics that belong to it, in order.
    """

    severity: str
    location: str | None
    message: str
    notes: tuple["Diagnostic", ...] = ()

    def render(self, file: str | None = None) -> str:
        """Returns the lines to print: `file:line:col: error: text`, then its notes.

        Args:
          file: printed in place of `-`, MLIR's name for text parsed from memory, and by itself for
            a diagnostic without a location.
        """
        place = self.location or file or "unknown location"
        if file is not None and place.startswith("-:"):
            place = f"{file}{place[1:]}"
        lines = [f"{place}: {self.severity}: {self.message}"]
        lines.extend(note.render(file) for note in self.notes)
        return "\n".join(lines)


def location_text(location: Any) -> str | None:
    """Returns `file:line:col` of a location, also where it is wrapped in names, calls and fusions.

    Args:
      location: an ir.Location.

    Returns:
      None for a location without a file.
    """
    location = ir.Location.from_attr(
        location.attr, location.context
    )  # the location of a diagnostic has the type of the base class
    if isinstance(location, ir.FileLineColLoc):
        return f"{location.filename}:{location.start_line}:{location.start_col}"
    if isinstance(location, ir.NameLoc):
        return location_text(location.child_loc)
    if isinstance(location, ir.CallSiteLoc):
        return location_text(location.callee) or location_text(location.caller)
    if isinstance(location, ir.FusedLoc):
        return next((text for text in map(location_text, location.locations) if text), None)
    return None


def convert(diagnostic: Any) -> Diagnostic:
    """Copies an `ir.Diagnostic` or `ir.DiagnosticInfo`,
    which are only valid within their handler.
    """
    notes = (convert(note) for note in diagnostic.notes)
    return Diagnostic(
        severity=diagnostic.severity.name.lower(),
        location=location_text(diagnostic.location),
        message=diagnostic.message,
        notes=tuple(note for note in notes if not note.message.startswith(_SEEN_OPERATION)),
    )


def diagnostics_of(error: BaseException) -> list[Diagnostic]:
    """Returns the diagnostics of an MLIRError or of an error of ours; at least one."""
    if isinstance(error, ir.MLIRError):
        found = [convert(diagnostic) for diagnostic in error.error_diagnostics]
        return found or [Diagnostic("error", None, error.message)]
    if isinstance(error, VerifyError):
        notes = tuple(_parse_note(text, error.location) for text in error.notes)
        return [Diagnostic("error", error.location, str(error), notes)]
    location = error.location if isinstance(error, ResourceError) else None
    return [Diagnostic("error", location, str(error))]


def _parse_note(text: str, location: str | None) -> Diagnostic:
    """Returns a note of a VerifyError: plain text, or a line of `Diagnostic.render` taken apart."""
    match = _RENDERED.fullmatch(text)
    if match is None:
        return Diagnostic("note", location, text)
    return Diagnostic("note", match.group(1), match.group(2))


def to_verify_error(error: Any) -> VerifyError:
    """Returns the VerifyError of an `ir.MLIRError`: its first diagnostic, the others as notes."""
    first, *others = diagnostics_of(error)
    notes = [*first.notes, *others]
    name = _OP_NAME.search(first.message)
    return VerifyError(
        first.message,
        op=name.group(1) if name else None,
        location=first.location,
        notes=tuple(note.render() if note.location else note.message for note in notes),
    )


@contextmanager
def mlir_errors() -> Generator[None]:
    """Raises VerifyError in place of any MLIRError of the body; other errors pass unchanged.

    Raises:
      VerifyError: from the MLIRError.
    """
    try:
        yield
    except ir.MLIRError as error:
        raise to_verify_error(error) from error


def op_error(op: Any, message: str, *, notes: tuple[str, ...] = ()) -> VerifyError:
    """Returns the VerifyError of one operation, to be raised.

    Args:
      op: the operation.
      message: what is wrong, got and allowed, in words that follow the op's name:
        `op_error(op, "expects tile_m of 64 or 128, got 96")`.
      notes: further lines.
    """
    operation = op.operation
    return VerifyError(
        f"'{operation.name}' op {message}",
        op=operation.name,
        location=location_text(operation.location),
        notes=notes,
    )
