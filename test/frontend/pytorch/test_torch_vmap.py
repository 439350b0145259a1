"""`torch.vmap` over the functions for PyTorch: as one call for each sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from torch.nn.attention.flex_attention import BlockMask  # noqa: E402 # pyright: ignore

import attn_mlir as am  # noqa: E402
import attn_mlir.torch as at  # noqa: E402
from attn_mlir.errors import SpecError  # noqa: E402

pytestmark = pytest.mark.usefixtures("graphs_afresh")
SAMPLES, BATCH, HEADS, SEQ, DIM = 2, 2, 1, 16, 16
sdpa, flex = at.scaled_dot_product_attention, at.flex_attention


def operands(*lead: int, seq: int = SEQ) -> tuple[Any, ...]:
    return tuple(torch.randn(*lead, seq, DIM).bfloat16() for _ in range(3))


def visible(*shape: int) -> Any:
    mask = torch.rand(shape) > 0.3
    mask[..., 0] = True
    return mask


def masked(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return sdpa(q, k, v, attn_mask=mask)


def biased(q: Any, k: Any, v: Any, bias: Any) -> Any:
    """The bias of a batch's entry, times the entry's number."""
    return flex(q, k, v, lambda score, b, h, i, j: score + bias[b, h] * (i - j) + b)


def listed(q: Any, k: Any, v: Any, counts: Any, indices: Any) -> Any:
    """One block of 64 keys for each of 64 queries, or two."""
    blocks = BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=64, seq_lengths=(128, 128))
    return flex(q, k, v, block_mask=blocks)


def blocks() -> tuple[Any, Any]:
    counts = torch.tensor([[[[1, 2]]], [[[2, 1]]]], dtype=torch.int32)
    return counts, torch.tensor([0, 1], dtype=torch.int32).expand(2, 1, 1, 2, 2).contiguous()


CASES: dict[str, Callable[[], tuple[Callable[..., Any], tuple[int | None, ...], tuple[Any, ...]]]] = {
    "all": lambda: (sdpa, (0, 0, 0), operands(SAMPLES, BATCH, HEADS)),
    "queries alone": lambda: (
        sdpa, (1, None, None),
        (operands(BATCH, SAMPLES, HEADS)[0], *operands(BATCH, HEADS)[1:]),
    ),
    "keys of rank 2": lambda: (sdpa, (None, 0, 0), (operands()[0], *operands(SAMPLES)[1:])),
    "twice": lambda: (torch.vmap(sdpa), (0, 0, 0), operands(SAMPLES, BATCH, HEADS)),
    "mask of a sample": lambda: (
        masked, (0, 0, 0, 2),
        (*operands(SAMPLES, BATCH, HEADS), visible(BATCH, 1, SAMPLES, SEQ, SEQ)),
    ),
    "mask alone": lambda: (
        masked, (None, None, None, 0),
        (*operands(BATCH, HEADS), visible(SAMPLES, BATCH, 1, SEQ, SEQ)),
    ),
    "mask of all": lambda: (
        masked, (0, 0, 0, None),
        (*operands(SAMPLES, BATCH, HEADS), visible(BATCH, 1, SEQ, SEQ)),
    ),
    "captured": lambda: (
        biased, (0, 0, 0, 0),
        (*operands(SAMPLES, BATCH, HEADS), torch.randn(SAMPLES, BATCH, HEADS)),
    ),
    "captured by all": lambda: (
        biased, (0, 0, 0, None), (*operands(SAMPLES, BATCH, HEADS), torch.randn(BATCH, HEADS)),
    ),
    "block masks": lambda: (
        listed, (0, 0, 0, 0, 0), (*operands(2, 1, HEADS, seq=128), *blocks()),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.long("twice", "mask alone", "mask of all", "captured by all")
def test_as_one_call_for_each_sample(name: str) -> None:
    function, dims, arrays = CASES[name]()
    count = next(x.shape[dim] for x, dim in zip(arrays, dims, strict=True) if dim is not None)
    alone = [
        function(*(x if d is None else x.select(d, i) for x, d in zip(arrays, dims, strict=True)))
        for i in range(count)
    ]
    assert torch.equal(torch.vmap(function, dims)(*arrays), torch.stack(alone))


@pytest.mark.parametrize("function", [masked, biased])
def test_no_samples(function: Callable[..., Any]) -> None:
    further = visible(1, BATCH, 1, SEQ, SEQ) if function is masked else torch.randn(1, BATCH, HEADS)
    none = (x[:0] for x in (*operands(1, BATCH, HEADS), further))
    assert torch.vmap(function)(*none).shape == (0, BATCH, HEADS, SEQ, DIM)


def test_in_graphs() -> None:
    """Without modifiers in the graph; with them it is broken, as the higher-order operator has no rule."""
    arrays = operands(SAMPLES, BATCH, HEADS)
    compiled = torch.compile(torch.vmap(sdpa), fullgraph=True, backend="eager")
    assert torch.equal(compiled(*arrays), torch.vmap(sdpa)(*arrays))
    mask = visible(SAMPLES, BATCH, 1, SEQ, SEQ)
    compiled = torch.compile(torch.vmap(masked), backend="eager")
    assert torch.equal(compiled(*arrays, mask), torch.vmap(masked)(*arrays, mask))


def test_functions_with_a_batch_of_their_own() -> None:
    q, k, v = (x.transpose(-2, -3) for x in operands(SAMPLES, BATCH, HEADS))
    message = (
        "^attn_mlir::attention_call has no rule for torch.vmap: call its function with the batch"
    )
    with pytest.raises(SpecError, match=message):
        torch.vmap(am.attention)(q, k, v)
    cache = am.ContiguousKV(torch.zeros_like(k[0]), torch.zeros_like(v[0]), None)
    positions = torch.zeros(BATCH, dtype=torch.int32)
    with pytest.raises(SpecError, match="^attn_mlir::append_call has no rule for torch.vmap"):
        torch.vmap(lambda k, v: am.append_kv(cache, k, v, positions))(k[:, :, 0], v[:, :, 0])
