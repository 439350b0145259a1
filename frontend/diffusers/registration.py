"""Adds a name to the attention backends of `diffusers`.

The names of backends are members of the enumeration `AttentionBackendName`, which has no public way
to add one: `register` adds a member through the private tables of `enum`, and `unregister` removes
it.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, cast

from attn_mlir.diffusers.backend import attention, attention_or_native
from attn_mlir.errors import SpecError, shown
from attn_mlir.fallback import wants_sdpa
from attn_mlir.versions import check_version

LEAST = (0, 42)  # the first version whose registry of backends was checked
BELOW = (0, 43)  # the first version whose registry was not checked
NAME = "attn_mlir"
OURS = (attention, attention_or_native)


@dataclass(frozen=True)
class Registration:
    """The result of `register`: as a context manager it unregisters the name.

    Attributes:
      name: the name of the backend.
    """

    name: str

    def __enter__(self) -> Registration:
        return self

    def __exit__(self, *_: object) -> None:
        unregister(self.name)


def register(name: str = NAME, *, fallback: str | None = None) -> Registration:
    """Registers the backend for `model.set_attention_backend(name)`.

    A second call with the same name replaces the first registration.

    Args:
      name: a lower-case identifier that no backend of the package has.
      fallback: None: a call without a kernel raises. "sdpa": the package's `native` backend
        computes such a call, and the log reports each reason once.

    Returns:
      A context manager that removes the name at its end. Without `with` the name stays until
      `unregister`.

    Raises:
      SpecError: the name or the fallback is not allowed.
      ImportError: the package is missing, or its version is not supported.
    """
    function = attention_or_native if wants_sdpa(fallback) else attention
    requested = cast("object", name)
    if not isinstance(requested, str) or not requested.isidentifier() or requested.lower() != name:
        raise SpecError(f"name must be an identifier in small letters, got {shown(name, 40)}")
    check_version("diffusers", _import("diffusers").__version__, LEAST, BELOW)
    names, registry = _names(), _registry()
    if name in names._value2member_map_ and registry._backends.get(name) not in OURS:
        raise SpecError(f"name {name!r} is that of a backend of diffusers: choose another one")
    member = names._value2member_map_.get(name)
    if member is None:
        member = _member(names, name)
    registry.register(member, supports_context_parallel=True)(function)
    return Registration(name)


def unregister(name: str = NAME) -> None:
    """Removes a name that `register` added; other names are left alone.

    Reset models that use the backend first: `model.reset_attention_backend()`. If it is the active
    backend, the package's initial backend becomes active.
    """
    names, registry = _names(), _registry()
    if registry._backends.get(name) not in OURS:
        return
    if registry._active_backend == name:
        registry.set_active_backend(names(_dispatch().DIFFUSERS_ATTN_BACKEND))
    for table in (registry._backends, registry._constraints, registry._supported_arg_names):
        table.pop(name)
    registry._supports_context_parallel.discard(name)
    member = names._value2member_map_.pop(name)
    names._member_map_.pop(member.name)
    names._member_names_.remove(member.name)


def _member(names: Any, name: str) -> Any:
    """A new member of an enumeration of strings."""
    member: Any = str.__new__(names, name)
    member._name_, member._value_ = name.upper(), name
    member.__objclass__, member._sort_order_ = names, len(names._member_names_)
    names._member_map_[member._name_] = names._value2member_map_[name] = member
    names._member_names_.append(member._name_)
    return member


def _import(name: str) -> Any:
    return importlib.import_module(name)


def _dispatch() -> Any:
    return _import("diffusers.models.attention_dispatch")


def _names() -> Any:
    return _dispatch().AttentionBackendName


def _registry() -> Any:
    return _dispatch()._AttentionBackendRegistry
