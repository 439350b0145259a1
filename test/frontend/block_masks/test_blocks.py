"""Block masks against the predicates they are made of; what is refused; how they look."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attn_mlir as am
from attn_mlir import mods
from attn_mlir.block_masks.arguments import check_block_count
from attn_mlir.block_masks.blocks import EMPTY, FULL, PARTIAL, Block, BlockMask, joins_blocks
from attn_mlir.compiling.routes import choice_of
from attn_mlir.dialect._mlir import make_context
from attn_mlir.dialect.attn.programs.evaluation import evaluate
from attn_mlir.dialect.targets.limits import target_named
from attn_mlir.errors import SpecError
from attn_mlir.runtime.kernel import Machine
from attn_mlir.schedules.attention.tensor_memory.policy import default_knobs

Array = npt.NDArray[Any]

MASKS = [am.full(), am.causal(), am.sliding_window(40, 9), ~am.causal(), am.chunked(50)]


def kinds_of(seen: Array, rows: int, columns: int, sk: int) -> list[list[int]]:
    """What the definition says of each block of [q, k] of bool."""
    found: list[list[int]] = []
    for row in range(0, seen.shape[0], rows):
        found.append([])
        for column in range(0, sk, columns):
            part = seen[row : row + rows, column : column + columns]
            is_full = part.all() and column + columns <= sk
            found[-1].append(FULL if is_full else PARTIAL if part.any() else EMPTY)
    return found


def seen_by(blocks: BlockMask) -> Array:
    """[batch, heads, q, k]: what a kernel with these lists sees, by `as_mask_mod` and the mask."""
    batch, heads, sq, sk = blocks.shape
    b, h, q, k = np.ix_(*(np.arange(n) for n in blocks.shape))
    program, arrays = am.trace.trace(None, blocks.as_mask_mod())
    assert program is not None
    at = {"score": 0.0, "batch": b, "head": h, "q": q, "k": k}
    kept = evaluate(program, at, arrays).kept & blocks.mask.visible(q, k, sq, sk)
    return np.broadcast_to(kept, (batch, heads, sq, sk))


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 90), st.integers(1, 90), st.sampled_from(MASKS), st.integers(1, 40),
    st.integers(1, 40), st.integers(1, 25), st.integers(0, 3),
)  # fmt: skip
def test_kinds_are_those_of_the_definition(
    sq: int, sk: int, mask: am.Mask, rows: int, columns: int, period: int, ends: int
) -> None:
    def mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        return ((q // period + k // period + b) % 3 != 0) & (k + h >= ends)

    blocks = am.block_mask(mod, 2, 2, sq, sk, mask=mask, block_size=(rows, columns))
    q, k = np.arange(sq)[:, None], np.arange(sk)[None, :]
    for b, h in product(range(2), range(2)):
        seen = mod(b, h, q, k) & np.broadcast_to(mask.visible(q, k, sq, sk), (sq, sk))
        assert blocks.kinds[b, h].tolist() == kinds_of(seen, rows, columns, sk)
        assert (seen_by(blocks)[b, h] == seen).all()


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 700), st.integers(1, 700), st.sampled_from([32, 64, 128, 256, 512, 96, 100, 300]),
    st.sampled_from([32, 64, 128, 256, 96, 100, 300]), st.sampled_from([1, 4]), st.sampled_from([64, 128]),
    st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_lists_of_other_blocks_lose_nothing(
    sq: int, sk: int, rows: int, columns: int, packed: int, keys: int, seed: int
) -> None:
    """What is listed as full is full, what is not listed is empty, and joined blocks are exact."""
    shape = (1, 4, -(-sq // rows), -(-sk // columns))
    kinds = np.random.default_rng(seed).integers(0, 3, shape).astype(np.uint8)
    kinds[..., sk // columns :] = np.minimum(kinds[..., sk // columns :], PARTIAL)
    blocks = BlockMask((1, 4, sq, sk), (rows, columns), kinds, am.full(), None)
    block = Block(256 // packed, packed, keys)
    counts, indices = blocks.lists(block)
    fine = kinds.repeat(rows, axis=2).repeat(columns, axis=3)[:, :, :sq, :sk]
    assert counts.shape == (1, 4 // packed, -(-sq // block.positions), 2)
    assert indices.dtype == counts.dtype == np.int32
    is_exact = block.positions % rows == 0 and keys % columns == 0
    for head, row in product(range(4 // packed), range(counts.shape[2])):
        tested, listed = counts[0, head, row]
        at = indices[0, head, row].tolist()
        assert sorted(at) == list(range(-(-sk // keys)))
        for place, number in enumerate(at):
            part = fine[
                0,
                head * packed : (head + 1) * packed,
                row * block.positions : (row + 1) * block.positions,
                number * keys : (number + 1) * keys,
            ]
            is_full = bool((part == FULL).all()) and (number + 1) * keys <= sk
            if tested <= place < listed:
                assert is_full
            elif place >= listed:
                assert (part == EMPTY).all()
            elif is_exact:
                assert not is_full and (part != EMPTY).any()


def listed_pairs(counts: Array, indices: Array) -> list[set[tuple[int, ...]]]:
    """The tested and the other listed blocks: (batch, head block, owner, listed block) of each."""
    found: list[set[tuple[int, ...]]] = [set(), set()]
    for at in np.ndindex(*indices.shape):
        *owner, place = at
        tested, listed = counts[tuple(owner)]
        if place < listed:
            found[int(place >= tested)].add((*owner, int(indices[at])))
    return found


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 700), st.integers(0, 700), st.sampled_from([64, 128, 96, 300]),
    st.sampled_from([64, 128, 100]), st.sampled_from([1, 4]), st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_lists_of_query_blocks_name_the_same_blocks(
    sq: int, sk: int, rows: int, columns: int, packed: int, seed: int
) -> None:
    """Each with its kind, and blocks of keys list each block of queries once."""
    shape = (2, 4, -(-sq // rows), -(-sk // columns))
    kinds = np.random.default_rng(seed).integers(0, 3, shape).astype(np.uint8)
    kinds[..., sk // columns :] = np.minimum(kinds[..., sk // columns :], PARTIAL)
    blocks = BlockMask((2, 4, sq, sk), (rows, columns), kinds, am.full(), None)
    block = Block(256 // packed, packed, 128)
    by_queries, by_keys = blocks.lists(block), blocks.query_lists(block)
    assert by_keys.counts.dtype == by_keys.indices.dtype == np.int32
    extents = [max(-(-n // size), 1) for n, size in ((sq, block.positions), (sk, block.keys))]
    assert by_keys.indices.shape == (2, 4 // packed, *extents[::-1])
    if not kinds.size:
        assert not by_keys.counts.any() and not by_queries.counts.any()
        return
    assert (np.sort(by_keys.indices, axis=3) == np.arange(extents[0])).all()
    for ours, theirs in zip(listed_pairs(*by_keys), listed_pairs(*by_queries), strict=True):
        assert {(b, h, q, k) for b, h, k, q in ours} == theirs


def test_lists_of_query_blocks_are_those_of_pytorch() -> None:
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    made = flex.create_block_mask(
        lambda b, h, q, k: (q + 100 >= k) & (q // 200 + h != k // 150), 1, 2, 640, 512, "cpu"
    )
    theirs = [made.kv_num_blocks, made.kv_indices, made.full_kv_num_blocks, made.full_kv_indices]
    blocks = BlockMask.from_kv_blocks(*theirs, sq=640, sk=512)
    for counts, indices, their_counts, their_indices in (
        (blocks.q_num_blocks, blocks.q_indices, made.q_num_blocks, made.q_indices),
        (
            *(blocks.full_q_num_blocks, blocks.full_q_indices),
            *(made.full_q_num_blocks, made.full_q_indices),
        ),
    ):
        assert counts.dtype == indices.dtype == np.int32 and counts.any()
        assert (counts == their_counts.numpy()).all()
        used = np.arange(indices.shape[3]) < counts[..., None]
        assert (indices[used] == their_indices.numpy()[used]).all()


@pytest.mark.parametrize("size", [(96, 100), (300, 300), (512, 512), (384, 256)])
def test_believed_lists_are_looked_up_where_a_kernels_block_has_parts_of_several(
    size: tuple[int, int],
) -> None:
    """The predicate of a partly visible block says what the lists say, whatever their sizes."""
    sq, sk = 700, 600
    kinds = np.random.default_rng(1).integers(0, 3, (1, 1, -(-sq // size[0]), -(-sk // size[1])))
    kinds[..., sk // size[1] :] = np.minimum(kinds[..., sk // size[1] :], PARTIAL)
    blocks = BlockMask(
        (1, 1, sq, sk), size, kinds.astype(np.uint8), am.full(), mods.causal_from_top,
        is_believed=True,
    )  # fmt: skip
    block = Block(256, 1, 128)
    divides = all(have % need == 0 for have, need in zip(size, (256, 128), strict=True))
    looks_up = blocks.mask_mod_of(block) is not blocks.mask_mod
    assert looks_up == (not divides)
    q, k = np.arange(sq)[:, None], np.arange(sk)[None, :]
    kind = kinds[0, 0][q // size[0], k // size[1]]
    seen = (kind == FULL) | ((kind == PARTIAL) & (q >= k))
    program, arrays = am.trace.trace(None, blocks.mask_mod_of(block))
    assert program is not None
    kept = evaluate(program, {"score": 0.0, "batch": 0, "head": 0, "q": q, "k": k}, arrays).kept
    counts, indices = blocks.lists(block)
    for row in range(counts.shape[2]):
        tested, listed = counts[0, 0, row]
        for place, number in enumerate(indices[0, 0, row].tolist()):
            at = np.s_[row * 256 : (row + 1) * 256, number * 128 : (number + 1) * 128]
            wanted = kept[at] if place < tested else np.full(seen[at].shape, place < listed)
            np.testing.assert_array_equal(wanted, seen[at])


def test_the_kernel_walks_what_kernel_block_says() -> None:
    """For all head sizes, outputs and orders the configuration has room for these tiles."""
    make_context()
    target = target_named("sm_100a")
    sizes = (*range(8, 257, 24), 128, 192, 256)
    for head_dim, v_head_dim, out, order in product(
        sizes, sizes, ("bf16", "f32"), (None, "persistent", "clc")
    ):
        if out == "f32" and v_head_dim > 192:
            continue
        spec = am.mha(
            heads=4, kv_heads=1, head_dim=head_dim, v_head_dim=v_head_dim, out_dtype=out,
            tile_order=order, schedule="mha",
        )  # fmt: skip
        for sq in (1, 32, 33, 4096):
            block = choice_of(spec, {"sq": sq}, Machine(None, 0)).block()
            tile = (block.positions * block.heads // 128, block.keys)
            options: dict[str, Any] = {"output_bits": 32 if out == "f32" else 16}
            options["tile_order"] = order or "single"
            assert block.heads == 4 and tile[0] == (1 if sq <= 32 else tile[0])
            default_knobs(target, head_dim, v_head_dim, prescribed=tile, **options)
            if sq > 32:
                free = default_knobs(target, head_dim, v_head_dim, **options)
                assert (free["q_tiles"], free["tile_n"]) == tile


@pytest.mark.parametrize("order", ["single", "counter", "persistent"])
def test_on_hopper_lists_have_tiles_in_every_order_and_type(order: str) -> None:
    """The widest heads of 8 bits, drawn from a counter, have registers for 32 keys: a part of users' blocks."""
    for dtype, head_dim in product(("bf16", "e4m3"), (64, 128, 192, 256)):
        spec = am.mha(
            heads=4, head_dim=head_dim, dtype=dtype, out_dtype="bf16", tile_order=order,
            schedule="mha-registers",
        )  # fmt: skip
        block = choice_of(spec, {"sq": 300}, Machine("sm_90a", 0)).block()
        assert 128 % block.positions == 0 == 128 % block.keys
        dataclasses.replace(spec, block=block)


def test_lists_as_in_pytorch() -> None:
    blocks = am.block_mask(mods.causal_from_top, 1, 1, 300, 300)
    assert blocks.kv_num_blocks.tolist() == [[[1, 1, 1]]]
    assert [row[0] for row in blocks.kv_indices[0, 0]] == [0, 1, 2]
    assert blocks.full_kv_num_blocks.tolist() == [[[0, 1, 2]]]
    assert blocks.full_kv_indices[0, 0, 2, :2].tolist() == [0, 1]
    lists = (
        blocks.kv_num_blocks, blocks.kv_indices, blocks.full_kv_num_blocks, blocks.full_kv_indices,
    )  # fmt: skip
    again = BlockMask.from_kv_blocks(*lists, sq=300, sk=300, mask_mod=mods.causal_from_top)
    assert (again.kinds == blocks.kinds).all() and again.shape == blocks.shape
    assert abs(blocks.sparsity() - 100 / 3) < 0.01


def test_pictures() -> None:
    blocks = am.block_mask(mods.causal_from_top, None, None, 300, 300)
    assert str(blocks) == (
        "BlockMask(shape=[1, 1, 300, 300], block_size=[128, 128], 9 blocks: 3 partial, 3 full, "
        "sparsity 33.3 %)\n│░░    │\n│██░░  │\n│████░░│"
    )
    large = am.block_mask(mods.causal_from_top, 1, 1, 100, 9000, block_size=1)
    lines = large.to_string().splitlines()
    assert len(lines) <= 32 and {len(line) for line in lines} == {82}
    two = am.block_mask(lambda b, h, q, k: k > h, 1, 3, 8, 8, block_size=4)
    assert two.to_string().splitlines()[::3] == ["batch 0, head 0", "batch 0, head 1"]


def test_only_what_the_predicate_looks_at_is_kept() -> None:
    assert am.block_mask(lambda b, h, q, k: q > k, 7, 5, 9, 9).kinds.shape[:2] == (1, 1)
    assert am.block_mask(lambda b, h, q, k: q > h, 7, 5, 9, 9).kinds.shape[:2] == (1, 5)
    lengths = np.array([3, 9], np.int32)
    blocks = am.block_mask(mods.key_padding(lengths), 2, 5, 9, 9, block_size=4)
    assert blocks.kinds[:, 0, 0].tolist() == [[PARTIAL, EMPTY, EMPTY], [FULL, FULL, PARTIAL]]
    assert am.block_mask(lambda b, h, q, k: q > k, 1, 1, 0, 0).lists(Block(256, 1, 128))[0].size


def test_where_it_may_be_used() -> None:
    shared = am.block_mask(lambda b, h, q, k: q > k, 1, 1, 9, 8)
    shared.check_call(3, 4, 9, 8)
    own = am.block_mask(lambda b, h, q, k: q > k + h, 1, 1, 9, 8)
    own.check_call(3, 1, 9, 8)
    with pytest.raises(SpecError, match=r"is for heads = 1, the call has 4: its mask_mod depends"):
        own.check_call(3, 4, 9, 8)
    with pytest.raises(SpecError, match="block_mask is for sk = 8, the call has 7"):
        shared.check_call(1, 1, 9, 7)


CAUSAL = am.block_mask(mods.causal_from_top, 1, 1, 300, 300)
SIZES: dict[str, Any] = {"sq": 300, "sk": 300}
COUNTS, INDICES = np.ones((1, 1, 3), np.int32), np.zeros((1, 1, 3, 3), np.int32)


def test_captured_arrays_of_any_strides() -> None:
    ends = np.array([7, 0, 0, 3], np.int32)[::-3]
    blocks = am.block_mask(lambda b, h, q, k: k < ends[b], 2, 1, 4, 8, block_size=1)
    assert (blocks.kinds[:, 0] > 0).sum(axis=(1, 2)).tolist() == [3 * 4, 7 * 4]


def call(**options: Any) -> Any:
    q = np.zeros((1, 300, 2, 64), np.float16)
    return am.attention(q, q, q, device="emulator", **options)


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: am.block_mask(3, 1, 1, 4, 4), "mask_mod must be a Python function, got 3"),  # pyright: ignore
    (lambda: am.block_mask(None, 1, 1, 4, 2**40), r"sk must be .* to 2147483647, got 1099511627776"),
    (lambda: am.block_mask(None, 1, 2**40, 4, 4), "heads must be an integer from 1 to 2147483647"),
    (lambda: am.block_mask(None, 1, 1, 4.0, 4), "sq must be an integer from 0 to .*, got 4.0"),
    (lambda: am.block_mask(None, 1, 1, "4", 4), "sq must be an integer from 0 to .*, got '4'"),
    (lambda: am.block_mask(None, 1, 1, 2**31 - 1, 2**31 - 1), "are 281474976710656 blocks, at most"),
    (lambda: am.block_mask(None, 1, 1, 2**20, 2**20, block_size=2**20), "blocks of 1099511627776"),
    (lambda: am.block_mask(None, 1, 1, 4, 4, block_size=(1, 2, 3)), r"block_size .* got \(1, 2, 3\)"),
    (lambda: am.block_mask(None, 1, 1, 4, 4, block_size=True), "block_size .* got True"),
    (lambda: am.block_mask(None, 1, 1, 4, 4, block_size=()), r"block_size .* got \(\)"),
    (lambda: am.block_mask(None, 1, 1, 4, 4, block_size="12"), "block_size .* got '12'"),
    (
        lambda: BlockMask.from_kv_blocks(np.ma.ones((1, 1, 1), int), [], sq=9, sk=9),
        r"kv_num_blocks is a masked array: pass kv_num_blocks.filled\(...\)",
    ),
    (
        lambda: BlockMask.from_kv_blocks([[[1]]], [[[[0], [0, 1]]]], sq=9, sk=9),
        "kv_indices cannot be read as an array",
    ),
    (lambda: am.block_mask(None, 0, 1, 4, 4), "batch must be an integer from 1 to .*, got 0"),
    (lambda: am.block_mask(None, 1, 1, -1, 4), "sq must be an integer from 0 to .*, got -1"),
    (lambda: am.block_mask(None, 1, 1, 4, 4, block_size=0), "block_size must be one or two"),
    (lambda: am.block_mask(None, 1, 1, 4, 4, block_size=(1, 2, 3)), "block_size must be one"),
    (lambda: am.block_mask(None, 1, 1, 4, 4, mask="causal"), "mask must be made by"),  # pyright: ignore
    (
        lambda: am.block_mask(mods.key_padding(np.zeros(3, np.int32)), 2, 1, 4, 4),
        r"lengths has shape \[3\], it must be \[batch\] with batch = 2",
    ),
    (
        lambda: BlockMask.from_kv_blocks(COUNTS * 4, INDICES, **SIZES),
        "kv_num_blocks must be 0 to 3, got 4 to 4",
    ),
    (
        lambda: BlockMask.from_kv_blocks(COUNTS, INDICES + 3, **SIZES),
        "kv_indices names block 3 of keys, there are 3 blocks",
    ),
    (
        lambda: BlockMask.from_kv_blocks(COUNTS * 2, INDICES, **SIZES),
        "kv_indices names a block of keys twice",
    ),
    (
        lambda: BlockMask.from_kv_blocks(COUNTS, INDICES, COUNTS, INDICES, **SIZES),
        r"block \[0, 0, 0, 0\] is both in kv_indices and full",
    ),
    (
        lambda: BlockMask.from_kv_blocks(COUNTS, INDICES[..., :2], **SIZES),
        r"kv_indices must be \[batch, heads, 3, 3\] and kv_num_blocks one less",
    ),
    (
        lambda: BlockMask.from_kv_blocks(COUNTS, INDICES, COUNTS, **SIZES),
        "full_kv_num_blocks and full_kv_indices must be given together",
    ),
    (
        lambda: BlockMask.from_kv_blocks(COUNTS, INDICES.astype(np.float32), **SIZES),
        "kv_indices must be integers of 4 dimensions",
    ),
    (lambda: call(block_mask=3), r"block_mask must be made by block_mask\(...\), got 3"),
    (
        lambda: call(block_mask=CAUSAL, mask=am.causal()),
        "mask and block_mask exclude each other",
    ),
    (
        lambda: call(block_mask=CAUSAL, mask_mod=lambda b, h, q, k: q > k),
        "mask_mod and block_mask exclude each other",
    ),
    (
        lambda: call(block_mask=am.block_mask(None, 1, 1, 300, 200)),
        "block_mask is for sk = 200, the call has 300",
    ),
    (
        lambda: call(block_mask=CAUSAL, seqused_k=np.array([7], np.int32)),
        "block_mask is for sequences of one length, got seqused_k as well",
    ),
    (
        lambda: am.mha(heads=4, kv_heads=1, head_dim=64, block=(100, 1, 128)),
        r"block \(100, 1, 128\) has no kernel: it must be \(positions, heads, keys\)",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("ask", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_refused(ask: Callable[[], Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        ask()


def test_blocks_of_the_most_scores() -> None:
    check_block_count((1, 1, 4096, 4096), (4096, 4096))
    with pytest.raises(SpecError, match="blocks of 16781312 scores"):
        check_block_count((1, 1, 4096, 4097), (4096, 4097))


def test_a_block_of_several_heads_of_a_mask_is_joined() -> None:
    block = Block(64, 2, 128)
    assert joins_blocks(block, (128, 128), 2) and not joins_blocks(block, (128, 128), 1)
