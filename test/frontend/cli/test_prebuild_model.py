"""`attn-mlir prebuild --model`: the layers of a config, the calls that they make, the bundles of these."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attn_mlir as am
from attn_mlir import cli, env
from attn_mlir.cli import model_calls
from attn_mlir.cli.model_bundles import prebuild_model
from attn_mlir.cli.model_calls import calls_of
from attn_mlir.cli.model_config import FULL, WINDOW, Layer, layers_of
from attn_mlir.compiling import compiler
from attn_mlir.errors import SpecError

LLAMA = {
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
}
QWEN3 = {
    **LLAMA, "model_type": "qwen3", "head_dim": 128, "sliding_window": None, "use_sliding_window": False,
    "layer_types": [FULL] * 4, "dtype": "float16",
}  # fmt: skip
GEMMA3 = {"text_config": {
    "model_type": "gemma3_text", "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
    "hidden_size": 2304, "sliding_window": 4096, "layer_types": [WINDOW] * 5 + [FULL],
    "attn_logit_softcapping": None, "dtype": "float32",
}}  # fmt: skip
GPT_OSS = {
    "model_type": "gpt_oss", "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64,
    "sliding_window": 128, "layer_types": [WINDOW, FULL] * 18, "torch_dtype": "bfloat16",
}  # fmt: skip
DEEPSEEK = {
    "model_type": "deepseek_v3", "num_attention_heads": 128, "num_key_value_heads": 128,
    "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "head_dim": 64,
}  # fmt: skip
LAYERS: dict[str, tuple[dict[str, Any], int, list[Layer]]] = {
    "llama": (LLAMA, 1, [Layer(32, 8, 128, 128, "bf16")]),
    "llama of 16 machines": (LLAMA, 16, [Layer(2, 1, 128, 128, "bf16")]),
    "qwen3": (QWEN3, 4, [Layer(8, 2, 128, 128, "f16")]),
    "gemma 3": (GEMMA3, 1, [Layer(8, 4, 256, 256, "bf16", window=4096), Layer(8, 4, 256, 256, "bf16")]),
    "gpt-oss": (GPT_OSS, 8, [
        Layer(8, 1, 64, 64, "bf16", window=128, sinks=True), Layer(8, 1, 64, 64, "bf16", sinks=True)]),
    "deepseek": (DEEPSEEK, 8, [Layer(16, 16, 192, 128, "bf16", latent=576)]),
    "gemma 2": (
        {**LLAMA, "sliding_window": 64, "sliding_window_pattern": 2, "attn_logit_softcapping": 50.0}, 1,
        [Layer(32, 8, 128, 128, "bf16", window=64, cap=50.0), Layer(32, 8, 128, 128, "bf16", cap=50.0)]),
    "chunks": (
        {**LLAMA, "layer_types": ["chunked_attention", "linear_attention"], "attention_chunk_size": 512}, 1,
        [Layer(32, 8, 128, 128, "bf16", chunk=512)]),
}  # fmt: skip


def written(folder: Path, fields: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(fields))
    return path


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, tmp_path: Path) -> None:
    fields, machines, layers = LAYERS[name]
    assert layers_of(written(tmp_path, fields), tensor_parallel=machines) == layers


@pytest.mark.parametrize(
    ("fields", "machines", "message"),
    [
        ({"hidden_size": 64}, 1, "has no num_attention_heads: it is no model's config.json"),
        ([1], 1, "must be a JSON object, got"),
        (LLAMA, 3, "^tensor_parallel must divide num_attention_heads 32, got 3"),
        (LLAMA, 0, "^tensor_parallel must divide num_attention_heads 32, got 0"),
        (
            {**LLAMA, "num_key_value_heads": 3},
            2,
            "^tensor_parallel must divide num_key_value_heads 3",
        ),
        (
            {**LLAMA, "head_dim": "128"},
            1,
            "^head_dim of .* must be an integer of at least 1, got '128'",
        ),
        ({**LLAMA, "layer_types": ["mamba"]}, 1, "has none of full_attention, sliding_attention"),
        ({**LLAMA, "layer_types": "full"}, 1, "^layer_types of .* must be a list, got 'full'"),
        ({**LLAMA, "layer_types": [WINDOW]}, 1, "has no sliding_window"),
        (
            {**LLAMA, "attn_logit_softcapping": "x"},
            1,
            "^attn_logit_softcapping of .* must be a number",
        ),
        ({**DEEPSEEK, "qk_rope_head_dim": 0}, 1, "^qk_rope_head_dim of .* at least 1, got 0"),
    ],
)
def test_configs_are_refused(fields: Any, machines: int, message: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=message):
        layers_of(written(tmp_path, fields), tensor_parallel=machines)


def test_a_file_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "none.json"
    assert cli.main(["prebuild", "-o", str(tmp_path / "o"), "--model", str(missing)]) == 1
    assert "SpecError: cannot read the config" in capsys.readouterr().err
    assert cli.main(["prebuild", "-o", str(tmp_path / "o")]) == 1
    assert "SpecError: pass a SCRIPT or --model CONFIG.json" in capsys.readouterr().err
    with pytest.raises(SpecError, match="^page_size must divide 4096, got 48"):
        prebuild_model(written(tmp_path, LLAMA), tmp_path / "o", page_size=48)


@pytest.mark.parametrize("target", ["sm_100a", "sm_90a"])
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma 3", "gpt-oss", "gemma 2", "chunks"])
def test_calls_have_kernels(name: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as they can be told without compiling."""
    asked: list[dict[str, Any]] = []

    def supports(*operands: Any, **options: Any) -> str | None:
        asked.append(options)
        return am.supports(*operands, **options, device=am.EmulatorDevice(target=target))

    monkeypatch.setattr(model_calls, "attention", supports)
    for layer in LAYERS[name][2]:
        calls = dict(calls_of(layer, 16))
        assert {"prefill of 32", "prefill of 2048 over pages, split", "decoding", "append"} < set(
            calls
        )
        for called, call in calls.items():
            if not called.startswith("append"):
                assert call() is None, called
        assert all(("sinks" in x) == layer.sinks for x in asked)
        asked.clear()


def test_bundles_serve_other_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program finds them without a compiler: another batch, other lengths, other pages."""
    small = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 256}
    folder, lines = tmp_path / "bundles", list[str]()
    collector = prebuild_model(
        written(tmp_path, small), folder, tensor_parallel=2, page_size=64, targets=["sm_90a"], say=lines.append
    )  # fmt: skip
    assert not collector.failed and set(collector.written) == {x.name for x in folder.iterdir()}
    assert lines[0] == "sm_90a: 2 heads, 1 of keys, 64 columns"
    settings = env.read({"ATTN_MLIR_BUNDLES": str(folder)})
    monkeypatch.setattr(env, "settings", lambda: settings)
    monkeypatch.setattr(compiler, "_mlir_identity", lambda: "none")
    monkeypatch.setattr(compiler, "_memory", {})
    device = am.EmulatorDevice(target="sm_90a")
    bf16 = model_calls.ml_dtypes.bfloat16
    random = np.random.default_rng(0)
    q, k, v = ((random.standard_normal((1, 70, n, 64))).astype(bf16) for n in (2, 1, 1))
    o = am.attention(q, k, v, mask=am.causal(), device=device)
    wanted = am.reference.attention_f64(q, k, v, mask=am.causal()).o
    assert np.abs(o.astype(np.float64) - wanted).max() < 0.02
    pools = [np.zeros((3, 64, 1, 64), bf16) for _ in "kv"]
    cache = am.PagedKV(*pools, np.array([[2, 1], [0, 0]], np.int32), np.array([71, 3], np.int32))
    am.append_kv(
        cache, k[0], v[0], slot_mapping=np.arange(128, 198).astype(np.int64) % 192, device=device
    )
    assert pools[0][2, :64].tobytes() == k[0, :64].tobytes()
    am.attention(
        q[:, :2].reshape(2, 1, 2, 64), cache, mask=am.causal(), num_splits=2, device=device
    )
