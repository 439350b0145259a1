"""What `make gpu-bundles` makes and `make gpu` reads; needs no GPU."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from attn_mlir.runtime.devices import driver
from attn_mlir.runtime.file.bundle import Bundle
from attn_mlir.validation.gpu import drawn, run
from attn_mlir.validation.gpu.bundles import collect
from attn_mlir.validation.gpu.check import HOPPER, checks


@pytest.mark.ptxas
def test_an_archive_holds_what_checks_ask_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = collect(tmp_path / "gpu.zip", only="doctor")
    with zipfile.ZipFile(archive) as packed:
        bundles = [Bundle.from_bytes(packed.read(name)) for name in packed.namelist()]
    attention = "attn_mha_causal_bf16_h4k4_d128"
    assert [(b.entry, b.target) for b in bundles] == [
        (attention, "sm_100a"), (attention, "sm_90a"),
        ("tma_copy", "sm_100a"), ("tma_copy", "sm_90a"),
    ]  # fmt: skip
    assert "gpu.zip: 4 bundles, " in capsys.readouterr().out
    again = collect(tmp_path / "again.zip", only="doctor")
    assert again.read_bytes() == archive.read_bytes()


def test_long_checks_are_asked_for_by_name() -> None:
    named = [check.name for check in checks("many_drawn")]
    assert named == ["many_drawn_problems", "many_drawn_gradients"]
    assert not {check.name for check in checks()} & set(named)


def test_kernels_of_graphs_can_be_asked_for() -> None:
    """Requests are checked as calls are, with arrays on the host whose contents are read."""
    for check in checks("graph"):
        check.asks(HOPPER)


def test_problems_for_a_checker_of_the_machine_can_be_had() -> None:
    assert len({name for name, _ in drawn.small()}) == len(drawn.SMALL) == 12


def test_without_a_gpu_nothing_is_checked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(driver, "gpus", list)
    assert run.checked("nowhere", "") == 2
    assert capsys.readouterr().out == "nothing is checked: the driver shows no GPU\n"


def test_what_a_gpu_cannot_run_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a Hopper GPU that is not there: attention for another chip is skipped, the rest fails."""
    hopper = driver.Gpu(0, "a GPU", (9, 0), 132, 1 << 30, 232448)
    monkeypatch.setattr(driver, "gpus", lambda: [hopper])
    monkeypatch.setattr(driver, "driver_version", lambda: (13, 0))
    assert run.checked("nowhere", "dense_attention") == 2
    out = capsys.readouterr().out
    assert "skipped  dense_attention" in out and "it is for sm_100a" in out
    assert out.endswith("0 ok, 1 skipped, 0 FAILED\n")
