"""The work of a process in one call: its steps one after the other, and repetitions of steps.

Sizes and work tiles decide all branches and counts of turns, so that two calls with the same
programs are the same to the rings. Turns of a loop that do the same are one `Repeat`.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple, TypeAlias

from .skeleton import Branch, Loop, Meeting, Node, Sizes, Step, Tiles


class Repeat(NamedTuple):
    """Some turns of a loop, all with the same body; at least one."""

    turns: int
    body: "Program"


Program: TypeAlias = "tuple[Step | Meeting | Repeat, ...]"


def program(nodes: Sequence[Node], sizes: Sizes, tiles: Sequence[Sizes] = ()) -> Program:
    """The program of some nodes.

    Args:
      sizes: values of all names on which their formulas depend, but for coordinates of work tiles.
      tiles: the coordinates of the work tiles of a CTA.
    """
    found: list[Step | Meeting | Repeat] = []
    for node in nodes:
        match node:
            case Tiles(body=body):
                for tile in tiles:
                    found += program(body, {**sizes, **tile})
            case Branch(condition=condition, then=then, otherwise=otherwise):
                found += program(then if condition.of(sizes) else otherwise, sizes)
            case Loop():
                found += _repeats(node, sizes)
            case _:
                found.append(node)
    return tuple(found)


def _repeats(loop: Loop, sizes: Sizes) -> list[Repeat]:
    turns = loop.turns(sizes)
    if not turns:
        return []
    if not loop.varies:
        return [Repeat(len(turns), program(loop.body, {**sizes, loop.index: turns.start}))]
    bodies = (program(loop.body, {**sizes, loop.index: number}) for number in turns)
    return [Repeat(len(list(same)), body) for body, same in groupby(bodies)]


class Shape(NamedTuple):
    """Programs without their numbers of turns.

    Attributes:
      outline: the same for programs that differ in numbers of turns alone.
      turns: these numbers, in the order of the programs.
    """

    outline: tuple[object, ...]
    turns: tuple[int, ...]


def shape(body: Program) -> Shape:
    """The shape of a program."""
    outline: list[object] = []
    turns: list[int] = []
    for item in body:
        if isinstance(item, Repeat):
            inner = shape(item.body)
            outline.append(inner.outline)
            turns += (item.turns, *inner.turns)
        else:
            outline.append(item)
    return Shape(tuple(outline), tuple(turns))
