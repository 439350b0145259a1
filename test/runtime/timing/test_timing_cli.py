"""`attn-mlir time`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import attn_mlir as am
from attn_mlir.cli.main import main
from attn_mlir.validation.emulator.timed_kernels import kernel, needs_tools, used


@pytest.fixture
def ptx(tmp_path: Path) -> Path:
    path = tmp_path / "kernel.ptx"
    start = "".join(f"mov.f32 %f{n}, %f70;\n" for n in range(8))
    loop = "".join(f"ex2.approx.ftz.f32 %f{n}, %f{n};\n" for n in range(8))
    body = f"""{start}mov.u32 %r8, 0;
AGAIN:
.pragma "nounroll";
{loop}
add.u32 %r8, %r8, 1;
setp.lt.u32 %p0, %r8, 9;
@%p0 bra AGAIN;
"""
    path.write_text(kernel(body + used(8)))
    return path


@pytest.mark.ptxas
def test_prints_clocks_waits_and_the_limit(ptx: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs_tools()
    svg, trace = ptx.with_suffix(".svg"), ptx.with_suffix(".json")
    arguments = ["time", str(ptx), "--param", "u32[128]", "--grid", "264"]
    assert main([*arguments, "--svg", str(svg), "--trace", str(trace)]) == 0
    text = capsys.readouterr().out
    assert "limit: XU" in text
    assert "9 turns" in text
    assert "264 clusters" in text
    assert "clocks of the model" in svg.read_text()
    events = json.loads(trace.read_text())
    assert events["otherData"]["unit"] == "clocks"
    assert {"run", "wait"} <= {one.get("cat") for one in events["traceEvents"]}


@pytest.mark.ptxas
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--param", "many"], "--param takes"),
        (["--param", "u32[128]", "--set", "wake_latency"], "NAME=VALUE"),
        (["--param", "u32[128]", "--set", "speed=1"], "no constant speed"),
        (["--param", "u32[128]", "--grid", "1,x"], "--grid takes"),
        (["--param", "u32[128]", "--set", "wake_latency=nan"], "wake_latency must be a finite"),
        (["--param", "u32[128]", "--set", "wake_latency=-1"], "wake_latency must be a finite"),
        (["--param", "u32[128]", "--set", "store_bytes=0"], "at least 1, got 0"),
        (
            ["--set", "speed=1", "--param", "u32[128]", "--set", "wake_latency=9"],
            "no constant speed",
        ),
        (["--param", "u32[128]", "--grid", "1,1,1,1"], "--grid takes"),
        (["--param", "u32[128]", "--grid", "0"], "has no CTAs"),
        (["--param", "u32[99999999999999999999]"], "--param takes"),
        (["--param", "u32[128]", "--limit", "0"], "--limit must be at least 1"),
        (["--param", "u32[128]", "--svg", "kernel.ptx"], "--svg must end in .svg"),
        (["--entry", "other", "--param", "u32[128]"], "no entry 'other'"),
    ],
)
def test_wrong_requests_are_refused(
    ptx: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    needs_tools()
    assert main(["time", str(ptx), *arguments]) == 1
    assert message in capsys.readouterr().err


def test_ptx_for_another_chip_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "old.ptx"
    path.write_text(".version 8.0\n.target sm_80\n.visible .entry k() { ret; }\n")
    assert main(["time", str(path)]) == 1
    assert "sm_80" in capsys.readouterr().err


@pytest.mark.ptxas
def test_a_file_for_several_chips_is_timed_on_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    needs_tools()
    request = am.mha(heads=1, head_dim=64, mask=am.causal())
    path = am.compile(request, target=["sm_100a", "sm_90a"]).save(tmp_path / "fat.attn")
    hopper = ["--target", "sm_90a", "--sq", "64", "--sk", "64", "--limit", "2000"]
    assert main(["time", str(path), *hopper]) == 0
    assert "sm_90a, model of the H200" in capsys.readouterr().out
    assert main(["time", str(path), "--target", "sm_100a", "--sq", "128", "--sk", "1024"]) == 0
    text = capsys.readouterr().out
    assert "sm_100a, model of the B200" in text
    assert re.search(r"a turn of the loop .* clocks, between", text)
    assert "the CTA: " in text
    assert main(["time", str(path), "--sq", "0"]) == 1
    assert "has no CTAs" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["time", "run"])
def test_a_trace_never_takes_the_place_of_its_input(
    command: str, ptx: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = ptx.read_bytes()
    assert main([command, str(ptx), "--trace", str(ptx.parent / "." / ptx.name)]) == 1
    assert "--trace names the input" in capsys.readouterr().err
    assert ptx.read_bytes() == before
