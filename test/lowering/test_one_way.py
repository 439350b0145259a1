"""There is one way down: whoever asks, the same passes run, and the rings are proved once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import attn_mlir as am
from attn_mlir.compiling.compiler import compile_afresh
from attn_mlir.dialect._mlir import ir, make_context
from attn_mlir.dialect.attn import build_module
from attn_mlir.lowering import compile as compiler
from attn_mlir.passes import attn_opt, verify_rings
from attn_mlir.passes.infrastructure import analyses, pipeline
from attn_mlir.validation.ws.kernels import kernel, threads

NAME = "attn_mha_causal_bf16_h2k1_d64"  # what the request is called
SPEC = am.mha(heads=2, kv_heads=1, head_dim=64, mask=am.causal(), query_tiles=1)


def text() -> str:
    """The module that `SPEC` begins with."""
    return str(build_module(make_context(), SPEC))


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every step that runs, as text with all options."""
    found: list[str] = []
    original = pipeline.run_steps

    def run(module: Any, steps: Any, observers: Any = ()) -> None:
        found.extend(step.text for step in steps)
        original(module, steps, observers)

    for place in (pipeline, attn_opt):
        if hasattr(place, "run_steps"):
            monkeypatch.setattr(place, "run_steps", run)
    return found


@pytest.fixture
def proofs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The name of every kernel that is proved."""
    found: list[str] = []
    original = verify_rings.check_counts

    def check(op: Any, members: Any, calls: Any) -> None:
        found.append(op.sym_name.value)
        original(op, members, calls)

    monkeypatch.setattr(verify_rings, "check_counts", check)
    return found


def opt(*arguments: object) -> None:
    """Runs attn-opt in this process."""
    assert attn_opt.run([str(argument) for argument in arguments]) == 0


def split(found: list[str]) -> Iterator[str]:
    """Passes one by one: how neighbours of upstream are run together is the driver's business."""
    for entry in found:
        yield from entry.replace("gpu.module(", "").replace(")", "").split(",")


def test_attn_opt_and_compile_run_the_same_passes(
    steps: list[str], proofs: list[str], tmp_path: Path
) -> None:
    """With the same options, from the same module; what differs is who writes the file."""
    file, output = tmp_path / "f.mlir", tmp_path / "f.attn"
    file.write_text(text())
    opt(
        file,
        "-o",
        tmp_path / "o",
        f"--attn-to-bundle=target=sm_100a configure={{q-tiles=1}} output={output}",
    )
    by_name, bundle = list(split(steps)), am.load(output).bundle
    steps.clear()
    compiled = compile_afresh(SPEC)
    assert by_name[:-1] == list(split(steps))
    assert by_name[-1].startswith("attn-write-bundle")
    assert {"attn-check-names", "ws-verify-rings", "ws-record-source"} < set(by_name)
    assert bundle.ptx == compiled.ptx
    assert len(proofs) == 2


@pytest.mark.parametrize(
    "flags",
    [
        ["--attn-to-bundle=output={output}"],
        ["--attn-to-ptx"],
        ["--attn-to-nvvm"],
        ["--attn-to-ws"],
        ["--attn-to-ws", "--ws-plan-memory", "--convert-ws-to-nvvm"],
        ["--attn-configure", "--convert-attn-to-ws", "--ws-plan-memory"],
        ["--attn-configure", "--convert-attn-to-ws", "--ws-verify-rings", "--ws-verify-rings"],
        ["--attn-to-ws", "--attn-check-stage=stage=ws", "--ws-plan-memory"],
        ["--attn-to-ws", "--ws-plan-memory", "--mlir-print-ir-after=cse"],
        ["--attn-to-ws", "--ws-plan-memory", "--verify-each=false"],
    ],
)
def test_rings_are_proved_once(flags: list[str], proofs: list[str], tmp_path: Path) -> None:
    file = tmp_path / "f.mlir"
    file.write_text(text())
    opt(file, "-o", tmp_path / "o", *(f.format(output=tmp_path / "f.attn") for f in flags))
    assert proofs == [NAME]


def test_each_kernel_is_proved_once(proofs: list[str], tmp_path: Path) -> None:
    """A module of two, and a kernel that is written in `ws`."""
    file = tmp_path / "f.mlir"
    file.write_text(text().replace("module {", "").rstrip().removesuffix("}"))
    both = file.read_text() + file.read_text().replace(f"@{NAME}", "@g")
    file.write_text(both)
    opt(file, "-o", tmp_path / "o", "--attn-to-nvvm")
    assert proofs == [NAME, "g"]
    proofs.clear()
    compiler.compile_named("tma_copy", target="sm_90a")
    assert proofs == ["tma_copy"]


@pytest.mark.parametrize("between", ["cse", "canonicalize", "ws-plan-memory"])
def test_what_may_have_changed_is_proved_again(between: str, proofs: list[str]) -> None:
    module = ir.Module.parse(kernel([], threads("")), make_context())
    pipeline.run_pipeline(module, f"ws-verify-rings,{between},ws-verify-rings")
    assert len(proofs) == 2
    pipeline.run_pipeline(module, "ws-verify-rings")
    assert len(proofs) == 3, "another run knows nothing of this one"


def test_a_result_is_of_its_analysis_and_operation() -> None:
    module = ir.Module.parse("module { module {} module {} }", make_context())
    first, second = module.body.operations
    calls: list[Any] = []

    def one(op: Any) -> int:
        calls.append(op)
        return len(calls)

    def other(op: Any) -> int:
        return -one(op)

    assert (analyses.analysed(one, first), analyses.analysed(one, first)) == (1, 2)
    calls.clear()
    with analyses.cached():
        found = [analyses.analysed(f, op) for f in (one, other) for op in (first, second, first)]
        assert found == [1, 2, 1, -3, -4, -3]
        analyses.forget()
        assert analyses.analysed(one, first) == 5
    assert analyses.analysed(one, first) == 6
