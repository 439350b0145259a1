"""`attn-mlir run --trace` and the picture of a trace."""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import attn_mlir as am
from attn_mlir import cli
from attn_mlir.cli import timeline
from attn_mlir.cli.experiment import device_of, run_attention
from attn_mlir.cli.timeline import draw, read_trace
from attn_mlir.errors import SpecError
from attn_mlir.runtime.devices.emulator import EmulatorDevice, names_of

SVG = "{http://www.w3.org/2000/svg}"


def _texts(picture: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def _event(tid: int, begin: float, length: float, name: str, cat: str, **args: Any) -> Any:
    place = {"ph": "X", "pid": 0, "tid": tid, "name": name, "cat": cat, "args": args}
    return {**place, "ts": begin / 1000, "dur": length / 1000}


def _file(path: Path, events: list[Any]) -> Path:
    path.write_text(json.dumps({"traceEvents": events, "otherData": {"kernel": "k<1>"}}))
    return path


@pytest.fixture(scope="module")
def attention_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trace of a causal kernel of head size 128, two CTAs."""
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    spec = am.mha(heads=1, head_dim=128, dtype="bf16", mask=am.causal())
    bundle = am.compile(spec)
    trial = run_attention(
        bundle, batch=1, sq=512, sk=512, mask=am.causal(), device=EmulatorDevice(trace=str(path))
    )
    assert trial.comparison.ok
    return path


def test_our_kernels_name_roles_rings_and_tiles(attention_trace: Path) -> None:
    data = json.loads(attention_trace.read_text())
    events = [e for e in data["traceEvents"] if e["ph"] == "X" and e["pid"] == 0]
    roles = {e["name"] for e in events if e["cat"] == "run"}
    assert {"softmax", "correction", "mma", "load", "epilogue"} <= roles
    waits = {e["name"] for e in events if e["cat"] == "wait"}
    assert "wait s full[0]" in waits and any(name.startswith("wait kv empty") for name in waits)
    assert not [name for name in waits if "0x" in name], "every mbarrier has a name"
    products = {e["args"]["into"] for e in events if e["tid"] == 103}
    assert products == {"s", "o"}
    loads = {e["args"].get("signals") for e in events if e["tid"] == 100}
    assert {"q full[0]", "kv full[0]"} <= loads
    engine = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e["tid"] == 103)
    assert all(a[1] <= b[0] + 1e-9 for a, b in pairwise(engine))


def test_the_picture_of_our_kernel(attention_trace: Path) -> None:
    picture = draw(read_trace(attention_trace), title="Causal")
    texts = _texts(picture)
    for text in ("Causal", "softmax", "warps 0–3", "warps 4–7", "tensor core", "TMA load", "works"):
        assert text in texts
    assert "s full[0]" in texts and "o 0" in texts and "s 1" in texts
    assert texts.index("load") < texts.index("mma") < texts.index("softmax")
    assert len(picture) < 200_000
    busy = [int(text[:-1]) for text in texts if re.fullmatch(r"\d+%", text)]
    assert len(busy) == texts.count("engine") + sum(t.startswith("warp") for t in texts)
    assert all(0 <= part <= 100 for part in busy) and max(busy) > 30


def test_a_part_of_the_time_and_another_cta(attention_trace: Path) -> None:
    trace = read_trace(attention_trace)
    whole, part = draw(trace, cta=1), draw(trace, cta=1, begin=0, end=500)
    assert "500 steps" in part and "500 steps" not in whole.split("<path")[0]
    with pytest.raises(SpecError, match=r"no CTA 9: its CTAs are 0, 1"):
        draw(trace, cta=9)
    with pytest.raises(SpecError, match="nothing to draw from step 10 to 10"):
        draw(trace, begin=10, end=10)


def test_a_trace_says_which_kernel_ran_and_for_which_target(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    for said, found in (({"kernel": "k", "target": "sm_90a"}, ("k", "sm_90a")), ({}, ("", ""))):
        events = [_event(0, 0, 500, "run", "run")]
        path.write_text(json.dumps({"traceEvents": events, "otherData": said}))
        trace = read_trace(path)
        assert (trace.kernel, trace.target) == found


def test_spans_lie_where_their_steps_are(tmp_path: Path) -> None:
    events = [
        _event(0, 0, 500, "run", "run"),
        _event(0, 500, 500, "wait b", "wait"),
        _event(100, 250, 250, "tensor 2d", "engine", signals="kv full[3]"),
        _event(100, 500, 250, "tensor 2d", "engine", signals="kv full[3]"),
    ]
    picture = draw(read_trace(_file(tmp_path / "t.json", events)))
    assert "k&lt;1&gt;" in picture
    spans = re.findall(r"M([\d.]+) [\d.]+h([\d.]+)v", picture)
    width = 1360 - 168 - 64
    want = [(0.25, 0.5), (0.5, 0.5), (0.0, 0.5)]  # the engine's two adjoin: one; wait; work
    got = [(round((float(x) - 168) / width, 3), round(float(w) / width, 3)) for x, w in spans]
    assert sorted(got) == sorted(want)
    assert {"kv 3", "b", "50%"} <= set(_texts(picture))


def test_colours_of_an_engine_are_explained(tmp_path: Path) -> None:
    """A ring of one slot has slot 0; an engine that works for one thing alone has no line."""
    events = [
        _event(100, 0, 250, "tensor 2d", "engine", signals="q full"),
        _event(100, 250, 250, "tensor 2d", "engine", signals="kv full[3]"),
        _event(103, 500, 500, "mma", "engine", into="s", column=64),
    ]
    threads = {100: "TMA load", 103: "tensor core"}
    events += [
        {"ph": "M", "pid": 0, "tid": tid, "name": "thread_name", "args": {"name": name}}
        for tid, name in threads.items()
    ]
    picture = draw(read_trace(_file(tmp_path / "t.json", events)))
    texts = _texts(picture)
    assert {"q 0", "kv 3", "s 0", "steps"} <= set(texts)
    assert texts.count("TMA load") == 2 and texts.count("tensor core") == 1
    line = texts[texts.index("TMA load", texts.index("steps")) :]
    assert line[1:3] == ["kv", "q"]
    fills = re.findall(r'<rect [^>]*width="20"[^>]*fill="(#\w+)"', picture)
    drawn = re.findall(r'<path fill="(#\w+)" class="work"', picture)
    assert len(set(fills)) == 2 and set(fills) < set(drawn)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", "is not a trace"),
        ("[]", "no list 'traceEvents'"),
        ('{"traceEvents": []}', "holds no events"),
        ('{"traceEvents": [{"ph": "X"}]}', "malformed event: KeyError"),
        ('{"traceEvents": [7]}', "malformed event: TypeError"),
    ],
)
def test_files_that_are_no_traces(
    text: str, error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    assert cli.main(["trace", str(path), "-o", str(tmp_path / "t.svg")]) == 1
    assert error in capsys.readouterr().err


def test_command_line(attention_trace: Path, tmp_path: Path, capsys: Any) -> None:
    picture = tmp_path / "t.svg"
    assert cli.main(["trace", str(attention_trace), "-o", str(picture), "--cta", "1"]) == 0
    assert picture.read_text().startswith("<svg")
    assert cli.main(["trace", str(tmp_path / "none"), "-o", str(picture)]) == 1
    assert cli.main(["trace", str(attention_trace), "-o", str(tmp_path / "no" / "t.svg")]) == 1
    errors = capsys.readouterr().err
    assert "cannot read" in errors and "cannot write" in errors


def test_a_trace_wants_the_emulator(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    assert device_of(None, "fair", 0, path) == EmulatorDevice(trace=path)
    with pytest.raises(SpecError, match="a trace is the emulator's: got cuda"):
        device_of("cuda", "fair", 0, path)


def test_reports_without_names_give_none() -> None:
    empty = names_of({})
    assert not empty.warps and not empty.barriers and not empty.columns
    odd = names_of({"roles": [{"warps": "x"}, 3], "barriers": [{"name": "a"}], "memory_map": 1})
    assert not odd.warps and not odd.barriers and not odd.columns
    one = names_of({"roles": [{"role": "a", "warps": "2"}]})
    assert dict(one.warps) == {2: "a"}


@pytest.mark.parametrize(
    ("value", "step"), [(0.3, 1), (2, 2), (4, 5), (9, 10), (10, 10), (70, 100)]
)
def test_steps_between_ticks(value: float, step: float) -> None:
    assert timeline._nice(value) == step  # pyright: ignore[reportPrivateUsage]
