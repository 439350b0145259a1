"""`examples/transformer.py` at toy size: logits are those of the package's own attention, and it can tell."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.23")

import attn_mlir as am  # noqa: E402
import attn_mlir.transformers.masks as masks  # noqa: E402
from attn_mlir.compiling.compiler import RequestedKernel, recording  # noqa: E402

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "transformer.py"


@pytest.fixture(scope="module")
def example() -> Any:
    """The script as a module: PyTorch's compiler looks functions up where they say they are from."""
    spec = importlib.util.spec_from_file_location("transformer_example", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.long("compiled")
def test_logits_are_those_of_the_package(
    example: Any,
    is_compiled: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    torch.compiler.reset()
    if not is_compiled:
        monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    asked: list[RequestedKernel] = []
    with recording(asked.append):
        assert example.main(["--size", "toy", "--device", "emulator"]) == 0
    printed = capsys.readouterr().out
    errors = re.search(
        r"^eager: largest error (\S+); compiled: largest error (\S+)$", printed, re.M
    )
    assert errors is not None and all(float(error) > 0 for error in errors.groups())
    assert {"window_3_0" in one.kernel for one in asked} == {True}


def test_the_check_can_fail(
    example: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Attention that sees one key less; nothing is compiled by PyTorch here."""
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    whole = am.sliding_window
    monkeypatch.setattr(masks, "sliding_window", lambda left, right: whole(left - 1, right))
    assert example.main(["--size", "toy", "--device", "emulator"]) == 1
    assert "are allowed" in capsys.readouterr().out
