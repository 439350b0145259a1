"""Declares the kernel of an `attn.mla_decode`: its arguments and their problem, without roles."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from attn_mlir.dialect import attn, ws
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.config import Config
from attn_mlir.schedules.core.mask_tiles import MaskTiles
from attn_mlir.schedules.core.modifier import Unmodified
from attn_mlir.schedules.core.problem import Problem, Value
from attn_mlir.schedules.core.splits import Splits
from attn_mlir.schedules.kernel import KEY_DIMS, OUTPUT_DIMS, QUERY_DIMS, Opened, opened
from attn_mlir.schedules.operands.scales import OperandScales
from attn_mlir.schedules.operands.storage import OperandStorage, StoredKeys, latent_rows_of
from attn_mlir.schedules.operands.storage_checks import check_pages, check_queries

from ..common.rows import source_of
from ..sparse.problem import SparseDecode
from .sequence_rows import SequenceDecode

TENSOR_DIMS = {"q": QUERY_DIMS, "kv": KEY_DIMS, **OUTPUT_DIMS}
ROW_DIMS = {2: ("s_kv", ""), 3: ("kv_pages", "", "")}  # of a cache that lists name rows of
LISTED_DIMS = TENSOR_DIMS | {"kv": ROW_DIMS}
LIST_DIMS = {"indices": ("batch", "sq", "topk"), "topk_length": ("batch", "sq")}


class HeadSinks(Unmodified):
    """Scores without a modifier, and a sink per head if there are sinks."""

    def __init__(self, sinks: Value | None):
        """With logits [heads]."""
        super().__init__()
        self.has_sink = sinks is not None
        self._sinks = sinks

    def sink(self, batch: Value, head: Value, q: Value) -> Value:
        """The logit of the row's head."""
        return b.element(self._sinks, [head])


def reads_rows(op: attn.MlaDecodeOp) -> bool:
    """Whether keys are loaded row by row: indexed ones, and those stored in 8 bits."""
    return op.is_listed or latent_rows_of(op.kv) is not None


@contextmanager
def row_kernel(
    function: Any, op: attn.MlaDecodeOp, kind: type[Config], *, ctas: int = 1
) -> Generator[tuple[ws.KernelOp, SparseDecode]]:
    """The kernel of a function of one `attn.mla_decode` that `reads_rows`; as `decode_kernel`.

    Args:
      ctas: CTAs per query.

    Raises:
      VerifyError: as `decode_kernel`.
    """
    storage, rank = OperandStorage.of(op.kv), attn.stored_type(op.kv).rank
    if op.is_listed:
        rows, lists, tensor_dims = ROW_DIMS[rank], LIST_DIMS, LISTED_DIMS
    else:
        check_pages(op, storage)
        rows, lists, tensor_dims = storage.dimension_names(KEY_DIMS[rank]), {}, TENSOR_DIMS
    dims = {**lists, **dict.fromkeys(("kv_scale", "kv_rope"), rows)}
    with opened(function, op, tensor_dims, kind, dims, cluster=ctas) as opening:
        kernel, tensors, captured, config = opening
        optional = {
            name: captured[value]
            for name in ("indices", "topk_length", "sinks")
            for value in getattr(op, name)
        }
        results = {name: value for name, value in tensors.items() if name != "kv"}
        make = SparseDecode
        if not op.is_listed:
            make = partial(SequenceDecode, **_sequence_storage(op, storage, opening))
        problem = make(
            **dict.fromkeys(("indices", "topk_length", "sinks"), None) | optional | results,
            source=source_of(storage, {**captured, storage.root: tensors["kv"]}),
            max_logits=None,
            page_table=None,
            batch_of_query=None,
            page_size=0,
            parts=_parts(op, tensors),
            heads=op.heads,
            head_dim=op.head_dim,
            element=op.element_type,
            output=op.o.type.element_type,
            config=config,
            ctas=ctas,
        )
        yield kernel, problem


def _sequence_storage(
    op: attn.MlaDecodeOp, storage: OperandStorage, opening: Opened[Any]
) -> dict[str, Any]:
    """The storage of an operation's sequences, and its mask."""
    _, tensors, captured, _ = opening
    keys = storage.keys(tensors["kv"], captured)
    return {
        "queries": _queries(op).queries(tensors["q"], captured),
        "keys": keys.sequences,
        "pages": keys.pages,
        "mask": op.mask_rule,
    }


def _queries(op: attn.MlaDecodeOp) -> OperandStorage:
    """The storage of queries.

    Raises:
      VerifyError: no kernel reads this storage.
    """
    storage = OperandStorage.of(op.q)
    check_queries(op, "q", storage)
    return storage


def _parts(op: attn.MlaDecodeOp, tensors: Mapping[str, Value]) -> Splits | None:
    return Splits(tensors["o"], tensors["q"]) if op.is_partial else None


@contextmanager
def decode_kernel(
    function: Any, op: attn.MlaDecodeOp, kind: type[Config], *, ctas: int = 1
) -> Generator[tuple[ws.KernelOp, Problem, StoredKeys]]:
    """The kernel of a function of one `attn.mla_decode` of whole sequences, and their storage.

    The context emits the kernel's body.

    Args:
      kind: of the operation's configuration.
      ctas: CTAs per work tile.

    Raises:
      VerifyError: the function has other operations, or the operation has no configuration of this
        kind, or operands in a storage that no kernel reads.
    """
    queries, rows = _queries(op), OperandStorage.of(op.kv)
    check_pages(op, rows)
    with opened(function, op, TENSOR_DIMS, kind, cluster=ctas) as (
        kernel,
        tensors,
        captured,
        config,
    ):
        keys = rows.keys(tensors["kv"], captured)
        problem = Problem(
            q=(tensors["q"],),
            k=tensors["kv"],
            v=tensors["kv"],
            o=tensors["o"],
            lse=tensors["lse"],
            scale=tensors["scale"],
            splits=_parts(op, tensors),
            query_sequences=queries.queries(tensors["q"], captured),
            key_sequences=keys.sequences,
            scales=OperandScales(None, None, None),
            position_scales=None,
            heads=op.heads,
            kv_heads=1,
            head_dim=op.head_dim,
            v_head_dim=op.v_head_dim,
            element=op.element_type,
            stored=op.element_type,
            output=op.o.type.element_type,
            mask=op.mask_rule,
            modifier=HeadSinks(captured[op.sinks[0]] if len(op.sinks) else None),
            make_column_tiles=MaskTiles,
            config=config,
        )
        yield kernel, problem, keys
