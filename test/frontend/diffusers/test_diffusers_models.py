"""Transformers of `diffusers` with random weights, against the `native` backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
hf: Any = pytest.importorskip("diffusers", minversion="0.42")

import attn_mlir.diffusers as door  # noqa: E402

host: Any = pytest.importorskip("diffusers.models.attention_dispatch")

pytestmark = pytest.mark.long  # the package takes seconds to import
TEXT, WIDTH = 5, 32


def flux() -> tuple[Any, dict[str, Any]]:
    """Joint attention of text and image, in blocks with two streams and with one."""
    sizes = {"num_attention_heads": 2, "attention_head_dim": 16, "axes_dims_rope": [4, 4, 8]}
    sizes |= {"num_layers": 1, "num_single_layers": 1, "patch_size": 1, "in_channels": 4}
    widths = {"joint_attention_dim": WIDTH, "pooled_projection_dim": WIDTH}
    given = {
        "hidden_states": torch.randn(2, 16, 4),
        "encoder_hidden_states": torch.randn(2, TEXT, WIDTH),
        "pooled_projections": torch.randn(2, WIDTH),
        "timestep": torch.tensor([1.0, 0.5]),
        "img_ids": torch.randn(16, 3),
        "txt_ids": torch.randn(TEXT, 3),
    }
    return hf.FluxTransformer2DModel(**sizes, **widths), given


def wan() -> tuple[Any, dict[str, Any]]:
    """Attention of a video to itself and to text."""
    sizes = {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 1, "ffn_dim": 64}
    widths = {"in_channels": 4, "out_channels": 4, "text_dim": WIDTH, "freq_dim": 32}
    given = {
        "hidden_states": torch.randn(1, 4, 2, 8, 8),
        "encoder_hidden_states": torch.randn(1, TEXT, WIDTH),
        "timestep": torch.tensor([10]),
    }
    made = hf.WanTransformer3DModel(patch_size=(1, 2, 2), rope_max_seq_len=32, **sizes, **widths)
    return made, given


MODELS: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {"flux": flux, "wan": wan}


def converted(given: dict[str, Any], dtype: Any) -> dict[str, Any]:
    return {name: x.to(dtype) if x.is_floating_point() else x for name, x in given.items()}


def outputs(model: Any, given: dict[str, Any], calls: int) -> list[Any]:
    """In f32, in bf16, and in bf16 by our backend, which has to be called so many times."""
    with torch.no_grad(), door.register(), pytest.MonkeyPatch.context() as patch:
        made: list[int] = []

        def counted(**options: Any) -> Any:
            made.append(1)
            return door.attention(**options)

        patch.setitem(host._AttentionBackendRegistry._backends, door.NAME, counted)
        truth = model(**converted(given, torch.float32)).sample
        model = model.to(torch.bfloat16)
        given = converted(given, torch.bfloat16)
        native = model(**given).sample
        model.set_attention_backend(door.NAME)
        ours = model(**given).sample
        model.reset_attention_backend()
        assert len(made) == calls
    return [x.float() for x in (truth, native, ours)]


@pytest.mark.parametrize("name", MODELS)
def test_a_model_computes_what_native_computes(name: str) -> None:
    torch.manual_seed(0)
    model, given = MODELS[name]()
    truth, native, ours = outputs(model.eval(), given, calls=2)
    assert 0 < (ours - truth).abs().max() <= 2 * (native - truth).abs().max()
    assert (native - truth).abs().max() < 0.1 * truth.abs().max()


def test_a_model_is_one_graph() -> None:
    torch.manual_seed(0)
    model, given = flux()
    model, given = model.eval().to(torch.bfloat16), converted(given, torch.bfloat16)
    with torch.no_grad(), door.register():
        model.set_attention_backend(door.NAME)
        ours = model(**given).sample
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(**given).sample, ours)
        model.reset_attention_backend()


def test_a_model_is_trained() -> None:
    """Gradients of weights before attention."""
    torch.manual_seed(0)
    model, given = flux()
    weight = model.single_transformer_blocks[0].attn.to_k.weight
    found: list[Any] = []
    for dtype, backend in (
        (torch.float32, "native"),
        (torch.bfloat16, "native"),
        (None, door.NAME),
    ):
        with door.register():
            model = model.to(dtype)
            model.set_attention_backend(backend)
            out = model(**converted(given, dtype or torch.bfloat16)).sample
            weight.grad = None
            out.float().square().sum().backward()
            found.append(weight.grad.float())
            model.reset_attention_backend()
    truth, native, ours = found
    assert 0 < (ours - truth).abs().max() <= 2 * (native - truth).abs().max() + 1e-3
    assert (ours - truth).abs().max() < 0.1 * truth.abs().max()
