"""The kernel of a latent attention operation before it has roles: its arguments, and their problem."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from attn_mlir.dialect import attn, ws
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.schedules.core.config import Config
from attn_mlir.schedules.core.mask_tiles import KeyTiles
from attn_mlir.schedules.core.modifier import Unmodified
from attn_mlir.schedules.core.problem import Problem
from attn_mlir.schedules.kernel import KEY_DIMS, OUTPUT_DIMS, QUERY_DIMS, opened
from attn_mlir.schedules.operands.storage import (
    are_alike,
    check_alike,
    check_pages,
    check_queries,
    check_rows,
    first_column,
    is_part_of_rows,
    page_size_of,
    pages_of,
    sequences_of,
    values_factors,
)
from attn_mlir.schedules.sources.kv_source import KVSource, TensorKV
from attn_mlir.schedules.sources.paged_rows import PagedRows
from attn_mlir.schedules.sources.row_scales import RowFactors

from .narrow_rope import NarrowRope
from .roles import Common, LatentKV, Rope, RopePages, RopeRows

CACHE_DIMS = {4: ("rows", "positions", "", "")}  # of k_rope, where it is a cache without pages
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
      problem: what it computes.
      source: of keys and values; of nope and values where rope has to be widened.
      narrow: rope that has to be; None otherwise.
      factors: of rows of queries and keys; None without any.
    """

    kernel: ws.KernelOp
    problem: Problem
    source: KVSource
    narrow: NarrowRope | None
    factors: RowFactors | None


@contextmanager
def latent_kernel(function: Any, op: attn.MlaOp, kind: type[Config]) -> Generator[OpenedLatent]:
    """The kernel of a function of one `attn.mla`; what is built inside is its body.

    Args:
      kind: of the operation's configuration.

    Raises:
      VerifyError: the function computes something else as well, or the operation has no
        configuration of this kind, or operands whose storage has no code.
    """
    _check_storage(op)
    dims = TENSOR_DIMS | {"k_rope": CACHE_DIMS if _has_own_sequences(op) else KEY_DIMS}
    with opened(function, op, dims, kind) as (kernel, tensors, captured, config):
        keys = sequences_of(op.k_nope, tensors["k_nope"], captured)
        rope = sequences_of(op.k_rope, tensors["k_rope"], captured)
        problem = Problem(
            q=(tensors["q_nope"], tensors["q_rope"]),
            k=tensors["k_nope"],
            v=tensors["v"],
            o=tensors["o"],
            lse=tensors["lse"],
            scale=tensors["scale"],
            parts=None,
            query_sequences=sequences_of(op.q_nope, tensors["q_nope"], captured),
            key_sequences=Common(keys, rope) if _has_own_sequences(op) else keys,
            factors=values_factors(op, captured),
            position_factors=None,
            heads=op.heads,
            kv_heads=op.kv_heads,
            head_dim=op.head_dim,
            v_head_dim=op.v_head_dim,
            element=op.element_type,
            stored=op.element_type,
            output=op.output_type,
            mask=op.mask_rule,
            modifier=Unmodified(),
            visited=KeyTiles,
            config=config,
        )
        factors = RowFactors.of(op, captured, config.tile_n)
        if op.has_narrow_rope:
            narrow = NarrowRope.of(op.k_rope, tensors["k_rope"], captured)
            yield OpenedLatent(kernel, problem, TensorKV(problem), narrow, factors)
        else:
            rope_source = _rope(op, tensors["k_rope"], captured, config.tile_n)
            yield OpenedLatent(kernel, problem, LatentKV(problem, rope_source), None, factors)


def _rope(op: attn.MlaOp, tensor: Any, captured: Mapping[Any, Any], tile_n: int) -> Rope:
    """Where the columns that all heads share come from."""
    column = first_column(op.k_rope)
    if (pages := pages_of(op.k_rope, tensor, captured)) is not None:
        return RopePages(PagedRows(pages, tile_n, first_column=column))
    own = sequences_of(op.k_rope, tensor, captured) if _has_own_sequences(op) else None
    return RopeRows(tensor, column, own)


def _has_own_sequences(op: attn.MlaOp) -> bool:
    """Whether k_rope lies in a cache, and not as k_nope does."""
    ranks = {attn.stored_type(x).rank for x in (op.k_nope, op.k_rope)}
    return len(ranks) > 1 or is_part_of_rows(op.k_rope) or not are_alike(op.k_nope, op.k_rope)


def _check_storage(op: attn.MlaOp) -> None:
    """Refuses storage that the schedule has no source for.

    Raises:
      VerifyError: nope and rope of queries, or k_nope and v, lie differently, or in pages.
    """
    check_alike(op, q_nope=op.q_nope, q_rope=op.q_rope)
    check_alike(op, k_nope=op.k_nope, v=op.v)
    check_queries(op, "q_nope", op.q_nope)
    check_pages(op, op.k_rope)
    if page_size_of(op.k_nope):
        raise op_error(op, "expects k_nope and v as tensors, not in pages")
    for name in ("q_nope", "q_rope", "k_nope", "v"):
        check_rows(op, name)
