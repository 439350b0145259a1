"""The static facts of a problem, of a request of the front end or of an operation in MLIR.

A request has its facts as a property (`attn_mlir.compiling.request`); `schedules.core.facts` makes
those of an operation. Both are equal if the operation comes from the request.
"""

from dataclasses import dataclass
from typing import NamedTuple

from attn_mlir.dialect.attn.block import Block
from attn_mlir.dialect.attn.masks import Mask
from attn_mlir.dialect.attn.programs.program import Program
from attn_mlir.dialect.attn.scale import ScaleBlock
from attn_mlir.element_types import NARROW


class Modifier(NamedTuple):
    """How a score modifier reads tensors.

    Attributes:
      reads: elements of tensors that a modified score depends on.
      gathers: whether the index of one is made of query and key together, as a distance is.
    """

    reads: int = 0
    gathers: bool = False

    @classmethod
    def of(cls, program: Program | None) -> "Modifier":
        """The facts of a traced program; of a score that stays as it is without one."""
        if program is None:
            return cls()
        needed = _needed(program)
        loads = [x for x in needed if program.nodes[x].op == "load"]
        of_both = _made_of(program, needed, "q") & _made_of(program, needed, "k")
        gathers = any(of_both & set(program.nodes[x].args) for x in loads)
        return cls(len(loads), gathers)


UNMODIFIED = Modifier()


class Scales(NamedTuple):
    """Scales of 8-bit elements in blocks of positions.

    Attributes:
      k: the block of K. In latent attention before absorption, of k_nope.
      v: of V; None where V has a scale for each sequence and head.
    """

    k: ScaleBlock | None
    v: ScaleBlock | None


class Rope(NamedTuple):
    """The rotated columns of queries and keys, where these are tensors of their own.

    Attributes:
      columns: of a row.
      q_type, k_type: their element types.
    """

    columns: int
    q_type: str
    k_type: str


class Fp8Rows(NamedTuple):
    """Rows of a latent cache that are stored in 8 bits and widened by the kernel.

    Attributes:
      group: columns that share a scale.
      scaled_columns: columns with scales of f32.
    """

    group: int
    scaled_columns: int


@dataclass(frozen=True, kw_only=True)
class Facts:
    """One problem: what a kernel computes, without how.

    Attributes:
      operation: `mha`, `mla`, `mla_decode`, `sparse_mla`, `append`, `combine`, `delta`,
        `gradients`, `kv_gradients`, `q_gradients`, `mla_kv_gradients` or `mla_q_gradients`.
      heads, kv_heads: heads of queries, and of keys and values; each serves a group of query heads.
      head_dim: columns of Q and K; without rope where that has tensors of its own. 0 of results for
        parts of the keys, which have neither.
      v_head_dim: columns of V and O.
      q_type, kv_type, out_type: element types of Q, of K and V, and of O; of `append` those of new
        tokens, of the cache and of the cache once more.
      mask: which keys a query sees; None where an operation has no mask.
      page_size: positions of a page of keys; 0 without pages.
      ragged_q: whether the queries of all sequences lie in one dimension.
      padded_q: whether the queries of a sequence may end before its dimension does.
      scales: those that blocks of positions have of their own, if any.
      rope: the rotated columns, if these are tensors of their own.
      rows: how rows of a latent cache are stored in 8 bits; None where products read them as they
        are.
      indexed_rows: whether each query has a list of its keys' rows.
      shares_rows: whether values are the front of the rows of keys.
      block: extents of the blocks of scores that lists name, if any.
      modifier: of scores.
      partial: whether there is a result for each part of the keys, which another kernel combines.
      combined: whether the kernel combines parts of the keys by itself, in memory that it is given.
      split_size: keys of such a part; 0 for equal shares.
      in_turn: whether blocks of keys add to gradients of queries in order.
      has_tile_counter: whether CTAs draw work tiles from a counter in memory.
    """

    operation: str
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    q_type: str
    kv_type: str
    out_type: str
    mask: Mask | None = None
    page_size: int = 0
    ragged_q: bool = False
    padded_q: bool = False
    scales: Scales | None = None
    rope: Rope | None = None
    rows: Fp8Rows | None = None
    indexed_rows: bool = False
    shares_rows: bool = False
    block: Block | None = None
    modifier: Modifier = UNMODIFIED
    partial: bool = False
    combined: bool = False
    split_size: int = 0
    has_tile_counter: bool = False
    in_turn: bool = False

    @property
    def group(self) -> int:
        """Query heads per head of keys and values."""
        return self.heads // self.kv_heads

    @property
    def is_fp8(self) -> bool:
        """Whether products are of 8 bits."""
        return self.q_type in NARROW


def _needed(program: Program) -> list[int]:
    """The nodes that the modified score and what hides it depend on, in order."""
    needed = {program.score, *program.keeps}
    for number in reversed(range(len(program.nodes))):
        if number in needed:
            needed.update(program.nodes[number].args)
    return sorted(needed)


def _made_of(program: Program, needed: list[int], argument: str) -> set[int]:
    """Those of these nodes that depend on an argument."""
    dependents = set[int]()
    for number in needed:
        node = program.nodes[number]
        is_argument = node.op == "argument" and node.value == argument
        if is_argument or dependents & set(node.args):
            dependents.add(number)
    return dependents
