"""A pytest plugin that notes which instructions each test executes: `-p executed`, EXECUTED_TO=file."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

_seen: dict[str, set[str]] = defaultdict(set)
_current = [""]


def pytest_configure(config: pytest.Config) -> None:
    """Listen to the translation of instructions, which happens when they are first executed."""
    from attn_mlir.runtime.emulator import emulator
    from attn_mlir.runtime.emulator.isa.translate import Translation
    from attn_mlir.validation.emulator.signatures import signature

    emit = Translation._emit_plain

    def noted(self: Translation, emitter: Any, instruction: Any) -> None:
        emit(self, emitter, instruction)
        _seen[signature(instruction)].add(_current[0])

    Translation._emit_plain = noted  # type: ignore[method-assign]
    emulator.translated = emulator.translated.__wrapped__  # each test translates for itself


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Remember which test runs, without its parameters."""
    _current[0] = f"{Path(item.path).stem}::{item.name.partition('[')[0]}"


def pytest_sessionfinish() -> None:
    """Write what was seen."""
    found = {name: sorted(tests) for name, tests in sorted(_seen.items())}
    Path(os.environ["EXECUTED_TO"]).write_text(json.dumps(found, indent=1))
