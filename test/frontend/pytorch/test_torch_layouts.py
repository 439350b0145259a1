"""Tensors as PyTorch's callers have them: any strides, addresses and head sizes, in every mode of a call."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

import attn_mlir as am  # noqa: E402
import attn_mlir.torch as at  # noqa: E402
from attn_mlir.errors import SpecError  # noqa: E402
from attn_mlir.pytorch import readable  # noqa: E402

F16 = torch.float16
SHAPE = (1, 2, 12, 64)  # batch, heads, sequence, head_dim


def turned() -> Any:
    return torch.randn(1, 2, 64, 12, dtype=F16).transpose(2, 3)


def off_rows() -> Any:
    return torch.randn(1, 2, 12, 65, dtype=F16)[..., :64]


def misaligned() -> Any:
    return torch.randn(2 * 12 * 64 + 1, dtype=F16)[1:].view(SHAPE)


LAYOUTS: dict[str, tuple[Callable[[], Any], str]] = {  # and what am.attention says
    "inner stride": (turned, "its last axis must be dense (stride 1)"),
    "rows off 16 bytes": (off_rows, "copies need strides of a multiple of 16 bytes"),
    "misaligned storage": (misaligned, "copies need a multiple of 16 bytes"),
}
READ = {  # nothing is copied
    "dense": lambda: torch.randn(SHAPE, dtype=F16),
    "from the front end": lambda: torch.randn(1, 12, 2, 64, dtype=F16).transpose(1, 2),
    "broadcast": lambda: torch.randn(1, 1, 1, 64, dtype=F16).expand(SHAPE),
    "part of a row": lambda: torch.randn(1, 2, 12, 128, dtype=F16)[..., 64:],
}


@pytest.fixture(autouse=True)
def _no_graphs() -> None:
    """Each test compiles its own."""
    torch.compiler.reset()


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is logged."""
    lines: list[str] = []

    def log(level: str, text: str) -> None:
        if text.endswith("it is copied"):
            assert level == "debug"
            lines.append(text)

    monkeypatch.setattr(readable.env, "log", log)
    return lines


def doubled(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score * 2


def flex(q: Any, k: Any, v: Any) -> Any:
    return at.flex_attention(q, k, v, score_mod=doubled)


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_no_kernel_reads_is_copied_once(name: str, copied: list[str]) -> None:
    made = LAYOUTS[name][0]
    others = [torch.randn(SHAPE, dtype=F16) for _ in range(3)]
    for at_place in range(3):
        tensors = [*others]
        tensors[at_place] = made()
        truth = torch.nn.functional.scaled_dot_product_attention(*(x.double() for x in tensors))
        for mode in (
            at.scaled_dot_product_attention,
            torch.compile(at.scaled_dot_product_attention, backend="eager", fullgraph=True),
        ):
            copied.clear()
            assert (mode(*tensors) - truth).abs().max() < 3e-3
            assert [line[:2] for line in copied] == ["qkv"[at_place] + " "]
    (one,) = [made()]
    copied.clear()
    truth = torch.nn.functional.scaled_dot_product_attention(*[one.double()] * 3, scale=0.25)
    assert (flex(one, one, one) - truth).abs().max() < 6e-3
    assert len(copied) == 3


@pytest.mark.parametrize("name", READ)
def test_what_kernels_read_is_not_copied(name: str, copied: list[str]) -> None:
    tensors = [READ[name]() for _ in range(3)]
    truth = torch.nn.functional.scaled_dot_product_attention(*(x.double() for x in tensors))
    assert (at.scaled_dot_product_attention(*tensors) - truth).abs().max() < 3e-3
    assert not copied


@pytest.mark.parametrize("name", LAYOUTS)
def test_our_own_function_refuses_and_says_what_to_pass(name: str) -> None:
    """By its own names and axes, before anything is compiled; in graphs alike where the address is not in doubt."""
    made, message = LAYOUTS[name]
    good = torch.randn(1, 12, 2, 64, dtype=F16)
    for at_place, own in enumerate("qkv"):
        tensors = [good] * 3
        tensors[at_place] = made().transpose(1, 2)
        with pytest.raises(
            SpecError, match=rf"^{own} .*{re.escape(message)}.*pass a .*copy.*{own}\."
        ):
            am.attention(*tensors)
    if name != "misaligned storage":
        fake = torch.compile(am.attention, backend="eager", fullgraph=True)
        with pytest.raises(Exception, match=re.escape(message)):
            fake(made().transpose(1, 2), good, good)


def test_of_numpy() -> None:
    k = np.zeros((1, 12, 2, 65), np.float16)[..., :64]
    good = np.zeros((1, 12, 2, 64), np.float16)
    with pytest.raises(SpecError, match=r"^k has strides .* numpy.ascontiguousarray\(k\)"):
        am.attention(good, k, good)
    with pytest.raises(SpecError, match="from 0 to 2"):
        am.attention(good, good, good[:, ::-1])


@pytest.mark.parametrize(("head_dim", "v_head_dim"), [(1, 3), (60, 60), (64, 57)])
def test_head_sizes_that_8_does_not_divide(head_dim: int, v_head_dim: int) -> None:
    q, k = (torch.randn(1, 2, 9, head_dim, dtype=F16) for _ in range(2))
    v = torch.randn(1, 2, 9, v_head_dim, dtype=F16)
    options = {"is_causal": True}
    function = torch.nn.functional.scaled_dot_product_attention
    truth = function(q.double(), k.double(), v.double(), **options)
    found = at.scaled_dot_product_attention(q, k, v, **options)
    assert found.shape == truth.shape
    assert (found - truth).abs().max() < 4e-3
    if head_dim == 60:
        compiled = torch.compile(at.scaled_dot_product_attention, backend="eager", fullgraph=True)
        assert torch.equal(compiled(q, k, v, **options), found)
    with pytest.raises(SpecError, match="head_dim"):
        am.attention(*(x.transpose(1, 2) for x in (q, k, v)))
