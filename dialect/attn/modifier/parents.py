"""Where operations of a score modifier may be: inside an operation of the dialect."""

from typing import Any


def parent_misfit(op: Any) -> str:
    """The error in what encloses an operation; "" if none."""
    parent = op.operation.parent
    if parent is not None and parent.name.startswith("attn."):
        return ""
    got = "nothing" if parent is None else f"'{parent.name}'"
    return f"to be inside an attn operation, is inside {got}"
