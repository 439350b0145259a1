"""Stages inside products on the emulator: every element judged, and the same bits as without."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.reference import attention_f64, attention_yardstick, compare
from attn_mlir.validation.numerics.latent import E4M3, LatentProblem, NarrowRope, RowFactors
from attn_mlir.validation.numerics.mha_cases import Case, Inputs, Schedule
from attn_mlir.validation.numerics.mha_check import TARGET, launch
from attn_mlir.validation.numerics.stored import Form

pytestmark = pytest.mark.slow

Bits = tuple[bytes, bytes]


class Problem(NamedTuple):
    """A causal problem and options of its kernels."""

    case: Case
    options: tuple[tuple[str, Any], ...] = ()

    def bits(self, schedule: Schedule, **stages: Any) -> Bits:
        """O and LSE of the kernel with these stages; every element is judged."""
        case = self.case
        spec = am.mha(
            heads=case.heads,
            kv_heads=case.kv_heads,
            head_dim=case.head_dim,
            dtype=case.dtype,
            mask=am.causal(),
            **dict(self.options),
            **stages,
        )
        data, truth, yardstick = expected(case)
        o, lse, _ = launch(am.load(am.compile(spec, target=TARGET)), data, schedule)
        verdict = compare(o, lse, truth, yardstick)
        assert verdict.ok, str(verdict)
        return o.tobytes(), lse.tobytes()


@functools.cache
def expected(case: Case) -> tuple[Inputs, Any, Any]:
    data = case.inputs()
    operands: Any = (data.q, data.k, data.v)
    mask = am.causal()
    return data, attention_f64(*operands, mask=mask), attention_yardstick(*operands, mask=mask)


NARROW = Problem(Case(128, "bf16", "causal", 129, 257, 1))
WIDE = Problem(Case(256, "f16", "causal", 77, 300, 1))
LOOPING = Problem(Case(128, "f16", "causal", 300, 300, 4), (("tile_order", "persistent"),))
SMALL = Problem(Case(256, "bf16", "causal", 77, 77, 1), (("tile_order", "persistent"),))


@functools.cache
def plain(problem: Problem) -> Bits:
    return problem.bits(Schedule("fair"))


@pytest.mark.parametrize(
    ("problem", "stages"),
    [
        pytest.param(NARROW, {"num_qk_stages": 2}, id="keys in 2"),
        pytest.param(NARROW, {"num_pv_stages": 2}, id="P in 2"),
        pytest.param(NARROW, {"num_pv_stages": 4}, id="P in 4"),
        pytest.param(NARROW, {"num_qk_stages": 2, "num_pv_stages": 4}, id="both"),
        pytest.param(NARROW, {"ordered_softmax": True, "num_pv_stages": 2}, id="in turn"),
        pytest.param(SMALL, {"num_pv_stages": 2}, id="P of 64 columns in 2"),
        pytest.param(
            LOOPING, {"num_qk_stages": 2, "ordered_softmax": True}, id="persistent, in turn"
        ),
        pytest.param(WIDE, {"num_qk_stages": 2}, id="wide keys in 2"),
        pytest.param(WIDE, {"num_qk_stages": 4}, id="wide keys in 4"),
    ],
)
@pytest.mark.long("wide keys*", "persistent, in turn", "P in 2", "keys in 2", "P of *")
def test_stages_change_no_bit(problem: Problem, stages: dict[str, Any]) -> None:
    assert problem.bits(Schedule("adversarial", 3), **stages) == plain(problem)


LATENT = LatentProblem((130,), (140,), sizes=(128, 64, 64), options={"mask": am.causal()})
LATENT_CASES = {
    "rope in a ring of its own": (
        LATENT, {"num_qk_stages": 2, "num_pv_stages": 2, "query_tiles": 2},
    ),
    "one query tile": (LATENT, {"num_qk_stages": 2, "query_tiles": 1}),
    "rope in a part of nope": (
        dataclasses.replace(LATENT, sizes=(192, 64, 64)),
        {"num_qk_stages": 2, "query_tiles": 1},
    ),
    "rope in parts": (
        dataclasses.replace(LATENT, sizes=(128, 128, 64), dtype=np.float16),
        {"num_qk_stages": 4, "query_tiles": 1},
    ),
    "pages of rope": (
        dataclasses.replace(LATENT, cache=Form(64)),
        {"num_qk_stages": 2, "ordered_softmax": True, "query_tiles": 2},
    ),
    "rope that is widened": (
        dataclasses.replace(LATENT, rope=NarrowRope()),
        {"num_qk_stages": 2, "num_pv_stages": 2, "query_tiles": 2},
    ),
    "all of 8 bits": (
        dataclasses.replace(LATENT, dtype=E4M3, factors=RowFactors()),
        {"num_qk_stages": 2, "num_pv_stages": 4, "query_tiles": 2},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LATENT_CASES)
@pytest.mark.long("one query tile", "rope in*part*", "pages of rope", "*widened", "all of 8 bits")
def test_stages_of_latent_attention_change_no_bit(name: str) -> None:
    problem, stages = LATENT_CASES[name]
    kept = {"query_tiles": stages["query_tiles"]}
    plain = dataclasses.replace(problem, call=kept).run()
    device = {"schedule": "adversarial", "seed": 3}
    staged = dataclasses.replace(problem, call=stages, device=device).run()
    assert [x.tobytes() for x in staged] == [x.tobytes() for x in plain]
