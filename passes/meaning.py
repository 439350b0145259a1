"""The request of an attention function, stored on the module for its bundle."""

import json
from typing import Any

from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.attn import MhaOp
from attn_mlir.dialect.attn.names import names_of
from attn_mlir.dialect.attn.programs.reading import Unread, read_program

MEANINGS = "attn.meanings"  # module attribute: kernel name -> JSON text
Request = dict[str, Any]


def record_meaning(module: Any, function: Any) -> None:
    """Stores mask and score modifier of a function of `attn.mha` whose operands are its arguments.

    A bundle made from text then has a request: `op`, `mask`, and `modifier` with the region as a
    program, or `unread` with an operation that programs do not support.
    """
    if (meaning := _meaning(function)) is None:
        return
    attributes = module.operation.attributes
    recorded = ir.DictAttr(attributes[MEANINGS]) if MEANINGS in attributes else ()
    texts = {named.name: named.attr for named in recorded}
    texts[function.sym_name.value] = ir.StringAttr.get(json.dumps(meaning))
    attributes[MEANINGS] = ir.DictAttr.get(texts)


def recorded_meaning(module: Any, kernel: str) -> Request:
    """The request stored for a kernel; empty without one."""
    attributes = module.operation.attributes
    if MEANINGS not in attributes or kernel not in ir.DictAttr(attributes[MEANINGS]):
        return {}
    return json.loads(ir.StringAttr(ir.DictAttr(attributes[MEANINGS])[kernel]).value)


def _meaning(function: Any) -> Request | None:
    """The request of a function, if it is one `attn.mha` on its arguments."""
    body = list(function.body.blocks[0].operations) if function.body.blocks else []
    attn_ops = [op for op in body if isinstance(op, MhaOp)]
    arguments = list(function.arguments)
    if len(attn_ops) != 1 or any(
        x not in arguments for x in (attn_ops[0].q, attn_ops[0].k, attn_ops[0].v)
    ):
        return None
    (op,) = attn_ops
    names = {value: name for value, name in zip(arguments, names_of(function), strict=True) if name}
    request: Request = {"op": MhaOp.OPERATION_NAME, "mask": str(op.mask_rule), "modifier": None}
    try:
        program = read_program(op.score_mod.blocks[0], names)
    except Unread as unread:
        return {**request, "unread": str(unread)}
    return request if program is None else {**request, "modifier": program.canonical()}
