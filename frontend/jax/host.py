"""jax, which is imported by the first call: the tables of arguments are there without it."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from attn_mlir.versions import check_version

LEAST = (0, 10)  # the first version whose callbacks were tried
BELOW = (0, 12)  # whose callbacks nobody has tried


@functools.cache
def implementation() -> Any:
    """The functions that need jax.

    Raises:
      ImportError: it is missing, or of another version.
    """
    check_version("jax", importlib.import_module("jax").__version__, LEAST, BELOW)
    return importlib.import_module("attn_mlir.jax.functions")
