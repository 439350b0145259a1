"""Modules of other projects that registered a schedule, a mask or a target.

Kernels depend on their code, so that the cache of kernels asks here whose sources belong to a key.
"""

_modules: dict[str, None] = {}


def note(module: str) -> None:
    """Notes the name of a module that registers something; those of this package need no note."""
    if not module.startswith("attn_mlir."):
        _modules[module] = None


def noted() -> tuple[str, ...]:
    """The names of the modules, in the order of their first note."""
    return tuple(_modules)
