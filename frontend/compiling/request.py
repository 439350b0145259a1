"""What a bundle computes: the request that its manifest keeps, read back and checked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from attn_mlir.compiling.spec import DESCALES, NARROW_DTYPES, MhaSpec
from attn_mlir.dialect.attn.block import BLOCK_LISTS
from attn_mlir.dialect.attn.lengths import Lengths
from attn_mlir.dialect.attn.program import Program
from attn_mlir.errors import SpecError
from attn_mlir.masks.text import parse_mask
from attn_mlir.runtime.bundle import Bundle
from attn_mlir.runtime.manifest import TensorArg

_LENGTH_FLAGS = {
    "cu_seqlens_q": "ragged_q",
    "cu_seqlens_k": "ragged_k",
    "seqused_q": "used_q",
    "seqused_k": "used_k",
    "cache_seqlens": "cached_k",
}  # index array -> field of `Lengths`


def attention_of(bundle: Bundle) -> MhaSpec | None:
    """The attention that a bundle was compiled for; None where its manifest does not say.

    Raises:
      SpecError: the manifest says something else, or what it says does not fit its tensors.
    """
    request = bundle.manifest.request
    if not request:
        return None
    if request.get("op") != "mha":
        raise SpecError(f"{bundle.entry} computes {request.get('op')!r:.40}, not attention")
    try:
        spec = _spec(request)
    except (SpecError, KeyError, TypeError, AttributeError) as error:
        raise _unknown(f"{type(error).__name__}: {error}") from error
    if json.loads(spec.canonical_json()) != dict(request):
        raise _unknown("it is not in canonical form")
    _check_tensors(spec, bundle.manifest.tensors)
    return spec


def _unknown(why: str) -> SpecError:
    return SpecError(
        f"bundle.json: request is none that this attn-mlir knows ({why:.200}): compile the bundle "
        "again"
    )


def _spec(request: Mapping[str, Any]) -> MhaSpec:
    """The request itself; wrong types of fields may raise anything that `attention_of` expects."""
    told = [name for name in request["lengths"] if name in _LENGTH_FLAGS]
    block, modifier = request["block"], request["modifier"]
    return MhaSpec(
        heads=request["heads"],
        kv_heads=request["kv_heads"],
        head_dim=request["head_dim"],
        v_head_dim=request["v_head_dim"],
        dtype=request["dtype"],
        mask=parse_mask(request["mask"]),
        modifier=None if modifier is None else _program(modifier),
        query_tiles=request["query_tiles"],
        tile_order=request["tile_order"],
        out_dtype=request["out_dtype"],
        return_lse=request["return_lse"],
        lengths=Lengths(**{_LENGTH_FLAGS[name]: True for name in told}),
        block=None if block is None else cast("tuple[int, int, int]", tuple(block)),
        partial=request["partial"],
    )


def _parsed(text: object) -> Program:
    """The program that a request's modifier is the text of; its nodes may be anything.

    Raises:
      SpecError: it is no text of a program.
    """
    if not isinstance(text, str):
        raise SpecError(f"no program of a score modifier: {text!r:.60}")
    try:
        return Program.from_json(text)
    except (RecursionError, AttributeError) as error:
        raise SpecError(f"no program of a score modifier: {text!r:.60}") from error


def _program(text: object) -> Program:
    """A score modifier that can be evaluated.

    Raises:
      SpecError: the text is no program, or its nodes do not fit each other.
    """
    import numpy as np

    program = _parsed(text)
    zero = np.zeros((1, 1))
    arguments = {"score": zero, "batch": 0, "head": 0, "q": np.array([[0]]), "k": np.array([[0]])}
    try:  # one element meets every node, and so every misfit
        tensors = {tensor.name: np.ones([1] * tensor.rank) for tensor in program.tensors}
        program.evaluate(arguments, tensors)
    except Exception as error:  # numpy and Python have many words for it
        raise SpecError(f"its modifier cannot be evaluated: {error!s:.100}") from error
    return program


def argument_names(spec: MhaSpec) -> list[str]:
    """The tensors that a kernel for a request takes, in order."""
    names = ["q", "k", "v", "o", *(["lse"] if spec.return_lse else []), *spec.lengths.tensors]
    if spec.dtype in NARROW_DTYPES:
        names += DESCALES
    if spec.block is not None:
        names += BLOCK_LISTS
    if spec.modifier is not None:
        names += [tensor.name for tensor in spec.modifier.tensors]
    return names


def _check_tensors(spec: MhaSpec, tensors: Sequence[TensorArg]) -> None:
    """Refuse a request for other tensors than the kernel's."""
    names = [tensor.name for tensor in tensors]
    if names != argument_names(spec):
        raise SpecError(
            f"bundle.json: the request takes {', '.join(argument_names(spec))}, the kernel "
            f"{', '.join(names)}: compile the bundle again"
        )
    wanted: dict[str, tuple[str, list[int]]] = {
        "q": (spec.dtype, [spec.heads, spec.head_dim]),
        "k": (spec.dtype, [spec.kv_heads, spec.head_dim]),
        "v": (spec.dtype, [spec.kv_heads, spec.values_dim]),
        "o": (spec.output_dtype, [spec.heads, spec.values_dim]),
    }
    for tensor in spec.modifier.tensors if spec.modifier is not None else ():
        wanted[tensor.name] = (tensor.dtype, [])
    for tensor in tensors:
        dtype, extents = wanted.get(tensor.name, (tensor.dtype, []))
        if (
            tensor.dtype != dtype
            or list(tensor.shape[len(tensor.shape) - len(extents) :]) != extents
        ):
            raise SpecError(
                f"bundle.json: the request's {tensor.name} is {dtype} [..., {extents}], the "
                f"kernel's {tensor.dtype} {list(tensor.shape)}: compile the bundle again"
            )


def request_lines(request: Mapping[str, object]) -> list[str]:
    """A manifest's request in words; what has its usual value is left out."""
    if not request:
        return ["computes: not said in this bundle"]
    shown = {
        name: value
        for name, value in request.items()
        if value not in (None, [], False) and name not in ("op", "modifier")
    }
    listed = ", ".join(f"{name} {_word(value)}" for name, value in shown.items())
    lines = [f"computes {_word(request.get('op'))}: {listed}"]
    modifier = request.get("modifier")
    if modifier is not None:
        try:
            program = _program(modifier)
        except SpecError as error:
            return [*lines, f"score modifier: {error}"]
        reads = ", ".join(f"{t.name} ({t.dtype}, rank {t.rank})" for t in program.tensors)
        sink = ", with a sink" if program.sink is not None else ""
        lines.append(
            f"score modifier of {len(program.nodes)} operations, {len(program.keeps)} conditions"
            f"{sink}, reads {reads or 'no tensors'}"
        )
    return lines


def _word(value: object) -> str:
    if isinstance(value, list):
        return "(" + ", ".join(map(str, cast("list[object]", value))) + ")"
    return str(value)
