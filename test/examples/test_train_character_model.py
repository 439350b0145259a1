"""`examples/train_character_model.py` at toy size: losses are those of PyTorch's attention, and it can tell."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "train_character_model.py"


@pytest.fixture(scope="module")
def example() -> Any:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("train_character_model_example", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_losses_are_those_of_torch(example: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert example.main(["--device", "emulator", "--steps", "3"]) == 0
    printed = capsys.readouterr().out
    first, last = map(float, re.findall(r"^attn_mlir .*loss (\S+)$", printed, re.M)[:3:2])
    assert last < first


def test_the_check_can_fail(example: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention without a mask; PyTorch's stands for ours, so that nothing is compiled."""

    def unmasked(query: Any, key: Any, value: Any, **_: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(query, key, value)

    monkeypatch.setattr(example.attn_mlir.torch, "scaled_dot_product_attention", unmasked)
    assert example.main(["--device", "emulator", "--steps", "12"]) == 1
