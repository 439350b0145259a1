"""Kernels from elsewhere that get mistakes: what `test/conformance/peers` records and judges."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "conformance" / "peers"))

import mha_cases
from cases import case_named
from judging import judge, operands
from recorded import Schedule, execute, recorded
from subjects import Subject


def peer(name: str, ctas: int = 0, check: str = "all") -> Subject:
    """A case of one launch, compiled and recorded when there is no record of it yet.

    Args:
      ctas: launch only so many, of a persistent kernel: each then takes several tiles.
    """
    case = case_named(name)
    record = recorded(case, print)
    (launch,) = record.launches
    if ctas:
        launch = {**launch, "grid": [ctas, *launch["grid"][1:]]}

    def run(ptx: str, schedule: mha_cases.Schedule) -> str:
        changed = replace(record, launches=[{**launch, "text": ptx}])
        how = Schedule(schedule.kind, schedule.seed)
        verdicts = judge(case, execute(changed, operands(case), how, check).arrays)
        return "; ".join(str(verdict) for verdict in verdicts if not verdict.ok)

    return Subject(name, launch["text"], launch["entry"], run)
