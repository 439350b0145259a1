"""Native arithmetic: lane expressions of generated code as a fixed set of compiled operations."""

from .blocks import Weaver
from .machine import machine

__all__ = ["Weaver", "machine"]
