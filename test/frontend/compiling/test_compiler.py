"""`compile` and its cache, with a compiler that is a stand-in: the real one has its own tests."""

from __future__ import annotations

import gc
import os
import sys
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import attn_mlir as am
from attn_mlir import env
from attn_mlir.compiling import compiler
from attn_mlir.dialect import _mlir
from attn_mlir.dialect._mlir import PROVIDER_PACKAGE, PROVIDER_VERSION
from attn_mlir.errors import SpecError, TargetError
from attn_mlir.runtime.file.cache import Cache

Pack = Callable[..., bytes]


class FakePipeline(types.ModuleType):
    """Counts what it is asked for and answers with a bundle that says what it was asked for."""

    def __init__(self, pack: Pack):
        super().__init__("attn_mlir.lowering.compile")
        self.pack = pack
        self.calls: list[Any] = []

    def compile_request(self, spec: Any, *, target: str, progress: Any) -> bytes:
        self.calls.append((spec, target))
        if progress is not None:
            progress("schedule")
        return self.pack(report={"heads": spec.heads}, target=target)


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


def test_several_targets_in_one_file(pipeline: FakePipeline) -> None:
    """Each is compiled once, and cached by itself."""
    one = am.compile(SPEC, target="sm_90a")
    both = am.compile(SPEC, target=("sm_90a", "sm_100a"))
    assert both.targets == ("sm_90a", "sm_100a") and both.for_target("sm_90a") is one
    assert [target for _, target in pipeline.calls] == ["sm_90a", "sm_100a"]
    with pytest.raises(SpecError, match="target names a chip twice: sm_90a, sm_90a"):
        am.compile(SPEC, target=["sm_90a", "sm_90a"])
    with pytest.raises(TargetError, match="target names no chip: supported are sm_90a, sm_100a"):
        am.compile(SPEC, target=[])


def test_garbage_collection_goes_on(
    pipeline: FakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first one leaves is in the oldest generation; what somebody has frozen stays frozen."""
    monkeypatch.setattr(compiler, "_is_first", True)
    assert gc.isenabled() and not gc.get_freeze_count()
    am.compile(SPEC)
    assert gc.isenabled() and not gc.get_freeze_count()
    assert any(found is pipeline.calls for found in gc.get_objects(generation=2))
    gc.freeze()
    try:
        am.compile(am.mha(heads=4, head_dim=64))
        assert gc.isenabled() and gc.get_freeze_count()
    finally:
        gc.unfreeze()


def test_what_later_compilations_leave_is_collected(
    pipeline: FakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that compiles for hours does not keep every module: cycles stay young, and go."""
    monkeypatch.setattr(compiler, "_is_first", False)
    gone: list[object] = []
    make = pipeline.compile_request

    def leaving(*arguments: Any, **options: Any) -> bytes:
        cycle = _Cycle()
        cycle.itself = cycle
        weakref.finalize(cycle, gone.append, None)
        return make(*arguments, **options)

    monkeypatch.setattr(pipeline, "compile_request", leaving)
    am.compile(SPEC)
    gc.collect(1)  # not the oldest generation, which is hardly ever looked at
    assert gone


class _Cycle:
    """Garbage that only the collector finds."""

    itself: object = None


def test_kept_for_the_next_process(pipeline: FakePipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    first = am.compile(SPEC)
    monkeypatch.setattr(compiler, "_memory", {})
    again = am.compile(SPEC)
    assert again is not first and again.data == first.data and again.path is not None
    assert len(pipeline.calls) == 1


@pytest.mark.parametrize("change", ["source_hash", "_mlir_identity", "_ptxas_identity"])
def test_a_new_compiler_is_a_miss(
    change: str, pipeline: FakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    am.compile(SPEC)
    monkeypatch.setattr(compiler, change, lambda *_: "other")
    am.compile(SPEC)
    assert len(pipeline.calls) == 2


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("way", ["named", "on PATH"])
def test_another_ptxas_of_the_same_size_and_time_is_a_miss(
    way: str, pipeline: FakePipeline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ptxas = program(tmp_path / "ptxas", "exit 1")
    status = ptxas.stat()
    if way == "named":
        cache = str(tmp_path / "cache")
        use(monkeypatch, ATTN_MLIR_CACHE_DIR=cache, ATTN_MLIR_PTXAS=str(ptxas))
    else:
        monkeypatch.setattr(sys, "path", [])
        monkeypatch.setenv("PATH", str(tmp_path))
        compiler._ptxas.cache_clear()
    try:
        for text in ("exit 1", "exit 2"):
            program(tmp_path / "new", text).replace(ptxas)
            os.utime(ptxas, ns=(status.st_atime_ns, status.st_mtime_ns))
            assert ptxas.stat().st_size == status.st_size
            monkeypatch.setattr(compiler, "_memory", {})
            am.compile(SPEC)
            am.compile(SPEC)
    finally:
        compiler._ptxas.cache_clear()
    assert len(pipeline.calls) == 2


def test_no_cache(pipeline: FakePipeline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(monkeypatch, ATTN_MLIR_CACHE_DIR=str(tmp_path / "other"), ATTN_MLIR_NO_CACHE="1")
    am.compile(SPEC)
    am.compile(SPEC)
    assert len(pipeline.calls) == 2 and not (tmp_path / "other").exists()


def test_no_cache_holds_for_every_kernel(
    pipeline: FakePipeline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use(monkeypatch, ATTN_MLIR_CACHE_DIR=str(tmp_path / "other"), ATTN_MLIR_NO_CACHE="1")
    made: list[str] = []

    def make() -> bytes:
        made.append("kernel")
        return pipeline.pack()

    for _ in range(2):
        compiler.cached("kernel", "{}", "sm_100a", make)
    assert len(made) == 2 and not (tmp_path / "other").exists()


def test_without_a_home_nothing_is_kept(
    pipeline: FakePipeline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nobody)
    use(monkeypatch)
    assert am.compile(SPEC).path is None


def test_dumps(pipeline: FakePipeline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    dumps = tmp_path / "dumps"
    use(monkeypatch, ATTN_MLIR_DUMP="ptx,cubin", ATTN_MLIR_DUMP_DIR=str(dumps))
    bundle = am.compile(SPEC)
    stem = f"scale_rows.sm_100a.{bundle.manifest.sha256_ptx[:8]}"
    assert sorted(path.name for path in dumps.iterdir()) == [f"{stem}.cubin", f"{stem}.ptx"]
    assert (dumps / f"{stem}.ptx").read_text() == bundle.ptx


def test_a_dump_goes_on_without_a_disassembler(
    pipeline: FakePipeline,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    dumps = tmp_path / "dumps"
    use(monkeypatch, ATTN_MLIR_DUMP="all", ATTN_MLIR_DUMP_DIR=str(dumps))
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setenv("PATH", "")
    assert am.compile(SPEC).entry == "scale_rows"
    assert sorted(path.suffix for path in dumps.iterdir()) == [".cubin", ".ptx"]
    assert "no nvdisasm: install the package nvidia-cuda-nvdisasm" in capsys.readouterr().err


def test_a_dump_that_cannot_be_written(
    pipeline: FakePipeline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    use(monkeypatch, ATTN_MLIR_DUMP="ptx", ATTN_MLIR_DUMP_DIR=str(tmp_path / "file" / "dumps"))
    with pytest.raises(SpecError, match="cannot make the folder '.*dumps': Not a directory"):
        am.compile(SPEC)


def test_refused(pipeline: FakePipeline) -> None:
    with pytest.raises(TargetError, match="target 'sm_80' is not known: supported are sm_90a, sm"):
        am.compile(SPEC, target="sm_80")
    with pytest.raises(TargetError, match="target 'sm_80' is not known"):
        am.compile(SPEC, target=["sm_90a", "sm_80"])
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
    for needle in (
        "dialect/_mlir.py",
        "schedules/registry.py",
        "passes/infrastructure/registry.py",
        "lowering/__init__.py",
    ):
        assert any(path.endswith(needle) for path in seen)


@pytest.mark.ptxas
def test_programs_take_part_in_the_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    key = compiler.cache_key("{}", "sm_100a", cache)
    assert key.parts["mlir"] == f"{PROVIDER_PACKAGE} {PROVIDER_VERSION}"
    assert len(key.parts["ptxas"]) == 64
    use(monkeypatch, ATTN_MLIR_PTXAS=str(tmp_path / "none"))
    missing = compiler.cache_key("{}", "sm_100a", cache)
    assert missing.parts["ptxas"] == "none" and missing.digest() != key.digest()


def test_the_official_mlir_is_known_by_its_libraries(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = tmp_path / "mlir" / "_mlir_libs" / "libMLIR.so"
    library.parent.mkdir(parents=True)
    library.write_text("1")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(_mlir, "PROVIDER_PACKAGE", "not_installed")
    first = _mlir.provider_identity()
    assert first.startswith("mlir ")
    library.write_text("2")
    assert _mlir.provider_identity() != first
