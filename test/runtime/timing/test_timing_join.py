"""The join of a recorded run with machine code, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attn_mlir.errors import SpecError, TargetError
from attn_mlir.runtime.emulator import Emulator
from attn_mlir.runtime.timing import (
    H200,
    JoinError,
    Recorder,
    assemble_with_lines,
    chip_for,
    compose,
    join,
    machine_code,
    resident_ctas,
)
from attn_mlir.runtime.timing.join import Walk, post_dominators
from attn_mlir.runtime.timing.record import wavefronts
from attn_mlir.tools import find_ptxas, run_tool
from attn_mlir.validation.emulator.timed_kernels import kernel, needs_tools

LOOP = """
mov.u32 %r8, 0;
mov.f32 %f0, %f70;
AGAIN:
.pragma "nounroll";
ex2.approx.ftz.f32 %f0, %f0;
st.shared.f32 [%r4], %f0;
add.u32 %r8, %r8, 1;
setp.lt.u32 %p0, %r8, %r1;
@%p0 bra AGAIN;
"""


def _recorded(ptx: str, limit: int = 100_000) -> Recorder:
    recorder = Recorder(limit=limit)
    emulator = Emulator(target="sm_90a", recording=recorder)
    emulator.launch(
        ptx, "kernel", grid=(3, 1, 1), block=(128, 1, 1), shared_bytes=1024,
        params=[emulator.map(np.zeros(512, np.uint8))],
    )  # fmt: skip
    return recorder


@pytest.mark.ptxas
def test_each_warp_issues_as_many_turns_as_it_ran() -> None:
    needs_tools()
    ptx = kernel(LOOP)
    recorder = _recorded(ptx)
    function = machine_code(assemble_with_lines(ptx, "sm_90a").cubin)["kernel"]
    joined = join(function, recorder.program)
    for warp in recorder.clusters[0].warps:
        walk = Walk(joined, warp)
        issued = [one.instruction.base for one in walk]
        assert issued.count("MUFU") == max(1, warp.index)
        assert not walk.is_cut
        assert not walk.unmatched


def test_only_the_chosen_clusters_run() -> None:
    recorder = _recorded(kernel(LOOP))
    assert recorder.count == 3
    assert [record.ctas for record in recorder.clusters] == [[(0, 0, 0)]]


def test_a_record_stops_at_its_limit() -> None:
    recorder = Recorder(limit=50)
    emulator = Emulator(target="sm_90a", recording=recorder)
    with pytest.raises(Exception, match="limit"):
        emulator.launch(
            kernel(LOOP), "kernel", grid=(1, 1, 1), block=(128, 1, 1), shared_bytes=1024,
            params=[emulator.map(np.zeros(512, np.uint8))],
        )  # fmt: skip
    assert recorder.reached_limit
    assert not recorder.clusters[0].is_complete


@pytest.mark.ptxas
def test_code_without_lines_is_refused(tmp_path: Path) -> None:
    needs_tools()
    ptx = kernel(LOOP)
    source, cubin = tmp_path / "k.ptx", tmp_path / "k.cubin"
    source.write_text(ptx)
    run_tool([find_ptxas(), "-arch=sm_90a", source, "-o", cubin])
    function = machine_code(cubin.read_bytes())["kernel"]
    with pytest.raises(JoinError, match="-lineinfo"):
        join(function, _recorded(ptx).program)


def test_a_recording_excludes_checkers() -> None:
    with pytest.raises(SpecError, match="recording excludes"):
        Emulator(target="sm_90a", recording=Recorder(), check="all")


def test_post_dominators_of_a_diamond_and_a_loop() -> None:
    assert post_dominators([[1, 2], [3], [3], []]) == [3, 3, 3, -1]
    assert post_dominators([[1], [1, 2], []]) == [1, 2, -1]


def test_bank_conflicts_are_counted_in_wavefronts() -> None:
    lanes = np.arange(32)
    assert wavefronts(4 * lanes, 4) == 1
    assert wavefronts(8 * lanes, 4) == 2
    assert wavefronts(128 * lanes, 4) == 32
    assert wavefronts(0 * lanes, 4) == 1
    assert wavefronts(16 * lanes, 16) == 4


def test_waves_of_a_grid() -> None:
    values = H200.at("nominal")
    one = compose([1000.0] * 132, chip=H200, values=values, cluster_ctas=1, resident=1)
    two = compose([1000.0] * 133, chip=H200, values=values, cluster_ctas=1, resident=1)
    assert (one.waves, two.waves) == (1, 2)
    assert two.clocks - one.clocks == pytest.approx(1000 + values["cta_latency"])
    assert one.busy == 1.0
    assert two.busy == pytest.approx(133 / 264)


@pytest.mark.parametrize(
    ("threads", "smem_bytes", "registers", "count"),
    [(128, 0, 0, 16), (384, 200 << 10, 168, 1), (384, 100 << 10, 80, 2), (256, 0, 255, 1)],
)
def test_ctas_that_fit(threads: int, smem_bytes: int, registers: int, count: int) -> None:
    found = resident_ctas(H200, threads=threads, smem_bytes=smem_bytes, registers=registers)
    assert found == count


def test_an_unknown_chip_and_an_unknown_constant_are_refused() -> None:
    with pytest.raises(TargetError, match="no model of time for sm_80"):
        chip_for("sm_80")
    with pytest.raises(TargetError, match="no constant warp_speed"):
        H200.at("low", {"warp_speed": 9})


def test_ranges_hold_their_values() -> None:
    for name, one in H200.constants.items():
        ends = (one.low, one.high)
        assert min(ends) <= one.nominal <= max(ends), name
