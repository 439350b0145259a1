"""A launch in several processes: the same memory, counts and errors as in one, and nothing left behind."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attn_mlir.errors import LaunchError, SpecError
from attn_mlir.runtime.emulator import DeadlockError, Emulator, KernelFault
from attn_mlir.runtime.emulator.core import parallel
from attn_mlir.runtime.emulator.ptx.parser import parse
from attn_mlir.validation.emulator.ptx_bench import module

pytestmark = pytest.mark.skipif(not parallel.can_fork(), reason="needs fork")

PARENT, SESSION = 1, 3  # fields of /proc/PID/stat after the name

INDEX = "mov.u32 r1, %ctaid.x; mov.u32 r2, %tid.x; mad.lo.u32 r3, r1, 32, r2; ld.param.u64 rd1, [out]; mad.wide.u32 rd2, r3, 4, rd1;"
DOUBLE = module(
    f"{INDEX} ld.global.u32 r4, [rd2]; add.u32 r4, r4, r4; add.u32 r4, r4, r1; st.global.u32 [rd2], r4;",
    ".param .u64 out",
)


def launch(text: str, out: np.ndarray, jobs: int, grid: int = 7, **options: object):
    emulator = Emulator(jobs=jobs, **options)  # type: ignore[arg-type]
    address = emulator.map(out)
    return emulator.launch(text, "k", grid=(grid, 1, 1), block=(32, 1, 1), params=[address])


@pytest.mark.parametrize("jobs", [1, 2, 3, 16])
@pytest.mark.parametrize("schedule", ["fair", "adversarial"])
def test_every_cluster_runs_once(jobs: int, schedule: str) -> None:
    out = np.arange(7 * 32, dtype=np.uint32)
    stats = launch(DOUBLE, out, jobs, schedule=schedule)
    assert (out == 2 * np.arange(7 * 32) + np.arange(7 * 32) // 32).all()
    alone = launch(DOUBLE, out.copy(), 1)
    assert (stats.warp_instructions, stats.mma_count) == (alone.warp_instructions, 0)


def test_the_emulator_goes_on_in_its_own_memory() -> None:
    out = np.ones(64, np.uint32)
    emulator = Emulator(jobs=2)
    address = emulator.map(out)
    for _ in range(3):
        emulator.launch(DOUBLE, "k", grid=(2, 1, 1), block=(32, 1, 1), params=[address])
    assert (out[:32] == 8).all() and (out[32:] == 15).all()
    out[:] = 0
    assert not emulator.memory.view(address, 256).any()


def test_views_of_one_array_stay_one() -> None:
    both = np.zeros((64, 2), np.uint32)
    emulator = Emulator(jobs=2)
    source, target = emulator.map(both[:, 0]), emulator.map(both[:, 1])
    both[:, 0] = np.arange(64)
    text = module(
        f"""{INDEX} ld.param.u64 rd3, [source]; mad.wide.u32 rd4, r3, 8, rd3;
        mad.wide.u32 rd2, r3, 8, rd1; ld.global.u32 r4, [rd4]; st.global.u32 [rd2], r4;""",
        ".param .u64 out, .param .u64 source",
    )
    emulator.launch(text, "k", grid=(2, 1, 1), block=(32, 1, 1), params=[target, source])
    assert (both == np.arange(64)[:, None]).all()


def test_read_only_arrays_stay_read_only() -> None:
    out = np.zeros(64, np.uint32)
    out.flags.writeable = False
    with pytest.raises(KernelFault, match="read-only"):
        launch(DOUBLE, out, 2, grid=2)


def test_a_fault_comes_back_whole_and_ends_the_others() -> None:
    text = module(
        f"""{INDEX} st.global.u32 [rd2], r1;
        setp.ne.u32 p1, r1, 5;
        @p1 bra FOREVER;
        st.global.u32 [rd2 + 1048576], r1;
        ret;
        FOREVER:
        setp.eq.u32 p2, r1, 4; @!p2 bra END;
        SPIN: bra SPIN;
        END:""",
        ".param .u64 out",
    )
    out = np.full(7 * 32, 99, np.uint32)
    begin, before = time.monotonic(), living(PARENT, os.getpid())
    with pytest.raises(KernelFault, match=r"cta \(5,0,0\) warp 0") as caught:
        launch(text, out, 2)
    assert time.monotonic() - begin < 20
    assert caught.value.kind == "out-of-bounds"
    assert "rd2 + 1048576" in str(caught.value) and caught.value.line > 0
    assert (out[5 * 32 : 6 * 32] == 5).all(), "what was written before the fault is there"
    assert living(PARENT, os.getpid()) == before


def test_a_deadlock_lists_the_warps() -> None:
    text = module(
        """.shared .b64 bar; mov.u32 r1, bar; mbarrier.init.shared.b64 [r1], 1;
        WAIT: mbarrier.try_wait.parity.shared.b64 p1, [r1], 0; @!p1 bra WAIT;""",
        ".param .u64 out",
    )
    with pytest.raises(DeadlockError) as caught:
        launch(text, np.zeros(1, np.uint32), 2)
    assert caught.value.waiting


def test_a_process_that_dies_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(parallel, "_packed", die)
    with pytest.raises(LaunchError, match="died before it was done"):
        launch(DOUBLE, np.zeros(7 * 32, np.uint32), 2)


@pytest.mark.parametrize(
    ("body", "divisible"),
    [
        ("atom.global.add.u32 r1, [rd1], 1;", False),
        ("red.add.u32 [rd1], 1;", False),
        ("red.shared.add.u32 [r1], 1;", True),
        ("ld.acquire.gpu.global.u32 r1, [rd1];", False),
        ("ld.volatile.u32 r1, [rd1];", False),
        ("st.release.gpu.global.u32 [rd1], r1;", False),
        ("ld.volatile.shared.u32 r1, [r1];", True),
        ("ld.global.nc.u32 r1, [rd1]; st.global.u32 [rd1], r1;", True),
        ("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [rd1], [r1], 16;", False),
        (
            "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [rd1, {r1, r2}], [r3];",
            False,
        ),
        (
            "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32 [r1], [r2], 16, [r3];",
            True,
        ),
        ("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [rd1, {r1, r2}], [r3];", True),
    ],
)
def test_which_kernels_are_divided(body: str, divisible: bool) -> None:
    assert parallel.is_divisible(parse(module(body)).kernels["k"]) is divisible


def test_atomics_of_all_ctas_count() -> None:
    text = module(
        "ld.param.u64 rd1, [out]; red.global.add.u32 [rd1], 1; mov.u32 r9, 0;", ".param .u64 out"
    )
    out = np.zeros(1, np.uint32)
    launch(text, out, 4, grid=64)
    assert out[0] == 64 * 32


def test_jobs_must_be_positive() -> None:
    with pytest.raises(SpecError, match="jobs must be at least 1, got 0"):
        Emulator(jobs=0)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_is_left_behind(how: signal.Signals) -> None:
    script = textwrap.dedent(
        """
        import signal, sys
        import numpy as np
        from attn_mlir.runtime.emulator import Emulator
        signal.alarm(120)  # whatever becomes of the test
        signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's `&` takes away
        emulator = Emulator(jobs=2)
        address = emulator.map(np.zeros(256, np.uint32))
        text = sys.stdin.read()
        emulator.launch(text, "k", grid=(4, 1, 1), block=(32, 1, 1), params=[address])
        """
    )
    text = module(f"{INDEX} SPIN: add.u32 r4, r4, 1; bra SPIN;", ".param .u64 out")
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
    ) as process:
        try:
            assert process.stdin is not None
            process.stdin.write(text)
            process.stdin.close()
            eventually(lambda: len(living(SESSION, process.pid)) == 3)
            process.send_signal(how)
            assert process.wait(60) != 0
            eventually(lambda: not living(SESSION, process.pid))
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def eventually(holds: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until something is so, and fail when that takes too long."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_interrupt_while_processes_start_waits_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    start = parallel._start  # pyright: ignore[reportPrivateUsage]

    def interrupted(*arguments: Any) -> tuple[int, int]:
        signal.raise_signal(signal.SIGINT)
        reader, process = start(*arguments)
        started.append(process)
        return reader, process

    monkeypatch.setattr(parallel, "_start", interrupted)
    before = living(PARENT, os.getpid())
    assert threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            launch(DOUBLE, np.zeros(7 * 32, np.uint32), 3)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert len(started) == 3
    assert living(PARENT, os.getpid()) == before


def living(field: int, number: int) -> list[str]:
    """Processes that are no zombies and have this number in a field of /proc/PID/stat."""
    result: list[str] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[field]) == number and fields[0] != "Z":
            result.append(stat.parent.name)
    return sorted(result)
