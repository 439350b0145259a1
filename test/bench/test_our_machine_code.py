"""What the machine code of our kernels must hold, whatever else changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from attn_mlir.bench.problems.problem import Problem
from attn_mlir.bench.sass import Column, measure

pytestmark = pytest.mark.ptxas

# Instructions per score in the unmasked softmax loop: 3.9 when this was written, 4.05 in FlashAttention-4.
MOST_PER_SCORE = 4.1


# Head size, type and whether causal; the others are like these in everything that is looked at here.
CHOSEN = ((64, "bf16", True), (128, "bf16", False))
OTHERS = ((64, "bf16", False), (128, "bf16", True), (128, "f16", True))


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(CHOSEN, id="chosen"),
        pytest.param(OTHERS, id="others", marks=pytest.mark.long),
    ],
)
def columns(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[int, str, bool], Column]:
    folder: Path = tmp_path_factory.mktemp("cubins")
    found: dict[tuple[int, str, bool], Column] = {}
    for head_dim, dtype, is_causal in request.param:
        problem = Problem(head_dim, dtype, is_causal)
        bundle = problem.compile()
        cubin = folder / f"{problem.name}.cubin"
        cubin.write_bytes(bundle.cubin)
        cubin.with_suffix(".ptx").write_text(bundle.ptx)
        found[head_dim, dtype, is_causal] = measure(problem.name, cubin, problem.target)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("opcode", ["UTCHMMA", "UTMALDG", "UTMASTG", "USETMAXREG", "LDTM", "STTM"])
def test_blackwell_instructions_are_there(
    columns: dict[tuple[int, str, bool], Column], opcode: str
):
    assert all(column.counts[opcode] > 0 for column in columns.values())


@pytest.mark.slow
def test_nothing_is_spilled(columns: dict[tuple[int, str, bool], Column]):
    for column in columns.values():
        assert column.spill_bytes == column.usage.stack_bytes == column.usage.local_bytes == 0
        assert column.counts["LDL"] == column.counts["STL"] == 0
        assert column.usage.registers * 512 <= 65536  # one CTA of 512 threads; registers per SM


@pytest.mark.slow
def test_softmax_loop_is_as_short_as_promised(columns: dict[tuple[int, str, bool], Column]):
    for column in columns.values():
        assert column.loop is not None, column.name
        assert column.loop.scores == 128  # a row of a key tile per thread
        assert column.loop.per_score <= MOST_PER_SCORE
        assert column.loop.exponentials < 128  # a part of them runs on the FMA units


@pytest.mark.slow
def test_masks_are_outside_of_the_unmasked_loop(columns: dict[tuple[int, str, bool], Column]):
    for column in columns.values():
        assert column.loop is not None and column.masked_loop is not None, column.name
        assert column.masked_loop.selects > 100  # one per score
        assert column.loop.selects < 32
