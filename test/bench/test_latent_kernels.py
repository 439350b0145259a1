"""The kernels of latent attention that benchmarks compile."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import attn_mlir as am
from attn_mlir.bench import latent_compiles
from attn_mlir.bench.costs import latent
from attn_mlir.bench.latent import Shape
from attn_mlir.bench.problems import latent_frame, latent_requests
from attn_mlir.dialect._mlir import ir, make_context
from attn_mlir.dialect.attn import build_module
from attn_mlir.dialect.targets.limits import target_named
from attn_mlir.schedules.choice import schedule_for
from attn_mlir.schedules.core.facts import operations
from attn_mlir.schedules.policy.registry import names_of

MOST_PER_SCORE = 3.95  # FlashAttention-4's kernels of the same sizes
MOST_PER_ROW, MOST_PER_ROW_OF_PAIRS = 9.69, 18.88


def test_requests_are_different_kernels() -> None:
    """Each has a name and a canonical form of its own, and machine code is counted of four of them."""
    texts = {name: make().canonical_json() for name, make in latent_requests.LATENT.items()}
    assert len(set(texts.values())) == len(texts) == 10
    assert {kernel.name for kernel in latent.KERNELS} <= texts.keys()


def test_t22_entries_count_whether_or_not_they_are_rows() -> None:
    """As FlashMLA counts: its case of 4096 queries, 128 heads and 2048 entries is 2.336e12."""
    few = Shape(batch=4096, keys=8192, queries=1, heads=128, topk=2048)
    assert few.flops == 2 * 4096 * 128 * 2048 * (576 + 512) and f"{few.flops:.3e}" == "2.336e+12"
    assert dataclasses.replace(few, keys=131072).flops == few.flops
    assert dataclasses.replace(few, topk=0).flops == 4 * few.flops
    assert few.read_bytes == 4096 * 2048 * 1152


LATENT_OPERATIONS = ("mla", "mla_decode", "sparse_mla")


def schedule_of(context: Any, kernel: latent_frame.FrameKernel) -> str:
    """The name of the schedule that makes a kernel."""
    module = build_module(context, kernel.make())
    (op,) = [op for kind in operations() for op in ir.get_ops_of_type(module, kind)]
    return schedule_for(op, target_named(kernel.target)).policy.name


def test_the_frame_has_every_schedule_of_latent_attention() -> None:
    """Each kernel is another one."""
    kernels = latent_frame.kernels()
    texts = {(kernel.target, kernel.make().canonical_json()) for kernel in kernels.values()}
    assert len(texts) == len(kernels) >= 290
    context, first = make_context(), dict[str, latent_frame.FrameKernel]()
    for name, kernel in kernels.items():
        first.setdefault(", ".join(name.split(", ")[:2]), kernel)
    found = {schedule_of(context, kernel) for kernel in first.values()}
    assert found == {name for operation in LATENT_OPERATIONS for name in names_of(operation)}


@pytest.mark.ptxas
def test_parts_of_a_compile_are_all_of_its_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What every stage takes is in one of them; ptxas, which the compiler waits for, has its own."""
    monkeypatch.setenv("ATTN_MLIR_NO_CACHE", "1")
    name = "sparse-mla, 64 heads, bf16, plain"
    found = latent_compiles.compiled(name)
    assert found["total"] == pytest.approx(sum(found[part] for part in latent_compiles.PARTS))
    assert min(found[part] for part in latent_compiles.PARTS) > 0.01
    assert found["lines"] > found["instructions"] / 4 > 500


@pytest.mark.ptxas
@pytest.mark.parametrize(
    ("heads", "most"),
    [
        ("64 heads", MOST_PER_ROW),
        pytest.param("128 heads", 26.5, marks=pytest.mark.slow),
        pytest.param("128 heads, by threads", MOST_PER_ROW_OF_PAIRS, marks=pytest.mark.slow),
    ],
)
def test_instructions_of_a_gathered_row(heads: str, most: float, tmp_path: Path) -> None:
    """9.66 when this was written, 26.23 in pairs, 17.5 by threads, and nothing is spilled; 23.4 and 40 where boxes
    are moved."""
    spilled, found = recorded(f"lists, {heads}", tmp_path)
    assert found["per_entry"] <= most
    assert found["stack_bytes"] == spilled == 0


@pytest.mark.ptxas
@pytest.mark.slow
def test_dense_prefill_executes_no_more_than_promised(tmp_path: Path) -> None:
    """Most exponentials are not polynomials, and nothing is spilled."""
    spilled, found = recorded(latent.KERNELS[0].name, tmp_path)
    assert found["per_score"] <= MOST_PER_SCORE
    assert 0.9 < found["exponentials"] < 1
    assert found["stack_bytes"] == spilled == 0


def recorded(name: str, folder: Path) -> tuple[int, Any]:
    """Bytes that a kernel of the table of machine code spills, and its row."""
    kernel = next(one for one in latent.KERNELS if one.name == name)
    bundle = am.compile(latent_requests.LATENT[name](), target=latent.TARGET)
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(bundle.cubin)
    cubin.with_suffix(".ptx").write_text(bundle.ptx)
    return bundle.report["spill_bytes"], latent.record(
        name, cubin, kernel.block, kernel.entry_bytes
    )
