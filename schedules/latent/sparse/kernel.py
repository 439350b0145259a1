"""From `attn.sparse_mla` to a `ws.kernel`: one query in one CTA, its heads the rows of a tile.

A tile has 64 heads: a query of fewer has some of them twice, one of 192 is split over three CTAs.
Warps 0-3 are the softmax and rescale O, 4 and 5 read the lists; of the warps with one thread 6 to 9
gather, 6 also copies Q and O, and 10 and 11 issue the two products. The cache rows of a block of 64
entries are gathered once: the tile of keys is also that of values. Rows of 8 bits are loaded and
upcast by 8 warps from 4 on, which the others follow.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.dialect.targets.limits import HALF_ROWS, Target
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.config import Config
from attn_mlir.schedules.latent.common import absorbed
from attn_mlir.schedules.latent.common.rows import LOADERS, UPCAST_WARPS, PlainRows, source_of
from attn_mlir.schedules.latent.sparse import roles
from attn_mlir.schedules.latent.sparse.policy import SPARSE
from attn_mlir.schedules.latent.sparse.problem import Query, SparseProblem, SparseStorage, Value
from attn_mlir.schedules.operands.storage import OperandStorage
from attn_mlir.schedules.policy.base import Policy
from attn_mlir.schedules.registry import register

Role = Callable[[Query], None]

DIMS = {
    "q": ("s_q", "", ""),
    "kv": ("s_kv", ""),
    "kv_scale": ("s_kv", ""),
    "kv_rope": ("s_kv", ""),
    "indices": ("s_q", "topk"),
    "topk_length": ("s_q",),
    "sinks": ("",),
    "page_table": ("batch", "pages"),
    "batch_of_query": ("s_q",),
    "o": ("s_q", "", ""),
    "lse": ("s_q", ""),
    "max_logits": ("s_q", ""),
}
OPTIONAL = ("topk_length", "sinks", "page_table", "batch_of_query")
RESULTS = ("o", "lse", "max_logits")
REGISTERS = {"softmax": 144, "widen": 144, "find": 80, "score": 80, "sum_up": 80}
"""Per thread, if rows are upcast: 512 in four warps, one of each quarter of an SM."""
ROLE_TENSORS = ("q", "indices", "scale", *OPTIONAL, *RESULTS)  # fields of `SparseProblem`
PAGED_DIMS = ("kv_pages", "", "")  # of rows of the cache in pages


@dataclass(frozen=True)
class SparseConfig(Config):
    """Tiles of one query: 64 heads and blocks of 64 entries."""

    tile_m: int = HALF_ROWS
    q_tiles: int = 1
    tile_n: int = 64
    kv_stages: int = 2
    exp2_period: int = 0


@register
class SparseMla:
    """Sparse latent attention in one CTA, with O in tensor memory."""

    policy: ClassVar[Policy] = SPARSE
    ctas: ClassVar[int] = 1  # per query
    config: ClassVar[type[SparseConfig]] = SparseConfig

    def build(self, function: Any, op: attn.SparseMlaOp, target: Target) -> ws.KernelOp:
        """Builds the kernel of a function of one operation.

        Raises:
          VerifyError: the function has other operations, or its arguments are not the operands.
        """
        operations = list(function.body.blocks[0].operations)
        others = [x for x in operations if not isinstance(x, attn.LatentRowsOp)]
        if len(others) != 2:
            names = ", ".join(other.operation.name for other in operations)
            raise op_error(function, f"expects one attn.sparse_mla and func.return, got {names}")
        operands = _operands(op)
        if list(operands.values()) != list(function.arguments):
            raise op_error(op, "expects the function's arguments as its operands, in order")
        if list(others[1].operation.operands) != list(op.operation.results):
            raise op_error(others[1], "expects to return the results of the attn.sparse_mla")
        return self._declare(op, operands, function.sym_name.value)

    def _declare(self, op: attn.SparseMlaOp, operands: Mapping[str, Any], name: str) -> ws.KernelOp:
        """Builds the kernel at the insertion point."""
        tensors = {**operands, **{label: op.tensors[label] for label in RESULTS}}
        arguments = [_argument(*item) for item in tensors.items()]
        kernel = b.declare_kernel(name, arguments, cluster=self.ctas)
        with ir.InsertionPoint(kernel.body.blocks[0]):
            values = dict(zip(kernel.names, kernel.body.blocks[0].arguments, strict=True))
            stored = {value: values[label] for label, value in operands.items()}
            problem = SparseProblem(
                source=source_of(OperandStorage.of(op.kv), stored),
                **{label: values.get(label) for label in ROLE_TENSORS},
                page_size=op.page_size,
                heads=op.heads,
                head_dim=op.head_dim,
                element=op.q.type.element_type,
                output=op.o.type.element_type,
                config=self.config.of(op),
                ctas=self.ctas,
            )
            b.emit_roles(self.roles(problem))
        return kernel

    def roles(self, problem: SparseProblem) -> list[b.Role]:
        """The roles of the kernel; declares their rings at the insertion point."""
        return roles_of(problem, SparseStorage(problem))


def _operands(op: attn.SparseMlaOp) -> dict[str, Any]:
    """The expected arguments of the function, in order; other tensors of rows follow the scale."""
    parts: dict[str, Any] = {"kv": op.kv}
    if isinstance(rows := op.kv.owner, attn.LatentRowsOp):
        several = {"kv": [rows.narrow], "kv_scale": rows.scales, "kv_rope": rows.wide}
        parts = {name: value for name, values in several.items() for value in values}
    optional = {name: value for name in OPTIONAL for value in getattr(op, name)}
    first = {"q": op.q, "kv": parts.pop("kv"), "indices": op.indices, "scale": op.scale}
    return first | parts | optional


def _argument(label: str, value: Any) -> b.Argument:
    if not isinstance(value.type, ir.RankedTensorType):
        return b.Argument(label, "scalar", value.type, ())
    kind = ir.MemRefType.get([*value.type.shape], value.type.element_type)
    dims = DIMS[label] if kind.rank == len(DIMS[label]) else PAGED_DIMS
    return b.Argument(label, "out" if label in RESULTS else "in", kind, dims)


def roles_of(problem: SparseProblem, storage: SparseStorage) -> list[b.Role]:
    """The roles of a kernel with indexed keys."""
    source, common = problem.source, (problem, storage)

    def of(role: Callable[..., None]) -> Role:
        """The body of a compute role for a query."""
        return lambda query: role(problem, storage, roles.SparseWork(problem, storage, query))

    several: dict[str, tuple[int, Role]] = {"softmax": (4, of(absorbed.softmax))}
    single: dict[str, Role] = {}
    if isinstance(source, PlainRows):
        for part in range(LOADERS):
            single[f"load{part}"] = partial(roles.load, *common, source, part=part)
        single["score"] = of(absorbed.issue_qk)
    else:
        all_columns = roles.Share(storage.keys, 0, range(source.columns))
        several["widen"] = UPCAST_WARPS, partial(roles.upcast_rows, *common, source, [all_columns])
        single["score"] = partial(roles.move_and_score, *common)
    several["find"] = 2, partial(roles.find, *common)
    single["sum_up"] = of(absorbed.issue_pv)
    share = {} if isinstance(source, PlainRows) else REGISTERS
    return [
        *(
            b.Role(name, each_query(problem, role), warps=warps, registers=share.get(name, 0))
            for name, (warps, role) in several.items()
        ),
        *(
            b.Role(name, each_query(problem, role), lanes=1, registers=share.get(name, 0))
            for name, role in single.items()
        ),
    ]


def each_query(problem: SparseProblem, role: Role) -> Callable[[Value], None]:
    """The body of a role: its part in the CTA's work tile."""
    return lambda _: problem.every_query(role)
