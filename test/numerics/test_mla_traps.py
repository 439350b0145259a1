"""Traps of kernels for latent attention that concern dense prefill, each by its number.

The numbers are those of the kernel's specification, section 11; those that are missing are about
pairs of CTAs, gathered rows, 8 bits or decoding.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.runtime.file.bundle import Bundle
from attn_mlir.runtime.file.manifest import TensorMapParam
from attn_mlir.validation.numerics.latent import LatentProblem
from attn_mlir.validation.numerics.stored import Form

TILE = 128  # rows of Q, and of K and V
NOPE_BYTES, ROPE_BYTES = TILE * 128 * 2, TILE * 64 * 2
Q_BYTES = K_BYTES = NOPE_BYTES + ROPE_BYTES
V_BYTES = TILE * 128 * 2


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    """The kernel of 128 + 64 columns, two query tiles, causal: rope has a ring of its own."""
    return am.compile(am.MlaSpec(heads=2, nope_dim=128, rope_dim=64, mask=am.causal()))


@pytest.fixture(scope="module")
def whole() -> Bundle:
    """The same with one query tile: keys are whole in their slots."""
    spec = am.MlaSpec(heads=2, nope_dim=128, rope_dim=64, mask=am.causal(), query_tiles=1)
    return am.compile(spec)


def regions(bundle: Bundle) -> dict[str, tuple[int, int]]:
    """Where each buffer of shared memory begins and ends, in bytes."""
    found: Any = bundle.report["memory_map"]
    return {x["what"]: (x["begin"], x["end"]) for x in found if x["space"] == "shared"}


def box_bytes(bundle: Bundle, tensor: str) -> int:
    """What a copy of one tile's part of a tensor lands."""
    maps = [x for x in bundle.manifest.params if isinstance(x, TensorMapParam)]
    (box,) = [x.box for x in maps if x.tensor == tensor]
    return int(np.prod(box)) * 2


def announced(bundle: Bundle) -> list[int]:
    """The bytes that full barriers are told to wait for, in the order of the PTX."""
    lines = re.findall(r"mbarrier\.arrive\.expect_tx\S* \S+ \[\S+\], (%?\w+);", bundle.ptx)
    constants = dict(re.findall(r"mov\.b32\s+(%r\d+), (\d+);", bundle.ptx))
    return [int(constants.get(value, value)) for value in lines]


def sizes(bundle: Bundle) -> dict[str, int]:
    """The bytes of each buffer of shared memory."""
    return {name: end - begin for name, (begin, end) in regions(bundle).items()}


def test_t1_slots_lie_as_far_apart_as_their_keys_are_large(bundle: Bundle, whole: Bundle) -> None:
    """Not as far as a padded depth would need; three slots, which overlap needs, or more either way."""
    apart = sizes(bundle)
    assert (apart["kv"], apart["rope"]) == (3 * NOPE_BYTES, 2 * ROPE_BYTES)
    assert (sizes(whole)["k"], sizes(whole)["v"]) == (2 * K_BYTES, 2 * V_BYTES)


def test_t2_rope_ends_with_its_slot(whole: Bundle) -> None:
    """Nope, rope and nothing else; rope begins with a line of 128 bytes of its own."""
    assert (
        box_bytes(whole, "k_nope") + box_bytes(whole, "k_rope") == K_BYTES == sizes(whole)["k"] / 2
    )
    assert box_bytes(whole, "k_nope") % (TILE * 128) == 0
    assert box_bytes(whole, "v") == V_BYTES == sizes(whole)["v"] / 2


def test_t3_full_and_empty_barriers_are_two_blocks(bundle: Bundle) -> None:
    found: Any = bundle.report["barriers"]
    blocks = {x["name"]: (x["begin"], x["count"]) for x in found}
    begin, count = blocks["kv full"]
    assert blocks["kv empty"] == (begin + 8 * count, count)


def test_t4_a_barrier_waits_for_the_bytes_of_its_copies_once(bundle: Bundle, whole: Bundle) -> None:
    """One announcement for each slot that is filled: K(0), Q, V(0), then K(n) and V(n)."""
    parts = [NOPE_BYTES, ROPE_BYTES]
    assert announced(bundle) == [*parts, Q_BYTES, Q_BYTES, V_BYTES, *parts, V_BYTES]
    assert announced(whole) == [K_BYTES, Q_BYTES, V_BYTES, K_BYTES, V_BYTES]


def test_t15_boxes_have_one_head(bundle: Bundle) -> None:
    """A box never runs past the last head, whose bytes might not be counted."""
    maps = {x.tensor: x for x in bundle.manifest.params if isinstance(x, TensorMapParam)}
    for name in ("q_nope", "q_rope", "k_nope", "k_rope", "v"):
        heads = [n for n, dim in zip(maps[name].box, maps[name].dims, strict=True) if dim.axis == 2]
        assert heads == [1]


def test_t23_sequences_lie_along_x_of_the_grid(bundle: Bundle) -> None:
    """Along y and z a grid ends at 65535: these are heads and the batch."""
    blocks, heads, batch = bundle.manifest.grid
    assert "sq" in str(blocks) and (heads, batch) == (2, "batch")


def test_t24_output_is_staged_over_queries_and_not_over_keys(bundle: Bundle) -> None:
    found = regions(bundle)
    out, q = found.pop("out"), found.pop("q")
    assert q[0] <= out[0] and out[1] <= q[1]
    assert all(out[1] <= begin or end <= out[0] for begin, end in found.values())


@pytest.mark.slow
def test_t9_and_t11_rows_of_a_warp_that_rescale_next_to_rows_that_do_not() -> None:
    """Maxima of every other row rise with each tile, under a schedule that is not fair."""
    problem = LatentProblem((64,), (300,), call={"query_tiles": 1})
    sequences = problem.sequences()
    rising = np.geomspace(0.1, 30.0, 300)[:, None, None]
    keys = sequences[0]["k_nope"].astype(np.float32)
    sequences[0]["k_nope"] = (np.abs(keys) * rising).astype(keys.dtype).astype(problem.dtype)
    queries = np.abs(sequences[0]["q_nope"].astype(np.float32))
    queries[1::2] *= -1  # their largest score is their first
    sequences[0]["q_nope"] = queries.astype(problem.dtype)
    problem.run_of(sequences, am.EmulatorDevice(schedule="adversarial", seed=5))


@pytest.mark.slow
@pytest.mark.parametrize("query_tiles", [1, 2])
def test_t2_what_lies_behind_nope_decides_the_scores(query_tiles: int) -> None:
    """Rope, in its part of a slot or in a ring of its own: of queries nope is 0."""
    problem = LatentProblem((40,), (150,), call={"query_tiles": query_tiles})
    sequences = problem.sequences()
    sequences[0]["q_nope"] = np.zeros_like(sequences[0]["q_nope"])
    problem.run_of(sequences, am.EmulatorDevice(check="all"))


@pytest.mark.slow
def test_t10_a_first_tile_without_a_visible_key() -> None:
    """The last tile, from key 256 on, is visited first; of it queries 240 to 255 see nothing."""
    o, lse = LatentProblem((60,), (300,), options={"mask": am.sliding_window(20, 0)}).run()
    assert np.isfinite(lse).all() and np.isfinite(o.astype(np.float32)).all()


@pytest.mark.slow
def test_t12_nothing_behind_a_sequence_reaches_a_result() -> None:
    """V, K and rope are NaN there, and so are the latent columns in front of rope."""
    for cache in (None, Form(64)):
        problem = LatentProblem((40, 40), (130, 3), cache=cache, call={"query_tiles": 1})
        o, _ = problem.run()
        assert np.isfinite(o.astype(np.float32)).all()


@pytest.mark.slow
def test_t21_rows_without_a_key_have_minus_infinity_and_lse_is_natural() -> None:
    causal = {"mask": am.causal()}
    o, lse = LatentProblem((60,), (40,), options=causal, call={"query_tiles": 1}).run()
    assert (lse[..., :20] == -np.inf).all() and np.isfinite(lse[..., 20:]).all()
    assert (o[:, :20] == 0).all()
    problem = LatentProblem((1,), (1,), options=causal, call={"query_tiles": 1})
    (one,) = problem.sequences()
    score = sum(
        float(one[f"q_{part}"].astype(np.float64)[0, 0] @ one[f"k_{part}"].astype(np.float64)[0, 0])
        for part in ("nope", "rope")
    )
    _, lse = problem.run()
    assert abs(float(lse[0, 0, 0]) - 192**-0.5 * score) < 1e-4
