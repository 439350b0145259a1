"""The cache of kernels knows the sources of other projects' schedules, masks and targets."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path

import pytest

from attn_mlir import extensions
from attn_mlir.compiling.compiler import cache_key, extension_hash
from attn_mlir.dialect.targets.limits import TARGETS, register_target, target_named
from attn_mlir.errors import SpecError
from attn_mlir.runtime.file.cache import Cache


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of another project with two files, of which one registers something."""
    monkeypatch.setattr(extensions, "_modules", {})
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "elsewhere"
    package.mkdir()
    for name in ("__init__", "kernel", "roles"):
        (package / f"{name}.py").write_text("")
    importlib.invalidate_caches()
    extensions.note(importlib.import_module("elsewhere.kernel").__name__)
    return package


def test_a_change_of_any_file_of_the_package_is_another_key(folder: Path, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    before = cache_key("{}", "sm_100a", cache).digest()
    assert cache_key("{}", "sm_100a", cache).digest() == before
    (folder / "roles.py").write_text("ROWS = 16\n")
    assert cache_key("{}", "sm_100a", cache).digest() != before


def test_a_file_by_itself_is_hashed_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions, "_modules", {})
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("lonely_mask", "neighbour"):
        (tmp_path / f"{name}.py").write_text("")
    importlib.invalidate_caches()
    extensions.note(importlib.import_module("lonely_mask").__name__)
    before = extension_hash()
    (tmp_path / "neighbour.py").write_text("SIZE = 1\n")
    assert extension_hash() == before
    (tmp_path / "lonely_mask.py").write_text("SIZE = 1\n")
    assert extension_hash() != before


def test_modules_of_this_package_need_no_note() -> None:
    assert not [name for name in extensions.noted() if name.startswith("attn_mlir")]


def test_two_targets_of_one_name_are_refused() -> None:
    own = target_named("sm_90a")
    assert register_target(own, "attn_mlir.dialect.targets.limits") is own
    other = target_named("sm_100a")
    with pytest.raises(SpecError, match="two targets are named sm_90a"):
        register_target(dataclasses.replace(other, chip="sm_90a"), __name__)
    assert TARGETS["sm_90a"] is own
