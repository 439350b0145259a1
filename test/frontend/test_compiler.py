"""`compile` and its cache, with a compiler that is a stand-in: the real one has its own tests."""

from __future__ import annotations

import dataclasses
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import attn_mlir as am
from attn_mlir import compiler, env
from attn_mlir.errors import SpecError, TargetError

Pack = Callable[..., bytes]


class FakePipeline(types.ModuleType):
    """Counts what it is asked for and answers with a bundle that says what it was asked for."""

    def __init__(self, pack: Pack):
        super().__init__("attn_mlir.lowering.pipeline")
        self.pack = pack
        self.calls: list[Any] = []

    def compile_mha(self, spec: Any, *, target: str, progress: Any) -> bytes:
        self.calls.append((spec, target))
        if progress is not None:
            progress("schedule")
        return self.pack(report={"heads": spec.heads})


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch, pack: Pack, tmp_path: Path) -> FakePipeline:
    fake = FakePipeline(pack)
    monkeypatch.setitem(sys.modules, fake.__name__, fake)
    monkeypatch.setattr(compiler, "_memory", {})
    use(monkeypatch, ATTN_MLIR_CACHE_DIR=str(tmp_path / "cache"))
    return fake


def use(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    settings = env.read(variables)
    monkeypatch.setattr(env, "settings", lambda: settings)


SPEC = am.mha(heads=2, head_dim=64)


def test_compiled_once_per_request(pipeline: FakePipeline) -> None:
    stages: list[str] = []
    first = am.compile(SPEC, progress=stages.append)
    assert first.report == {"heads": 2} and stages == ["schedule"]
    assert (
        am.compile(am.mha(heads=2, head_dim=64, dtype="bfloat16"), progress=stages.append) is first
    )
    assert am.compile(am.mha(heads=4, head_dim=64)).report == {"heads": 4}
    assert pipeline.calls == [(SPEC, "sm_100a"), (am.mha(heads=4, head_dim=64), "sm_100a")]
    assert stages == ["schedule"]


def test_kept_for_the_next_process(pipeline: FakePipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    first = am.compile(SPEC)
    monkeypatch.setattr(compiler, "_memory", {})
    again = am.compile(SPEC)
    assert again is not first and again.data == first.data and again.path is not None
    assert len(pipeline.calls) == 1


@pytest.mark.parametrize("change", ["source_hash", "mlir", "ptxas"])
def test_a_new_compiler_is_a_miss(
    change: str, pipeline: FakePipeline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    am.compile(SPEC)
    if change == "source_hash":
        monkeypatch.setattr(compiler, "source_hash", lambda: "other")
    elif change == "mlir":
        monkeypatch.setattr(compiler, "_first_installed", lambda packages: "other-1.0")
    else:
        cache = str(tmp_path / "cache")
        use(monkeypatch, ATTN_MLIR_CACHE_DIR=cache, ATTN_MLIR_PTXAS=sys.executable)
    am.compile(SPEC)
    assert len(pipeline.calls) == 2


def test_no_cache(pipeline: FakePipeline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(monkeypatch, ATTN_MLIR_CACHE_DIR=str(tmp_path / "other"), ATTN_MLIR_NO_CACHE="1")
    am.compile(SPEC)
    am.compile(SPEC)
    assert len(pipeline.calls) == 2 and not (tmp_path / "other").exists()


def test_dumps(pipeline: FakePipeline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    dumps = tmp_path / "dumps"
    use(monkeypatch, ATTN_MLIR_DUMP="ptx,cubin", ATTN_MLIR_DUMP_DIR=str(dumps))
    bundle = am.compile(SPEC)
    stem = f"scale_rows.sm_100a.{bundle.manifest.sha256[:8]}"
    assert sorted(path.name for path in dumps.iterdir()) == [f"{stem}.cubin", f"{stem}.ptx"]
    assert (dumps / f"{stem}.ptx").read_text() == bundle.ptx


def test_refused(pipeline: FakePipeline) -> None:
    with pytest.raises(TargetError, match="target 'sm_90a' has no attention kernel"):
        am.compile(SPEC, target="sm_90a")
    with pytest.raises(SpecError, match=r"compile takes what mha\(...\) returns, got str"):
        am.compile("mha")  # type: ignore[arg-type]
    assert pipeline.calls == []


def test_no_compiler_installed(pipeline: FakePipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise ModuleNotFoundError("No module named 'numba_cuda_mlir'", name="numba_cuda_mlir")

    monkeypatch.setattr(compiler.importlib, "import_module", fail)
    with pytest.raises(TargetError, match="cannot compile, numba_cuda_mlir is missing"):
        am.compile(SPEC)


def test_source_hash_sees_every_compiler_file(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    read = Path.read_bytes

    def spy(path: Path) -> bytes:
        seen.append(str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", spy)
    compiler.source_hash.cache_clear()
    digest = compiler.source_hash()
    compiler.source_hash.cache_clear()
    assert len(digest) == 64
    for needle in ("dialect/_mlir.py", "passes/registry.py", "lowering/__init__.py"):
        assert any(path.endswith(needle) for path in seen)


def test_installed_packages_are_named_with_versions() -> None:
    name = compiler._first_installed(("no_such_package", "numpy"))
    assert name.startswith("numpy-") and name[6].isdigit()
    assert compiler._first_installed(("no_such_package",)) == "none"


def test_settings_take_part_in_the_key(tmp_path: Path) -> None:
    base = env.read({})
    missing = dataclasses.replace(base, ptxas=tmp_path / "none")
    key = compiler.cache_key("mha", "{}", "sm_100a", missing)
    assert "missing" in key.parts["ptxas"]
    assert key.digest() != compiler.cache_key("mha", "{}", "sm_100a", base).digest()
