"""`context_parallel` on several processes: a model on shards against the model on the sequence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
dist: Any = pytest.importorskip("torch.distributed")

from attn_mlir import distributed as ad  # noqa: E402
from attn_mlir.pytorch.sharded import predicate_of  # noqa: E402
from attn_mlir.validation.distributed.launch import run  # noqa: E402

REFUSED = {
    "mesh": "a mesh of 2 dimensions",
    "dims": "seq_dims[0]",
    "count": "seq_dims must be as many as buffers, 1, got 0",
    "lengths": "buffers have [8, 9] positions",
    "kept": "no_restore_buffers has a tensor that buffers has not",
    "gradient": "buffers[0] requires a gradient",
    "scheme": "scheme must be one of ring, gather, ulysses",
    "nested": "context_parallel is in force",
    "mask": "attn_mask is a tensor of scores of one rank",
    "blocks": "no shards of 9 (length, or that of block_mask)",
    "operator": "call that by its full name",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheme, size",
    [
        ("ring", 2),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (("ring", 3), ("gather", 2), ("gather", 3), ("ulysses", 2))
        ),
    ],
)
def test_a_model_in_a_context_has_the_values_of_the_whole(scheme: str, size: int) -> None:
    found: list[dict[str, Any]] = run("contexts.check", size, scheme)
    for rank, errors in enumerate(found):
        assert len(errors) == 6 and all(y <= 1 for y in errors.values()), (rank, errors)


@pytest.mark.slow
def test_a_context_refuses_arguments_and_ends_after_errors() -> None:
    for texts in run("contexts.refused", 2):
        assert "entered" not in texts
        for name, text in REFUSED.items():
            assert text in texts[name], (name, texts)
        assert texts["inside"] == "4 4" and texts["after"] == "8 4"


def test_a_backward_pass_outside_does_not_take_the_whole_for_the_shard(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/s", rank=0, world_size=1)
    x, weights = torch.ones(1, 8, 3), torch.ones(3, requires_grad=True)
    try:
        with ad.context_parallel(None, buffers=[x], seq_dims=[1]):
            inside, outside = (x * weights).sum(), (x * weights).sum()
            inside.backward()
    finally:
        dist.destroy_process_group()
    assert torch.equal(weights.grad, torch.full((3,), 8.0))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outside.backward()


def in_documents(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q // 90 == k // 90) & (q >= k) & (h > 0)


@pytest.mark.parametrize("mask_mod", [in_documents, None])
def test_a_block_mask_is_a_predicate_of_positions(mask_mod: Any) -> None:
    """Lists of blocks hide what they leave out, whatever the function says there."""
    length, size = 300, 64
    flex: Any = pytest.importorskip("torch.nn.attention.flex_attention")
    made = flex.create_block_mask(
        in_documents, 1, 2, length, length, device="cpu", BLOCK_SIZE=(size, size)
    )
    counts = (made.kv_num_blocks - 1).clamp(min=0)  # the last tested block of each row is left out
    blocks = flex.BlockMask.from_kv_blocks(
        counts, made.kv_indices, made.full_kv_num_blocks, made.full_kv_indices,
        BLOCK_SIZE=(size, size), mask_mod=mask_mod, seq_lengths=(length, length),
    )  # fmt: skip
    listed = flex.BlockMask.from_kv_blocks(
        counts, made.kv_indices, BLOCK_SIZE=(size, size), seq_lengths=(length, length)
    ).to_dense()
    at = torch.arange(length)
    h, q, k = torch.arange(2)[:, None, None], at[:, None], at[None]
    tested = listed[0][:, at // size][:, :, at // size].bool()
    if mask_mod is not None:
        tested = tested & mask_mod(0, h, q, k)
    whole = blocks.to_dense()[0][:, at // size][:, :, at // size].bool() & ~(
        listed[0][:, at // size][:, :, at // size].bool()
    )
    found = predicate_of(blocks, 100)(torch.tensor(0), h, q, k)
    assert torch.equal(found, tested | whole) and 0 < found.sum() < found.numel()
