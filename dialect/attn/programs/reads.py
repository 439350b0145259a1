"""Which elements of a captured tensor a score modifier reads, by the coordinates it reads them at.

The gradient of an element is the sum over all scores that read it. How a kernel adds these up
depends on the coordinates alone: an element may be read by one head, one query, one key, one score
or one distance between query and key. Everything else needs additions in memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from attn_mlir.dialect.attn.programs.program import Node

POSITIONS = {"q", "k"}
COORDINATES = ("batch", "head", "q", "k")
KEY_PARTS = {"k_pairs": 1, "k_blocks": 5}
"""Partitions of the keys into four quarters, by name: key k is in quarter (k >> shift) & 3. With
`k_pairs` successive pairs of keys are in different quarters, with `k_blocks` successive blocks of
32 keys. A thread of a kernel has whole quarters of a row of scores in one of these partitions."""
QUARTERS = 4


class Pattern(Enum):
    """The arguments that the coordinates of a read depend on, and how.

    Names in the examples are those of functions of `attn_mlir.mods`.
    """

    HEAD = "head"
    """Batch and head at most: slopes of ALiBi, a scalar. A sum over all scores of a head."""

    QUERY = "query"
    """Also the query: table[h, q]. A sum over the keys of each query."""

    KEY = "key"
    """Also the key: table[k]. A sum over the queries of each key."""

    SCORE = "score"
    """Batch, head, query and key, each an axis of its own: a bias of rank 4. No sum."""

    BROADCAST = "broadcast"
    """As SCORE without batch or head, or both: a bias [q, k]. A sum over these."""

    DISTANCE = "distance"
    """Query minus key, besides batch and head: relative_bias. A sum over each diagonal."""

    SCATTER = "scatter"
    """Anything else: table[ids[q], ids[k]], relative_logits, coordinates made of the score.

    Where one of the `axes_of` a read is the query or the key, as in relative_logits, elements still
    belong to that query or key alone.
    """

    @property
    def depends_on(self) -> tuple[str, ...]:
        """The arguments by which scores read different elements, or may do so."""
        left_out = {Pattern.HEAD: {"k"}, Pattern.QUERY: {"k"}, Pattern.KEY: {"q"}}.get(self, set())
        return tuple(x for x in COORDINATES if x not in left_out)

    def is_of_rows(self, position: str) -> bool:
        """Whether scores of one position, `q` or `k`, and head read one element."""
        return self is Pattern.HEAD or self.depends_on[2:] == (position,)


def axes_of(nodes: Sequence[Node], coordinates: Sequence[int]) -> tuple[str | None, ...]:
    """For each coordinate of a read the argument that it is; None for any other number."""
    found = [nodes[number] for number in coordinates]
    return tuple(str(node.value) if node.op == "argument" else None for node in found)


def pattern_of(nodes: Sequence[Node], coordinates: Sequence[int]) -> Pattern:
    """The pattern of a read.

    SCORE, BROADCAST and DISTANCE hold where coordinates are within the tensor: one outside is
    clamped, so that several scores read the last element.

    Args:
      nodes: of the program.
      coordinates: the nodes that are the read's coordinates.
    """
    known = _dependences(nodes)
    depends = set[str]().union(*(known[number].on for number in coordinates))
    if depends <= {"batch", "head"}:
        return Pattern.HEAD
    if depends <= {"batch", "head", "q"}:
        return Pattern.QUERY
    if depends <= {"batch", "head", "k"}:
        return Pattern.KEY
    if "score" in depends:
        return Pattern.SCATTER
    of_positions = [n for n in coordinates if known[n].on & POSITIONS]
    if all(known[number].is_by_distance for number in of_positions):
        return Pattern.DISTANCE
    if sorted(axis or "" for axis in axes_of(nodes, of_positions)) != ["k", "q"]:
        return Pattern.SCATTER
    axes = axes_of(nodes, coordinates)
    return Pattern.SCORE if {"batch", "head"} <= set(axes) else Pattern.BROADCAST


@dataclass(frozen=True)
class _Dependence:
    """The arguments that a node depends on, and how.

    Attributes:
      on: names of arguments.
      slopes: (a, b) if the node is a q + b k plus what depends on neither; None if it is not.
      is_by_distance: whether it depends on q and k by their difference only, and does so.
    """

    on: frozenset[str]
    slopes: tuple[int, int] | None
    is_by_distance: bool


def _dependences(nodes: Sequence[Node]) -> list[_Dependence]:
    found: list[_Dependence] = []
    for node in nodes:
        args = [found[number] for number in node.args]
        on = frozenset[str]().union(*(arg.on for arg in args))
        if node.op == "argument":
            on = frozenset({str(node.value)})
        slopes = _slopes(node, on, args, nodes)
        if slopes is not None:
            is_by_distance = slopes[0] == -slopes[1] != 0
        else:
            moving = [arg for arg in args if arg.on & POSITIONS]
            is_by_distance = bool(moving) and all(arg.is_by_distance for arg in moving)
        found.append(_Dependence(on, slopes, is_by_distance and "score" not in on))
    return found


def _slopes(
    node: Node, on: frozenset[str], args: Sequence[_Dependence], nodes: Sequence[Node]
) -> tuple[int, int] | None:
    if node.op == "argument":
        return int(node.value == "q"), int(node.value == "k")
    if not on & POSITIONS:
        return 0, 0
    parts = [arg.slopes for arg in args]
    if node.type not in ("i32", "i64") or None in parts:
        return None
    (a, b), *others = [part for part in parts if part is not None]
    match node.op:
        case "neg":
            return -a, -b
        case "cast":
            return a, b
        case "add":
            return a + others[0][0], b + others[0][1]
        case "sub":
            return a - others[0][0], b - others[0][1]
        case "mul":
            return _multiple(node, parts, nodes)
        case _:
            return None


def _multiple(
    node: Node, parts: Sequence[tuple[int, int] | None], nodes: Sequence[Node]
) -> tuple[int, int] | None:
    """The slopes of a product with a constant."""
    for number, part in zip(node.args, reversed(parts), strict=True):
        factor = nodes[number]
        if factor.op == "constant" and part is not None:
            return part[0] * int(factor.value or 0), part[1] * int(factor.value or 0)
    return None
