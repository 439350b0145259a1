"""Imports jax at the first call, so that the tables of arguments can be read without it."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from attn_mlir.versions import check_version

LEAST = (0, 10)  # the first version whose callbacks were tried
BELOW = (0, 12)  # the first version whose callbacks were not tried


@functools.cache
def implementation() -> Any:
    """The module with the functions that need jax.

    Raises:
      ImportError: jax is missing, or its version is not supported.
    """
    check_version("jax", importlib.import_module("jax").__version__, LEAST, BELOW)
    return importlib.import_module("attn_mlir.jax.functions")
