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
    mma,
    moves,
    remote,
    rounding,
    tcgen05,
    wgmma,
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
    "mma",
    "moves",
    "remote",
    "rounding",
    "tcgen05",
    "wgmma",
]
