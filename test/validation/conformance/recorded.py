"""Recorded cases: made in the peers' environment when missing, read, and run on the emulator."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from attn_mlir.bench.peers.environment import (
    PACKAGES,
    PACKAGES_WITHOUT_DEPENDENCIES,
    prepare,
    python,
)
from attn_mlir.errors import SpecError
from attn_mlir.runtime.emulator import Emulator
from attn_mlir.runtime.emulator.checkers import CheckError, Finding
from attn_mlir.validation.conformance.cases import Case, Combine
from attn_mlir.validation.conformance.kernel import Kernel, Known

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
RECORDS = ROOT / "build" / "conformance"
CHILD = "validation.conformance._peer"  # the folders are packages there, ours is not installed
SOURCES = (
    HERE / "_peer.py",
    HERE / "_recording.py",
    HERE / "_nvcc.py",
    HERE / "_cuda_runtime.c",
    HERE / "_triton_kernels.py",
    HERE / "_triton_launch.py",
    ROOT / "bench" / "peers" / "fa4_record.py",
    ROOT / "bench" / "peers" / "fa4_recorder.c",
)
_GUARD = re.compile(r"^@!?\S+\s+")
POISON = 0xFF  # of every byte that the case gives no value: NaN in each floating-point type
SILICON = "all,-unpromised"  # checkers of kernels that rest on what PTX does not promise
COMPILE_LIMIT_SECONDS = 3600

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Recorded:
    """What the peers' host code did for a case.

    Attributes:
      packages: version by name.
      launches: entry, grid, block, cluster, shared_bytes, params (bytes) and text of each.
      buffers: address, bytes, name and zeroed of each allocation.
    """

    case: Case
    packages: dict[str, str]
    launches: list[dict[str, Any]]
    buffers: list[dict[str, Any]]

    @property
    def ptx_lines(self) -> int:
        """Of all launches."""
        return sum(launch["text"].count("\n") + 1 for launch in self.launches)


@dataclass(frozen=True)
class Schedule:
    """A schedule of the emulator: fair, or adversarial by a seed."""

    kind: Literal["fair", "adversarial"]
    seed: int = 0

    @property
    def name(self) -> str:
        """`fair` or `adv3`."""
        return "fair" if self.kind == "fair" else f"adv{self.seed}"

    @staticmethod
    def named(name: str) -> Schedule:
        """The schedule of a name.

        Raises:
          ValueError: it is no name of one.
        """
        if name == "fair":
            return Schedule("fair")
        if name.startswith("adv") and name[3:].isdigit():
            return Schedule("adversarial", int(name[3:]))
        raise ValueError(f"schedule {name!r} is unknown: fair, adv0, adv1, ...")


@dataclass(frozen=True)
class Execution:
    """One run of all launches of a case.

    Attributes:
      seconds: of one core in the launches, parsing and translating the PTX included.
      arrays: the operands and what the kernels left in the outputs, by name.
    """

    seconds: float
    warp_instructions: int
    mma_count: int
    arrays: dict[str, Array]


def stamp_of(case: Case) -> str:
    """Changes whenever a record has to be made again."""
    digest = hashlib.sha256(repr(case).encode())
    programs, own = HERE / "programs", ()
    if isinstance(case, Kernel):
        launchers = sorted((programs / "launchers").glob("*.cu")) if case.is_nvcc else ()
        own = (programs / f"{case.module}.py", *launchers)
    for path in (*SOURCES, *own):
        digest.update(path.read_bytes())
    digest.update(repr((PACKAGES, PACKAGES_WITHOUT_DEPENDENCIES)).encode())
    return digest.hexdigest()


def recorded(case: Case, tell: Callable[[str], None], folder: Path = RECORDS) -> Recorded:
    """The record of a case, made on the spot unless it is in the folder already.

    Raises:
      RuntimeError: the package could not be compiled or recorded; the end of what it said.
    """
    record = folder / f"{case.name}.json"
    stamp = folder / f"{case.name}.stamp"
    wanted = stamp_of(case)
    if not (record.exists() and stamp.exists() and stamp.read_text() == wanted):
        prepare(tell)
        tell(f"compiling {case.name} with {case.package}")
        command = [str(python()), "-m", CHILD, f"--out={folder.resolve()}", case.name]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
            capture_output=True,
            text=True,
            timeout=COMPILE_LIMIT_SECONDS,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{case.package} failed:\n{done.stderr.strip()[-4000:]}")
        stamp.write_text(wanted)
    data: dict[str, Any] = json.loads(record.read_text())
    launches = [
        {
            **launch,
            "text": (folder / launch["ptx"]).read_text(),
            "params": [bytes.fromhex(value) for value in launch["params"]],
        }
        for launch in data["launches"]
    ]
    if isinstance(case, Kernel):
        mend(launches, case.mended)
    return Recorded(case, data["packages"], launches, data["buffers"])


def mend(launches: Sequence[dict[str, Any]], mended: Iterable[tuple[str, str]]) -> None:
    """Replace what a case mends in the PTX of its launches.

    Raises:
      SpecError: no launch has what is to be mended.
    """
    for pattern, replacement in mended:
        count = 0
        for launch in launches:
            launch["text"], found = re.subn(pattern, replacement, launch["text"])
            count += found
        if not count:
            raise SpecError(f"nothing is to be mended: no PTX of the case has {pattern!r}")


def unknown_findings(findings: Iterable[Finding], known: Sequence[Known]) -> list[Finding]:
    """The findings that are none of the known ones."""
    return [
        found
        for found in findings
        if not any(
            found.check == one.check
            and _GUARD.sub("", found.current.text).startswith(one.instruction)
            for one in known
        )
    ]


def _write(
    buffers: Sequence[Mapping[str, Any]], memory: Mapping[str, Array], write: Mapping[str, Any]
) -> None:
    """A copy to the device, or a fill, that the host code asks for before a launch."""
    value = (
        bytes.fromhex(write["bytes"])
        if "bytes" in write
        else bytes([write["byte"]]) * write["count"]
    )
    for buffer in buffers:
        at = write["write"] - buffer["address"]
        if 0 <= at and at + len(value) <= buffer["bytes"]:
            memory[buffer["name"]][at : at + len(value)] = np.frombuffer(value, np.uint8)
            return
    raise SpecError(
        f"the host code writes {len(value)} B to {write['write']:#x}, which no tensor holds"
    )


def execute(
    record: Recorded,
    operands: dict[str, Array],
    schedule: Schedule,
    check: str = "none",
    *,
    native: bool = True,
    strict: bool = False,
) -> Execution:
    """Run a record on a new emulator.

    Args:
      operands: the first bytes of each named buffer, outputs included; what is not named here is
        poison, or zero where the peer asked for zeros.
      check: which checkers watch. native: with native arithmetic, where it can be had.
      strict: what the case is known for is an error too, with all else that is found.

    Raises:
      SpecError: an operand that no launch uses, or one that is larger than the peer's.
      LaunchError: the emulator refuses the kernel or finds a fault in it, or a checker finds what the case is not known for.
    """
    known = record.case.known if isinstance(record.case, Combine | Kernel) and not strict else ()
    emulator = Emulator(
        record.case.target if isinstance(record.case, Kernel) else "sm_100a",
        schedule.kind,
        schedule.seed,
        check=check,
        check_mode="collect" if known or strict else "raise",
        native=native,
    )
    memory: dict[str, Array] = {}
    for buffer in record.buffers:
        fill = 0 if buffer["zeroed"] else POISON
        memory[buffer["name"]] = np.full(buffer["bytes"], fill, np.uint8)
        emulator.map(memory[buffer["name"]], buffer["address"])
    arrays: dict[str, Array] = {}
    for name, value in operands.items():
        if name not in memory or value.nbytes > memory[name].size:
            sizes = {known: held.size for known, held in memory.items()}
            raise SpecError(f"operand {name} of {value.nbytes} B, the launches use {sizes}")
        part = memory[name][: value.nbytes]
        part[:] = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        arrays[name] = part.view(value.dtype).reshape(value.shape)
    instructions, products = 0, 0
    begin = time.process_time()
    for launch in record.launches:
        for write in launch.get("writes", ()):
            _write(record.buffers, memory, write)
        stats = emulator.launch(
            launch["text"],
            launch["entry"],
            grid=launch["grid"],
            block=launch["block"],
            cluster=launch["cluster"],
            shared_bytes=launch["shared_bytes"],
            params=launch["params"],
        )
        strange = unknown_findings(emulator.findings, known)
        if strange:
            raise CheckError(strange)
        instructions += stats.warp_instructions
        products += stats.mma_count
    return Execution(time.process_time() - begin, instructions, products, arrays)
