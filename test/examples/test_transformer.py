"""`examples/transformer.py` at toy size: logits are those of the package's own attention, and it can tell."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytest.importorskip("transformers")

import attn_mlir as am  # noqa: E402
from attn_mlir.compiling.compiler import Asked, recording  # noqa: E402

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
    asked: list[Asked] = []
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
    monkeypatch.setattr(am, "sliding_window", lambda left, right: whole(left - 1, right))
    assert example.main(["--size", "toy", "--device", "emulator"]) == 1
    assert "are allowed" in capsys.readouterr().out


def test_what_kernels_lack_is_refused(example: Any) -> None:
    attend = example.attend
    q = torch.zeros(1, 2, 3, 64, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="no dropout"):
        attend(SimpleNamespace(is_causal=True), q, q, q, None, dropout=0.1)
    with pytest.raises(ValueError, match="causal layers"):
        attend(SimpleNamespace(is_causal=False), q, q, q, None)
    with pytest.raises(ValueError, match="position_bias"):
        attend(SimpleNamespace(is_causal=True), q, q, q, None, position_bias=q)
