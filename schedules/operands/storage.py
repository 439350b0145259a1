"""How an operand of an attention operation is stored: a record, read once from its storage
operations.

The operations of `attn` make an operand from a stored tensor, one view of the other:

```text
operand <- scaled <- limited <- selected <- paged <- ragged <- stored tensor
```
`OperandStorage.of` follows this chain. Everything else asks the record, which also makes the
sequences and pages of a kernel, whose arguments stand for the arrays that the operations read.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from attn_mlir.dialect import attn

from .gathered import IndirectRows
from .pages import CsrPages, Pages, TablePages
from .sequences import (
    Dense,
    KeySequences,
    Limited,
    LimitedQueries,
    QuerySequences,
    Ragged,
    Selected,
    Trimmed,
)

Value = Any
Arguments = Mapping[Value, Value]  # what storage operations read -> arguments of the kernel

_POOLS = (attn.PagedOp, attn.PagedCsrOp)
_SOURCED = (attn.LimitedOp, attn.SelectedOp, attn.TrimmedOp, attn.ScaledOp, attn.ColumnsOp)
_FREE = (attn.ScaledOp, attn.ColumnsOp)  # in which k and v may differ


@dataclass(frozen=True)
class StoredKeys:
    """Keys or values as stored.

    Attributes:
      tensor: the kernel's argument that holds the elements.
      sequences: where each sequence lies in it.
      pages: the pages of the sequences; None without pages.
      lists: the lists that name rows; None where sequences are whole.
    """

    tensor: Value
    sequences: KeySequences
    pages: Pages | None
    lists: IndirectRows | None


@dataclass(frozen=True)
class OperandStorage:
    """How one operand is stored: each attribute that is an operation is None where the chain has
    none.

    Attributes:
      operand: the operand.
      root: the stored tensor.
      steps: the storage operations between the two, the operand's own first.
      pages: of a pool, by a table or by compressed rows.
      lists: of rows, for each query its own.
      latent_rows: how rows of a latent cache are stored in 8 bits.
      offsets: of sequences that lie one after the other in a single dimension.
      lengths: of sequences that end before their dimension does.
      selection: of sequences.
      padding: at the beginning of sequences.
      scales: the tables and tensors that elements are multiplied by.
      first_column: of the stored rows, at which those of the operand begin.
      is_part_of_rows: whether the stored rows have further columns.
    """

    operand: Value
    root: Value
    steps: tuple[Any, ...]
    pages: attn.PagedOp | attn.PagedCsrOp | None
    lists: attn.GatheredOp | None
    latent_rows: attn.LatentRowsOp | None
    offsets: attn.RaggedOp | None
    lengths: attn.LimitedOp | None
    selection: attn.SelectedOp | None
    padding: attn.TrimmedOp | None
    scales: tuple[attn.ScaledOp, ...]
    first_column: int
    is_part_of_rows: bool

    @classmethod
    def of(cls, operand: Value) -> "OperandStorage":
        """The record of an operand of `attn.mha` or of another operation."""
        steps = tuple(_chain(operand))

        def one(*kinds: type[Any]) -> Any:
            return next((step for step in steps if isinstance(step, kinds)), None)

        columns = [step.first.value for step in steps if isinstance(step, attn.ColumnsOp)]
        return cls(
            operand=operand,
            root=steps[-1].operation.operands[0] if steps else operand,
            steps=steps,
            pages=one(*_POOLS),
            lists=one(attn.GatheredOp),
            latent_rows=one(attn.LatentRowsOp),
            offsets=one(attn.RaggedOp),
            lengths=one(attn.LimitedOp),
            selection=one(attn.SelectedOp),
            padding=one(attn.TrimmedOp),
            scales=tuple(step for step in steps if isinstance(step, attn.ScaledOp)),
            first_column=sum(columns),
            is_part_of_rows=bool(columns),
        )

    @property
    def page_size(self) -> int:
        """Positions of a page; 0 without pages."""
        return 0 if self.pages is None else attn.logical_type(self.pages.pool).get_dim_size(1)

    @property
    def position_scales(self) -> attn.ScaledOp | None:
        """The operation by which blocks of positions have scales of their own."""
        return next((step for step in self.scales if not step.scale_block.is_whole), None)

    def scale_table(self, arguments: Arguments) -> Value | None:
        """The scales of each sequence and head, as an argument of the kernel; None without any."""
        tables = [step for step in self.scales if step.scale_block.is_whole]
        return arguments[tables[0].scales] if tables else None

    def is_alike(self, other: "OperandStorage") -> bool:
        """Whether the sequences of both lie alike, each in its own tensor or pages.

        The stored tensor, the table of pages, scales and the choice of columns may differ.
        """
        return self._layout() == other._layout()

    def _layout(self) -> list[tuple[str, list[Value], str]]:
        """Each operation that says where sequences lie, with the arrays that it reads."""
        return [
            (step.operation.name, _arrays(step), _counts(step))
            for step in self.steps
            if not isinstance(step, _FREE)
        ]

    def dimension_names(self, usual: tuple[str, ...]) -> tuple[str, ...]:
        """Names of the run-time extents of the stored tensor of k or v; "" where an extent is
        static.

        Args:
          usual: the names for a dense tensor.
        """
        for step in self.steps:
            if isinstance(step, _POOLS):
                return ("pages", "", *usual[2:])
            if isinstance(step, attn.SelectedOp):
                return ("rows", *usual[1:])
        return usual

    def queries(self, tensor: Value, arguments: Arguments) -> QuerySequences:
        """The sequences of queries, in the kernel's argument that holds their elements."""
        sequences = (
            Dense(tensor) if self.offsets is None else _ragged(self.offsets, tensor, arguments)
        )
        for step in reversed(self.steps):
            if isinstance(step, attn.LimitedOp):
                lengths = arguments[step.lengths]
                sequences = LimitedQueries(sequences, lengths, excludes_queries=False)
        return sequences

    def keys(self, tensor: Value, arguments: Arguments) -> StoredKeys:
        """Keys or values, in the kernel's argument that holds their elements."""
        pages, lists = self._pages_in(tensor, arguments), self._lists_in(tensor, arguments)
        sequences: KeySequences = pages or lists or Dense(tensor)
        for step in reversed(self.steps):
            match step:
                case attn.RaggedOp():
                    sequences = _ragged(step, tensor, arguments)
                case attn.LimitedOp():
                    sequences = Limited(sequences, arguments[step.lengths], step.excludes_queries)
                case attn.SelectedOp():
                    sequences = Selected(sequences, arguments[step.indices])
                case attn.TrimmedOp():
                    sequences = Trimmed(sequences, arguments[step.counts])
                case _:
                    pass
        return StoredKeys(tensor, sequences, pages, lists)

    def _pages_in(self, tensor: Value, arguments: Arguments) -> Pages | None:
        match self.pages:
            case None:
                return None
            case attn.PagedOp() as step:
                return TablePages(tensor, arguments[step.table])
            case step:
                lists = (step.offsets, step.indices, step.last)
                return CsrPages(tensor, *(arguments[array] for array in lists))

    def _lists_in(self, tensor: Value, arguments: Arguments) -> IndirectRows | None:
        if self.lists is None:
            return None
        lengths = next((arguments[array] for array in self.lists.lengths), None)
        return IndirectRows(tensor, arguments[self.lists.indices], lengths)


def _chain(operand: Value) -> Iterator[Any]:
    """The storage operations that make an operand, the last one first."""
    while isinstance(owner := operand.owner, _SOURCED):
        yield owner
        operand = owner.source
    if isinstance(owner, _POOLS):
        yield owner
        owner = owner.pool.owner
    if isinstance(owner, (attn.RaggedOp, attn.GatheredOp, attn.LatentRowsOp)):
        yield owner


def _ragged(step: attn.RaggedOp, tensor: Value, arguments: Arguments) -> Ragged:
    return Ragged(tensor, arguments[step.offsets], arguments[step.longest])


def _arrays(step: Any) -> list[Value]:
    """The index arrays of a storage operation, without a table of pages."""
    return [] if isinstance(step, attn.PagedOp) else list(step.operation.operands)[1:]


def _counts(step: Any) -> str:
    return step.counted.value if isinstance(step, attn.LimitedOp) else ""


def page_size_of(operand: Value) -> int:
    """Positions of a page of an operand of `attn.mha`; 0 where it has no pages."""
    return OperandStorage.of(operand).page_size


def position_scaling(operand: Value) -> attn.ScaledOp | None:
    """The operation that gives blocks of positions of an operand scales of their own, or None."""
    return OperandStorage.of(operand).position_scales


def has_indirect_rows(operand: Value) -> bool:
    """Whether an operand of `attn.mha` has indexed rows, with a list per query."""
    return OperandStorage.of(operand).lists is not None


def latent_rows_of(operand: Value) -> attn.LatentRowsOp | None:
    """The operation that says how the rows of a latent cache are stored in 8 bits, or None."""
    return OperandStorage.of(operand).latent_rows


def is_ragged(queries: Value) -> bool:
    """Whether the queries of all sequences lie in one dimension."""
    return OperandStorage.of(queries).offsets is not None


def has_padded_queries(queries: Value) -> bool:
    """Whether the queries of a sequence end before its dimension does.

    A tensor map of those has a dimension for that, and none is left for packed heads.
    """
    storage = OperandStorage.of(queries)
    return storage.lengths is not None and storage.offsets is None
