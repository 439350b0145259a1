"""Kernels from elsewhere that get mistakes: what `test/validation/conformance` records and judges."""

from __future__ import annotations

from dataclasses import replace

from attn_mlir.validation.conformance.cases import case_named
from attn_mlir.validation.conformance.judging import judge, operands
from attn_mlir.validation.conformance.recorded import SILICON, Schedule, execute, recorded
from attn_mlir.validation.mutation.subjects import Outputs, Subject
from attn_mlir.validation.numerics import mha_cases


def peer(name: str, ctas: int = 0, check: str = SILICON) -> Subject:
    """A case of one launch, compiled and recorded when there is no record of it yet.

    Args:
      ctas: how many CTAs of a persistent kernel to launch, so that each takes several tiles; 0
        leaves the grid as it was recorded.
    """
    case = case_named(name)
    record = recorded(case, print)
    (launch,) = record.launches
    if ctas:
        launch = {**launch, "grid": [ctas, *launch["grid"][1:]]}

    def launch_text(ptx: str, schedule: mha_cases.Schedule) -> Outputs:
        changed = replace(record, launches=[{**launch, "text": ptx}])
        how = Schedule(schedule.kind, schedule.seed)
        return execute(changed, operands(case), how, check).arrays

    def wrong(outputs: Outputs) -> str:
        return "; ".join(str(verdict) for verdict in judge(case, outputs) if not verdict.ok)

    return Subject(name, launch["text"], launch["entry"], launch_text, wrong)
