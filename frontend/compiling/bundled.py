"""Reads and checks the request in a bundle's manifest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from attn_mlir.compiling.modifier_text import read_modifier
from attn_mlir.compiling.operations import request_of
from attn_mlir.compiling.request import Request
from attn_mlir.compiling.spec import MhaSpec
from attn_mlir.dialect.attn.programs.program import Program
from attn_mlir.errors import SpecError
from attn_mlir.masks import Mask
from attn_mlir.masks.text import parse_mask
from attn_mlir.runtime.file.bundle import Bundle
from attn_mlir.runtime.file.manifest import Manifest

FROM_TEXT = "attn.mha"  # op of a request that the compiler wrote for a kernel made from text


def attention_of(bundle: Bundle) -> MhaSpec | None:
    """The attention that a bundle was compiled for; None if its manifest does not say, or not all.

    Raises:
      SpecError: the request is another operation, or does not fit the manifest's tensors.
    """
    fields = bundle.manifest.request
    if not fields or fields.get("op") == FROM_TEXT:
        return None
    if fields.get("op") != MhaSpec.operation:
        raise SpecError(f"{bundle.entry} computes {fields.get('op')!r:.40}, not attention")
    try:
        spec = request_of(fields)
    except (SpecError, KeyError, TypeError, AttributeError) as error:
        raise SpecError(
            "bundle.json: request is none that this attn-mlir knows "
            f"({f'{type(error).__name__}: {error}':.200}): compile the bundle again"
        ) from error
    check_operands(spec, bundle.manifest)
    return cast(MhaSpec, spec)


def text_of(bundle: Bundle) -> tuple[Mask | None, Program | None]:
    """The mask and score modifier of a bundle that was made from text; no mask if it does not say.

    Raises:
      SpecError: they cannot be read, or the modifier does what cannot be evaluated.
    """
    fields = bundle.manifest.request
    if fields.get("op") != FROM_TEXT:
        return None, None
    if "unread" in fields:
        raise SpecError(
            f"{bundle.entry} modifies scores by {fields['unread']!s:.80}, which cannot be "
            "evaluated here: its results are not judged"
        )
    modifier = fields.get("modifier")
    mask = parse_mask(str(fields.get("mask")))
    return mask, None if modifier is None else read_modifier(modifier)


def check_operands(request: Request, manifest: Manifest) -> None:
    """Refuses a manifest whose tensors and scalars are not those of a request.

    Raises:
      SpecError: names the tensors or scalars that differ.
    """
    expected = {x.name: (x.role, x.dtype, x.extents) for x in request.tensors}
    actual = {x.name: (x.role, x.dtype, x.shape) for x in manifest.tensors}
    if list(expected) != list(actual):
        raise SpecError(
            f"bundle.json: the request takes {', '.join(expected)}, the kernel "
            f"{', '.join(actual)}: compile the bundle again"
        )
    for name, (role, dtype, extents) in expected.items():
        if actual[name] != (role, dtype, extents):
            got_role, got_dtype, shape = actual[name]
            raise SpecError(
                f"bundle.json: the request's {name} is {dtype} {list(extents)} ({role}), the "
                f"kernel's {got_dtype} {list(shape)} ({got_role}): compile the bundle again"
            )
    numbers = [x.name for x in request.operands if x.role == "scalar"]
    if sorted(numbers) != sorted(x.name for x in manifest.scalars):
        raise SpecError(
            f"bundle.json: the request takes the numbers {', '.join(numbers)}, the kernel "
            f"{', '.join(x.name for x in manifest.scalars)}: compile the bundle again"
        )


def request_lines(fields: Mapping[str, object]) -> list[str]:
    """A manifest's request in words, without options that have their default."""
    if not fields:
        return ["computes: not said in this bundle"]
    shown = {
        name: value
        for name, value in fields.items()
        if value not in _NOTHING and name not in ("op", "modifier")
    }
    options = _words(shown)
    lines = [f"computes {_word(fields.get('op'))}: {options}"]
    modifier = fields.get("modifier")
    if modifier is not None:
        try:
            program = read_modifier(modifier)
        except SpecError as error:
            return [*lines, f"score modifier: {error}"]
        reads = ", ".join(f"{t.name} ({t.dtype}, rank {t.rank})" for t in program.tensors)
        sink = ", with a sink" if program.sink is not None else ""
        lines.append(
            f"score modifier of {len(program.nodes)} operations, {len(program.keeps)} conditions"
            f"{sink}, reads {reads or 'no tensors'}"
        )
    return lines


_NOTHING: tuple[object, ...] = (None, [], False, "")


def _words(values: Mapping[str, object]) -> str:
    """Names and values as one line of text."""
    return ", ".join(f"{name} {_word(value)}" for name, value in values.items())


def _word(value: object) -> str:
    if isinstance(value, dict):
        items = cast("dict[str, object]", value).items()
        return f"({_words({name: x for name, x in items if x not in _NOTHING})})"
    if isinstance(value, list):
        return "(" + ", ".join(map(str, cast("list[object]", value))) + ")"
    return str(value)
