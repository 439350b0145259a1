"""`attn-mlir plan-parallel`."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from attn_mlir import cli
from attn_mlir.parallel import SCHEMES, plan_parallel

SVG = "{http://www.w3.org/2000/svg}"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["plan-parallel", *arguments]) == 0
    return capsys.readouterr().out


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys, "1M", "--ranks", "64", "--heads", "64").splitlines()
    plan = plan_parallel(2**20, ranks=64, heads=64, kv_heads=8)
    assert lines[:2] == [
        "1 x 1048576 tokens, 64 heads on 8 of 128, bf16, causal, forward",
        "64 x H200, 8 nodes, 385 GB/s within, 45 between",
    ]
    by_scheme = {x[2:].split()[0]: x for x in lines[4 : 4 + len(SCHEMES)]}
    assert list(by_scheme) == list(SCHEMES)
    assert by_scheme["ring-pull"].endswith(
        "impossible: copy engines reach the 8 ranks of a node, not 64"
    )
    assert f"{plan['gather'].seconds * 1e3:.3f}" in by_scheme["gather"].split()
    assert [x for x, line in by_scheme.items() if line.startswith("> ")] == [plan.picked]
    assert lines[-2] == f"{plan.picked}: {plan.reason}"
    assert lines[-1] == "call: ulysses_attention"


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run(capsys, "128k", "--training", "--full", "--gpu", "b200", "--json"))
    plan = plan_parallel(
        2**17, ranks=8, heads=32, kv_heads=8, causal=False, training=True, gpu="B200"
    )
    assert found == json.loads(json.dumps(plan.json()))
    assert found["gpu"] == "B200" and found["picked"] == plan.picked
    assert {x["scheme"] for x in found["schemes"]} == set(SCHEMES)


def test_the_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.svg"
    assert run(capsys, "1M", "--heads", "64", "--picture", str(path)).startswith(f"{path}\n")
    root = ET.fromstring(path.read_text())
    texts = [x.text for x in root.iter(f"{SVG}text")]
    assert {"limit", "ring-pull", "ring-nccl", "gather", "ulysses", "2d", "ranks"} <= set(texts)
    assert {"2", "1024", "1 s", "10 ms"} <= set(texts)
    points = [x for x in root.iter(f"{SVG}circle") if x.get("stroke") == "#c0392b"]
    assert len(points) == 3  # a pulled ring has 2, 4 and 8 ranks


def test_no_scheme(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        cli.main(["plan-parallel", "10M", "--ranks", "2", "--heads", "128", "--kv-heads", "128"])
        == 1
    )
    assert "no scheme is possible: ring-pull: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["1M", "--gpu", "V100"], "SpecError: gpu must be one of H200, H100, B200, got 'V100'"),
        (["1M", "--picture", "a.png"], "SpecError: --picture must end in .svg, got 'a.png'"),
        (["4", "--ranks", "8"], "SpecError: length must be at least 1 token on each rank"),
    ],
)
def test_errors(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan-parallel", *arguments]) == 1
    assert capsys.readouterr().err.startswith(f"attn-mlir: {message}")


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["plan-parallel", "many"])
    assert left.value.code == 2 and "invalid tokens value" in capsys.readouterr().err
