"""Checkers of a running kernel: races, proxies, barriers, tensor memory (docs/emulator.md)."""

from .checker import Checker, EveryWatch
from .findings import CHECKS, Access, CheckError, CheckMode, Finding, checks_named

__all__ = [
    "CHECKS",
    "Access",
    "CheckError",
    "CheckMode",
    "Checker",
    "EveryWatch",
    "Finding",
    "checks_named",
]
