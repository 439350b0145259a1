"""Imports every instruction family, which fills the instruction table."""

from . import (
    barriers,
    collectives,
    control,
    convert,
    copies,
    floating,
    integer,
    logic,
    mbarriers,
    memory,
    misc,
    moves,
    rounding,
    tcgen05,
)
from .registry import RUNTIME, TABLE

__all__ = [
    "RUNTIME",
    "TABLE",
    "barriers",
    "collectives",
    "control",
    "convert",
    "copies",
    "floating",
    "integer",
    "logic",
    "mbarriers",
    "memory",
    "misc",
    "moves",
    "rounding",
    "tcgen05",
]
