"""The kernels that get mistakes: ours, and recorded launches of others'."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mha_check
import numpy as np
from mha_cases import NUMPY_DTYPES, Case, Schedule

import attn_mlir as am
from attn_mlir.reference import check_attention
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.emulator import Emulator
from attn_mlir.runtime.emulator.emulator import translated
from attn_mlir.runtime.kernel import Kernel


@dataclass(frozen=True)
class Subject:
    """A kernel and a launch of it.

    Attributes:
      run: launches another text under a schedule and checks; what is wrong with the numbers, or "".
    """

    name: str
    ptx: str
    entry: str
    run: Callable[[str, Schedule], str]

    def executed_lines(self) -> set[int]:
        """PTX lines of the segments that a fair run reaches."""
        wrong = self.run(self.ptx, Schedule("fair"))
        assert not wrong, wrong
        program = translated(self.ptx, self.entry)
        code = program.kernel.instructions
        lines: set[int] = set()
        for number, segment in enumerate(program.segments):
            if program.full[number] or program.masked[number]:
                lines.update(code[at].line for at in range(segment.first, segment.last))
        return lines


def ours(name: str, case: Case, check: str = "all", **options: Any) -> Subject:
    """Our kernel for a case, on two multiprocessors, so that persistent CTAs take several tiles.

    Args:
      options: further arguments of `am.mha`.
    """
    spec = am.mha(
        heads=case.heads,
        kv_heads=case.kv_heads,
        head_dim=case.head_dim,
        dtype=case.dtype,
        mask=mha_check.mask_named(case.mask),
        **options,
    )
    kernel = am.load(am.compile(spec, target=mha_check.TARGET))
    data, truth, yardstick = mha_check.expected(case)

    def run(ptx: str, schedule: Schedule) -> str:
        changed = Kernel(replace(kernel.bundle, ptx=ptx))
        o = mha_check.poisoned(data.q.shape, data.q.dtype)
        lse = mha_check.poisoned((case.batch, case.heads, case.sq), np.dtype(np.float32))
        device = EmulatorDevice(schedule.kind, schedule.seed, multiprocessors=2, check=check)
        changed(data.q, data.k, data.v, o, lse, device=device)
        return mha_check.verdict_of(mha_check.compare(o, lse, truth, yardstick)).reason

    return Subject(name, kernel.bundle.ptx, kernel.bundle.entry, run)


def recorded(stem: Path, check: str = "all", ctas: int = 0) -> Subject:
    """A recorded launch: NAME.ptx and NAME.launch.json (bench/emulator.py says what is in it).

    Args:
      ctas: launch only so many, of a persistent kernel: each then takes several tiles.
    """
    text = stem.with_name(stem.name + ".ptx").read_text()
    launch: Any = json.loads(stem.with_name(stem.name + ".launch.json").read_text())
    random = np.random.default_rng(0)
    dtype = NUMPY_DTYPES[launch["dtype"]]
    inputs = {
        name: random.standard_normal(launch["shapes"][name]).astype(dtype)
        for name in ("q", "k", "v")
    }
    mask = am.causal() if launch["causal"] else am.full()

    def run(ptx: str, schedule: Schedule) -> str:
        outputs = {
            "o": mha_check.poisoned(tuple(launch["shapes"]["o"]), dtype),
            "lse": mha_check.poisoned(tuple(launch["shapes"]["lse"]), np.dtype(np.float32)),
        }
        emulator = Emulator("sm_100a", schedule.kind, schedule.seed, check=check)
        for name, array in (inputs | outputs).items():
            emulator.map(array, address=int(launch["addresses"][name], 16))
        emulator.launch(
            ptx,
            launch["entry"],
            grid=(ctas or launch["grid"][0], *launch["grid"][1:]),
            block=launch["block"],
            cluster=launch["cluster"],
            shared_bytes=launch["shared_bytes"],
            params=[bytes.fromhex(value) for value in launch["params"]],
        )
        q, k, v = (inputs[name] for name in ("q", "k", "v"))
        verdict = check_attention(
            q, k, v, outputs["o"], outputs["lse"], mask=mask, scale=launch["scale"]
        )
        return "" if verdict.ok else str(verdict)

    return Subject(
        f"fa4-{stem.name}" if "fa4" in str(stem) else stem.name, text, launch["entry"], run
    )


def ours_all(check: str = "all") -> list[Subject]:
    """Our kernels of the harness: one tile per CTA with a causal mask, and several tiles per CTA."""
    return [
        ours("ours-d128-causal", Case(128, "bf16", "causal", 384, 384, 1), check),
        ours(
            "ours-d64-persistent",
            Case(64, "f16", "full", 512, 384, 1),
            check,
            tile_order="persistent",
        ),
    ]
