"""Storage of operands that no kernel reads: each check refuses one kind,
before a kernel is built.
"""

from typing import Any

from attn_mlir.dialect import attn
from attn_mlir.dialect.diagnostics import op_error
from attn_mlir.errors import no_kernel

from .storage import OperandStorage


def check_storage(
    op: attn.MhaOp,
    q: OperandStorage,
    k: OperandStorage,
    v: OperandStorage,
    *,
    may_share_rows: bool = False,
) -> None:
    """Refuses storage that no schedule can load from.

    Args:
      may_share_rows: values may be the front of the rows of keys.

    Raises:
      VerifyError: k and v are stored differently, q is a cache or has lengths that do not count the
        queries, padding is trimmed from pages, so that sequences would begin within one, rows hold
        more than an operand, or an operand is scaled twice.
    """
    shares_rows = may_share_rows and op.shares_rows
    whole = {"q": q, "k": k} if shares_rows else {"q": q, "k": k, "v": v}
    for name, storage in whole.items():
        check_rows(op, name, storage)
    if k.lists is not None and not shares_rows:
        raise op_error(op, no_kernel("", "rows that lists name must hold values too"))
    check_alike(op, k=k, v=v)
    check_queries(op, "q", q)
    if q.position_scales is not None:
        raise op_error(op, "expects scales of positions for k and v only")
    if (k.position_scales is None) != (v.position_scales is None):
        raise op_error(op, "expects scales of positions for k and v, or for neither")
    for name, storage in (("k", k), ("v", v)):
        check_scale_blocks(op, name, storage)
    check_pages(op, k)
    for storage in (q, k, v):
        check_scales(op, storage)


def check_alike(op: Any, **operands: OperandStorage) -> None:
    """Refuses two operands that are not stored alike.

    Raises:
      VerifyError: names them.
    """
    (first, one), (second, other) = operands.items()
    if not one.is_alike(other):
        raise op_error(
            op,
            f"expects {first} and {second} to be stored alike, by the same offsets and lengths",
        )


def check_rows(op: Any, name: str, storage: OperandStorage) -> None:
    """Refuses an operand whose rows hold further columns.

    Raises:
      VerifyError: it is such a one; says its name.
    """
    if storage.is_part_of_rows:
        raise op_error(op, f"expects {name} to be whole rows, got columns of them")


def check_queries(op: Any, name: str, queries: OperandStorage) -> None:
    """Refuses storage of queries that there is no code for.

    Raises:
      VerifyError: they are a cache, or have lengths that do not count them.
    """
    limits = (step for step in queries.steps if isinstance(step, attn.LimitedOp))
    if any(step.excludes_queries for step in limits):
        raise op_error(op, f"expects the lengths of {name} to count the queries")
    if any(x is not None for x in (queries.pages, queries.selection, queries.padding)):
        raise op_error(op, f"expects {name} to be no cache: neither paged, selected nor trimmed")


def check_pages(op: Any, storage: OperandStorage) -> None:
    """Refuses sequences that begin within a page.

    Raises:
      VerifyError: they do.
    """
    if storage.pages is not None and storage.padding is not None:
        raise op_error(op, "expects sequences in pages to begin with a page: they are trimmed")


def check_scale_blocks(op: Any, name: str, storage: OperandStorage) -> None:
    """Refuses scales of blocks of positions for sequences that may begin within a block.

    Raises:
      VerifyError: names the operand.
    """
    if (step := storage.position_scales) is None or step.scale_block.rows == 1:
        return
    scales_storage = OperandStorage.of(step.scales)
    if (
        scales_storage.padding is not None
        or scales_storage.offsets is not None
        or scales_storage.lists is not None
    ):
        rows = step.scale_block.rows
        raise op_error(op, f"expects sequences of {name} to begin with a block of {rows} positions")


def check_scales(op: Any, storage: OperandStorage) -> None:
    """Refuses an operand with two tables of scales.

    Raises:
      VerifyError: it has them.
    """
    if len(storage.scales) > 1:
        raise op_error(op, "expects operands that are scaled once")
