"""The doctor's attention: what it judges, what it times, and that numpy is enough for it."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.errors import LaunchError, TargetError
from attn_mlir.runtime import attention_trial as trial
from attn_mlir.runtime.attention_trial import bf16_floats, bf16_words, try_attention
from attn_mlir.runtime.call.tensors import host_array
from attn_mlir.runtime.devices import driver, memory, timing
from attn_mlir.runtime.devices.base import Launch
from attn_mlir.runtime.devices.cuda import CudaDevice
from attn_mlir.runtime.file.bundle import Bundle


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return am.compile(am.mha(heads=2, kv_heads=1, head_dim=32, mask=am.causal()), target="sm_90a")


@dataclasses.dataclass(frozen=True)
class Formula(CudaDevice):
    """Stands for a GPU: computes what a bundle should, in host memory, or something a little wrong."""

    wrong: str = ""

    @property
    def name(self) -> str:
        return "formula"

    def launch(self, bundle: Bundle, bound: Any, stream: object | None) -> Launch:
        words = {
            name: host_array(x, np.dtype(f"u{x.item_bytes}")) for name, x in bound.tensors.items()
        }
        q, k, v = (bf16_floats(words[name]).astype(np.float64) for name in "qkv")
        k, v = (np.repeat(x, q.shape[2] // k.shape[2], axis=2) for x in (k, v))
        scores = np.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[3] ** 0.5
        shift = 1 if self.wrong == "mask" else 0
        scores[..., np.triu(np.ones(scores.shape[2:], bool), 1 + shift)] = -np.inf
        lse = np.log(np.exp(scores).sum(-1)) + (0.01 if self.wrong == "lse" else 0)
        o = np.einsum("bhqk,bkhd->bqhd", np.exp(scores - lse[..., None]), v)
        if self.wrong == "element":
            o[-1, -1, -1, 7] += 0.05
        words["o"][...] = bf16_words(o.astype(np.float32))
        if self.wrong != "nothing written":
            words["lse"].view(np.float32)[...] = lse
        return Launch(self.name, bound.grid)

    def plan_launch(self, *_: Any) -> None:
        return None


@pytest.fixture
def on_host(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The memory of the stand-in is the host's; counts the launches that are timed."""
    counted: list[int] = []

    def seconds_per_launch(launch: Any, *, index: int, seconds: float) -> float:
        counted.append(index)
        launch()
        return 2e-3

    monkeypatch.setattr(trial, "seconds_per_launch", seconds_per_launch)
    monkeypatch.setattr(trial, "TIMED", (2, 200))
    monkeypatch.setattr(memory, "upload", lambda tensor, index: tensor)
    monkeypatch.setattr(memory, "download", lambda copy, into: None)
    return counted


def test_a_right_kernel_is_timed(bundle: Bundle, on_host: list[int]) -> None:
    small, timed = try_attention(bundle, Formula())
    assert small.seconds is None and small.tflops is None and small.worst < 0.6
    assert timed.seconds == 2e-3 and on_host == [0]
    pairs = 2 * 2 * 200 * 201 / 2
    assert timed.tflops == pytest.approx(pairs * 4 * 32 / 2e-3 / 1e12)
    assert "2 x 200 tokens, 2 heads of 32, causal, bf16, by sm_90a code" in str(timed)
    assert "2.000 ms" in str(timed) and "TFLOP/s" not in str(small)


@pytest.mark.parametrize("wrong", ["mask", "lse", "element", "nothing written"])
def test_a_wrong_kernel_is_caught(bundle: Bundle, on_host: list[int], wrong: str) -> None:
    with pytest.raises(LaunchError, match="attention on formula is wrong: 2 x 300 tokens.*sm_90a"):
        try_attention(bundle, Formula(wrong=wrong))


def test_other_kernels_are_refused() -> None:
    other = am.compile(am.mha(heads=2, head_dim=32, return_lse=False), target="sm_90a")
    with pytest.raises(TargetError, match="is not that of dense causal attention"):
        try_attention(other, Formula())


def test_words_are_rounded_as_bf16() -> None:
    numbers = np.random.default_rng(1).standard_normal(4096).astype(np.float32)
    numbers[:3] = (1.00390625, 1.01171875, -0.0)  # two ties, and a zero
    expected = numbers.astype(ml_dtypes.bfloat16)
    assert (bf16_words(numbers) == expected.view(np.uint16)).all()
    assert (bf16_floats(bf16_words(numbers)) == expected.astype(np.float32)).all()


def test_no_more_than_numpy_is_needed() -> None:
    """Neither the compiler nor ml_dtypes is imported for it, up to where the emulator would be."""
    code = (
        "import sys\n"
        "for name in ('ml_dtypes', 'numba_cuda_mlir', 'rich', 'torch'): sys.modules[name] = None\n"
        "import attn_mlir.runtime.doctor, attn_mlir.cli\n"
        "assert attn_mlir.cli.main(['doctor', '--bundle', sys.argv[1]]) == 1"
    )
    given = [sys.executable, "-c", code, "nothing.attn"]
    done = subprocess.run(given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "SpecError: cannot read the bundle 'nothing.attn'" in done.stderr


def test_launches_are_timed_by_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough of them to last as long as is asked for, behind some that do not count."""
    launches, marks = [0], dict[str, int]()

    class Here:
        def __init__(self, index: int): ...
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    def call(name: str, *given: Any, what: str | None = None) -> Any:
        match name:
            case "cuEventCreate":
                return f"event {len(marks)}"
            case "cuEventRecord":
                marks[f"{len(marks)}"] = launches[0]
            case "cuEventElapsedTime":
                begin, end = list(marks.values())[-2:]
                return 10.0 * (end - begin)  # in ms
        return None

    class Api:
        CUstream = staticmethod(int)

    monkeypatch.setattr(driver, "call", call)
    monkeypatch.setattr(driver, "api", lambda: Api)
    monkeypatch.setattr(driver, "Current", Here)

    def launch() -> None:
        launches[0] += 1

    assert timing.seconds_per_launch(launch, index=0, seconds=0.095) == pytest.approx(0.01)
    assert launches == [timing.WARM_UP + 1 + 10]
