"""The cache on disk: hits, misses, damage, and processes that compile at the same time."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attn_mlir.runtime.file import cache as cache_module
from attn_mlir.runtime.file import hashes
from attn_mlir.runtime.file.cache import BUNDLE_FILE, Cache, Key, default_root
from attn_mlir.runtime.file.trust import read_regular

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
    assert "is not used, at" in capsys.readouterr().err


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


OTHER = Key("0.1.0", "sm_100a", {"request": "c", "sources": "b"})


@pytest.mark.parametrize("copied", [["kernel.attn"], ["key.json"], ["kernel.attn", "key.json"]])
def test_the_entry_of_another_kernel_is_not_served(
    copied: list[str], tmp_path: Path, pack: Pack, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = Cache(tmp_path)
    cache.put(KEY, pack(report={"of": "KEY"}))
    cache.put(OTHER, pack(report={"of": "OTHER"}))
    for name in copied:
        shutil.copy(cache.directory(OTHER) / name, cache.directory(KEY) / name)
    bundle, hit = cache.get_or_make(KEY, lambda: pack(report={"of": "KEY"}))
    assert not hit and bundle.report == {"of": "KEY"}
    assert "key.json is not that of this kernel" in capsys.readouterr().err
    again = cache.get(KEY)
    assert again is not None and again.report == {"of": "KEY"}


def test_an_entry_without_its_key_is_a_miss(tmp_path: Path, pack: Pack) -> None:
    cache = Cache(tmp_path)
    cache.put(KEY, pack())
    (cache.directory(KEY) / "key.json").unlink()
    assert cache.get(KEY) is None


@pytest.mark.parametrize("name", ["kernel.attn", "key.json"])
@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_files_of_another_kind_are_a_miss(name: str, kind: str, tmp_path: Path, pack: Pack) -> None:
    cache = Cache(tmp_path / "cache")
    path = cache.put(KEY, pack()) / name
    path.rename(tmp_path / name)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(tmp_path / name)
    else:
        path.mkdir()
    assert not cache.get_or_make(KEY, pack)[1]
    assert cache.get_or_make(KEY, never)[1]


def test_a_folder_is_its_owners_alone(tmp_path: Path, pack: Pack) -> None:
    old = os.umask(0)
    try:
        entry = Cache(tmp_path / "cache").put(KEY, pack())
    finally:
        os.umask(old)
    for folder in (tmp_path / "cache", entry.parent.parent, entry.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert Cache(tmp_path / "cache").get(KEY) is not None


@pytest.mark.parametrize("which", ["root", "version", "target", "entry"])
@pytest.mark.parametrize("fault", ["writable", "of another"])
def test_folders_that_others_can_change_are_not_used(
    which: str,
    fault: str,
    tmp_path: Path,
    pack: Pack,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cache = Cache(tmp_path / "cache")
    entry = cache.put(KEY, pack(report={"by": "attacker"}))
    folder = {"entry": entry, "target": entry.parent, "version": entry.parent.parent}.get(
        which, cache.root
    )
    if fault == "writable":
        folder.chmod(0o777)
    elif os.geteuid() == 0:
        os.chown(folder, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    bundle, hit = cache.get_or_make(KEY, lambda: pack(report={"by": "me"}))
    assert not hit and bundle.report == {"by": "me"} and bundle.path is None
    told = capsys.readouterr().err
    assert told.count("is not used, at") == 1, "one warning per process"
    assert ("everybody may write to it" if fault == "writable" else "it belongs to user") in told


def test_a_sticky_folder_of_everybody_will_do(tmp_path: Path, pack: Pack) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    cache = Cache(tmp_path / "shared")
    assert not cache.get_or_make(KEY, pack)[1]
    assert cache.get_or_make(KEY, never)[1]


@pytest.mark.parametrize("root", ["x" * 300, "/".join(["y" * 200] * 30), "file/below", "null\0"])
def test_impossible_places(root: str, tmp_path: Path, pack: Pack, capsys: Any) -> None:
    (tmp_path / "file").write_text("")
    bundle, hit = Cache(tmp_path / root).get_or_make(KEY, pack)
    assert not hit and bundle.path is None
    assert "the cache" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may do everything")
@pytest.mark.parametrize("mode", [0o000, 0o500])
def test_without_permission(mode: int, tmp_path: Path, pack: Pack) -> None:
    root = tmp_path / "cache"
    root.mkdir(mode=mode)
    assert Cache(root).get_or_make(KEY, pack)[0].path is None
    root.chmod(0o700)


@pytest.mark.parametrize("call", ["mkdtemp", "rename", "write"])
def test_a_full_disk(
    call: str, tmp_path: Path, pack: Pack, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    owner, name = {
        "mkdtemp": (cache_module.tempfile, "mkdtemp"), "rename": (os, "rename"),
        "write": (Path, "write_bytes"),
    }[call]  # fmt: skip
    monkeypatch.setattr(owner, name, full)
    assert Cache(tmp_path / call).get_or_make(KEY, pack)[0].path is None
    assert "No space left on device" in capsys.readouterr().err
    assert [path for path in (tmp_path / call).rglob("*") if not path.is_dir()] == []


def test_leftovers_of_killed_processes_are_removed(tmp_path: Path, pack: Pack) -> None:
    cache = Cache(tmp_path)
    folder = cache.put(KEY, pack()).parent
    for name in (".new-old", ".old-old", ".new-young"):
        (folder / name).mkdir()
        (folder / name / "kernel.attn").write_bytes(b"half")
    (folder / "old.lock").write_text("process 1 on nowhere")
    for name in (".new-old", ".old-old", "old.lock"):
        os.utime(folder / name, (0, 0))
    cache.put(OTHER, pack())
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [".new-young", KEY.digest(), OTHER.digest()]
    )


def test_hashes_of_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process with the same cache does not read the file again, unless it was replaced."""
    monkeypatch.setattr(hashes, "SETTLED_SECONDS", -1.0)
    program, cache = tmp_path / "ptxas", Cache(tmp_path / "cache")
    program.write_bytes(b"one")
    status = program.stat()
    one = cache.hash_of(program)
    assert one == hashlib.sha256(b"one").hexdigest()

    def next_process() -> None:
        monkeypatch.setattr(hashes, "_hashes", {})

    reads: list[object] = []
    digest = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda *a: reads.append(a) or digest(*a))
    next_process()
    assert cache.hash_of(program) == one and not reads
    (tmp_path / "new").write_bytes(b"two")
    (tmp_path / "new").replace(program)
    os.utime(program, ns=(status.st_atime_ns, status.st_mtime_ns))
    next_process()
    assert cache.hash_of(program) == hashlib.sha256(b"two").hexdigest() and len(reads) == 1
    for kept in (tmp_path / "cache" / "programs").iterdir():
        kept.write_text("short")
    next_process()
    assert cache.hash_of(program) == hashlib.sha256(b"two").hexdigest() and len(reads) == 2


def test_hashes_are_not_taken_from_folders_of_everybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashes, "SETTLED_SECONDS", -1.0)
    program, cache = tmp_path / "ptxas", Cache(tmp_path / "cache")
    program.write_bytes(b"one")
    one = cache.hash_of(program)
    for kept in (tmp_path / "cache" / "programs").iterdir():
        kept.write_text("0" * 64)
    (tmp_path / "cache" / "programs").chmod(0o777)
    monkeypatch.setattr(hashes, "_hashes", {})
    assert cache.hash_of(program) == one


def test_nothing_is_made_in_folders_of_everybody(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    assert Cache(tmp_path / "cache")._hash_folder() is None
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_file_has_at_most_so_many_bytes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"four")
    assert read_regular(path, 4) == b"four"
    with pytest.raises(ValueError, match="^file has more than 3 bytes$"):
        read_regular(path, 3)
