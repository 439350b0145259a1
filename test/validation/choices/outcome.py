"""What a call comes to, and what a kernel is configured to, in one line each."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence
from typing import Any, cast

from attn_mlir.api.plan import Plan
from attn_mlir.compiling.mla_decode import MlaDecodeSpec
from attn_mlir.compiling.request import Request
from attn_mlir.compiling.routes import choice_of
from attn_mlir.compiling.spec import MhaSpec
from attn_mlir.dialect import attn
from attn_mlir.dialect._mlir import ir, make_context
from attn_mlir.dialect.targets.limits import target_named
from attn_mlir.errors import AttnError
from attn_mlir.passes.infrastructure import pipeline
from attn_mlir.runtime.kernel import Machine
from attn_mlir.schedules.choice import schedule_for
from attn_mlir.schedules.core.facts import operations
from attn_mlir.validation.choices.case import Case

CHOSEN = ("schedule", "query_tiles", "tile_order", "split_size")  # options that calls choose
UNSAID = ("attn.schedule",)  # attributes of an operation that a row has in another form
WORDS = 4  # of a refusal
LONG = 60  # characters, of options that a row has by a checksum: the programs of modifiers


def of_call(case: Case) -> tuple[str, Sequence[Request]]:
    """The outcome of planning a call, and the kernels that it would compile."""
    try:
        plan = case.plan()
    except AttnError as error:
        return _refusal(error), ()
    return _planned(plan, case), [step.request for step in plan.steps]


def _refusal(error: AttnError) -> str:
    """The class of an error and how its text begins, whose rest may change without a choice that does."""
    return f"{type(error).__name__}: {' '.join(str(error).split()[:WORDS]).removesuffix(':')}"


def _planned(plan: Plan, case: Case) -> str:
    """Kernels with the options that were chosen, the work tiles of the first, and the memory beside results."""
    kernels = " + ".join(kernel_text(step.request) for step in plan.steps)
    tiles = _tiles(plan.steps[0].request, case)
    memory = "".join(f" {x.name}{list(x.shape)}" for x in plan.workspace)
    return f"{kernels};{tiles}{memory}".replace(", ", ",")


def _tiles(request: Request, case: Case) -> str:
    """The number of work tiles that a call counts with to choose splits; nothing where none are chosen."""
    try:
        if isinstance(request, MhaSpec | MlaDecodeSpec):
            request = dataclasses.replace(request, schedule=request.schedule or "mha")
            choice = choice_of(request, case.sizes(), Machine(case.target, 0))
            return f" tiles={choice.work_tiles()}"
    except AttnError as error:
        return f" {_refusal(error)}"
    return ""


def kernel_text(request: Request) -> str:
    """The name of a kernel, and the options of it that were chosen."""
    fields = request.fields()
    found = {name: fields[name] for name in CHOSEN if fields.get(name) is not None}
    return " ".join((request.kernel_name, *(f"{name}={value}" for name, value in found.items())))


def kernel_key(request: Request) -> str:
    """The name of a kernel with all options that are unlike their defaults: what no other request has."""
    fields = request.fields()
    said = {
        x.name: str(fields[x.name])
        for x in dataclasses.fields(cast("Any", request))
        if x.name in fields and getattr(request, x.name) != x.default
    }
    told = {n: f"{zlib.crc32(x.encode()):08x}" if len(x) > LONG else x for n, x in said.items()}
    pairs = (f"{name}={text}".replace(" ", "") for name, text in told.items())
    return " ".join((request.kernel_name, *pairs))


class Configurator:
    """Asks schedules for the tiles, stages and registers of kernels, without lowering these."""

    def __init__(self) -> None:
        self._context = make_context()

    def __call__(self, request: Request, target: str) -> str:
        """The schedule of a kernel with all that its operation says, its configuration among it; or the refusal."""
        options = " ".join(f"{name}={value}" for name, value in request.schedule_options.items())
        text = f"attn-configure{{{f'target={target} {options}'.strip()}}}"
        with self._context, ir.Location.unknown():
            module = attn.build_module(self._context, request)
            try:
                pipeline.run_pipeline(module, text, verify_each=False)
            except AttnError as error:
                return _refusal(error)
            op = _operation(module)
            chosen = schedule_for(op, target_named(target)).policy.name
            said = {name: str(op.attributes[name]) for name in op.attributes if name not in UNSAID}
        told = " ".join(f"{name}={text}" for name, text in sorted(said.items()))
        return f"{chosen} {told}".replace(" : i32", "").replace(" = ", "=").strip()


def _operation(module: ir.Module) -> Any:
    """The operation of a module for which there are schedules."""
    return next(op for kind in operations() for op in ir.get_ops_of_type(module, kind))
