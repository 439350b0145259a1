"""`examples/long_context.py` at toy size: logits of two ranks are those of one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "long_context.py"


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["ring", "gather", "ulysses"])
def test_logits_of_two_ranks_are_those_of_one(scheme: str) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    found = subprocess.run(
        [*command, str(SCRIPT), "--scheme", scheme],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert found.returncode == 0, found.stderr[-2000:]
    assert re.search(
        rf"^48 tokens on 2 ranks, {scheme}: \d+ tokens per second$", found.stdout, re.M
    )
    assert re.search(r"^logits are off by 0\.\d+, ", found.stdout, re.M)
