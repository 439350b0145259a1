"""Kernels that walk lists of blocks: right numbers, no product more than listed, no predicate in full blocks."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import attn_mlir as am
from attn_mlir import mods
from attn_mlir.block_masks.blocks import Block, Lists
from attn_mlir.compiling.routes import attention_choice
from attn_mlir.dialect.targets.limits import DEFAULT_TARGET, target_named
from attn_mlir.reference import check_attention
from attn_mlir.runtime.call.tensors import view
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.kernel import machine_of
from attn_mlir.trace import MaskMod
from attn_mlir.validation.numerics.mha_check import poisoned

Array = npt.NDArray[Any]

pytestmark = pytest.mark.slow
HEAD_DIM = 64
RANDOM = np.random.default_rng(11)
BATCH, SQ, SK, HEADS = 2, 260, 300, 2
DOCUMENTS = np.sort(RANDOM.integers(0, 5, (BATCH, SK))).astype(np.int32)
OF_QUERIES = np.ascontiguousarray(DOCUMENTS[:, SK - SQ :])
HOLES = RANDOM.random((BATCH, HEADS, SQ, SK)) < 0.4
HOLES[0, 0, :, 128:256] = HOLES[1, 1, 256:] = False  # whole blocks, and whole rows
HOLES[1, 0] = True


def operands(sq: int, sk: int, heads: int, kv_heads: int, dtype: Any) -> list[Array]:
    random = np.random.default_rng(sq + sk)
    return [
        random.standard_normal((BATCH, length, count, HEAD_DIM)).astype(dtype)
        for length, count in ((sq, heads), (sk, kv_heads), (sk, kv_heads))
    ]


def products_of(lists: Lists, block: Block, heads: int, rows: int = 128) -> int:
    """Q K^T and P V in steps of 16 for each listed block, of each query tile of so many rows."""
    per_block = (block.positions * block.heads // rows) * (HEAD_DIM + block.keys) // 16
    shape = (BATCH, heads // block.heads, *lists.counts.shape[2:])
    return int(np.broadcast_to(lists.counts, shape)[..., 1].sum()) * per_block


def parity(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q // 128 + k // 128 + b + h) % 2 == 0


CASES: dict[str, dict[str, Any]] = {
    "documents causal": {
        "mask_mod": mods.document(OF_QUERIES, DOCUMENTS), "mask": am.causal(), "heads": 1,
    },
    "checkers of whole blocks": {"mask_mod": parity},
    "everything": {"mask_mod": lambda b, h, q, k: q >= 0},
    "nothing": {"mask_mod": lambda b, h, q, k: q < 0},
    "a mask alone": {"mask_mod": None, "mask": am.sliding_window(90, 10)},
    "a tensor": {"mask_mod": mods.visible_where(HOLES)},
    "a tensor of one query tile": {
        "mask_mod": mods.visible_where(np.ascontiguousarray(HOLES[:, :, :100])), "sq": 100,
    },
    "packed heads, each its own list": {
        "mask_mod": mods.and_masks(parity, mods.causal_from_top), "heads": 4, "kv_heads": 1,
        "block_size": (64, 128),
    },
    "divided blocks": {"mask_mod": mods.causal_from_top, "kv_heads": 1, "block_size": 512},
    "blocks of other sizes": {
        "mask_mod": mods.causal_from_top, "heads": 1, "sq": 200, "block_size": (96, 100),
    },
}  # fmt: skip


def judged(device: EmulatorDevice, product_counts: list[int], **case: Any) -> None:
    sq, heads = case.pop("sq", SQ), case.pop("heads", HEADS)
    kv_heads, dtype = case.pop("kv_heads", heads), case.pop("dtype", ml_dtypes.bfloat16)
    options = {"score_mod": case.pop("score_mod", None), "sinks": case.pop("sinks", None)}
    blocks = am.block_mask(case.pop("mask_mod"), BATCH, heads, sq, SK, **case)
    q, k, v = operands(sq, SK, heads, kv_heads, dtype)
    o, lse = am.attention(q, k, v, block_mask=blocks, return_lse=True, device=device, **options)
    spec = am.mha(heads=heads, kv_heads=kv_heads, head_dim=HEAD_DIM)
    machine = machine_of(device, view(q, "q"))
    block = attention_choice(spec, {"sq": sq}, machine, has_block_lists=True).listed_block
    rows = target_named(machine.target or DEFAULT_TARGET).rows_per_product
    assert product_counts == [products_of(blocks.lists(block), block, heads, rows)]
    masks = {"mask": blocks.mask, "mask_mod": blocks.mask_mod}
    verdict = check_attention(q, k, v, o, lse, **masks, **options)
    assert verdict.ok, str(verdict)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.long(  # a tensor and packed heads are also drawn late, and walked on Hopper
    "checkers of whole blocks",
    "everything",
    "a mask alone",
    "a tensor of one query tile",
    "a tensor",
    "packed heads, each its own list",
    "divided blocks",
    "blocks of other sizes",
)
def test_what_is_listed_is_computed(name: str, product_counts: list[int]) -> None:
    judged(EmulatorDevice(), product_counts, **CASES[name])


def test_lists_on_hopper(product_counts: list[int]) -> None:
    """Work tiles of 128 rows in two groups, each of which issues its own products."""
    case = CASES["packed heads, each its own list"]
    judged(EmulatorDevice("adversarial", 5, target="sm_90a"), product_counts, **case)


@pytest.mark.parametrize("name", ["a tensor", "packed heads, each its own list"])
@pytest.mark.long("packed heads, each its own list")
def test_whatever_the_order(name: str, product_counts: list[int]) -> None:
    judged(EmulatorDevice(schedule="adversarial", seed=5), product_counts, **CASES[name])


def test_modifiers_and_sinks_work_in_all_blocks(product_counts: list[int]) -> None:
    case = {"score_mod": mods.alibi(HEADS), "sinks": np.array([2.0, -3.0], np.float32)}
    case["mask_mod"] = parity
    judged(EmulatorDevice(), product_counts, dtype=np.float16, **case)


def test_joined_lists_name_what_a_work_tile_sees() -> None:
    """The lists of 256 rows x 128 keys are those of the definition, for blocks of other sizes as well."""
    for size in (128, (256, 128), (32, 64)):
        blocks = am.block_mask(mods.visible_where(HOLES), BATCH, HEADS, SQ, SK, block_size=size)
        counts, indices = blocks.lists(Block(256, 1, 128))
        for b, h, row in np.ndindex(*counts.shape[:3]):
            rows = HOLES[b, h, row * 256 : (row + 1) * 256]
            parts = [rows[:, column : column + 128] for column in range(0, SK, 128)]
            full = [part.all() and part.shape[1] == 128 for part in parts]
            partial = [part.any() and not f for part, f in zip(parts, full, strict=True)]
            tested, listed = counts[b, h, row]
            assert indices[b, h, row, :tested].tolist() == np.flatnonzero(partial).tolist()
            assert indices[b, h, row, tested:listed].tolist() == np.flatnonzero(full).tolist()


def run_lists(
    counts: Array, indices: Array, mask_mod: MaskMod, sq: int = SQ
) -> tuple[list[Array], Array, Array]:
    """Operands, O and LSE of a kernel with lists as they are."""
    block = Block(256, 1, 128)
    spec = am.mha(heads=HEADS, head_dim=HEAD_DIM, mask_mod=mask_mod, block=block, query_tiles=2)
    q, k, v = operands(sq, SK, HEADS, HEADS, ml_dtypes.bfloat16)
    o, lse = poisoned(q.shape, q.dtype), poisoned((BATCH, HEADS, sq), np.dtype(np.float32))
    lists = (np.array(counts, np.int32), np.array(indices, np.int32))
    am.load(am.compile(spec))(q, k, v, o, lse, *lists, device=EmulatorDevice())
    return [q, k, v], o, lse


def test_full_blocks_are_not_tested(product_counts: list[int]) -> None:
    """A predicate that hides all of them has no say there."""
    counts, indices = [[[[0, 2], [1, 2]]]], [[[[1, 0, 2], [2, 0, 1]]]]
    operands, o, lse = run_lists(np.array(counts), np.array(indices), lambda b, h, q, k: q < 0)

    def seen(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (q < 256) & (k < 256) | (q >= 256) & (k < 128)

    verdict = check_attention(*operands, o, lse, mask_mod=seen)
    assert verdict.ok, str(verdict)
    assert product_counts == [4 * BATCH * HEADS * 24]


@pytest.mark.parametrize(
    ("counts", "indices", "visited"),
    [
        ([9, 1 << 30], [0, 1, 2], 3),  # more than there are
        ([-7, 2], [0, 1, 2], 2),
        ([2, -1], [0, 1, 2], 0),
        ([2, 2], [-5, 1 << 30, 2], 2),  # outside: the first and the last one
        ([3, 3], [0, 1], 3),  # a list that is too short: its last entry
    ],
)
@pytest.mark.long("counts1-indices1-2", "counts3-indices3-2")
def test_wrong_lists_stay_inside(
    counts: list[int], indices: list[int], visited: int, product_counts: list[int]
) -> None:
    """The emulator refuses every access outside a tensor; each count is moved into its range."""
    _, o, lse = run_lists(
        np.array([[[counts]]]), np.array([[[indices]]]), lambda b, h, q, k: k >= 0
    )
    assert product_counts == [visited * 2 * BATCH * HEADS * 24]
    assert np.isfinite(o.astype(np.float32)).all()
    assert np.isneginf(lse).all() if not visited else np.isfinite(lse).all()


def test_believed_lists_are_what_as_mask_mod_says(product_counts: list[int]) -> None:
    """Lists that the predicate does not say: it is asked in partly visible blocks alone.

    Blocks of 128 rows are joined to a work tile: empty, partial and full ones.
    """
    partial, full = [[[1, 0, 1]]], [[[1, 1, 0]]]
    blocks = am.BlockMask.from_kv_blocks(
        np.array(partial),
        np.array([[[[1, 0, 0], [0, 0, 0], [2, 0, 0]]]]),
        np.array(full),
        np.array([[[[0, 0, 0], [1, 0, 0], [0, 0, 0]]]]),
        sq=SQ,
        sk=SK,
        mask_mod=lambda b, h, q, k: (q + k) % 3 != 0,
    )
    q, k, v = operands(SQ, SK, 1, 1, ml_dtypes.bfloat16)
    o, lse = am.attention(q, k, v, block_mask=blocks, return_lse=True, device="emulator")
    verdict = check_attention(q, k, v, o, lse, mask_mod=blocks.as_mask_mod())
    assert verdict.ok, str(verdict)
    assert product_counts == [3 * BATCH * 24]
