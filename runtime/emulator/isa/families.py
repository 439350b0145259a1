"""Imports every instruction family, which fills the instruction table."""

from importlib import import_module

from .registry import RUNTIME, TABLE

__all__ = ["RUNTIME", "TABLE"]

_FAMILIES = {
    "arithmetic": "bitfields convert double floating integer logic rounding stochastic",
    "memory": "accesses atomics moves",
    "warp": "calls collectives control misc registers",
    "asynchronous": "barriers bulk_copies copy_groups mbarriers remote tensor_copies tensormaps "
    "thread_copies",
    "tensor": "mma memory tcgen05 wgmma",
}
for _room, _modules in _FAMILIES.items():
    for _module in _modules.split():
        import_module(f".{_room}.{_module}", __package__)
