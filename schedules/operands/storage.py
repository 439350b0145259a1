"""Makes the parts of a schedule from the storage operations on an operand: sequences and pages."""

from collections.abc import Iterator, Mapping
from typing import Any

from attn_mlir.dialect import attn
from attn_mlir.dialect.diagnostics import op_error

from .gathered import GatheredRows
from .pages import CsrPages, Pages, TablePages
from .scales import Factors
from .sequences import Dense, Limited, Ragged, Selected, Sequences, Trimmed

Value = Any

_POOLS = (attn.PagedOp, attn.PagedCsrOp)
_SOURCED = (attn.LimitedOp, attn.SelectedOp, attn.TrimmedOp, attn.ScaledOp, attn.ColumnsOp)


def storage_steps(operand: Value) -> Iterator[Any]:
    """The chain of storage operations that makes an operand of `attn.mha`, the last one first."""
    while isinstance(owner := operand.owner, _SOURCED):
        yield owner
        operand = owner.source
    if isinstance(owner, _POOLS):
        yield owner
        owner = owner.pool.owner
    if isinstance(owner, (attn.RaggedOp, attn.GatheredOp, attn.LatentRowsOp)):
        yield owner


def root(operand: Value) -> Value:
    """The stored tensor of an operand of `attn.mha`."""
    for owner in storage_steps(operand):
        operand = owner.operation.operands[0]
    return operand


def dimension_names(operand: Value, usual: tuple[str, ...]) -> tuple[str, ...]:
    """Names of the run-time extents of the stored tensor of k or v; "" where an extent is static.

    Args:
      usual: the names for a dense tensor.
    """
    for owner in storage_steps(operand):
        if isinstance(owner, _POOLS):
            return ("pages", "", *usual[2:])
        if isinstance(owner, attn.SelectedOp):
            return ("rows", *usual[1:])
    return usual


def sequences_of(operand: Value, tensor: Value, arguments: Mapping[Value, Value]) -> Sequences:
    """The sequences of an operand of `attn.mha`.

    Args:
      operand: a tensor, or a view that storage operations made.
      tensor: the kernel's argument that holds its elements.
      arguments: what the storage operations read, as arguments of the kernel.
    """
    found = (
        pages_of(operand, tensor, arguments)
        or gathered_of(operand, tensor, arguments)
        or Dense(tensor)
    )
    for owner in reversed(list(storage_steps(operand))):
        match owner:
            case attn.RaggedOp():
                found = Ragged(tensor, arguments[owner.offsets], arguments[owner.longest])
            case attn.LimitedOp():
                found = Limited(found, arguments[owner.lengths], owner.excludes_queries)
            case attn.SelectedOp():
                found = Selected(found, arguments[owner.indices])
            case attn.TrimmedOp():
                found = Trimmed(found, arguments[owner.counts])
            case _:
                pass
    return found


def pages_of(operand: Value, tensor: Value, arguments: Mapping[Value, Value]) -> Pages | None:
    """The pages of an operand of `attn.mha`; None where it has none. Arguments as `sequences_of`."""
    for owner in storage_steps(operand):
        match owner:
            case attn.PagedOp():
                return TablePages(tensor, arguments[owner.table])
            case attn.PagedCsrOp():
                lists = (owner.offsets, owner.indices, owner.last)
                return CsrPages(tensor, *(arguments[value] for value in lists))
            case _:
                pass
    return None


def gathered_of(
    operand: Value, tensor: Value, arguments: Mapping[Value, Value]
) -> GatheredRows | None:
    """The lists of rows of an operand of `attn.mha`; None where it has none. Arguments as `sequences_of`."""
    for owner in storage_steps(operand):
        if isinstance(owner, attn.GatheredOp):
            lengths = next((arguments[value] for value in owner.lengths), None)
            return GatheredRows(tensor, arguments[owner.indices], lengths)
    return None


def is_gathered(operand: Value) -> bool:
    """Whether lists name the rows of an operand of `attn.mha`, for each query its own."""
    return any(isinstance(owner, attn.GatheredOp) for owner in storage_steps(operand))


def latent_rows_of(operand: Value) -> attn.LatentRowsOp | None:
    """The operation that says how the rows of a latent cache are stored in 8 bits; None where they are not."""
    steps = storage_steps(operand)
    return next((step for step in steps if isinstance(step, attn.LatentRowsOp)), None)


def page_size_of(operand: Value) -> int:
    """Positions of a page of an operand of `attn.mha`; 0 where it has no pages."""
    pools = (owner.pool for owner in storage_steps(operand) if isinstance(owner, _POOLS))
    return next((attn.logical_type(pool).get_dim_size(1) for pool in pools), 0)


def position_factors(operand: Value) -> attn.ScaledOp | None:
    """The operation that gives each position of an operand of `attn.mha` its own factors, or None."""
    steps = (step for step in storage_steps(operand) if isinstance(step, attn.ScaledOp))
    return next((step for step in steps if step.is_per_position), None)


def is_part_of_rows(operand: Value) -> bool:
    """Whether the stored rows of an operand hold further columns."""
    return any(isinstance(step, attn.ColumnsOp) for step in storage_steps(operand))


def first_column(operand: Value) -> int:
    """The column of the stored rows of an operand at which its own begin."""
    steps = (step for step in storage_steps(operand) if isinstance(step, attn.ColumnsOp))
    return sum(step.first.value for step in steps)


def tensors_of(op: Any) -> list[Value]:
    """What holds each operand of an operation: values that share the rows of keys come with these."""
    operands = list(op.operation.operands)
    if isinstance(op, attn.MhaOp) and op.shares_rows:
        operands.remove(op.v)
    return [root(operand) for operand in operands]


def check_storage(op: attn.MhaOp, *, may_share_rows: bool = False) -> None:
    """Refuses storage that no schedule can load from.

    Args:
      may_share_rows: values may be the front of the rows of keys.

    Raises:
      VerifyError: k and v are stored differently, q is a cache or has lengths that do not count the
        queries, or padding is trimmed from pages, so that sequences would begin
        within one, or rows hold more than an operand.
    """
    for name in ("q", "k") if may_share_rows and op.shares_rows else ("q", "k", "v"):
        check_rows(op, name)
    if is_gathered(op.k) and not (may_share_rows and op.shares_rows):
        raise op_error(op, "has no kernel for rows that lists name, but where they hold values too")
    check_alike(op, k=op.k, v=op.v)
    check_queries(op, "q", op.q)
    if position_factors(op.q) is not None:
        raise op_error(op, "expects factors of positions for k and v only")
    if (position_factors(op.k) is None) != (position_factors(op.v) is None):
        raise op_error(op, "expects factors of positions for k and v, or for neither")
    check_pages(op, op.k)


def check_alike(op: Any, **operands: Value) -> None:
    """Refuses two operands that are not stored alike.

    Raises:
      VerifyError: names them.
    """
    (first, one), (second, other) = operands.items()
    if not are_alike(one, other):
        raise op_error(
            op,
            f"expects {first} and {second} to be stored alike, by the same offsets and lengths",
        )


def check_rows(op: Any, name: str) -> None:
    """Refuses an operand whose rows hold further columns.

    Raises:
      VerifyError: it is such a one; says its name.
    """
    if is_part_of_rows(getattr(op, name)):
        raise op_error(op, f"expects {name} to be whole rows, got columns of them")


def check_queries(op: Any, name: str, queries: Value) -> None:
    """Refuses storage of queries that there is no code for.

    Raises:
      VerifyError: they are a cache, or have lengths that do not count them.
    """
    steps = list(storage_steps(queries))
    if any(isinstance(step, attn.LimitedOp) and step.excludes_queries for step in steps):
        raise op_error(op, f"expects the lengths of {name} to count the queries")
    if any(isinstance(step, (*_POOLS, attn.SelectedOp, attn.TrimmedOp)) for step in steps):
        raise op_error(op, f"expects {name} to be no cache: neither paged, selected nor trimmed")


def check_pages(op: Any, operand: Value) -> None:
    """Refuses sequences that begin within a page.

    Raises:
      VerifyError: they do.
    """
    steps = storage_steps(operand)
    if page_size_of(operand) and any(isinstance(step, attn.TrimmedOp) for step in steps):
        raise op_error(op, "expects sequences in pages to begin with a page: they are trimmed")


def are_alike(one: Value, other: Value) -> bool:
    """Whether the sequences of two operands lie alike, each in its own tensor or pages."""
    return _told(one) == _told(other)


def _told(operand: Value) -> list[tuple[str, list[Value], str]]:
    """What k and v must have in common: each storage operation with the arrays that it reads.

    The stored tensor, the table of pages, factors and the choice of columns are left out: these may
    differ.
    """
    return [
        (owner.operation.name, _arrays(owner), _counted(owner))
        for owner in storage_steps(operand)
        if not isinstance(owner, (attn.ScaledOp, attn.ColumnsOp))
    ]


def _arrays(owner: Any) -> list[Value]:
    """The index arrays of a storage operation, without a table of pages."""
    return [] if isinstance(owner, attn.PagedOp) else list(owner.operation.operands)[1:]


def _counted(owner: Any) -> str:
    return owner.counted.value if isinstance(owner, attn.LimitedOp) else ""


def is_ragged(queries: Value) -> bool:
    """Whether the queries of all sequences lie in one dimension."""
    return attn.stored_type(queries).rank < attn.logical_type(queries).rank


def has_padded_queries(queries: Value) -> bool:
    """Whether the queries of a sequence end before its dimension does.

    A tensor map of those has a dimension for that, and none is left for packed heads.
    """
    owner = queries.owner
    while isinstance(owner, attn.ScaledOp):
        owner = owner.source.owner
    return isinstance(owner, attn.LimitedOp) and not is_ragged(queries)


def factors_of(op: attn.MhaOp, arguments: Mapping[Value, Value]) -> Factors:
    """The factors of an operation's operands.

    Args:
      op: the operation.
      arguments: the function's arguments -> those of the kernel.

    Raises:
      VerifyError: an operand has two tables of factors.
    """
    return Factors(*(_table(op, operand, arguments) for operand in (op.q, op.k, op.v)))


def values_factors(op: attn.MlaOp, arguments: Mapping[Value, Value]) -> Factors:
    """Those of v alone, as `factors_of`: what Q and K have are factors of rows."""
    return Factors(None, None, _table(op, op.v, arguments))


def _table(
    op: attn.MhaOp | attn.MlaOp, operand: Value, arguments: Mapping[Value, Value]
) -> Value | None:
    steps = storage_steps(operand)
    found = [step for step in steps if isinstance(step, attn.ScaledOp)]
    if len(found) > 1:
        raise op_error(op, "expects operands that are scaled once")
    if not found or found[0].is_per_position:
        return None
    return arguments[found[0].factors]
