"""What several tests of numerics look at besides numbers."""

from __future__ import annotations

from typing import Any

import pytest

from attn_mlir.runtime.emulator import Emulator
from attn_mlir.runtime.emulator.emulator import Stats


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Stats]:
    """What each launch on the emulator does."""
    found: list[Stats] = []
    original = Emulator.launch

    def launch(self: Emulator, *arguments: Any, **options: Any) -> Stats:
        found.append(original(self, *arguments, **options))
        return found[-1]

    monkeypatch.setattr(Emulator, "launch", launch)
    return found


@pytest.fixture
def product_counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of products that each launch on the emulator executes."""
    counts: list[int] = []
    original = Emulator.launch

    def launch(self: Emulator, *arguments: Any, **options: Any) -> Stats:
        stats = original(self, *arguments, **options)
        counts.append(stats.mma_count)
        return stats

    monkeypatch.setattr(Emulator, "launch", launch)
    return counts
