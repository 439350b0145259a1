"""`compile_request`: a request to the bytes of a bundle, with a report of every stage."""

import argparse
import json
import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from attn_mlir import env
from attn_mlir.dialect import attn
from attn_mlir.dialect._mlir import ir, make_context
from attn_mlir.dialect.attn.operands import Request
from attn_mlir.dialect.targets.limits import DEFAULT_TARGET
from attn_mlir.errors import AttnError, VerifyError
from attn_mlir.files import make_folder, write_file
from attn_mlir.passes.infrastructure import analyses, pipeline
from attn_mlir.schedules.registry import kernel_named
from attn_mlir.tools import makes_machine_code

from .assemble import bundle_bytes, ptx_of
from .manifest import attached
from .ptxas import assemble
from .source import recorded_source
from .stages import Stage, stages

Progress = Callable[[str], None]


def _cpu_seconds() -> float:
    """CPU that this process and what it has waited for have taken so far."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


class _Report:
    """Times the stages, reports progress, and dumps the levels that `ATTN_MLIR_DUMP` names."""

    def __init__(self, name: str, progress: Progress | None):
        self._name = name
        self._progress = progress
        self._dump_ir = "ir" in env.settings().dump
        self.records: list[dict[str, Any]] = []

    def run(self, name: str, work: Callable[[], Any]) -> Any:
        """Runs one stage."""
        if self._progress is not None:
            self._progress(name)
        begin, cpu = time.perf_counter(), _cpu_seconds()
        result = work()
        seconds, cpu = time.perf_counter() - begin, _cpu_seconds() - cpu
        self.records.append({"name": name, "seconds": seconds, "cpu_seconds": cpu})
        return result

    def build(self, name: str, make: Callable[[], Any]) -> Any:
        """Runs a stage that makes a module, and verifies the module."""

        def work() -> Any:
            module = make()
            pipeline.verify(module)
            return module

        module = self.run(name, work)
        self.dump(name, module)
        return module

    def passes(self, stage: Stage, module: Any) -> None:
        """Runs the passes of a stage, and verifies the module at its end.

        To verify after every pass, as `attn-opt` does, would take a seventh of the passes' time.
        """

        def work() -> None:
            pipeline.run_pipeline(module, stage.text, verify_each=False)
            pipeline.verify(module)

        self.run(stage.name, work)
        self.dump(stage.name, module)

    def dump(self, name: str, module: Any) -> None:
        """Writes the module's text to the folder for dumps."""
        if self._dump_ir:
            folder = make_folder(env.settings().dump_dir)
            number = len(self.records)
            write_file(folder / f"{self._name}.{number}-{name}.mlir", str(module))


def compile_request(
    request: Request, *, target: str = DEFAULT_TARGET, progress: Progress | None = None
) -> bytes:
    """Compiles a kernel to the bytes of a bundle file.

    Args:
      request: the operation with its options and operands.
      target: the chip.
      progress: called with each stage's name when it begins.

    Raises:
      VerifyError: no kernel for the request.
      ResourceError: the kernel needs more memory or registers than the target has.
      TargetError: no ptxas.
    """
    return _compiled(_Report(request.kernel_name, progress), request, target)


def compile_with_clocks(request: Request, *, target: str, role: str = "attend") -> bytes:
    """Compiles a kernel that also records a role's clock readings; see `ws-record-clocks`.

    Its bundle has no request, since the kernel has an output more than the request.

    Args:
      request, target: as `compile_request`; raises the same.
      role: the role that is recorded.
    """
    record = Stage("clocks", f"ws-record-clocks{{role={role}}}")
    return _compiled(_Report(request.kernel_name, None), request, target, record)


def _compiled(report: _Report, request: Request, target: str, *changes: Stage) -> bytes:
    """The bytes of a bundle file; with stages that change the kernel in `ws` it has no request."""
    context = report.run("mlir", make_context)
    options = " ".join(f"{name}={value}" for name, value in request.schedule_options.items())
    with context, ir.Location.unknown():
        module = report.build("attn", lambda: attn.build_module(context, request))
        to_ws, *remaining = stages(target=target, configure=options, for_bundle=True)
        described = None if changes else request
        return _bundle(
            report, module, (to_ws, *changes, *remaining), request.kernel_name, described
        )


def compile_kernel(name: str, build: Callable[[], Any], *, target: str) -> bytes:
    """Compiles a kernel that is written in `ws` to the bytes of a bundle file.

    Args:
      name: entry name of the kernel.
      build: makes the `ws.kernel` of that name at the insertion point.
      target: the chip.

    Raises:
      VerifyError: roles that disagree on a ring.
      ResourceError: the kernel needs more memory or registers than the target has.
      TargetError: an unknown chip, or no ptxas.
    """
    report = _Report(name, None)

    def make() -> ir.Module:
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            build()
        return module

    with make_context(), ir.Location.unknown():
        _, *remaining = stages(target=target, for_bundle=True)
        return _bundle(report, report.build("ws", make), remaining, name)


def kernel_main(
    description: str | None, name: str, build: Callable[..., Any], targets: Sequence[str]
) -> None:
    """Command line for a file that defines one kernel: writes its bundle.

    Args:
      description: what `--help` says.
      name, build: as `compile_kernel`.
      targets: chips that the kernel can be built for; the first one is the default.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", nargs="?", type=Path, default=Path(f"{name}.attn"), help="bundle")
    parser.add_argument("target", nargs="?", choices=targets, default=targets[0])
    args = parser.parse_args()
    try:
        write_file(args.file, compile_kernel(name, build, target=args.target))
    except AttnError as error:
        parser.exit(1, f"{type(error).__name__}: {error}\n")


def compile_named(name: str, *, target: str) -> bytes:
    """Compiles a kernel of the registry without an `attn` operation to the bytes of a bundle file.

    Args:
      name: of the kernel, and of its entry.
      target: the chip.

    Raises:
      SpecError: no such kernel.
      TargetError: an unknown chip, or no ptxas.
    """
    build = kernel_named(name)
    return compile_kernel(name, lambda: build(name), target=target)


def _bundle(
    report: _Report,
    module: Any,
    stages_left: Sequence[Stage],
    name: str,
    request: Request | None = None,
) -> bytes:
    """Runs stages over a module and returns the bundle of the kernel `name`."""
    with analyses.cached():
        for stage in stages_left:
            report.passes(stage, module)
    ptx = ptx_of(module)[name]
    manifest = attached(module)[name]
    report.records[-1]["bytes"] = len(ptx)
    assembled = None
    if makes_machine_code():
        assembled = report.run("cubin", lambda: assemble(ptx, manifest["target"]))
        report.records[-1]["bytes"] = len(assembled.cubin)
    manifest["report"]["stages"] = report.records
    if request is not None:
        _check_call(manifest, request)
        manifest["request"] = json.loads(request.canonical_json())
    return bundle_bytes(manifest, ptx, assembled, recorded_source(module))


def _check_call(manifest: dict[str, Any], request: Request) -> None:
    """Checks that a kernel has the arguments of its request; otherwise its schedule has a bug.

    Raises:
      VerifyError: lists the tensors of the request and of the kernel.
    """
    tensors = [operand for operand in request.operands if operand.role != "scalar"]
    expected = [(x.name, x.role, x.dtype, list(x.extents)) for x in tensors]
    actual = [(x["name"], x["role"], x["dtype"], x["shape"]) for x in manifest["tensors"]]
    numbers = [operand.name for operand in request.operands if operand.role == "scalar"]
    if actual != expected or [scalar["name"] for scalar in manifest["scalars"]] != numbers:
        raise VerifyError(
            f"the schedule of {manifest['entry']} makes a kernel of {actual} and the numbers "
            f"{[scalar['name'] for scalar in manifest['scalars']]}, the request describes "
            f"{expected} and {numbers}"
        )
