"""Traces: their clock, their names, and the file format that viewers read."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attn_mlir.errors import SpecError
from attn_mlir.runtime.emulator import DeadlockError, Emulator
from attn_mlir.runtime.emulator.trace import Names, Trace, chrome_trace, write_trace
from attn_mlir.runtime.emulator.trace.timeline import Track
from attn_mlir.validation.emulator.ptx_bench import module, run_module, tensor_map_bytes, wait

PRELUDE = """
    mov.u32 r60, %tid.x; mov.u32 r1, bar; mov.u32 r2, tile;
    mov.u64 rd20, map; cvta.param.u64 rd21, rd20; shr.u32 r61, r60, 5;
    setp.eq.u32 p1, r60, 0; setp.eq.u32 p2, r61, 1;
    @p1 mbarrier.init.shared::cta.b64 [r1], 1;
    fence.mbarrier_init.release.cluster; bar.sync 0;
"""
LOAD = """
    @!p1 bra ISSUED;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [r1], 8192;
    mov.u32 r3, 0;
    cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [r2], [rd21, {r3, r3}], [r1];
    ISSUED:
"""
SHARED = ".extern .shared .align 1024 .b8 tile[];\n"
BAR_OFFSET = 8192
WORK = "\n".join("    add.u32 r10, r10, 1;" for _ in range(1000))


def _loaded(emulator: Emulator, body: str, block: int = 64, grid: int = 1) -> Trace:
    """Run a kernel whose first warp loads a box of [32, 64] f32 into `tile`; its trace."""
    source = np.zeros((32, 64), np.float32)
    tmap = tensor_map_bytes(emulator.map(source), (64, 32), (256,), (64, 32), element=7)
    text = module(
        PRELUDE.replace("mov.u32 r1, bar;", f"mov.u32 r1, tile; add.u32 r1, r1, {BAR_OFFSET};")
        + LOAD
        + body,
        ".param .align 64 .b8 map[128]",
        before=SHARED,
    )
    try:
        run_module(
            text, [tmap], block=(block,), grid=(grid,), shared_bytes=8192 + 64, emulator=emulator
        )
    finally:
        assert emulator.trace is not None
        trace = emulator.trace
    return trace


def _slices(trace: Trace, row: int, category: str, cta: int = 0) -> list[tuple[int, int, str]]:
    return [
        (s.begin, s.end, s.name)
        for s in trace.slices
        if (s.track.cta, s.track.row, s.category) == (cta, row, category)
    ]


def check_format(data: dict[str, Any]) -> None:
    """What the trace event format asks for, as far as viewers depend on it.

    Complete events have a time and a length; those of one thread are nested or apart; flow arrows
    come in pairs and lie inside slices; every thread has a name.
    """
    assert data["displayTimeUnit"] in ("ms", "ns")
    stacks: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    named: set[tuple[int, int]] = set()
    flows: dict[int, list[str]] = defaultdict(list)
    last: dict[tuple[int, int], float] = {}
    slices: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in data["traceEvents"]:
        place = (event["pid"], event["tid"])
        assert all(isinstance(number, int) and number >= 0 for number in place)
        assert isinstance(event["name"], str) and event["name"]
        if event["ph"] == "M":
            assert event["name"] in (
                "process_name",
                "process_sort_index",
                "thread_name",
                "thread_sort_index",
            )
            if event["name"] == "thread_name":
                named.add(place)
        elif event["ph"] == "X":
            begin, end = round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000)
            assert 0 <= begin <= end and isinstance(event["cat"], str)
            assert begin >= last.get(place, 0), "slices of a thread come in order"
            last[place] = begin
            stack = stacks[place]
            while stack and stack[-1][1] <= begin:
                stack.pop()
            assert not stack or end <= stack[-1][1], f"{event} overlaps {stack[-1]}"
            stack.append((begin, end))
            slices[place].append((begin, end))
        else:
            assert event["ph"] in "sf" and (event["ph"] == "s" or event["bp"] == "e")
            flows[event["id"]].append(event["ph"])
            time = round(event["ts"] * 1000)
            assert any(b <= time < e for b, e in slices[place]), f"no slice for the arrow {event}"
    assert all(kinds == ["s", "f"] for kinds in flows.values())
    assert slices.keys() <= named


def test_a_wait_lasts_until_the_copy_has_landed() -> None:
    trace = _loaded(Emulator(trace=True), wait("r1", 0))
    ((begin, landed, name),) = _slices(trace, 100, "engine")
    assert name == "tensor 2d" and landed - begin == -(-8192 // 75)
    for warp in (0, 1):
        waits = [w for w in _slices(trace, warp, "wait") if "mbarrier" in w[2]]
        assert [(end, name) for _, end, name in waits] == [(landed, "wait mbarrier 0x2400")]
        assert waits[0][0] < landed
    assert [(a.source.row, a.source_time) for a in trace.arrows if a.source.row == 100] == [
        (100, landed)
    ] * 2


def test_who_comes_late_does_not_wait() -> None:
    trace = _loaded(Emulator(trace=True), f"@!p2 bra SHORT;\n{WORK}\nSHORT:\n{wait('r1', 0)}")
    assert [w for w in _slices(trace, 0, "wait") if "mbarrier" in w[2]]
    assert not [w for w in _slices(trace, 1, "wait") if "mbarrier" in w[2]]
    runs = _slices(trace, 1, "run")
    assert max(end - begin for begin, end, _ in runs) > 1000


def test_a_barrier_is_left_when_the_last_warp_comes() -> None:
    trace = _loaded(Emulator(trace=True), f"@!p2 bra SHORT;\n{WORK}\nSHORT:\nbar.sync 1;")
    ((begin, end, _),) = [w for w in _slices(trace, 0, "wait") if w[2] == "wait barrier 1"]
    assert end - begin > 900
    phases = _slices(trace, 201, "phase")
    assert [(n, e) for _, e, n in phases] == [("phase 0", end)]


def test_names_of_warps_and_barriers() -> None:
    names = Names({0: "loader", 1: "worker"}, {BAR_OFFSET: "tile full"}, [(0, 128, "acc")])
    assert names.of_column(127) == "acc" and names.of_column(128) == "column 128"
    data = chrome_trace(_loaded(Emulator(trace=names), wait("r1", 0)))
    threads = {e["args"]["name"] for e in data["traceEvents"] if e["name"] == "thread_name"}
    assert {"warp 0 loader", "warp 1 worker", "TMA load", "barrier: tile full"} <= threads
    events = [e for e in data["traceEvents"] if e["name"] == "wait tile full"]
    assert len(events) == 2 and "mbarrier.try_wait" in events[0]["args"]["ptx"]
    assert events[0]["args"]["line"] > 0


def test_the_format_of_the_file(tmp_path: Path) -> None:
    for schedule, seed in (("fair", 0), ("adversarial", 1), ("adversarial", 5)):
        emulator = Emulator(trace=True, schedule=schedule, seed=seed)  # type: ignore[arg-type]
        path = tmp_path / "trace.json"
        write_trace(_loaded(emulator, wait("r1", 0), grid=3), path)
        data = json.loads(path.read_text())
        check_format(data)
        kinds = {event.get("cat") for event in data["traceEvents"] if event["ph"] == "X"}
        assert kinds == {"run", "step", "wait", "engine", "phase"}
        assert data["otherData"]["kernel"] == "k" and data["otherData"]["steps"] > 0
    with pytest.raises(SpecError, match="cannot write .*trace.json"):
        write_trace(_loaded(Emulator(trace=True), ""), tmp_path / "none" / "trace.json")


def test_more_ctas_than_multiprocessors_start_when_one_is_free() -> None:
    trace = _loaded(Emulator(trace=True), wait("r1", 0), grid=150)
    first = min(cta.end for cta in trace.ctas[:148])
    assert all(cta.begin == 0 for cta in trace.ctas[:148])
    assert [cta.begin for cta in trace.ctas[148:]] == [first, first]
    assert len({cta.sm for cta in trace.ctas[:148]}) == 148


def test_a_launch_that_fails_leaves_its_trace() -> None:
    emulator = Emulator(trace=True)
    with pytest.raises(DeadlockError):
        _loaded(emulator, wait("r1", 0) + wait("r1", 1))
    assert emulator.trace is not None and _slices(emulator.trace, 100, "engine")
    check_format(chrome_trace(emulator.trace))


def test_a_trace_excludes_checkers() -> None:
    with pytest.raises(SpecError, match="together with checkers"):
        Emulator(trace=True, check="all")


def test_the_limit_stops_recording_and_says_so() -> None:
    trace = Trace(limit=1)
    for begin in (0, 1):
        trace.keep(Track(0, 0), begin, begin + 1, "run", "run", {})
        assert trace.truncated == (begin == 1)
    assert len(trace.slices) == 1 and chrome_trace(trace)["otherData"]["truncated"]
