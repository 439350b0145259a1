"""The kernels that get mistakes: ours. Those of others are in `peers.py`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

import attn_mlir as am
from attn_mlir.api.plan import Plan
from attn_mlir.reference import check_attention
from attn_mlir.reference.sparse_mla import SparseAttention
from attn_mlir.runtime.call.tensors import view
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.emulator.emulator import translated
from attn_mlir.runtime.kernel import Kernel
from attn_mlir.validation.numerics import mha_check, sparse_cases
from attn_mlir.validation.numerics.mha_cases import Case, Schedule
from attn_mlir.validation.numerics.sparse_cases import Case as SparseCase

Outputs = dict[str, npt.NDArray[Any]]
FACTORS = {"q_descale": 0.5, "k_descale": 1.5, "v_descale": 3.0}  # of operands of 8 bits


@dataclass(frozen=True)
class Subject:
    """A kernel and a launch of it.

    Attributes:
      launch: launches another text under a schedule, with checkers; the outputs.
      judge: what is wrong with outputs, or "".
    """

    name: str
    ptx: str
    entry: str
    launch: Callable[[str, Schedule], Outputs]
    judge: Callable[[Outputs], str]

    def run(self, ptx: str, schedule: Schedule) -> str:
        """What is wrong with the numbers of another text, or ""."""
        return self.judge(self.launch(ptx, schedule))

    def executed_lines(self) -> set[int]:
        """PTX lines of the segments that a fair run reaches: those that it has translated."""
        translated.cache_clear()  # other launches of the same text have reached others
        wrong = self.run(self.ptx, Schedule("fair"))
        assert not wrong, wrong
        program = translated(self.ptx, self.entry, native=True)
        code = program.kernel.instructions
        lines: set[int] = set()
        for number, segment in enumerate(program.segments):
            if program.full[number] or program.masked[number]:
                lines.update(code[at].line for at in range(segment.first, segment.last))
        return lines


def ours(
    name: str, case: Case, check: str = "all", target: str = mha_check.TARGET, **options: Any
) -> Subject:
    """Our kernel for a case, on two multiprocessors, so that persistent CTAs take several tiles.

    Args:
      check: what the checkers look for.
      target: the chip that the kernel is for.
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
    kernel = am.load(am.compile(spec, target=target))
    data, truth, yardstick = mha_check.expected(case)

    def launch(ptx: str, schedule: Schedule) -> Outputs:
        changed = Kernel(replace(kernel.bundle, ptx=ptx))
        o = mha_check.poisoned(data.q.shape, data.q.dtype)
        lse = mha_check.poisoned((case.batch, case.heads, case.sq), np.dtype(np.float32))
        device = EmulatorDevice(schedule.kind, schedule.seed, multiprocessors=2, check=check)
        changed(data.q, data.k, data.v, o, lse, device=device)
        return {"o": o, "lse": lse}

    def judge(outputs: Outputs) -> str:
        compared = mha_check.compare(outputs["o"], outputs["lse"], truth, yardstick)
        return mha_check.verdict_of(compared).reason

    return Subject(name, kernel.bundle.ptx, kernel.bundle.entry, launch, judge)


def ours_hopper(name: str, case: Case, **options: Any) -> Subject:
    """Our kernel of many queries for sm_90a, whose groups hold S, P and O in registers."""
    return ours(name, case, target="sm_90a", schedule="mha-registers", **options)


def ours_narrow(name: str, case: Case, **options: Any) -> Subject:
    """Our kernel for operands of 8 bits and sm_90a, whose warps transpose values on the way.

    Args:
      options: further arguments of `am.mha`.
    """
    static: dict[str, Any] = {"mask": mha_check.mask_named(case.mask)}
    spec = am.mha(
        heads=case.heads,
        kv_heads=case.kv_heads,
        head_dim=case.head_dim,
        dtype=case.dtype,
        schedule="mha-registers",
        **static,
        **options,
    )
    bundle = am.compile(spec, target="sm_90a")
    data = case.inputs()
    factors: dict[str, Any] = {
        name: np.full((1, 1), number, np.float32) for name, number in FACTORS.items()
    }

    def launch(ptx: str, schedule: Schedule) -> Outputs:
        o = mha_check.poisoned(data.q.shape, np.dtype(ml_dtypes.bfloat16))
        lse = mha_check.poisoned((case.batch, case.heads, case.sq), np.dtype(np.float32))
        device = EmulatorDevice(schedule.kind, schedule.seed, multiprocessors=2, check="all")
        given = (data.q, data.k, data.v, o, lse, *factors.values())
        Kernel(replace(bundle, ptx=ptx))(*given, device=device)
        return {"o": o, "lse": lse}

    def judge(outputs: Outputs) -> str:
        operands: Any = (data.q, data.k, data.v)
        found = check_attention(*operands, outputs["o"], outputs["lse"], **static, **factors)
        return "" if found.ok else str(found)

    return Subject(name, bundle.ptx, bundle.entry, launch, judge)


def ours_sparse(name: str, case: SparseCase) -> Subject:
    """Our kernel of sparse latent attention."""
    given = sparse_cases.problem(case)
    plan: Plan = inspect.unwrap(am.sparse_mla)(**given, device="emulator")
    (step,) = plan.steps
    bundle = am.compile(step.request, target=plan.target)

    def launch(ptx: str, schedule: Schedule) -> Outputs:
        kinds = {"bf16": np.dtype(ml_dtypes.bfloat16), "f32": np.dtype(np.float32)}
        found = {x.name: mha_check.poisoned(x.shape, kinds[x.dtype]) for x in plan.results}
        views = {name: view(array, name) for name, array in found.items()}
        device = EmulatorDevice(schedule.kind, schedule.seed, check="all")
        Kernel(replace(bundle, ptx=ptx)).launch(step.launch_arguments(views), device=device)
        return found

    def judge(outputs: Outputs) -> str:
        return sparse_cases.wrong(given, SparseAttention(**outputs))

    return Subject(name, bundle.ptx, bundle.entry, launch, judge)


# Small launches, at lengths that are no multiples of a tile. For sm_100a: one tile per CTA with a causal mask, several tiles
# per CTA, tiles that clusters take from each other by cluster launch control, and one query over a cache of 8 bits, which is
# widened, or multiplied as it is. For sm_90a: three groups with tiles of 192
# rows by 80 keys under a causal mask, several tiles per CTA, the packed heads of a group in tiles of 128 by 128, and operands
# of 8 bits in tiles of 128 by 128, to whose O two products add, several per CTA.
OURS: dict[str, Callable[[], Subject]] = {
    "ours-d128-causal": lambda: ours("ours-d128-causal", Case(128, "bf16", "causal", 256, 384, 1)),
    "ours-d64-persistent": lambda: ours(
        "ours-d64-persistent", Case(64, "f16", "full", 512, 384, 1), tile_order="persistent"
    ),
    "ours-d64-clc": lambda: ours(
        "ours-d64-clc", Case(64, "bf16", "causal", 300, 200, 1), tile_order="clc"
    ),
    "ours-sparse-v32": lambda: ours_sparse(
        "ours-sparse-v32",
        SparseCase(s_kv=300, topk=300, heads=8, sinks=True, kv_format="v32"),
    ),
    "ours-sparse-e4m3": lambda: ours_sparse(
        "ours-sparse-e4m3",
        SparseCase(s_kv=300, topk=400, heads=8, sinks=True, kv_format="e4m3", narrow=True),
    ),
    "ours-hopper-d128-causal": lambda: ours_hopper(
        "ours-hopper-d128-causal", Case(128, "bf16", "causal", 200, 260, 1)
    ),
    "ours-hopper-d64-persistent": lambda: ours_hopper(
        "ours-hopper-d64-persistent",
        Case(64, "f16", "full", 400, 300, 1),
        tile_order="persistent",
    ),
    "ours-hopper-d128-grouped": lambda: ours_hopper(
        "ours-hopper-d128-grouped", Case(128, "bf16", "full", 50, 400, 4), query_tiles=2
    ),
    "ours-hopper-e4m3": lambda: ours_narrow(
        "ours-hopper-e4m3", Case(128, "e4m3", "causal", 200, 600, 1), tile_order="persistent"
    ),
}
