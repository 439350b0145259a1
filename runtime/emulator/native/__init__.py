"""Native arithmetic: lane expressions of generated code as a fixed set of compiled operations."""

from .blocks import Weaver
from .machine import Machine, machine

__all__ = ["Machine", "Weaver", "machine"]
