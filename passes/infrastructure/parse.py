"""Parses a module, and finds the line of whatever is wrong in its text.

The parser fails without a diagnostic at an operation of ours in a custom form (`attn.mha %q : f32`),
since a dialect made in Python has only the generic form. Its line is found by parsing again in a
context without our dialects, where that operation is the first thing that the parser reports.
"""

import re

from attn_mlir.dialect._mlir import ir
from attn_mlir.errors import VerifyError
from attn_mlir.passes.infrastructure.diagnostics import diagnostics_of, to_verify_error

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
                raise to_verify_error(error) from error
            raise _explain(text, str(error)) from error


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
