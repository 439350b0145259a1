"""`compile_mha`: a request to the bytes of a bundle, with a report of every stage."""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from attn_mlir import env
from attn_mlir.dialect import attn
from attn_mlir.dialect._mlir import ir, make_context
from attn_mlir.dialect.attn.lengths import Lengths
from attn_mlir.dialect.attn.masks import Mask
from attn_mlir.dialect.attn.program import Program
from attn_mlir.files import make_folder, write_file
from attn_mlir.passes.infrastructure import analyses, pipeline
from attn_mlir.passes.schedule.kernels.tma_copy import schedule_tma_copy

from .assemble import bundle_bytes, ptx_of
from .manifest import attached
from .ptxas import assemble
from .source import recorded_source
from .stages import Stage, stages

Progress = Callable[[str], None]

MAX_MASK_NAME = 64  # characters of an entry name that go to the mask


class MhaRequest(Protocol):
    """What `compile_mha` reads of a request; see the front end's `MhaSpec`."""

    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def values_dim(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def output_dtype(self) -> str: ...
    @property
    def return_lse(self) -> bool: ...
    @property
    def lengths(self) -> Lengths: ...
    @property
    def mask(self) -> Mask: ...
    @property
    def query_tiles(self) -> int | None: ...
    @property
    def tile_order(self) -> str | None: ...
    @property
    def partial(self) -> bool: ...
    @property
    def modifier(self) -> Program | None: ...
    @property
    def block(self) -> tuple[int, int, int] | None: ...
    def canonical_json(self) -> str: ...


class CombineRequest(Protocol):
    """What `compile_combine` reads of a request; see the front end's `CombineSpec`."""

    @property
    def heads(self) -> int: ...
    @property
    def v_head_dim(self) -> int: ...
    @property
    def out_dtype(self) -> str: ...
    @property
    def sinks(self) -> str | None: ...
    @property
    def return_lse(self) -> bool: ...
    @property
    def heads_along_rows(self) -> bool: ...
    @property
    def lse_terms(self) -> int: ...
    def canonical_json(self) -> str: ...


class _Report:
    """Times the stages, and tells and dumps what `ATTN_MLIR_DUMP` asks for."""

    def __init__(self, name: str, progress: Progress | None):
        self._name = name
        self._progress = progress
        self._dump_ir = "ir" in env.settings().dump
        self.records: list[dict[str, Any]] = []

    def run(self, name: str, work: Callable[[], Any]) -> Any:
        """Runs one stage."""
        if self._progress is not None:
            self._progress(name)
        begin = time.perf_counter()
        result = work()
        self.records.append({"name": name, "seconds": time.perf_counter() - begin})
        return result

    def build(self, name: str, make: Callable[[], Any]) -> Any:
        """Runs a stage that makes a module, and verifies it."""

        def work() -> Any:
            module = make()
            pipeline.verify(module)
            return module

        module = self.run(name, work)
        self.dump(name, module)
        return module

    def passes(self, stage: Stage, module: Any) -> None:
        """Runs the passes of a stage, and verifies the module at its end.

        After every pass, as `attn-opt` does, it would take a seventh of the time of all passes.
        """

        def work() -> None:
            pipeline.run_pipeline(module, stage.text, verify_each=False)
            pipeline.verify(module)

        self.run(stage.name, work)
        self.dump(stage.name, module)

    def dump(self, name: str, module: Any) -> None:
        """Writes the module's text where dumps go."""
        if self._dump_ir:
            folder = make_folder(env.settings().dump_dir)
            number = len(self.records)
            write_file(folder / f"{self._name}.{number}-{name}.mlir", str(module))


def kernel_name(request: MhaRequest) -> str:
    """Entry name: what is static, readable in a profiler; a mask of many parts by its digest."""
    mask = request.mask.name
    if len(mask) > MAX_MASK_NAME:
        mask = f"mask_{hashlib.sha256(mask.encode()).hexdigest()[:12]}"
    heads = f"h{request.heads}k{request.kv_heads}"
    output = (f"o{request.output_dtype}",) if request.output_dtype != request.dtype else ()
    stored = request.lengths.short_name
    optional = (
        "part" if request.partial else "",
        "mod" if request.modifier is not None else "",
        "blocks" if request.block is not None else "",
        stored,
    )
    parts = (mask, *filter(None, optional), request.dtype, *output, heads)
    values = f"v{request.values_dim}" if request.values_dim != request.head_dim else ""
    return f"attn_mha_{'_'.join(parts)}_d{request.head_dim}{values}"


def compile_mha(
    request: MhaRequest, *, target: str = "sm_100a", progress: Progress | None = None
) -> bytes:
    """Compiles attention to the bytes of a bundle file.

    Args:
      request: heads, kv_heads, head_dim, values_dim, dtype, output_dtype, return_lse, mask,
        modifier, block, and the canonical text of all of it.
      target: the chip.
      progress: called with each stage's name when it begins.

    Raises:
      VerifyError, ResourceError, TargetError: no kernel, too large, or no ptxas.
    """
    name = kernel_name(request)

    def build(context: ir.Context) -> ir.Module:
        return attn.build_mha_module(
            context,
            name=name,
            heads=request.heads,
            kv_heads=request.kv_heads,
            head_dim=request.head_dim,
            v_head_dim=request.values_dim,
            out_dtype=request.output_dtype,
            return_lse=request.return_lse,
            lengths=request.lengths,
            dtype=request.dtype,
            mask=request.mask,
            modifier=request.modifier,
            block=request.block,
            partial=request.partial,
        )

    order = f"tile-order={request.tile_order}" if request.tile_order else ""
    options = f"q-tiles={request.query_tiles or 0} {order}"
    return _compiled(name, request.canonical_json(), build, options, target, progress)


def compile_combine(
    request: CombineRequest, *, target: str = "sm_100a", progress: Progress | None = None
) -> bytes:
    """Compiles the kernel that combines parts to the bytes of a bundle file; see `compile_mha`."""
    name = f"attn_combine_{request.out_dtype}_h{request.heads}_d{request.v_head_dim}"

    def build(context: ir.Context) -> ir.Module:
        return attn.build_combine_module(
            context,
            name=name,
            heads=request.heads,
            v_head_dim=request.v_head_dim,
            out_dtype=request.out_dtype,
            sinks=request.sinks,
            return_lse=request.return_lse,
            heads_along_rows=request.heads_along_rows,
            lse_terms=request.lse_terms,
        )

    return _compiled(name, request.canonical_json(), build, "", target, progress)


def _compiled(
    name: str,
    request: str,
    build: Callable[[ir.Context], ir.Module],
    options: str,
    target: str,
    progress: Progress | None,
) -> bytes:
    """A kernel of the `attn` dialect, from the function that builds its module to its bundle.

    Args:
      request: canonical text of what is asked, which the manifest keeps.
      options: of `attn-configure`.
    """
    report = _Report(name, progress)
    context = report.run("mlir", make_context)
    with context, ir.Location.unknown():
        module = report.build("attn", lambda: build(context))
        way = stages(target=target, configure=options, for_bundle=True)
        return _bundle(report, module, way, name, json.loads(request))


def compile_tma_copy(target: str) -> bytes:
    """Compiles `tma_copy(src, dst)`, bf16 [rows, 128], to the bytes of a bundle file.

    Args:
      target: `sm_90a` or `sm_100a`.

    Raises:
      TargetError: another chip, or no ptxas.
    """
    name = "tma_copy"
    context = make_context()
    with context, ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            schedule_tma_copy(name)
        _, *way = stages(target=target, for_bundle=True)
        return _bundle(_Report(name, None), module, way, name)


def _bundle(
    report: _Report,
    module: Any,
    way: Sequence[Stage],
    name: str,
    request: dict[str, Any] | None = None,
) -> bytes:
    """Runs stages over a module, to the bundle of the kernel `name`, made for a request."""
    with analyses.kept():
        for stage in way:
            report.passes(stage, module)
    ptx = ptx_of(module)[name]
    manifest = attached(module)[name]
    report.records[-1]["bytes"] = len(ptx)
    assembled = report.run("cubin", lambda: assemble(ptx, manifest["target"]))
    report.records[-1]["bytes"] = len(assembled.cubin)
    manifest["report"]["stages"] = report.records
    if request is not None:
        manifest["request"] = request
    return bundle_bytes(manifest, ptx, assembled, recorded_source(module))
