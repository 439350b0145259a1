"""Imports the file of every mask, which registers it: first those that messages list first."""

import importlib
import pkgutil
from pathlib import Path

FIRST = ("null", "causal", "window", "chunked", "prefix", "combined")

for name in dict.fromkeys(
    (*FIRST, *(x.name for x in pkgutil.iter_modules([str(Path(__file__).parent)])))
):
    if name != "all_files":
        importlib.import_module(f"{__package__}.{name}")
