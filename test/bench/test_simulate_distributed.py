"""The simulation: parts against hand calculations, schemes against closed form and measurements."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attn_mlir.bench import predict_distributed as predictions
from attn_mlir.bench.ranks.events import (
    Clock,
    Countdown,
    Event,
    Flow,
    Multiprocessors,
    Port,
    Process,
)
from attn_mlir.bench.ranks.measured import measured_cells
from attn_mlir.bench.simulate_distributed import NCCL_SMS, Setting, kernel_seconds, simulate
from attn_mlir.errors import SpecError
from attn_mlir.parallel import GPUS, SCHEMES, Links, Problem, plan_parallel
from attn_mlir.parallel.schemes import predict

ROOT = Path(__file__).resolve().parents[2]
H200 = GPUS["H200"]


def ends(clock: Clock, **events: Event) -> dict[str, float]:
    """When each event happens."""
    found: dict[str, float] = {}
    for name, event in events.items():
        event.then(lambda name=name: found.__setitem__(name, clock.now))
    clock.run()
    return found


def test_processes_wait_for_time_and_events() -> None:
    clock, both = Clock(), Countdown(2)

    def waiting(seconds: float) -> Process:
        yield seconds
        both.one()
        yield both

    assert ends(clock, a=clock.start(waiting(2.0)), b=clock.start(waiting(5.0))) == {
        "a": 5.0,
        "b": 5.0,
    }


def test_flows_share_a_port() -> None:
    """A flow of 100 bytes is alone for 2 s, then shares 10 bytes/s with a flow of 30 bytes."""
    clock, shared = Clock(), Port(10.0)
    first = Flow(clock, 100.0, (shared, Port(1000.0)))
    found: dict[str, Event] = {"first": first}
    clock.after(2.0, lambda: found.update(second=Flow(clock, 30.0, (shared,))))
    times = ends(clock, first=first)
    assert times == {"first": pytest.approx(13.0)} and found["second"].is_over


def test_the_narrowest_port_decides() -> None:
    clock = Clock()
    assert ends(clock, x=Flow(clock, 12.0, (Port(6.0), Port(4.0)))) == {"x": 3.0}


def test_nccl_waits_for_attention_that_holds_all() -> None:
    clock = Clock()
    sms = Multiprocessors(clock, 132, 0)
    assert ends(clock, kernel=sms.attend(132 * 3.0), granted=sms.take(16)) == {
        "kernel": 3.0,
        "granted": 3.0,
    }


def test_a_margin_lets_nccl_begin() -> None:
    clock = Clock()
    sms = Multiprocessors(clock, 132, 32)
    assert ends(clock, kernel=sms.attend(300.0), granted=sms.take(32)) == {
        "kernel": 3.0,
        "granted": 0.0,
    }


def test_attention_takes_what_nccl_gives_back() -> None:
    """100 of 132 for 1 s, then all."""
    clock = Clock()
    sms = Multiprocessors(clock, 132, 0)
    sms.take(32)
    kernel = sms.attend(100.0 + 2 * 132)
    clock.after(1.0, lambda: sms.release(32))
    assert ends(clock, kernel=kernel) == {"kernel": pytest.approx(3.0)}


def test_tiles_of_a_kernel() -> None:
    """512 rows are 4 tiles on 3 multiprocessors: 512 and 384 keys alone, 256 and 128 on one."""
    assert kernel_seconds(512, 512, 1, True, 1.0, 3, 0) == 512
    assert kernel_seconds(512, 512, 1, True, 1.0, 1, 10) == 512 + 384 + 256 + 128 + 40
    assert kernel_seconds(512, 1000, 1, False, 1.0, 3, 0) == 2 * 1024


def setting(**options: Any) -> Setting:
    given: dict[str, Any] = {"length": 2**17, "heads": 64, "kv_heads": 8, "ranks": 8}
    problem = Problem(**{**given, **options})
    return Setting(problem, H200, Links(H200.intra_bandwidth, 45e9))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("ranks", [2, 8, 32])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_agrees_with_the_closed_form(scheme: str, ranks: int, training: bool) -> None:
    """The simulation of a flat ring between nodes hides some messages that the closed form adds."""
    s = setting(ranks=ranks, is_training=training)
    planned = predict(scheme, s.problem, s.gpu, s.links)
    if not planned.is_possible:
        return
    found = simulate(scheme, s)
    near = 0.12 if scheme == "ring-nccl" and ranks > 8 else 0.04
    assert found.seconds == pytest.approx(planned.seconds, rel=near)
    assert planned.limit <= found.seconds


@pytest.mark.parametrize("scheme", ["ring-nccl", "gather", "2d"])
def test_a_faster_link_is_not_slower(scheme: str) -> None:
    s = setting(ranks=16)
    faster = replace(s, links=Links(800e9, 90e9))
    assert simulate(scheme, faster).seconds < simulate(scheme, s).seconds


def test_a_margin_hides_messages() -> None:
    together = simulate("ring-nccl", setting(ranks=16, sm_margin=NCCL_SMS))
    in_turn = simulate("ring-nccl", setting(ranks=16))
    assert together.seconds < in_turn.seconds and together.attention > in_turn.attention


def test_what_cannot_run_is_refused() -> None:
    with pytest.raises(SpecError, match="ring-pull is for ranks of one node"):
        simulate("ring-pull", setting(ranks=16))
    with pytest.raises(SpecError, match="ulysses does not fit 16 ranks and 24 heads"):
        simulate("ulysses", setting(ranks=16, heads=24))


def test_measured_cells() -> None:
    """Nine of ten cells within 12 %, the mean within 6 %: docs/lab/distributed.md has them all."""
    cells = [x for x in measured_cells() if x.scheme != "one"]
    assert len(cells) == 193
    compared = [predictions.compared(x) for x in cells]
    for side in (0, 1):
        errors = sorted(abs(x.errors[side]) for x in compared)
        assert sum(errors) / len(errors) < 0.06
        assert errors[len(errors) * 9 // 10] < 0.12
        real = [abs(x.errors[side]) for x in compared if x.cell.run != "virtual"]
        assert max(real) < 0.21 and errors[-1] < 0.32


def test_the_page_has_these_tables() -> None:
    """The page has all tables but those of up to 1,024 GPUs, whose simulation takes minutes."""
    page = (ROOT / "docs/lab/distributed.md").read_text()
    for part in (predictions.error_tables, predictions.published):
        assert "\n".join(part()) in page


@pytest.mark.long
def test_1024_gpus_and_ten_million_tokens() -> None:
    plan = plan_parallel(10 * 2**20, ranks=1024, heads=64, kv_heads=8)
    assert plan.picked == "2d"
    begin = time.process_time()
    found = simulate("2d", Setting(plan.problem, plan.gpu, plan.links))
    assert time.process_time() - begin < 60
    assert found.seconds == pytest.approx(plan["2d"].seconds, rel=0.03)


def test_the_program() -> None:
    command = [sys.executable, ROOT / "bench/simulate_distributed.py", "--length", "65536"]
    done = subprocess.run([*command, "--ranks", "16"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("2d on 16 x H200: ") and "events in" in done.stdout
    wrong = subprocess.run([*command, "--ranks", "0"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2 and "ranks must be an integer from 1" in wrong.stderr
