"""`supports`: the answer of `attention` without what it costs."""

from __future__ import annotations

import inspect
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.errors import REFUSALS
from attn_mlir.runtime.kernel import Machine


def operand(
    heads: int = 2, length: int = 8, size: int = 64, dtype: Any = ml_dtypes.bfloat16
) -> Any:
    return np.zeros((1, length, heads, size), dtype)


def cache(page: int = 16) -> am.PagedKV:
    pool = np.zeros((4, page, 2, 64), ml_dtypes.bfloat16)
    return am.PagedKV(pool, pool, np.zeros((1, 4), np.int32), np.ones(1, np.int32))


CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "head size": ((operand(size=264),) * 3, {}),
    "dtype": ((operand(dtype=np.float32),) * 3, {}),
    "heads": ((operand(3), operand(2), operand(2)), {}),
    "values missing": ((operand(),) * 2, {}),
    "mask": ((operand(),) * 3, {"mask": "causal"}),
    "parts": ((operand(),) * 3, {"num_splits": 1000}),
    "scale": ((operand(),) * 3, {"scale": -1.0}),
    "sinks": ((operand(),) * 3, {"sinks": np.zeros(3, np.float32)}),
    "values beside a cache": ((operand(length=1), cache(), operand()), {}),
    "device": ((operand(),) * 3, {"device": "tpu"}),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_reason_is_the_message_of_the_refusal(name: str, no_compiler: type[Exception]) -> None:
    operands, options = CALLS[name]
    with pytest.raises(REFUSALS) as refused:
        am.attention(*operands, **options)
    assert am.supports(*operands, **options) == str(refused.value)


@pytest.mark.parametrize(
    "operands, options",
    [
        ((operand(),) * 3, {"mask": am.causal(), "return_lse": True}),
        ((operand(length=1), cache()), {"num_splits": 2}),
        ((operand(),) * 3, {"score_mod": am.mods.softcap(2.0), "device": "emulator"}),
    ],
)
def test_none_where_a_kernel_takes_it(
    operands: Any, options: Any, no_compiler: type[Exception]
) -> None:
    assert am.supports(*operands, **options) is None
    with pytest.raises(no_compiler):
        am.attention(*operands, **options)


def test_tensors_without_memory() -> None:
    torch: Any = pytest.importorskip("torch")
    q, k = (torch.empty(1, n, 2, 64, dtype=torch.bfloat16, device="meta") for n in (4, 4096))
    assert am.supports(q, k, k, mask=am.causal()) is None
    assert am.supports(q, k[:, :-1], k) == (
        "k and v must agree but for head_dim, got [1, 4095, 2, 64] and [1, 4096, 2, 64]"
    )


def test_gradients_count_where_they_are_wanted() -> None:
    torch: Any = pytest.importorskip("torch")
    q = torch.empty(1, 8, 2, 64, dtype=torch.bfloat16, device="meta", requires_grad=True)
    wide = torch.empty(1, 8, 2, 256, dtype=torch.bfloat16, device="meta", requires_grad=True)
    assert am.supports(q, q, q, mask=am.causal()) is None
    assert str(am.supports(wide, wide, wide)).startswith("q requires a gradient")
    assert am.supports(wide.detach(), wide.detach(), wide.detach()) is None
    with torch.no_grad():
        assert am.supports(wide, wide, wide) is None
    assert "head_dim" in str(am.supports(q, wide, wide))


def test_a_gpu_that_no_target_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    module = importlib.import_module("attn_mlir.api.refusal")
    attention = importlib.import_module("attn_mlir.api.attention")
    for owner in (module, attention):
        monkeypatch.setattr(owner, "machine_of", lambda *_: Machine(None, 132))
    assert str(am.supports(*(operand(),) * 3, device="cuda")).startswith("GPU 0 has no kernel: ")
    assert am.supports(*(operand(),) * 3) is None


def test_arguments_are_those_of_attention() -> None:
    ours, theirs = inspect.signature(am.supports), inspect.signature(am.attention)
    assert ours.parameters == theirs.parameters
    with pytest.raises(TypeError, match=r"pass mask=am.causal\(\)"):
        am.supports(*(operand(),) * 3, causal=True)
