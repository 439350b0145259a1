"""Parses a module, and finds the line of whatever is wrong in its text.

The parser fails without a diagnostic at an operation of ours in a custom form
(`attn.mha %q : f32`), since a dialect made in Python has only the generic form. Its line is found
by parsing again in a context without our dialects, where that operation is the first thing that the
parser reports.
"""

import re

from attn_mlir.dialect._mlir import ir, parameterised_names
from attn_mlir.dialect.attn.masks import PYTHON_NAMES
from attn_mlir.dialect.diagnostics import diagnostics_of, to_verify_error
from attn_mlir.errors import VerifyError

_UNKNOWN = re.compile(r"expected dynamic (attribute|type)")
_SIGIL_NAME = re.compile(r"[#!]([a-z]\w*)\.([\w$]+)")
_CUSTOM_FORM = re.compile(r"custom op '([\w$.]+)'")


def parse_module(text: str, context: ir.Context) -> ir.Module:
    """Parses and verifies a module.

    Raises:
      VerifyError: from the MLIRError; its location is `-:line:col` in the text.
    """
    with context:
        try:
            return ir.Module.parse(text)
        except ir.MLIRError as error:
            if error.error_diagnostics:
                found = to_verify_error(error)
                if unknown := _UNKNOWN.fullmatch(str(found)):
                    raise _unknown(text, unknown.group(1), found.location or "") from None
                raise found from error
            raise _explain(text, str(error)) from error


def _unknown(text: str, kind: str, location: str) -> VerifyError:
    """The error for an attribute or a type that its dialect does not have; the parser tells only
    where.
    """
    _, line, column = location.rsplit(":", 2)
    names = _SIGIL_NAME.finditer(text.splitlines()[int(line) - 1])
    *_, found = [None, *(x for x in names if x.start() < int(column))]
    if found is None:
        return VerifyError(f"unknown {kind}", location=location)
    name, (namespace, own) = found.group(), found.groups()
    known = [x for x in parameterised_names(namespace) if x[0] == name[0]]
    if own in PYTHON_NAMES and f"{name[0]}{namespace}.{PYTHON_NAMES[own]}" in known:
        hint = f"am.{own} of Python is {name[0]}{namespace}.{PYTHON_NAMES[own]} in text"
    else:
        hint = f"{namespace} has {', '.join(known) or 'none'}"
    return VerifyError(f"unknown {kind} {name}: {hint}", location=location)


def _explain(text: str, message: str) -> VerifyError:
    """The error for text that the parser refuses without a diagnostic."""
    plain = ir.Context()
    plain.allow_unregistered_dialects = True
    with plain:
        try:
            ir.Module.parse(text)
        except ir.MLIRError as error:
            first = diagnostics_of(error)[0]
            if found := _CUSTOM_FORM.search(first.message):
                name = found.group(1)
                return VerifyError(
                    f"'{name}' op expects the generic form, "
                    f'"{name}"(operands) {{attributes}} : (types) -> (types)',
                    op=name,
                    location=first.location,
                )
    return VerifyError(message, location="-:1:1")
