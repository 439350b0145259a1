"""Imports every instruction family, which fills the instruction table."""

from importlib import import_module

from .registry import RUNTIME, TABLE

__all__ = ["RUNTIME", "TABLE"]

for _name in (
    "atomics barriers bitfields calls collectives control convert copies double floating integer "
    "logic mbarriers memory misc mma moves registers remote rounding stochastic tcgen05 tensormaps "
    "tensormemory wgmma"
).split():
    import_module(f".{_name}", __package__)
