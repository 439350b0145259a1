"""Measures constants of the cycle model on a Hopper GPU, in clocks.

    python bench/calibrate.py --write DIR     where ptxas is: assembles the probes
    python bench/calibrate.py --read DIR      where the GPU is; needs numpy and cuda-bindings only
    python bench/calibrate.py --compare DIR JSON    the model's clocks beside the measured ones

Reading prints JSON: for each probe the readings of the clock, as the median over multiprocessors of the
median over launches, from the first reading: `between` and `after`, by warpgroup. A probe whose
first and last launches differ by more than one percent says so under `drift`.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

LAUNCHES = 30
WARM_UPS = 3
DATA_BYTES = 64 << 20
INDEX = "probes.json"


def write(folder: Path, part: str) -> None:
    """Assembles the probes with a part in their name to the folder."""
    from attn_mlir.bench.problems.probes import all_probes
    from attn_mlir.errors import TargetError
    from attn_mlir.files import make_folder, write_file
    from attn_mlir.tools import find_ptxas, run_tool

    make_folder(folder)
    entries: list[dict[str, Any]] = []
    for number, probe in enumerate(one for one in all_probes() if part in one.name):
        source, target = folder / f"{number}.ptx", folder / f"{number}.cubin"
        write_file(source, probe.ptx)
        command = [find_ptxas(), "-lineinfo", "-arch=sm_90a", source, "-o", target]
        answer = run_tool(command)
        if answer.returncode:
            raise TargetError(f"ptxas refuses the probe '{probe.name}': {answer.stderr.strip()}")
        entry = dataclasses.asdict(probe) | {"cubin": target.name}
        del entry["ptx"]
        entries.append(entry)
    print(write_file(folder / INDEX, json.dumps(entries, indent=1)), len(entries), "probes")


class Gpu:
    """The first GPU, by the driver's interface."""

    def __init__(self) -> None:
        driver: Any = importlib.import_module("cuda.bindings.driver")
        self.driver = driver
        self.call(driver.cuInit(0))
        self.device = self.call(driver.cuDeviceGet(0))
        self.context = self.call(driver.cuDevicePrimaryCtxRetain(self.device))
        self.call(driver.cuCtxSetCurrent(self.context))
        self.name = self.call(driver.cuDeviceGetName(64, self.device)).decode().rstrip("\0")
        count = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        self.sms = int(self.call(driver.cuDeviceGetAttribute(count, self.device)))
        self.out = self.call(driver.cuMemAlloc(self.sms * 32 * 12))
        self.data = self.call(driver.cuMemAlloc(DATA_BYTES))
        self.call(driver.cuMemsetD8(self.data, 0, DATA_BYTES))

    def call(self, answer: tuple[Any, ...]) -> Any:
        """The result of a call of the driver without its error code."""
        error, *values = answer
        if int(error) != 0:
            raise RuntimeError(f"the driver says {error}")
        return values[0] if values else None

    def readings(self, cubin: bytes, threads: int, smem_bytes: int, ctas: int) -> Any:
        """The clocks of each launch, int64[launches, CTAs, warps, 3]."""
        driver = self.driver
        module = self.call(driver.cuModuleLoadData(cubin))
        function = self.call(driver.cuModuleGetFunction(module, b"probe"))
        limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self.call(driver.cuFuncSetAttribute(function, limit, smem_bytes))
        values = (np.array([int(self.out)], np.uint64), np.array([int(self.data)], np.uint64))
        pointers = np.array([one.ctypes.data for one in values], np.uint64)
        warps = threads // 32
        result = np.zeros((LAUNCHES, ctas, warps, 3), np.uint32)
        for number in range(-WARM_UPS, LAUNCHES):
            self.call(
                driver.cuLaunchKernel(
                    function, ctas, 1, 1, threads, 1, 1, smem_bytes, 0, pointers.ctypes.data, 0
                )
            )
            self.call(driver.cuCtxSynchronize())
            if number >= 0:
                one = result[number]
                self.call(driver.cuMemcpyDtoH(one.ctypes.data, self.out, one.nbytes))
        self.call(driver.cuModuleUnload(module))
        return result.astype(np.int64)


def measured(clocks: Any) -> dict[str, Any]:
    """Clocks between readings: `between` and `after` of each warpgroup, from the CTA's first reading."""
    first = clocks[..., 0].min(axis=2, keepdims=True)
    since = (clocks - first[..., None]) & 0xFFFFFFFF
    own = (clocks[..., 2] - clocks[..., 0]) & 0xFFFFFFFF
    warps = clocks.shape[2]
    groups = [range(start, min(start + 4, warps)) for start in range(0, warps, 4)]
    result: dict[str, Any] = {}
    for name, column in (("between", 1), ("after", 2)):
        if name == "between" and not clocks[..., 1].any():
            continue
        result[name] = [
            float(np.median(np.median(since[:, :, list(group), column].max(axis=2), axis=0)))
            for group in groups
        ]
    result["warp"] = float(np.median(np.median(own.max(axis=2), axis=0)))
    halves = np.median(own[: LAUNCHES // 3]), np.median(own[-LAUNCHES // 3 :])
    if abs(halves[0] / max(1, halves[1]) - 1) > 0.01:
        result["drift"] = [float(one) for one in halves]
    return result


def read(folder: Path) -> None:
    """Runs every probe of the folder, on all multiprocessors and, for copies, on one too."""
    gpu = Gpu()
    results: list[dict[str, Any]] = []
    for probe in json.loads((folder / INDEX).read_text()):
        cubin = (folder / probe["cubin"]).read_bytes()
        for ctas in (
            (gpu.sms, 1) if probe["name"].startswith(("bulk", "latency ldg")) else (gpu.sms,)
        ):
            row = {"name": probe["name"], "ctas": ctas, **probe["about"]}
            try:
                clocks = gpu.readings(cubin, probe["threads"], probe["smem_bytes"], ctas)
                row |= measured(clocks)
            except RuntimeError as error:
                row["error"] = str(error)
            results.append(row)
    clock = subprocess.run(
        ["nvidia-smi", "--query-gpu=clocks.sm,driver_version", "--format=csv,noheader"],
        capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    print(json.dumps({"gpu": gpu.name, "sms": gpu.sms, "clock": clock, "probes": results}))


def modelled(
    ptx: str, cubin: bytes, about: dict[str, Any], overrides: dict[str, float]
) -> list[float]:
    """Clocks from the CTA's first reading to the last one of each warpgroup, by the model."""
    from attn_mlir.runtime.emulator import Emulator
    from attn_mlir.runtime.timing import H200, Recorder, Replay, barrier_names, join, machine_code

    recorder = Recorder()
    emulator = Emulator(target="sm_90a", recording=recorder)
    out, data = np.zeros(32 * 12, np.uint8), np.zeros(1 << 20, np.uint8)
    emulator.launch(
        ptx, "probe", grid=(1, 1, 1), block=(about["threads"], 1, 1),
        shared_bytes=about["smem_bytes"], params=[emulator.map(out), emulator.map(data)],
    )  # fmt: skip
    joined = join(machine_code(cubin)["probe"], recorder.program)
    alone = {"copy_bytes": 90.0} if about["ctas"] == 1 else {}
    values = H200.at("nominal", alone | overrides)
    warps = Replay(joined, recorder.clusters[0], values, names=barrier_names()).run().warps
    begin = min(one.clocks[0] for one in warps if one.clocks)
    groups = range(0, len(warps), 4)
    return [
        max(one.clocks[-1] for one in warps[at : at + 4] if one.clocks) - begin for at in groups
    ]


def compare(folder: Path, results: Path, part: str, overrides: dict[str, float]) -> None:
    """Prints what was measured and what the model says of each warpgroup, and how they differ."""
    measured_rows = {
        (row["name"], row["ctas"]): row for row in json.loads(results.read_text())["probes"]
    }
    errors: list[float] = []
    for probe in json.loads((folder / INDEX).read_text()):
        for (name, ctas), row in measured_rows.items():
            if name != probe["name"] or "after" not in row or part not in name:
                continue
            stem = folder / probe["cubin"]
            ptx, cubin = stem.with_suffix(".ptx").read_text(), stem.read_bytes()
            clocks = modelled(ptx, cubin, {**probe, "ctas": ctas}, overrides)
            pairs = [(a, b) for a, b in zip(row["after"], clocks, strict=True) if a > 100]
            worst = max((b / a - 1 for a, b in pairs), key=abs, default=0.0)
            errors += [b / a - 1 for a, b in pairs]
            shown = " ".join(f"{a:7.0f}/{b:<7.0f}" for a, b in pairs)
            print(f"{name:34} {ctas:4} {worst:+7.1%}  {shown}", flush=True)
    if errors:
        print(f"mean error {np.abs(errors).mean():.1%}, worst {np.abs(errors).max():.1%}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", type=Path, metavar="DIR", help="assemble the probes to DIR")
    parser.add_argument("--read", type=Path, metavar="DIR", help="run the probes of DIR")
    parser.add_argument(
        "--compare", type=Path, nargs=2, metavar=("DIR", "JSON"), help="replay the probes of DIR"
    )
    parser.add_argument("--part", default="", help="only probes with this in their name")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="of constants")
    given = parser.parse_args()
    if sum(one is not None for one in (given.write, given.read, given.compare)) != 1:
        parser.error("pass one of --write, --read and --compare")
    if given.compare is not None:
        pairs = (text.partition("=")[::2] for text in given.set)
        folder, results = given.compare
        compare(folder, results, given.part, {name: float(value) for name, value in pairs})
    elif given.write is not None:
        write(given.write, given.part)
    else:
        read(given.read)
    return 0


if __name__ == "__main__":
    sys.exit(main())
