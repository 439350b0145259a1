"""From `attn.mha` to a `ws.kernel`: the warp-specialised kernel with two query tiles.

A work tile is 256 query rows of one head. Warps 0-3 and 4-7 are the softmax groups of its two
query tiles of 128 rows, 8-11 rescale and normalise the accumulators, 12 issues the products, 13
stores, 14 loads, 15 claims further work tiles where the order asks for it. The parts are put together here:
where keys and values come from, the mask (part of the problem), the order of the tiles, and the
roles.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.passes.check_names import default_of
from attn_mlir.passes.schedule.kernels.mha_config import MhaConfig, Options, configure
from attn_mlir.passes.schedule.parts import builder as b
from attn_mlir.passes.schedule.parts.correction import correction
from attn_mlir.passes.schedule.parts.factors import factors_of
from attn_mlir.passes.schedule.parts.function import Capture, captures_of, check_function
from attn_mlir.passes.schedule.parts.key_parts import Parts
from attn_mlir.passes.schedule.parts.kv_source import KVSource, PagedKV, TensorKV
from attn_mlir.passes.schedule.parts.listed import ListedTiles
from attn_mlir.passes.schedule.parts.modifier import Modifier
from attn_mlir.passes.schedule.parts.operands import (
    check_storage,
    dimension_names,
    pages_of,
    sequences_of,
)
from attn_mlir.passes.schedule.parts.problem import Problem, Value, WorkTile
from attn_mlir.passes.schedule.parts.softmax import softmax
from attn_mlir.passes.schedule.parts.storage import Storage
from attn_mlir.passes.schedule.parts.transport import epilogue, load, mma
from attn_mlir.passes.schedule.parts.visited import KeyTiles
from attn_mlir.passes.schedule.registry import register
from attn_mlir.passes.target.limits import Target

WARPS_PER_GROUP = 4  # 128 threads: one per row of a query tile
TENSOR_DIMS = {  # by rank: a dimension for the sequence, or rows of all sequences
    "q": {4: ("batch", "sq", "", ""), 3: ("total_q", "", "")},
    "k": {4: ("batch", "sk", "", ""), 3: ("total_k", "", "")},
    "v": {4: ("batch", "sk", "", ""), 3: ("total_k", "", "")},
    "o": {4: ("batch", "sq", "", ""), 3: ("total_q", "", "")},
    "lse": {3: ("batch", "", "sq"), 2: ("", "total_q")},
}
OUTPUTS = ("o", "lse")


@register
class MhaTensor:
    """Attention with S and O in tensor memory."""

    name: ClassVar[str] = "mha"
    operation: ClassVar[type[Any]] = attn.MhaOp
    options: ClassVar[type[Any]] = Options

    def lacks(self, target: Target) -> str:
        """Tensor memory, for which this kernel divides its roles."""
        return "" if target.accumulator == "tensor" else "products that accumulate in tensor memory"

    def takes(self, op: attn.MhaOp) -> bool:
        """Any attention."""
        return True

    def configure(self, op: attn.MhaOp, target: Target, options: Mapping[str, Any]) -> None:
        """See `mha_config.configure`."""
        configure(op, target, options)

    def build(self, function: Any, op: attn.MhaOp, target: Target) -> ws.KernelOp:
        """Builds the kernel of a function of one attention operation, which has `attn.config`.

        Raises:
          VerifyError: the function computes something else as well, the operation has no
            configuration, or its score modifier is not element-wise.
        """
        check_function(function, op)
        return _schedule(
            op,
            function.sym_name.value,
            default_scale=default_of(function, "scale"),
            captures=captures_of(function),
        )


def _schedule(
    op: attn.MhaOp, name: str, *, default_scale: float | None, captures: Sequence[Capture]
) -> ws.KernelOp:
    """Builds the kernel at the insertion point.

    Args:
      op: the operation, with `attn.config`.
      name: entry name of the kernel.
      default_scale: value of `scale` for callers who give none.
      captures: what the score modifier and the storage operations read, in the order of the call.
    """
    config = MhaConfig.of(op)
    check_storage(op)
    kernel = _declare(op, name, default_scale, captures)
    with ir.InsertionPoint(kernel.body.blocks[0]):
        arguments = list(kernel.body.blocks[0].arguments)
        own = len(arguments) - len(captures)
        captured = dict(zip((c.value for c in captures), arguments[own:], strict=True))
        tensors: dict[str, Value] = {"lse": None}
        tensors |= dict(zip(kernel.names[:own], arguments[:own], strict=True))
        keys = sequences_of(op.k, tensors["k"], captured)
        problem = Problem(
            **tensors,
            factors=factors_of(op, captured),
            parts=Parts(tensors["o"], tensors["q"]) if op.is_partial else None,
            query_sequences=sequences_of(op.q, tensors["q"], captured),
            key_sequences=keys,
            modifier=Modifier(op, captured),
            visited=ListedTiles.of(op.blocks, captured, config, keys) if op.blocks else KeyTiles,
            heads=op.heads,
            kv_heads=op.kv_heads,
            head_dim=op.head_dim,
            v_head_dim=op.v_head_dim,
            element=op.element_type,
            output=op.output_type,
            mask=op.mask_rule,
            config=config,
        )
        _emit_roles(problem, config, Storage(problem), _source(op, problem, captured))
    return kernel


def _source(op: attn.MhaOp, problem: Problem, captured: Mapping[Value, Value]) -> KVSource:
    """Where keys and values come from."""
    keys, values = pages_of(op.k, problem.k, captured), pages_of(op.v, problem.v, captured)
    if keys is None or values is None:
        return TensorKV(problem)
    return PagedKV(problem, keys, values)


def _declare(
    op: attn.MhaOp, name: str, default_scale: float | None, captures: Sequence[Capture]
) -> ws.KernelOp:
    """The kernel operation with its arguments and an empty body."""
    arguments: list[b.Argument] = []
    leading = {"batch": "parts", "total_q": "part_rows"} if op.is_partial else {}
    for label, dims_by_rank in TENSOR_DIMS.items():
        if label in OUTPUTS and not list(getattr(op, label).uses):
            continue
        tensor = attn.stored_type(getattr(op, label))
        terms = ("",) if label == "lse" and op.is_partial else ()
        dims = (*terms, *dims_by_rank[tensor.rank - len(terms)])
        if label in ("k", "v"):
            dims = dimension_names(getattr(op, label), dims)
        if label in OUTPUTS:
            dims = [leading.get(name, name) for name in dims]
        kind = ir.MemRefType.get(list(tensor.shape), tensor.element_type)
        arguments.append(b.Argument(label, "out" if label in OUTPUTS else "in", kind, dims))
    arguments.append(b.Argument("scale", "scalar", ir.F32Type.get(), ()))
    arguments += [_captured(capture) for capture in captures]
    kernel = b.declare_kernel(name, arguments)
    if default_scale is not None:
        value = ir.FloatAttr.get(ir.F32Type.get(), default_scale)
        kernel.attributes["ws.defaults"] = ir.DictAttr.get({"scale": value})
    return kernel


def _captured(capture: Capture) -> b.Argument:
    """A captured tensor or scalar as an argument; each run-time extent gets a name of its own."""
    kind = capture.value.type
    if not isinstance(kind, ir.RankedTensorType):
        return b.Argument(capture.name, "scalar", kind, ())
    dims = [f"{capture.name}_{i}" if kind.is_dynamic_dim(i) else "" for i in range(kind.rank)]
    memref = ir.MemRefType.get(list(kind.shape), kind.element_type)
    return b.Argument(capture.name, "in", memref, dims)


def _emit_roles(problem: Problem, config: MhaConfig, storage: Storage, source: KVSource) -> None:
    groups = config.q_tiles
    other, corrector = config.other_registers, config.correction_registers
    last = WARPS_PER_GROUP * groups

    @contextmanager
    def every_tile() -> Generator[WorkTile]:
        space, packing = problem.tile_space(), problem.packing()
        order, answers = config.tile_order, storage.answers
        with b.tiles(space, order, **packing, answers=answers) as coordinates:
            yield problem.work_tile(*coordinates)

    def work(body: Callable[[WorkTile], None]) -> None:
        """Runs a role's part of each tile; one past the end of a sequence has none."""
        with every_tile() as tile:
            if not problem.query_sequences.differ:
                body(tile)
                return
            with b.when(b.compare("sgt", tile.queries.length, problem.first_position(tile, 0))):
                body(tile)

    with b.role(
        "softmax", first=0, warps=last, groups=groups, registers=config.softmax_registers
    ) as way:
        work(lambda tile: softmax(problem, storage, tile, way))
    with b.role("correction", first=last, warps=WARPS_PER_GROUP, registers=corrector):
        work(lambda tile: correction(problem, storage, tile))
    with b.role("mma", first=last + 4, warps=1, lanes=1, registers=other):
        work(lambda tile: mma(problem, storage, tile))
    with b.role("epilogue", first=last + 5, warps=1, lanes=1, registers=other):
        work(lambda tile: epilogue(problem, storage, tile))
    with b.role("load", first=last + 6, warps=1, lanes=1, registers=other):
        work(lambda tile: load(problem, storage, source, tile))
    if (answers := storage.answers) is not None:
        with b.role("claim", first=last + 7, warps=1, lanes=1, registers=other):
            with every_tile():
                b.claim(answers)
