"""The kernel of an attention operation before it has roles: its arguments and its `Problem`."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect._mlir import ext, ir
from attn_mlir.dialect.attn.names import default_of, field_names, names_of, operand_names
from attn_mlir.dialect.diagnostics import op_error

from . import emit as b
from .core.config import Config
from .core.direction import ROWS_ARE_QUERIES
from .core.listed_tiles import IndexedTiles, block_of
from .core.mask_tiles import MaskTiles
from .core.modifier import Modifier
from .core.offsets import OffsetArguments
from .core.problem import Problem, Value, WorkTile, sizes_of
from .core.splits import CombinedSplits, Splits, Workspace
from .operands.position_scales import position_scales_of
from .operands.scales import OperandScales
from .operands.storage import OperandStorage, StoredKeys
from .operands.storage_checks import check_storage

ConfigT = TypeVar("ConfigT", bound=Config)
Dims = Mapping[
    int, tuple[str, ...]
]  # by rank: with a batch dimension, or rows of all sequences in one

QUERY_DIMS: Dims = {4: ("batch", "sq", "", ""), 3: ("total_q", "", "")}
KEY_DIMS: Dims = {4: ("batch", "sk", "", ""), 3: ("total_k", "", ""), 2: ("s_kv", "")}
LSE_DIMS: Dims = {3: ("batch", "", "sq"), 2: ("", "total_q")}
OUTPUT_DIMS = {"o": QUERY_DIMS, "lse": LSE_DIMS}
TENSOR_DIMS = {"q": QUERY_DIMS, "k": KEY_DIMS, "v": KEY_DIMS, **OUTPUT_DIMS}


@dataclass(frozen=True)
class Capture:
    """A function argument that the score modifier or a storage operation reads: a tensor or scalar.

    Attributes:
      name: by which the caller passes it.
      value: the argument of the function.
    """

    name: str
    value: Value


class Opened(NamedTuple, Generic[ConfigT]):
    """A kernel whose body is being built.

    Attributes:
      kernel: the operation.
      tensors: its own arguments by name; `lse` is None if it is not requested.
      captured: values read by storage operations and the modifier -> arguments of the kernel.
      config: of the operation.
    """

    kernel: ws.KernelOp
    tensors: dict[str, Value]
    captured: Mapping[Value, Value]
    config: ConfigT


@contextmanager
def opened(
    function: Any,
    op: Any,
    dims: Mapping[str, Dims],
    kind: type[ConfigT],
    captured_dims: Mapping[str, Sequence[str]] = MappingProxyType({}),
    *,
    cluster: int = 1,
) -> Generator[Opened[ConfigT]]:
    """The kernel of a function of one attention operation; the body of the `with` is its body.

    Args:
      dims: the operation's tensors in the order of the kernel's call; the scale and the captured
        arguments follow.
      captured_dims: names of run-time extents that captured arguments share with others.
      kind: of the operation's configuration.
      cluster: CTAs that work on a work tile.

    Raises:
      VerifyError: the function computes something else as well, or the operation has no
        configuration of this kind.
    """
    _check_function(function, op)
    default_scale, captures = default_of(function, "scale"), _captures_of(function)
    config = kind.of(op)
    declared = _declared(op, dims, captures, captured_dims)
    kernel = b.declare_kernel(function.sym_name.value, declared, cluster=cluster)
    if default_scale is not None:
        value = ir.FloatAttr.get(ir.F32Type.get(), default_scale)
        kernel.attributes["ws.defaults"] = ir.DictAttr.get({"scale": value})
    with ir.InsertionPoint(kernel.body.blocks[0]):
        arguments = list(kernel.body.blocks[0].arguments)
        tensor_count = len(arguments) - len(captures)
        captured = dict(zip((c.value for c in captures), arguments[tensor_count:], strict=True))
        tensors: dict[str, Value] = {"lse": None}
        tensors |= dict(zip(kernel.names[:tensor_count], arguments[:tensor_count], strict=True))
        yield Opened(kernel, tensors, captured, config)


@contextmanager
def attention_kernel(
    function: Any, op: attn.MhaOp, kind: type[Config]
) -> Generator[tuple[ws.KernelOp, Problem, tuple[StoredKeys, StoredKeys]]]:
    """The kernel of a function of one attention operation; the body of the `with` is its body.

    Yields the kernel, its problem, and the storage of keys and values.

    Args:
      kind: the class of the operation's configuration.

    Raises:
      VerifyError: the function computes something else as well, the operation has no configuration
        of this kind, or its score modifier is not element-wise.
    """
    q, k, v = storages = [OperandStorage.of(operand) for operand in (op.q, op.k, op.v)]
    check_storage(op, q, k, v, may_share_rows=kind.shares_rows)
    with opened(function, op, TENSOR_DIMS, kind) as (kernel, tensors, captured, config):
        tensors.setdefault("v", tensors["k"])
        captured = {**captured, k.root: tensors["k"]}
        keys, values = k.keys(tensors["k"], captured), v.keys(tensors["v"], captured)
        blocks = op.blocks
        problem = Problem(
            **tensors | {"q": (tensors["q"],)},
            scales=OperandScales(*(storage.scale_table(captured) for storage in storages)),
            position_scales=position_scales_of(k, v, captured),
            splits=_splits_of(op, tensors, captured, config.tile_n),
            tile_counter=None if op.tile_counter is None else captured[op.tile_counter.counter],
            offsets=None if op.offsets is None else OffsetArguments.of(op.offsets, captured),
            query_sequences=q.queries(tensors["q"], captured),
            key_sequences=keys.sequences,
            modifier=Modifier(op, captured),
            make_column_tiles=MaskTiles
            if blocks is None
            else IndexedTiles.of(blocks, captured, block_of(config), keys.sequences),
            **sizes_of(op),
            stored=op.stored_element_type,
            output=op.output_type,
            config=config,
            direction=ROWS_ARE_QUERIES,
        )
        yield kernel, problem, (keys, values)


def _splits_of(
    op: attn.MhaOp, tensors: Mapping[str, Value], captured: Mapping[Value, Value], tile_n: int
) -> Splits | None:
    """The split of the keys into parts, or None; key tiles have `tile_n` keys."""
    if op.join is not None:
        memory = (op.join.sums, op.join.extremes, op.join.arrived)
        workspace = Workspace(*(captured[x] for x in memory))
        keys = op.join.part_keys
        size = None if keys is None else keys // tile_n
        return CombinedSplits(tensors["o"], tensors["q"], workspace, size=size)
    return Splits(tensors["o"], tensors["q"]) if op.is_partial else None


@contextmanager
def every_tile(problem: Problem, claimed: b.Ring | None = None) -> Generator[WorkTile]:
    """Emits the loop of a role over its work tiles; yields the work tile.

    Args:
      claimed: the ring with the coordinates of claimed work tiles, if the order claims any.
    """
    space, packing = problem.tile_space(), problem.packing()
    with b.tiles(space, problem.config.tile_order, **packing, claimed=claimed) as coordinates:
        yield problem.work_tile(*coordinates)


@contextmanager
def every_tile_with_rows(problem: Problem, claimed: b.Ring | None = None) -> Generator[WorkTile]:
    """As `every_tile`, but skips work tiles past the end of their sequence."""
    with every_tile(problem, claimed) as tile, when_it_has_rows(problem, tile):
        yield tile


def over_tiles(
    problem: Problem,
    body: Callable[[WorkTile, Value], None],
    *,
    claimed: b.Ring | None = None,
    waits: bool = False,
) -> Callable[[Value], None]:
    """The body of a role: its loop over the work tiles that have rows.

    Args:
      body: emits the code for a work tile, given that and the number of a thread's group.
      claimed: as of `every_tile`.
      waits: whether the role first waits until the kernels before this one are over.
    """

    def run(number: Value) -> None:
        if waits:
            b.grid_dependency_wait()
        with every_tile_with_rows(problem, claimed) as tile:
            body(tile, number)

    return run


@contextmanager
def when_it_has_rows(problem: Problem, tile: WorkTile) -> Generator[None]:
    """Emits the body of the `with` for work tiles that begin before the end of their sequence."""
    if not problem.rows.sequences.differ:
        yield
        return
    length, _ = problem.lengths(tile)
    with b.when(b.compare("sgt", length, problem.first_position(tile, 0))):
        yield


def _check_function(function: Any, op: Any) -> None:
    """Checks that a function passes its arguments to the operation, and its results on, as they
    are.

    Raises:
      VerifyError: it computes something else as well, or mixes them up.
    """
    views = (*attn.STORAGE_OPERATIONS, attn.ScaledOp, attn.ColumnsOp, attn.LatentRowsOp)
    block = list(function.body.blocks[0].operations)
    operations = [other for other in block if not isinstance(other, views)]
    tensor_count = op.operation.name
    if len(operations) != 2:
        names = ", ".join(other.operation.name for other in operations)
        raise op_error(function, f"expects one {tensor_count} and func.return, got {names}")
    operands = _stored_tensors(op)
    if operands != list(function.arguments)[: len(operands)]:
        raise op_error(op, "expects the function's first arguments as its operands, in order")
    results = dict(zip(result_names(op), op.operation.results, strict=True))
    least = {name: value for name, value in results.items() if name != "lse"}
    if list(operations[1].operation.operands) not in ([*results.values()], [*least.values()]):
        names = " and ".join(results)
        names = names if least == results else f"{' and '.join(least)}, or {names},"
        raise op_error(operations[1], f"expects to return {names} of the {tensor_count}")


def result_names(op: Any) -> tuple[str, ...]:
    """The names of an operation's results."""
    return field_names(op.__class__, ext.Result)


def _stored_tensors(op: Any) -> list[Value]:
    """The tensors of an operation's operands: one of keys and of values that share their rows."""
    operands = list(op.operation.operands)
    if isinstance(op, attn.MhaOp) and op.shares_rows:
        operands.remove(op.v)
    return [OperandStorage.of(operand).root for operand in operands]


def _captures_of(function: Any) -> list[Capture]:
    """The arguments after the scale: what storage,
    the score modifier and optional operands read.
    """
    tensor_count = operand_names(function).index("scale") + 1
    arguments = list(function.arguments)[tensor_count:]
    names = names_of(function)[tensor_count:]
    return [
        Capture(name or f"capture{number}", value)
        for number, (name, value) in enumerate(zip(names, arguments, strict=True))
    ]


def _declared(
    op: Any,
    tensors: Mapping[str, Dims],
    captures: Sequence[Capture],
    captured_dims: Mapping[str, Sequence[str]],
) -> list[b.Argument]:
    """The arguments of the `ws.kernel`."""
    arguments: list[b.Argument] = []
    is_partial = getattr(op, "is_partial", False)
    results = result_names(op)
    leading = {"batch": "parts", "total_q": "part_rows"} if is_partial else {}
    for label, dims_by_rank in tensors.items():
        if (is_output := label in results) and not list(getattr(op, label).uses):
            continue
        if label == "v" and isinstance(op, attn.MhaOp) and op.shares_rows:
            continue
        tensor = attn.stored_type(getattr(op, label))
        terms = ("",) if label == "lse" and is_partial else ()
        dims = (*terms, *dims_by_rank[tensor.rank - len(terms)])
        if is_output:
            dims = [leading.get(name, name) for name in dims]
        else:
            dims = OperandStorage.of(getattr(op, label)).dimension_names(dims)
        kind = ir.MemRefType.get(list(tensor.shape), tensor.element_type)
        arguments.append(b.Argument(label, "out" if is_output else "in", kind, dims))
    arguments.append(b.Argument("scale", "scalar", ir.F32Type.get(), ()))
    arguments += [_captured(x, captured_dims.get(x.name, ())) for x in captures]
    return arguments


def _captured(capture: Capture, shared: Sequence[str]) -> b.Argument:
    """The kernel argument for a captured tensor or scalar, with a name for each run-time extent.

    Args:
      shared: these names, where other arguments have such extents as well; else none.
    """
    kind = capture.value.type
    if not isinstance(kind, ir.RankedTensorType):
        return b.Argument(capture.name, "scalar", kind, ())
    axes = _axes_of_memory(capture)
    names = axes or shared or _own_axes(capture)
    dims = [name if kind.is_dynamic_dim(i) else "" for i, name in enumerate(names)]
    memref = ir.MemRefType.get(list(kind.shape), kind.element_type)
    return b.Argument(capture.name, "inout" if axes else "in", memref, dims)


def _own_axes(capture: Capture) -> Sequence[str]:
    """Names of the extents of a tensor that has none in common with others."""
    return [f"{capture.name}_{i}" for i in range(capture.value.type.rank)]


def _axes_of_memory(capture: Capture) -> Sequence[str]:
    """The extent names of a tensor that the kernel also writes: a workspace of splits, a counter
    or sums of gradients; else empty.
    """
    value = capture.value
    for use in value.uses:
        if isinstance(use.owner, attn.TileCounterOp):
            return ("1",)
        if isinstance(use.owner, attn.TurnsOp):
            return ("batch", "", "turns")
        if isinstance(use.owner, attn.AdjointOp):
            return _own_axes(capture)
        if isinstance(use.owner, attn.JoinOp):
            return attn.JoinOp.AXES[use.operand_number]
        if isinstance(use.owner, attn.GradientsOp) and use.owner.dq_accum == value:
            return QUERY_DIMS[value.type.rank]
    return ()
