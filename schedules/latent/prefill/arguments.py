"""Declares the kernel of an `attn.mla`: its arguments and their problem, without roles."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.schedules.core.config import Config
from attn_mlir.schedules.core.mask_tiles import MaskTiles
from attn_mlir.schedules.core.modifier import Unmodified
from attn_mlir.schedules.core.problem import Problem, sizes_of
from attn_mlir.schedules.kernel import KEY_DIMS, OUTPUT_DIMS, QUERY_DIMS, opened
from attn_mlir.schedules.operands.scales import OperandScales
from attn_mlir.schedules.operands.sequences import KeySequences
from attn_mlir.schedules.operands.storage import OperandStorage, StoredKeys
from attn_mlir.schedules.operands.storage_checks import (
    check_alike,
    check_pages,
    check_queries,
    check_rows,
    check_scales,
)
from attn_mlir.schedules.sources.kv_source import KVSource, TensorRows
from attn_mlir.schedules.sources.paged_rows import PagedRows
from attn_mlir.schedules.sources.row_scales import RowScales

from .fp8_rope import Fp8Rope
from .roles import LatentKV, Rope, RopePages, RopeRows, ShorterOf

CACHE_DIMS = {4: ("rows", "positions", "", "")}  # of k_rope, where it is a cache without pages
OPERANDS = ("q_nope", "q_rope", "k_nope", "k_rope", "v")
TENSOR_DIMS = {
    "q_nope": QUERY_DIMS,
    "q_rope": QUERY_DIMS,
    "k_nope": KEY_DIMS,
    "k_rope": KEY_DIMS,
    "v": KEY_DIMS,
    **OUTPUT_DIMS,
}


class OpenedLatent(NamedTuple):
    """A kernel of latent attention whose body is being built.

    Attributes:
      kernel: the operation.
      problem: its problem.
      source: of keys and values; of nope and values if rope is upcast.
      narrow: rope to upcast, or None.
      scales: scales of rows of queries and keys, or None.
    """

    kernel: ws.KernelOp
    problem: Problem
    source: KVSource
    narrow: Fp8Rope | None
    scales: RowScales | None


@contextmanager
def latent_kernel(function: Any, op: attn.MlaOp, kind: type[Config]) -> Generator[OpenedLatent]:
    """The kernel of a function of one `attn.mla`; the context emits its body.

    Args:
      kind: of the operation's configuration.

    Raises:
      VerifyError: the function has other operations, or the operation has no configuration of this
        kind, or operands in a storage that no kernel reads.
    """
    storages = {name: OperandStorage.of(getattr(op, name)) for name in OPERANDS}
    _check_storage(op, storages)
    nope, rope = storages["k_nope"], storages["k_rope"]
    is_separate = _has_own_sequences(nope, rope)
    dims = TENSOR_DIMS | {"k_rope": CACHE_DIMS if is_separate else KEY_DIMS}
    with opened(function, op, dims, kind) as (kernel, tensors, captured, config):
        keys = nope.keys(tensors["k_nope"], captured).sequences
        rope_keys = rope.keys(tensors["k_rope"], captured)
        problem = Problem(
            q=(tensors["q_nope"], tensors["q_rope"]),
            k=tensors["k_nope"],
            v=tensors["v"],
            o=tensors["o"],
            lse=tensors["lse"],
            scale=tensors["scale"],
            splits=None,
            query_sequences=storages["q_nope"].queries(tensors["q_nope"], captured),
            key_sequences=ShorterOf(keys, rope_keys.sequences) if is_separate else keys,
            scales=OperandScales(None, None, storages["v"].scale_table(captured)),
            position_scales=None,
            **sizes_of(op),
            stored=op.element_type,
            output=op.output_type,
            modifier=Unmodified(),
            make_column_tiles=MaskTiles,
            config=config,
        )
        row_scales = RowScales.of(op, storages, captured, config.tile_n)
        if op.has_narrow_rope:
            fp8_rope = Fp8Rope.of(rope, rope_keys, captured)
            yield OpenedLatent(kernel, problem, TensorRows(problem), fp8_rope, row_scales)
        else:
            rope_sequences = rope_keys.sequences if is_separate else None
            rope_source = _rope(rope_keys, rope_sequences, rope.first_column, config.tile_n)
            yield OpenedLatent(kernel, problem, LatentKV(problem, rope_source), None, row_scales)


def _rope(keys: StoredKeys, sequences: KeySequences | None, column: int, tile_n: int) -> Rope:
    """The source of the columns that all heads share.

    Args:
      keys: k_rope.
      sequences: its sequences; None if they are those of k_nope.
      column: its first column in the rows.
    """
    if keys.pages is not None:
        return RopePages(PagedRows(keys.pages, tile_n, first_column=column))
    return RopeRows(keys.tensor, column, sequences)


def _has_own_sequences(nope: OperandStorage, rope: OperandStorage) -> bool:
    """Whether k_rope is in a cache, and not stored like k_nope."""
    ranks = {attn.stored_type(x.operand).rank for x in (nope, rope)}
    return len(ranks) > 1 or rope.is_part_of_rows or not nope.is_alike(rope)


def _check_storage(op: attn.MlaOp, storages: Mapping[str, OperandStorage]) -> None:
    """Refuses storage that the schedule has no source for.

    Raises:
      VerifyError: nope and rope of queries, or k_nope and v, differ in storage or are paged, or v
        is scaled twice.
    """
    q_nope, q_rope, k_nope, k_rope, v = (storages[name] for name in OPERANDS)
    check_alike(op, q_nope=q_nope, q_rope=q_rope)
    check_alike(op, k_nope=k_nope, v=v)
    check_queries(op, "q_nope", q_nope)
    check_pages(op, k_rope)
    if k_nope.pages is not None:
        raise op_error(op, "expects k_nope and v as tensors, not in pages")
    for name in ("q_nope", "q_rope", "k_nope", "v"):
        check_rows(op, name, storages[name])
    check_scales(op, v)
