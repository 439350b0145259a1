"""What the command line and calls say to somebody who asked for something else than there is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir import cli
from attn_mlir.cli import experiment, show
from attn_mlir.errors import SpecError
from attn_mlir.masks.text import parse_mask
from attn_mlir.naming import ELSEWHERE
from attn_mlir.reference import Comparison
from attn_mlir.runtime.devices.base import Launch
from attn_mlir.runtime.file.bundle import Bundle
from attn_mlir.runtime.file.fat_bundle import FatBundle

Pack = Callable[..., bytes]


def helped(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("command", "told"), [("demo", "KV heads (1)"), ("compile", "KV heads (default: as many as heads)")]
)  # fmt: skip
def test_how_many_kv_heads(command: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert told in helped(command, capsys)


def test_a_window_is_as_the_help_says(capsys: pytest.CaptureFixture[str]) -> None:
    text = helped("compile", capsys)
    for shown in ("window:127", "window:127,64"):
        assert shown in text
    assert parse_mask("window:127") == am.sliding_window(127)
    assert parse_mask("window:127,64") == am.sliding_window(127, 64)
    assert parse_mask("window:inf,64") == am.sliding_window(None, 64)
    with pytest.raises(SpecError, match="window:LEFT or window:LEFT,RIGHT,"):
        parse_mask("window")


def test_one_target_of_a_file_is_run(
    pack: Pack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[Bundle | FatBundle] = []

    def run_attention(bundle: Bundle | FatBundle, **_: Any) -> experiment.Trial:
        ran.append(bundle)
        right = Comparison(1e-3, 2e-3, 0.5, (0, 1, 0, 3), 0, 1000, 1e-6, 0)
        return experiment.Trial(Launch("emulator", (1, 1, 1)), right, 1.0, 1.0)

    monkeypatch.setattr(experiment, "run_attention", run_attention)
    path = tmp_path / "two.attn"
    targets = ("sm_90a", "sm_100a")
    FatBundle.of([Bundle.from_bytes(pack(target=target)) for target in targets]).save(path)
    for target in targets:
        assert cli.main(["run", str(path), "--target", target]) == 0
    assert cli.main(["run", str(path)]) == 0
    one, other, both = ran
    assert isinstance(one, Bundle) and isinstance(other, Bundle) and isinstance(both, FatBundle)
    assert (one.target, other.target) == targets
    assert cli.main(["run", str(path), "--target", "sm_80"]) == 1
    assert "has no code for 'sm_80': it is for sm_90a and sm_100a" in capsys.readouterr().err


def test_a_bundle_is_no_trace(
    pack: Pack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "k.attn"
    path.write_bytes(pack())
    assert cli.main(["trace", str(path), "-o", str(tmp_path / "t.svg")]) == 1
    told = f"{path} is a bundle, not a trace: `attn-mlir run {path} --trace trace.json`"
    assert told in capsys.readouterr().err


def test_nothing_is_wrapped_where_there_is_no_terminal(
    pack: Pack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "k.attn"
    name = "a name that is longer than a line of most terminals, " * 4
    path.write_bytes(pack(report={"memory_map": [{"space": "shared", "name": name, "bytes": 1}]}))
    assert cli.main(["info", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(name.strip() in line and line.split()[-1] == "1" for line in lines)
    assert max(map(len, lines)) < 2 * len(name), "tables are as wide as what is in them"


def test_on_a_terminal_the_width_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "77")
    assert show.output().width == 77


Q = np.zeros((1, 2, 2, 64), np.float32)
BF16 = Q.astype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_wide_arrays_are_told_how_to_be_narrow(dtype: Any) -> None:
    k = Q.astype(dtype)
    with pytest.raises(
        SpecError, match=r"convert it by k\.to\(torch\.bfloat16\) or k\.astype\(ml_dty"
    ):
        am.attention(BF16, k, k)
    with pytest.raises(SpecError, match="allowed are bf16, f16, e4m3, e5m2$"):
        am.attention(BF16, k.astype(np.int32), k)


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("causal", "pass mask=am.causal()"),
        ("window_size", "pass mask=am.sliding_window(left, right)"),
        ("sm_scale", "pass scale="),
        ("block_table", "pass am.PagedKV(...) in the place of k"),
        ("scal", "pass scale="),
        ("zebra", None),
        ("sale_mode", None),
    ],
)
@pytest.mark.parametrize("call", [am.attention, am.plan])
def test_options_of_other_libraries(call: Any, option: str, hint: str | None) -> None:
    with pytest.raises(TypeError) as caught:
        call(BF16, BF16, BF16, **{option: True})
    what = f"attention() got an unexpected keyword argument '{option}'"
    assert str(caught.value) == (f"{what}: {hint}" if hint else what)


def test_hints_are_of_options_that_a_function_has() -> None:
    with pytest.raises(TypeError, match=r"append_kv\(\) got an unexpected .* 'causal'$"):
        am.append_kv(BF16, BF16, BF16, causal=True)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'k'"):
        am.attention(BF16)
    import inspect

    known = inspect.signature(am.attention).parameters
    assert not [name for name in ELSEWHERE if name in known]
    assert {ours for ours, _ in ELSEWHERE.values()} <= set(known)
