"""`examples/generate.py` at toy size: its tokens are those of plain torch, and it can tell when they are not."""

from __future__ import annotations

import functools
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from attn_mlir.compiling.compiler import RequestedKernel, recording  # noqa: E402
from attn_mlir.compiling.prebuild import prebuild  # noqa: E402

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "generate.py"


@functools.cache
def example() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def test_tokens_are_those_of_plain_torch(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """And what `prebuild` collects without running anything is what a run asks for."""
    asked: list[RequestedKernel] = []
    with recording(asked.append):
        assert example()["main"](["--size", "toy", "--device", "emulator"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^prefill: \d+ tokens in .* per second$", printed, re.M)
    assert re.search(r"^decode: \d+ tokens in .* per second$", printed, re.M)
    counts = re.search(
        r"^(\d+) of (\d+) tokens are those of plain torch in float32, (\d+)", printed, re.M
    )
    assert counts is not None and len(set(counts.groups())) == 1 and int(counts[1]) >= 15
    wanted = {(x.kernel, x.target) for x in asked}

    arguments = ["--size", "toy", "--device", asked[0].target]
    collector = prebuild(SCRIPT, arguments, tmp_path, say=lambda _: None)
    assert len(wanted) == len(collector.written) == 3
    names = [name.split(".")[:2] for name in collector.written]
    assert {(kernel, target) for kernel, target in names} == wanted


def test_prebuilt_for_a_gpu_of_another_kind(tmp_path: Path) -> None:
    collector = prebuild(
        SCRIPT, ["--size", "toy", "--device", "sm_90a"], tmp_path, say=lambda _: None
    )
    assert len(collector.written) == 3
    assert all(".sm_90a." in name for name in collector.written)


def test_the_check_can_fail(capsys: pytest.CaptureFixture[str]) -> None:
    """Tokens of plain torch pass; another token, or another logit of the same, does not."""
    names = example()
    size = names["SIZES"]["toy"]
    model = names["Model"](size, "cpu")
    request = names["drawn_requests"](size)[0]
    with torch.no_grad():
        for _ in range(3):
            request.tokens.append(0)
            best = names["plain_logits"](model, request)[-1].max(-1)
            request.tokens[-1] = int(best.indices)
            request.logits.append(float(best.values))
        assert names["check"](model, [request])
        request.logits[1] += 0.3
        assert not names["check"](model, [request])
        request.logits[1] -= 0.3
        request.tokens[2] += 1
        assert not names["check"](model, [request])
    assert "2 of 3 tokens" in capsys.readouterr().out
