"""`attn-mlir demo`: compiles, runs and checks one kernel, and shows all stages."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
from rich.console import Console

from attn_mlir.cli.experiment import Trial, run_attention
from attn_mlir.cli.show import (
    memory_table,
    output,
    resource_lines,
    role_table,
    stage_table,
    table,
)
from attn_mlir.compiling.compiler import DEFAULT_TARGET, compile_afresh
from attn_mlir.compiling.spec import MhaSpec
from attn_mlir.errors import TargetError
from attn_mlir.files import make_folder, write_file
from attn_mlir.runtime.call.tensors import view
from attn_mlir.runtime.file.bundle import Bundle
from attn_mlir.runtime.kernel import DeviceChoice, machine_of
from attn_mlir.tools import disassemble


def demo(
    spec: MhaSpec,
    *,
    batch: int,
    sq: int,
    sk: int,
    seed: int,
    out: Path,
    device: DeviceChoice,
    console: Console | None = None,
) -> int:
    """Compiles, runs, compares and shows a kernel; returns 0 if every element is right, else 1.

    It is compiled for the GPU that it runs on, or for the default target where the emulator runs
    it.

    Args:
      out: folder for the bundle, the PTX, the machine code and its disassembly.

    Raises:
      AttnError: compilation or launch failed.
    """
    console = console or output()
    target = machine_of(device, view(np.zeros(1, np.float32), "q")).target or DEFAULT_TARGET
    console.print(
        f"[bold]{spec.mask} attention[/], {spec.heads} heads on {spec.kv_heads} KV heads of "
        f"{spec.head_dim}, {spec.dtype}, for {target}",
        highlight=False,
    )
    with console.status("compiling") as status:  # each stage is printed once, in the table
        bundle = compile_afresh(
            spec, target=target, progress=lambda stage: status.update(f"compiling: {stage}")
        )
    console.print()
    console.print(stage_table(bundle))
    console.print()
    console.print(role_table(bundle))
    console.print()
    console.print(memory_table(bundle))
    console.print()
    for line in resource_lines(bundle):
        console.print(line, highlight=False)
    for kind, path in write_files(bundle, out).items():
        console.print(f"{kind:8s} {path}", highlight=False, soft_wrap=True)
    console.print()
    trial = run_attention(bundle, batch=batch, sq=sq, sk=sk, seed=seed, device=device)
    _show_trial(console, trial, f"batch {batch}, {sq} queries, {sk} keys")
    return 0 if trial.comparison.ok else 1


def write_files(bundle: Bundle, out: Path) -> dict[str, Path]:
    """Writes everything that was built to a folder; the disassembly only if nvdisasm is installed.

    A bundle without machine code leaves neither a cubin nor its disassembly.

    Raises:
      SpecError: the folder cannot be written to.
    """
    make_folder(out)
    files = {"bundle": bundle.save(out / "mha.attn")}
    files["PTX"] = write_file(out / "mha.ptx", bundle.ptx)
    with contextlib.suppress(TargetError):
        files["cubin"] = write_file(out / "mha.cubin", bundle.cubin)
        files["SASS"] = write_file(out / "mha.sass", disassemble(bundle.cubin))
    return files


def _show_trial(console: Console, trial: Trial, sizes: str) -> None:
    launch, comparison = trial.launch, trial.comparison
    speed = ""
    if launch.warp_instructions and launch.seconds:
        rate = launch.warp_instructions / launch.seconds
        speed = f", {launch.warp_instructions} warp-instructions at {rate:,.0f} per second"
    console.print(
        f"ran {sizes} on [bold]{launch.device}[/], grid {launch.grid}, "
        f"{trial.launch_seconds:.2f} s{speed}",
        highlight=False,
    )
    rows: list[list[object]] = [
        [
            "O",
            f"{comparison.max_error:.3e}",
            f"{comparison.yardstick_error:.3e}",
            f"{comparison.worst_ratio:.2f}",
            f"{comparison.element_count - comparison.wrong_count} of {comparison.element_count}",
        ],
        ["LSE", f"{comparison.lse_error:.3e}", "", "", f"{comparison.lse_wrong_count} wrong"],
    ]
    columns = ["", "largest error", "yardstick", "worst / allowed", "elements right"]
    console.print(table("against float64", columns, rows))
    verdict = "[green]right[/]" if comparison.ok else "[red]WRONG[/]"
    console.print(f"every element checked: {verdict}")
    if not comparison.ok:
        console.print(str(comparison), highlight=False)
