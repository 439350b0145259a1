"""setmaxnreg: warpgroups that give registers to others, and a CTA that has too few."""

import numpy as np
import pytest

from attn_mlir.runtime.emulator import DeadlockError
from attn_mlir.validation.emulator.ptx_bench import module, run_module

GROUP = 128


def kernel(directives: str, counts: list[int]) -> str:
    """Warpgroup i asks for counts[i]; the first one gives and the others take."""
    groups = "\n".join(
        f"G{i}: setmaxnreg.{'inc' if i else 'dec'}.sync.aligned.u32 {count}; bra STORE;"
        for i, count in enumerate(counts)
    )
    body = f"""
    mov.u32 r60, %tid.x; shr.u32 r1, r60, 7;
    TABLE: .branchtargets {", ".join(f"G{i}" for i in range(len(counts)))};
    brx.idx r1, TABLE;
{groups}
    STORE:
    ld.param.u64 rd1, [out]; mad.wide.u32 rd1, r60, 4, rd1; st.global.b32 [rd1], r60;
    """
    return module(body, ".param .u64 out", directives=directives, target="sm_90a")


def run(directives: str, counts: list[int], seed: int = 0) -> np.ndarray:
    out = np.zeros(GROUP * len(counts), np.uint32)
    run_module(
        kernel(directives, counts),
        [out],
        block=(out.size, 1, 1),
        target="sm_90a",
        schedule="adversarial",
        seed=seed,
    )
    return out


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("directives", "counts"),
    [
        (".maxnreg 128", [64, 192]),
        (".reqntid 384, 1, 1\n.minnctapersm 1", [24, 240, 240]),  # 168 of each thread
        ("", [128, 232]),  # no count at the entry: ptxas ignores setmaxnreg
    ],
)
def test_what_was_given_is_taken(directives: str, counts: list[int], seed: int) -> None:
    assert (run(directives, counts, seed) == np.arange(GROUP * len(counts))).all()


@pytest.mark.parametrize(
    ("directives", "counts"),
    [
        (".maxnreg 128", [64, 200]),
        (".reqntid 384, 1, 1\n.minnctapersm 1", [24, 240, 248]),
        (".maxnreg 128\n.minnctapersm 1", [112, 152]),
    ],
)
def test_more_than_the_cta_has_is_never_given(directives: str, counts: list[int]) -> None:
    with pytest.raises(
        DeadlockError, match=r"more registers of each thread; \d+ are free in its CTA"
    ):
        run(directives, counts)
