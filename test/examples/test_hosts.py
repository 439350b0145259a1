"""Examples of other packages' models: each compares with that package itself, and says so by its exit code."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"{name}_example", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_transformer_of_diffusers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails where attention is wrong."""
    pytest.importorskip("torch")
    pytest.importorskip("diffusers", minversion="0.42")
    module = example("image_transformer")
    assert module.main(["--device", "cpu"]) == 0
    assert "largest error" in capsys.readouterr().out
    backend = importlib.import_module("attn_mlir.diffusers.backend")
    exact = backend.sdpa_and_lse
    monkeypatch.setattr(
        backend, "sdpa_and_lse", lambda q, k, v, *options: exact(q, k, v.flip(2), *options)
    )
    assert module.main(["--device", "cpu"]) == 1


def test_a_layer_of_jax() -> None:
    jax: Any = pytest.importorskip("jax", minversion="0.10")
    module = example("jax_regression")
    assert module.main() == 0
    module.dot_product_attention = lambda q, k, v: jax.nn.dot_product_attention(q, k, v[:, ::-1])
    assert module.main() == 1
