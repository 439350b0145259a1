"""The named pipelines start and stop where they say; the bundle they end in is reproducible."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.dialect._mlir import ir, make_context
from attn_mlir.dialect.attn import build_module
from attn_mlir.dialect.attn.masks import NullMask
from attn_mlir.errors import LaunchError, SpecError, TargetError, VerifyError
from attn_mlir.lowering.assemble import ptx_of
from attn_mlir.lowering.convert import UPSTREAM
from attn_mlir.lowering.stages import nvvm_to_ptx, ws_to_nvvm
from attn_mlir.passes.infrastructure.legality import STAGES, illegal_operations
from attn_mlir.passes.infrastructure.pipeline import run_pipeline
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.file.bundle import Bundle
from attn_mlir.runtime.kernel import Kernel
from attn_mlir.validation.ws.kernels import bundle, kernel, lowered, made, product, threads

TO_PTX = f"{ws_to_nvvm('sm_100a')},{UPSTREAM},{nvvm_to_ptx()}"
LEVELS = {  # the NVVM level holds `gpu` operations, a binary among them
    "attn-to-ws": ["ws"],
    "attn-to-nvvm": ["nvvm"],
    "attn-to-ptx": ["nvvm", "binary"],
}


def attention() -> Any:
    return build_module(
        make_context(), am.mha(heads=2, head_dim=64, dtype="f16", mask=NullMask()), name="small"
    )


@pytest.mark.parametrize(("name", "stages"), LEVELS.items())
def test_a_pipeline_ends_at_its_stage_and_no_other(name: str, stages: list[str]) -> None:
    module = attention()
    run_pipeline(module, name)
    legal = [level for level in STAGES if not illegal_operations(module, STAGES[level])]
    assert legal == stages
    assert module.operation.verify()


@pytest.mark.parametrize("name", ["attn-to-ws", "attn-to-nvvm", "attn-to-ptx"])
def test_stages_can_be_left_and_entered_as_text(name: str) -> None:
    module = attention()
    run_pipeline(module, name)
    text = str(module)
    again = ir.Module.parse(text, make_context())
    assert str(again) == text


def test_another_target_is_refused_by_the_planner() -> None:
    with pytest.raises(TargetError, match="no target 'sm_42': supported are sm_90a, sm_100a"):
        run_pipeline(attention(), "attn-to-ptx{target=sm_42}")


@pytest.mark.ptxas
def test_from_attn_to_a_file_that_the_runtime_loads(tmp_path: Path) -> None:
    path = tmp_path / "deeper" / "small.attn"
    run_pipeline(attention(), f"attn-to-bundle{{output={path}}}")
    found = Bundle.load(path)
    assert (found.entry, found.target) == ("small", "sm_100a")
    assert ".visible .entry small(" in found.ptx and found.cubin[:4] == b"\x7fELF"
    assert found.report["spill_bytes"] == 0
    assert path.stat().st_mode & 0o777 == 0o644
    assert [entry.name for entry in path.parent.iterdir()] == ["small.attn"]


def test_several_kernels_make_a_folder(tmp_path: Path) -> None:
    first = kernel([], threads(""))
    second = kernel([], threads("")).replace('"k"', '"second"')
    text = first + second.split("\n", 5)[-1]
    lowered(text, f"{TO_PTX},attn-write-bundle{{output={tmp_path}}}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["k.attn", "second.attn"]
    assert Bundle.load(tmp_path / "second.attn").entry == "second"


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    text = kernel([], threads(""))
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match="cannot make the folder .*file"):
        lowered(text, f"{TO_PTX},attn-write-bundle{{output={tmp_path / 'file' / 'k.attn'}}}")
    (tmp_path / "folder").mkdir()
    with pytest.raises(SpecError, match="cannot write .*folder': Is a directory"):
        lowered(text, f"{TO_PTX},attn-write-bundle{{output={tmp_path / 'folder'}}}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_a_module_without_ptx_or_manifest() -> None:
    with pytest.raises(VerifyError, match="holds no gpu.binary: run attn-to-ptx first"):
        lowered(kernel([], threads("")), "attn-write-bundle")
    module = lowered(kernel([], threads("")), TO_PTX)
    del module.operation.attributes["attn.manifests"]
    with pytest.raises(VerifyError, match="'gpu.binary' op k has no manifest"):
        run_pipeline(module, "attn-write-bundle")


def test_a_kernel_without_a_plan_is_refused() -> None:
    with pytest.raises(
        VerifyError, match="'ws.kernel' op has no 'ws.plan': run ws-plan-memory first"
    ):
        lowered(kernel([], threads("")), "convert-ws-to-nvvm")


@pytest.mark.ptxas
def test_the_same_input_gives_the_same_bytes() -> None:
    text = product("bf16", 64, 64, "nk")
    once = bundle(text)
    made.cache_clear()
    assert bundle(text) == once


def test_ptx_does_not_depend_on_the_process() -> None:
    """Hash seeds of Python must not order anything."""
    code = (
        "import runpy, sys; globals().update(runpy.run_path(sys.argv[1]))\n"
        "module = attention(); run_pipeline(module, 'attn-to-ptx')\n"
        "print(ptx_of(module)['small'])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code, __file__],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    module = attention()
    run_pipeline(module, "attn-to-ptx")
    assert outputs.pop().strip() == ptx_of(module)["small"].strip()


def test_a_fault_names_the_operation(tmp_path: Path) -> None:
    """A kernel without a wait for its tensor loads: the message quotes the `ws.load` behind them."""
    path = tmp_path / "small.attn"
    run_pipeline(attention(), f"attn-to-bundle{{output={path}}}")
    found = Bundle.load(path)
    broken = replace(found, ptx=found.ptx.replace("tcgen05.wait::ld.sync.aligned;", "", 1))
    q = np.zeros((1, 64, 2, 64), np.float16)
    lse = np.zeros((1, 2, 64), np.float32)
    with pytest.raises(LaunchError, match=r'kernel\.mlir:\d+: %\d+ = "ws\.'):
        Kernel(broken)(q, q, q, q.copy(), lse, scale=1.0, device=EmulatorDevice())
