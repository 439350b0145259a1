"""Checkers of a running kernel: races, proxies, barriers, tensor memory (docs/checkers.md)."""

from .checker import Checker
from .findings import CHECKS, Access, CheckError, CheckMode, Finding, checks_named

__all__ = ["CHECKS", "Access", "CheckError", "CheckMode", "Checker", "Finding", "checks_named"]
