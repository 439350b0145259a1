"""CTAs that wait for each other through what a driver gives to cooperative launches (%envreg1 and 2).

PTX ISA, special registers: `%envreg<32>` are set by the driver, which alone says what they hold.
"""

from __future__ import annotations

import numpy as np
import pytest

from attn_mlir.runtime.emulator import Emulator
from attn_mlir.validation.emulator.ptx_bench import module

# Thread 0 of each CTA counts up the word behind the size; the last to come lets all others go on.
BODY = """
    mov.u32 r1, %envreg2; mov.u32 r2, %envreg1; mov.b64 rd1, {r1, r2};
    setp.eq.u64 p2, rd1, 0; @p2 trap;
    ld.param.u64 rd2, [out]; mov.u32 r3, %ctaid.x; mov.u32 r4, %nctaid.x; mov.u32 r5, %tid.x;
    mul.wide.u32 rd3, r3, 4; add.u64 rd3, rd2, rd3; add.u32 r6, r3, 1;
    setp.ne.u32 p1, r5, 0; @p1 bra MEET;
    st.global.u32 [rd3], r6;
    <fence> fence.acq_rel.gpu;
    atom.add.relaxed.gpu.global.u32 r7, [rd1+4], 1;
    TURN: ld.acquire.gpu.global.u32 r8, [rd1+4]; setp.lt.u32 p3, r8, r4; @p3 bra TURN;
    MEET: bar.sync 0;
    sub.u32 r9, r4, r6; mul.wide.u32 rd4, r9, 4; add.u64 rd4, rd2, rd4; ld.global.u32 r10, [rd4];
    mul.wide.u32 rd5, r4, 4; add.u64 rd5, rd3, rd5; @!p1 st.global.u32 [rd5], r10;
"""


@pytest.mark.parametrize(
    ("schedule", "seed"), [("fair", 0), ("adversarial", 1), ("adversarial", 2)]
)
def test_the_grid_meets(schedule: str, seed: int) -> None:
    text = module(BODY.replace("<fence>", ""), ".param .u64 out")
    emulator = Emulator(schedule=schedule, seed=seed, check="all")  # type: ignore[arg-type]
    for _ in range(2):  # each launch begins with a barrier of 0
        out = np.zeros(16, np.uint32)
        emulator.launch(text, "k", grid=(8,), block=(64,), params=[emulator.map(out)])
        assert (out[8:] == np.arange(8, 0, -1)).all()


def test_a_barrier_of_the_grid_that_releases_nothing_is_a_race() -> None:
    text = module(BODY.replace("<fence> fence.acq_rel.gpu;", ""), ".param .u64 out")
    emulator = Emulator(check="all", check_mode="collect")
    out = np.zeros(16, np.uint32)
    emulator.launch(text, "k", grid=(8,), block=(64,), params=[emulator.map(out)])
    assert {finding.check for finding in emulator.findings} == {"race"}
