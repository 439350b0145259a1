"""Paths that users name: pipes and devices are refused at once, and none is waited for or replaced."""

from __future__ import annotations

import ast
import os
import signal
import stat
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from attn_mlir import cli
from attn_mlir.cli.timeline import read_trace
from attn_mlir.compiling.prebuild import Collector
from attn_mlir.compiling.prebuilt import file_name, find, write_archive
from attn_mlir.errors import SpecError
from attn_mlir.files import open_regular, read_file, scratch_folder, write_file
from attn_mlir.passes.attn_opt import run
from attn_mlir.passes.opt import reproducer
from attn_mlir.runtime.file.bundle import Bundle
from attn_mlir.runtime.file.fat_bundle import load_bundles
from attn_mlir.runtime.file.hashes import remembered_hash

ROOT = Path(__file__).resolve().parents[2]
NOT_REGULAR = "it is not a regular file"
NAME = file_name("k", "{}", "sm_90a")


@pytest.fixture(autouse=True)
def _no_waiting() -> Iterator[None]:
    """Ends a test that waits for a pipe or reads a device without end."""

    def late(*_: object) -> None:
        raise AssertionError("waited for a minute")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def pipe(folder: Path, name: str = "pipe") -> Path:
    """A pipe that nobody has open."""
    os.mkfifo(folder / name)
    return folder / name


def look_up(place: Path) -> None:
    find(place, "k", "{}", "sm_90a", "nothing is here")


def look_up_inside(path: Path) -> None:
    folder = path.parent / "bundles"
    folder.mkdir()
    (folder / NAME).symlink_to(path)
    look_up(folder)


def pack(path: Path) -> None:
    (path.parent / "pack").mkdir()
    (path.parent / "pack" / NAME).symlink_to(path)
    write_archive(path.parent / "pack", path.parent / "all.zip")


READERS: dict[str, Callable[[Path], object]] = {
    "file": read_file,
    "bundle": Bundle.load,
    "bundles": load_bundles,
    "ATTN_MLIR_BUNDLES": look_up,
    "in ATTN_MLIR_BUNDLES": look_up_inside,
    "archive of": pack,
    "trace": read_trace,
    "program": lambda path: remembered_hash(path, lambda: None),
}


@pytest.mark.parametrize("through_a_link", [False, True])
@pytest.mark.parametrize("reader", READERS)
def test_a_pipe_is_refused(reader: str, through_a_link: bool, tmp_path: Path) -> None:
    path = pipe(tmp_path)
    if through_a_link:
        (tmp_path / "link").symlink_to(path)
        path = tmp_path / "link"
    with pytest.raises((SpecError, OSError), match=NOT_REGULAR):
        READERS[reader](path)


@pytest.mark.parametrize("reader", ["bundle", "ATTN_MLIR_BUNDLES", "trace"])
def test_a_device_is_refused(reader: str) -> None:
    with pytest.raises(SpecError, match=NOT_REGULAR):
        READERS[reader](Path("/dev/zero"))


@pytest.mark.parametrize(
    "words", [["info", "{}"], ["run", "{}"], ["trace", "{}", "-o", "t.svg"], ["doctor", "--bundle", "{}"]]
)  # fmt: skip
def test_commands_refuse_a_pipe(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([word.format(pipe(tmp_path)) if "{" in word else word for word in words]) == 1
    assert NOT_REGULAR in capsys.readouterr().err


def test_attn_opt_refuses_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = pipe(tmp_path)
    assert run([str(path)]) == 2
    assert capsys.readouterr().err == (
        f"attn-opt: error: cannot read '{path}': {NOT_REGULAR}; - reads from standard input\n"
    )


def test_links_to_files_and_folders_are_followed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"data")
    (tmp_path / "link").symlink_to("file")
    assert read_file(tmp_path / "link") == b"data"
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    folder, archive = tmp_path / "folder", tmp_path / "zip"
    folder.symlink_to(tmp_path)
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as packed:
        packed.writestr(NAME, b"no bundle")
    archive.symlink_to("all.zip")
    (tmp_path / NAME).write_bytes(b"no bundle")
    for place in (folder, archive):
        with pytest.raises(SpecError, match="is not a bundle or is damaged"):
            look_up(place)


def test_the_kind_is_that_of_the_open_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that becomes a pipe when it has been looked at is refused as well."""
    path = pipe(tmp_path)
    monkeypatch.setattr(Path, "stat", lambda *_: os.stat(ROOT / "LICENSE"))
    with pytest.raises(OSError, match=NOT_REGULAR):
        read_file(path)


def test_writing_neither_waits_for_a_pipe_nor_replaces_it(tmp_path: Path) -> None:
    path = pipe(tmp_path)
    with pytest.raises(SpecError, match=f"cannot write '{path}': No such device"):
        write_file(path, "text")
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    write_file(path, "text")
    assert os.read(reader, 10) == b"text" and path.is_fifo()
    os.close(reader)


def test_a_file_is_replaced_and_never_half_written(tmp_path: Path) -> None:
    """Whoever has the old one open reads it to its end."""
    path = tmp_path / "a"
    write_file(path, "the old one")
    with path.open() as old:
        write_file(path, "new")
        assert old.read() == "the old one" and path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(SpecError, match="cannot write"):
        write_file(tmp_path, "a folder")


def test_a_temporary_folder_is_known_as_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its name, so that what a killed process leaves is removed by a later one."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with scratch_folder() as folder:
        assert folder.parent == tmp_path and folder.name.startswith("attn-mlir-")
    assert not folder.exists()


def test_devices_are_written_to_and_stay(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("/dev/null")
    assert write_file(link, "text") == link
    assert link.is_symlink() and stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_what_attn_opt_writes_goes_through_no_pipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "empty.mlir"
    source.write_text("module {}\n")
    path = pipe(tmp_path)
    tree = tmp_path / "tree"
    tree.mkdir()
    os.mkfifo(tree / "000_cse.mlir")
    dumped = [f"--mlir-print-ir-tree-dir={tree}", "--cse"]
    for code, options in ((2, ["-o", str(path)]), (1, dumped)):
        assert run([str(source), *options]) == code
        assert "cannot write" in capsys.readouterr().err
    recorder = reproducer.Recorder(path, is_local=False, verify_each=True)
    with pytest.raises(SpecError, match="cannot write"):
        recorder.begin([], "module {}")


def test_prebuild_puts_a_file_in_the_place_of_nothing_else(
    tmp_path: Path, pack: Callable[..., bytes]
) -> None:
    from attn_mlir.compiling.compiler import RequestedKernel

    asked = RequestedKernel("k", "{}", "sm_90a", Bundle.from_bytes(pack()))
    pipe(tmp_path, NAME)
    with pytest.raises(SpecError, match="cannot write"):
        Collector(tmp_path, say=lambda _: None)(asked)


# Files that are no user's: sources of this project, and what our own programs left in a folder that we made.
OWN_FILES = {
    "dialect/_mlir.py": "the provider's version",
    "frontend/cli/main.py": "the null device",
    "frontend/compiling/compiler.py": "our sources, whose digest is in the key",
    "frontend/files.py": "the door",
    "frontend/tools.py": "a temporary folder",
    "lowering/ptxas.py": "a temporary folder",
    "runtime/timing/assembly.py": "a temporary folder",
    "runtime/file/cache.py": "a temporary folder in the cache",
}  # fmt: skip
OPENING = {"open", "read_text", "read_bytes", "write_text", "write_bytes"}


def opening_calls(text: str) -> Iterator[int]:
    """Lines of calls that open a path by themselves: of a descriptor, or of text in memory, are none."""
    if not any(f"{name}(" in text for name in OPENING):
        return
    for call in ast.walk(ast.parse(text)):
        if not isinstance(call, ast.Call):
            continue
        is_method = isinstance(call.func, ast.Attribute)
        name = getattr(call.func, "attr" if is_method else "id", "")
        is_open = name == "open" and not is_method
        first = ast.unparse(call.args[0]) if call.args else ""
        if is_open and "open_regular(" in first:
            continue
        if name in OPENING and (is_method or is_open):
            yield call.lineno


def test_every_path_goes_through_one_door() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for folder in ("dialect", "frontend", "lowering", "passes", "runtime", "schedules")
        for path in (ROOT / folder).rglob("*.py")
        if list(opening_calls(path.read_text()))
    }
    assert found == set(OWN_FILES)
