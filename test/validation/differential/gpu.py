"""Runs a file of programs on a Hopper GPU; needs numpy and cuda-python, nothing of this project.

    python -m validation.differential.gpu CASES RESULTS [--workers N]

Each worker process has a context of its own. A program that stops the GPU costs its process, which
is started again behind it; one that hangs is killed after a while.
"""

from __future__ import annotations

import argparse
import datetime
import pickle
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from .case import ENTRY, Program, load, save

PATIENCE_S = 15.0  # for one program, its compilation by the driver included
PROGRESS_S = 10.0


class Driver:
    """A context on the first GPU."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        self.api: Any = driver
        self.call("cuInit", 0)
        device = self.call("cuDeviceGet", 0)
        attribute = driver.CUdevice_attribute
        major = self.call(
            "cuDeviceGetAttribute", attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device
        )
        if major != 9:
            raise SystemExit(f"the GPU has compute capability {major}.x, 9.0 is needed")
        self.call("cuCtxSetCurrent", self.call("cuDevicePrimaryCtxRetain", device))

    def call(self, name: str, *args: Any) -> Any:
        """A driver function; its results without the status."""
        status, *results = getattr(self.api, name)(*args)
        if int(status) != 0:
            raise RuntimeError(f"{name}: {status}")
        return results[0] if len(results) == 1 else results

    def encode(self, program: Program, index: int, address: int) -> bytes:
        """The driver's bytes of one tensor map."""
        d, spec = self.api, program.maps[index]
        made = self.call(
            "cuTensorMapEncodeTiled",
            d.CUtensorMapDataType(spec.element),
            len(spec.dims),
            address + spec.offset,
            [d.cuuint64_t(x) for x in spec.dims],
            [d.cuuint64_t(x) for x in spec.strides] or [d.cuuint64_t(16)],
            [d.cuuint32_t(x) for x in spec.box],
            [d.cuuint32_t(x) for x in spec.steps],
            d.CUtensorMapInterleave(spec.interleave),
            d.CUtensorMapSwizzle(spec.swizzle),
            d.CUtensorMapL2promotion(spec.promotion),
            d.CUtensorMapFloatOOBfill(spec.fill),
        )
        return b"".join(struct.pack("<Q", int(word)) for word in made.opaque)

    def run(self, program: Program) -> None:
        """Run one program; its outputs go into `results`."""
        module = self.call("cuModuleLoadData", program.ptx.encode() + b"\0")
        function = self.call("cuModuleGetFunction", module, ENTRY.encode())
        most = self.api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self.call("cuFuncSetAttribute", function, most, program.shared_bytes)
        pointers = [self.call("cuMemAlloc", max(b.nbytes, 256)) for b in program.buffers]
        for pointer, buffer in zip(pointers, program.buffers, strict=True):
            self.call("cuMemcpyHtoD", pointer, buffer.ctypes.data, buffer.nbytes)
        program.addresses = [int(p) for p in pointers]
        program.map_bytes = [
            self.encode(program, i, program.addresses[spec.buffer])
            for i, spec in enumerate(program.maps)
        ]
        values = [struct.pack("<Q", a) for a in program.addresses] + program.map_bytes
        holders = [_aligned(value) for value in values]
        table = np.array([h.ctypes.data for h in holders], np.uint64)
        self.call(
            "cuLaunchKernel", function, program.grid, program.grid_y, program.grid_z,
            program.block, 1, 1, program.shared_bytes, 0, table.ctypes.data, 0,
        )  # fmt: skip
        self.call("cuCtxSynchronize")
        for index in program.outputs:
            result = np.empty_like(program.buffers[index])
            self.call("cuMemcpyDtoH", result.ctypes.data, pointers[index], result.nbytes)
            program.results[index] = result
        for pointer in pointers:
            self.call("cuMemFree", pointer)
        self.call("cuModuleUnload", module)


def about() -> dict[str, str]:
    """Name and driver of the GPU, and today's date."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    line = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    name, version = line.split(", ")
    return {"gpu": name, "driver": version, "date": datetime.date.today().isoformat()}


def _aligned(value: bytes) -> np.ndarray:
    raw = np.zeros(len(value) + 64, np.uint8)
    skip = -raw.ctypes.data % 64
    raw[skip : skip + len(value)] = np.frombuffer(value, np.uint8)
    return raw[skip:]


def work(cases: Path, log: Path, first: int, step: int) -> int:
    """Run programs first, first + step, ..; append (index, program) to the log. 3 after an error."""
    programs = load(cases)
    driver = Driver()
    with log.open("ab") as out:
        for index in range(first, len(programs), step):
            program = programs[index]
            try:
                driver.run(program)
            except RuntimeError as error:
                program.error = str(error)
            program.buffers, program.ptx = [], ""
            pickle.dump((index, program), out)
            out.flush()
            if program.error:
                return 3
    return 0


def _read(log: Path) -> list[tuple[int, Program]]:
    found: list[tuple[int, Program]] = []
    if log.exists():
        with log.open("rb") as stream:
            while True:
                try:
                    found.append(pickle.load(stream))
                except (EOFError, pickle.UnpicklingError):
                    break
    return found


def run_all(cases: Path, results: Path, workers: int) -> None:
    """Run every program; write results (without inputs) in the order of the cases.

    Raises:
      SystemExit: there is no GPU of compute capability 9.x.
    """
    names = [p.name for p in load(cases)]
    total = len(names)
    logs = [results.with_suffix(f".{w}.log") for w in range(workers)]
    nexts = list(range(workers))
    hung: dict[int, str] = {}

    def start(w: int) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            __spec__.name,
            str(cases),
            str(logs[w]),
            "--worker",
            str(nexts[w]),
            str(workers),
        ]
        return subprocess.Popen(command)

    for log in logs:
        log.unlink(missing_ok=True)
    try:
        Driver()  # says what is missing before workers do
    except RuntimeError as error:
        raise SystemExit(f"no GPU of compute capability 9.x: {error}") from error
    running = {w: (start(w), time.monotonic(), 0) for w in range(workers) if nexts[w] < total}
    told = time.monotonic()
    while running:
        time.sleep(0.2)
        if time.monotonic() - told > PROGRESS_S:
            told = time.monotonic()
            print(f"  GPU: {sum(len(_read(log)) for log in logs)} of {total}", flush=True)
        for w, (process, _, size) in list(running.items()):
            now = logs[w].stat().st_size if logs[w].exists() else 0
            if now != size:
                running[w] = (process, time.monotonic(), now)
            code = process.poll()
            stuck = code is None and time.monotonic() - running[w][1] > PATIENCE_S
            if code is None and not stuck:
                continue
            done = [index for index, _ in _read(logs[w])]
            reached = max((i for i in [*done, *hung] if i % workers == w), default=w - workers)
            if stuck or (code not in (0, 3)):
                process.kill()
                process.wait()
                hung[reached + workers] = (
                    "the process hung" if stuck else f"the process died: {code}"
                )
                reached += workers
            nexts[w] = reached + workers
            del running[w]
            if code != 0 and nexts[w] < total:
                running[w] = (start(w), time.monotonic(), now)
    merged = dict(item for log in logs for item in _read(log))
    out = [
        merged.get(i) or Program(name, "", [], [], [], error=hung.get(i, "not run"))
        for i, name in enumerate(names)
    ]
    save(results, out, about(), preset=2)
    errors = [p for p in out if p.error]
    print(f"{total} programs, {len(errors)} errors")
    for p in errors[:40]:
        print(f"  {p.name}: {p.error}")


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--worker", type=int, nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return work(args.cases, args.results, args.worker[0], args.worker[1])
    run_all(args.cases, args.results, args.workers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
