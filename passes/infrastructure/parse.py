"""Parses a module, and locates errors in its text.

The parser fails without a diagnostic at an operation of ours in a custom form
(`attn.mha %q : f32`), since a dialect made in Python has only the generic form. A second parse
without our dialects reports that operation first, with its line.
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
                verify_error = to_verify_error(error)
                if unknown := _UNKNOWN.fullmatch(str(verify_error)):
                    raise _unknown(text, unknown.group(1), verify_error.location or "") from None
                raise verify_error from error
            raise _explain(text, str(error)) from error


def _unknown(text: str, kind: str, location: str) -> VerifyError:
    """The error for an unknown attribute or type, of which the parser reports only the location."""
    _, line, column = location.rsplit(":", 2)
    names = _SIGIL_NAME.finditer(text.splitlines()[int(line) - 1])
    *_, name_match = [None, *(x for x in names if x.start() < int(column))]
    if name_match is None:
        return VerifyError(f"unknown {kind}", location=location)
    name, (namespace, attribute) = name_match.group(), name_match.groups()
    candidates = [x for x in parameterised_names(namespace) if x[0] == name[0]]
    if (
        attribute in PYTHON_NAMES
        and f"{name[0]}{namespace}.{PYTHON_NAMES[attribute]}" in candidates
    ):
        hint = f"am.{attribute} of Python is {name[0]}{namespace}.{PYTHON_NAMES[attribute]} in text"
    else:
        hint = f"{namespace} has {', '.join(candidates) or 'none'}"
    return VerifyError(f"unknown {kind} {name}: {hint}", location=location)


def _explain(text: str, message: str) -> VerifyError:
    """The error for text that the parser rejects without a diagnostic."""
    plain = ir.Context()
    plain.allow_unregistered_dialects = True
    with plain:
        try:
            ir.Module.parse(text)
        except ir.MLIRError as error:
            first = diagnostics_of(error)[0]
            if custom := _CUSTOM_FORM.search(first.message):
                name = custom.group(1)
                return VerifyError(
                    f"'{name}' op expects the generic form, "
                    f'"{name}"(operands) {{attributes}} : (types) -> (types)',
                    op=name,
                    location=first.location,
                )
    return VerifyError(message, location="-:1:1")
