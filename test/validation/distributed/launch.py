"""Runs a function of `cases` or `faults` in several processes that are ranks of one group.

python -m attn_mlir.validation.distributed.launch cases.check 2 ring-causal gather-causal
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

PACKAGE = "attn_mlir.validation.distributed"
TIMEOUT_SECONDS = 300
MOST_SECONDS = 600  # that processes may take


def run(
    task: str, size: int, *arguments: str, timeout: float = TIMEOUT_SECONDS
) -> list[dict[str, Any]]:
    """What each rank returned, or an entry `ended` with the exit code of one that did not.

    Args:
      task: `module.function` of this package; it gets the arguments.
      timeout: of the group, in seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", f"{PACKAGE}.launch", "--rank"]
        processes = [
            subprocess.Popen(
                [*command, str(rank), str(size), folder, str(timeout), task, *arguments]
            )
            for rank in range(size)
        ]
        end = time.monotonic() + MOST_SECONDS
        try:
            codes = [x.wait(max(0.1, end - time.monotonic())) for x in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        found: list[dict[str, Any]] = []
        for rank, code in enumerate(codes):
            path = Path(folder) / f"{rank}.json"
            found.append(json.loads(path.read_text()) if path.exists() else {"ended": code})
    return found


def be_rank(rank: int, size: int, folder: str, timeout: float, task: str, *arguments: str) -> None:
    """One of the processes: joins the group, runs the function and writes what it returned."""
    torch: Any = importlib.import_module("torch")
    dist: Any = importlib.import_module("torch.distributed")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout),
    )
    module, name = task.split(".")
    found = getattr(importlib.import_module(f"{PACKAGE}.{module}"), name)(*arguments)
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    if sys.argv[1] == "--rank":
        be_rank(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], float(sys.argv[5]), *sys.argv[6:])
    else:
        for line in run(sys.argv[1], int(sys.argv[2]), *sys.argv[3:]):
            print(json.dumps(line))
