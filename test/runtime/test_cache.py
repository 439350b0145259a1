"""The cache on disk: hits, misses, damage, and processes that compile at the same time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from attn_mlir.runtime.cache import BUNDLE_FILE, Cache, Key, default_root

KEY = Key("0.1.0", "sm_100a", {"request": "a", "sources": "b"})
Pack = Callable[..., bytes]


def never() -> bytes:
    raise AssertionError("a hit must not compile")


def test_miss_then_hit(tmp_path: Path, pack: Pack) -> None:
    cache = Cache(tmp_path / "cache")
    assert cache.get(KEY) is None
    assert not (tmp_path / "cache").exists()
    bundle, hit = cache.get_or_make(KEY, pack)
    assert not hit and bundle.entry == "scale_rows"
    again, hit = cache.get_or_make(KEY, never)
    assert hit and again.data == bundle.data
    entry = tmp_path / "cache" / "0.1.0" / "sm_100a" / KEY.digest()
    assert sorted(path.name for path in entry.iterdir()) == [BUNDLE_FILE, "key.json"]
    assert again.path == entry / BUNDLE_FILE


@pytest.mark.parametrize("other", [
    Key("0.1.1", "sm_100a", KEY.parts), Key("0.1.0", "sm_90a", KEY.parts),
    Key("0.1.0", "sm_100a", {**KEY.parts, "request": "c"}),
    Key("0.1.0", "sm_100a", {"request": "a"}),
])  # fmt: skip
def test_everything_in_the_key_counts(other: Key, tmp_path: Path, pack: Pack) -> None:
    cache = Cache(tmp_path)
    cache.put(KEY, pack())
    assert cache.get(other) is None
    assert other.digest() != KEY.digest()


def test_order_of_parts_does_not_count() -> None:
    assert Key("0.1.0", "sm_100a", dict(reversed(KEY.parts.items()))).digest() == KEY.digest()


@pytest.mark.parametrize("damage", [b"", b"PK damaged", None])
def test_damage_is_a_miss_and_a_warning(
    damage: bytes | None, tmp_path: Path, pack: Pack, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = Cache(tmp_path)
    cache.put(KEY, pack())
    path = cache.directory(KEY) / BUNDLE_FILE
    path.write_bytes(pack()[:-20] if damage is None else damage)
    bundle, hit = cache.get_or_make(KEY, pack)
    assert not hit and bundle.entry == "scale_rows"
    assert "is not used" in capsys.readouterr().err
    assert cache.get_or_make(KEY, never)[1]
    assert [name for name in os.listdir(path.parent.parent) if name.startswith(".")] == []


def test_a_place_that_cannot_be_written(
    tmp_path: Path, pack: Pack, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    bundle, hit = Cache(tmp_path / "file").get_or_make(KEY, pack)
    assert not hit and bundle.entry == "scale_rows"
    assert "the kernel is not kept" in capsys.readouterr().err


def test_two_at_once_compile_once(tmp_path: Path, pack: Pack) -> None:
    cache = Cache(tmp_path)
    begun, calls = threading.Barrier(4), []

    def make() -> bytes:
        calls.append(1)
        return pack()

    def work() -> None:
        begun.wait()
        assert cache.get_or_make(KEY, make)[0].entry == "scale_rows"

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1


def test_a_failed_compilation_leaves_nothing(tmp_path: Path, pack: Pack) -> None:
    def fail() -> bytes:
        raise RuntimeError("ptxas")

    cache = Cache(tmp_path)
    with pytest.raises(RuntimeError, match="ptxas"):
        cache.get_or_make(KEY, fail)
    assert cache.get(KEY) is None
    assert not cache.get_or_make(KEY, pack)[1]


def test_default_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_root() == tmp_path / "attn-mlir"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_root() == tmp_path / ".cache" / "attn-mlir"
