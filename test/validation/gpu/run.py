"""Runs the checks of a real GPU with what is installed; `make gpu` runs this.

    python3 -m attn_mlir.validation.gpu.run build/gpu-bundles.zip

Needs numpy, cuda-python and the driver; kernels come from the archive of `make gpu-bundles`, or from
the compiler where there is one. What a check lacks (torch, another chip) is said, and the check
skipped. Exit code: 0 when no check failed, 1 when one did, 2 when nothing could be checked.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from pathlib import Path


def checked(name: str, only: str) -> int:
    """Runs the checks whose names contain a text, or all but the long ones, on the first GPU."""
    from attn_mlir.compiling.compiler import missing_compiler
    from attn_mlir.errors import AttnError
    from attn_mlir.runtime.devices import driver
    from attn_mlir.validation.gpu.check import Machine, Skipped
    from attn_mlir.validation.gpu.table import checks

    try:
        gpus = driver.gpus()
    except AttnError as error:
        print(f"nothing is checked: {error}")
        return 2
    if not gpus:
        print("nothing is checked: the driver shows no GPU")
        return 2
    machine = Machine(gpus[0], gpus[0].targets[0])
    major, minor = driver.driver_version()
    print(f"{machine.gpu.name}, {machine.target}, driver for CUDA {major}.{minor}")
    missing = missing_compiler()
    print(f"kernels are looked up in {name}: {missing}" if missing else "kernels are compiled here")
    counts = {"ok": 0, "skipped": 0, "FAILED": 0}
    for check in checks(only):
        begin, outcome, reason = time.perf_counter(), "ok", ""
        try:
            if machine.target not in check.targets:
                raise Skipped(f"it is for {', '.join(check.targets)}")
            check.run(machine)
        except Skipped as skipped:
            outcome, reason = "skipped", str(skipped)
        except Exception as error:
            outcome, reason = "FAILED", f"{type(error).__name__}: {error}"
            traceback.print_exc()
        counts[outcome] += 1
        seconds = time.perf_counter() - begin
        print(f"{outcome:8s} {check.name:44s} {seconds:6.2f} s  {reason}", flush=True)
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    return 1 if counts["FAILED"] else 0 if counts["ok"] else 2


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundles", type=Path, help="archive or folder of bundles")
    parser.add_argument("--only", default="", metavar="TEXT", help="part of checks' names")
    args = parser.parse_args()
    os.environ["ATTN_MLIR_BUNDLES"] = str(args.bundles)
    return checked(str(args.bundles), args.only)


if __name__ == "__main__":
    sys.exit(main())
