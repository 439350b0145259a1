"""Bundle files: what is read back, and what is refused."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import stat
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attn_mlir.errors import AttnError, SpecError, TargetError
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.file.bundle import Bundle
from attn_mlir.runtime.file.fat_bundle import read_bundles
from attn_mlir.runtime.kernel import load, named_device


def tiny_bundle() -> bytes:
    """The smallest bundle: one tensor, no parameters."""
    cubin, ptx = b"cubin", ".version 8.6\n.target sm_100a\n.entry e(.param .u64 x) { ret; }\n"
    fields = {
        "schema": 1, "entry": "e", "target": "sm_100a", "block": [1, 1, 1], "cluster": [1, 1, 1],
        "smem_bytes": 0, "grid": ["n", 1, 1], "symbols": ["n"],
        "tensors": [{"name": "x", "role": "out", "dtype": "f32", "shape": ["n"],
                     "unit_stride_axis": 0, "alignment_bytes": 4}],
        "scalars": [], "params": [{"kind": "pointer", "tensor": "x"}], "report": {}, "versions": {},
        "sha256": hashlib.sha256(cubin).hexdigest(),
        "sha256_ptx": hashlib.sha256(ptx.encode()).hexdigest(),
    }  # fmt: skip
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("kernel.cubin", cubin)
        archive.writestr("kernel.ptx", ptx)
        archive.writestr("bundle.json", json.dumps(fields))
    return stream.getvalue()


def test_save_and_load(scale_bundles: dict[str, bytes], tmp_path: Path) -> None:
    bundle = Bundle.from_bytes(scale_bundles["sm_100a"])
    path = bundle.save(tmp_path / "scale.attn")
    again = Bundle.load(path)
    assert (again.entry, again.target, again.path) == ("scale_rows", "sm_100a", path)
    assert again.cubin == bundle.cubin and again.cubin[:4] == b"\x7fELF"
    assert again.ptx == bundle.ptx and ".target sm_100a" in again.ptx
    assert again.report["registers"] == 12
    assert path.read_bytes() == scale_bundles["sm_100a"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [file.name for file in tmp_path.iterdir()] == ["scale.attn"]


def test_save_where_nothing_can_be(pack: Callable[..., bytes], tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot write"):
        Bundle.from_bytes(pack()).save(tmp_path / "missing" / "scale.attn")


@pytest.mark.parametrize("source", [None, 5, True, object(), ["a"], 1.5, Path])
def test_load_takes_bundles(source: object) -> None:
    with pytest.raises(
        SpecError, match="^load takes a bundle, the path of its file or its bytes, got"
    ):
        load(source)  # pyright: ignore


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_load_takes_bytes(kind: Callable[[bytes], bytes], pack: Callable[..., bytes]) -> None:
    assert load(kind(pack())).bundle.entry == "scale_rows"


@pytest.mark.parametrize(
    "device",
    [5, True, "", "gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:²", "cuda:１", f"cuda:{9**99}", b"cuda",
     ["cuda"], np.zeros(3), EmulatorDevice],
)  # fmt: skip
def test_devices_that_are_none(device: object) -> None:
    with pytest.raises(
        SpecError, match="^device must be 'cuda', 'emulator', a device or None, got"
    ):
        named_device(device)  # pyright: ignore


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot read the bundle .*No such file"):
        Bundle.load(tmp_path / "none.attn")


def test_directory(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot read the bundle"):
        Bundle.load(tmp_path)


@pytest.mark.parametrize("data", [b"", b"not a zip", b"PK\x03\x04 but no more"])
def test_not_a_zip(data: bytes) -> None:
    with pytest.raises(SpecError, match="is not a bundle or is damaged"):
        Bundle.from_bytes(data)


def test_other_zip() -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("kernel.ptx", "")
    with pytest.raises(SpecError, match=r"it lacks bundle.json"):
        Bundle.from_bytes(stream.getvalue())


@pytest.mark.parametrize("needle", [b"no machine code", b"scale_rows(", b'"schema"'])
def test_any_changed_byte_is_found(pack: Callable[..., bytes], needle: bytes) -> None:
    data = bytearray(pack())
    data[data.index(needle)] ^= 1
    with pytest.raises(SpecError, match="damaged"):
        Bundle.from_bytes(bytes(data))


@settings(max_examples=400, deadline=None, derandomize=True)
@given(data=st.data())
def test_damage_never_goes_unnoticed(data: st.DataObject) -> None:
    """A flipped byte anywhere is refused with a typed error, or changes nothing that is read."""
    original = tiny_bundle()
    whole = Bundle.from_bytes(original)
    damaged = bytearray(original)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    try:
        found = Bundle.from_bytes(bytes(damaged))
    except AttnError:
        return
    assert (found.manifest, found.cubin, found.ptx) == (whole.manifest, whole.cubin, whole.ptx)


@pytest.mark.parametrize(
    ("offset_from_end", "value"),
    [(6, 0xFF), (3, 0xFF)],  # where the directory of the zip begins
)
def test_damaged_directory(pack: Callable[..., bytes], offset_from_end: int, value: int) -> None:
    data = bytearray(pack())
    data[-offset_from_end] = value
    with pytest.raises(SpecError, match="is not a bundle or is damaged"):
        Bundle.from_bytes(bytes(data))


def test_damaged_name(pack: Callable[..., bytes]) -> None:
    data = bytearray(pack())
    data[data.rindex(b"kernel.cubin") + 8] = 0xB1
    with pytest.raises(SpecError, match="damaged|lacks"):
        Bundle.from_bytes(bytes(data))


def test_truncated(pack: Callable[..., bytes]) -> None:
    data = pack()
    for length in (len(data) // 4, len(data) // 2, len(data) - 1):
        with pytest.raises(SpecError, match="not a bundle or is damaged"):
            Bundle.from_bytes(data[:length])


@pytest.mark.parametrize("field", ["sha256", "sha256_ptx"])
def test_wrong_hash(pack: Callable[..., bytes], field: str) -> None:
    with pytest.raises(SpecError, match="damaged: kernel.* has sha256"):
        Bundle.from_bytes(pack(**{field: "0" * 64}))


def test_newer_schema_names_the_remedy(pack: Callable[..., bytes]) -> None:
    with pytest.raises(TargetError, match="upgrade attn-mlir"):
        Bundle.from_bytes(pack(schema=2))


def zipped(members: dict[str, bytes], **options: Any) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", **options) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return stream.getvalue()


def parts(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def memory_of(data: bytes) -> int:
    """Bytes that refusing a file takes at most, beyond the file."""
    tracemalloc.start()
    try:
        with pytest.raises(SpecError):
            Bundle.from_bytes(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compression_is_refused_before_anything_is_read(method: int) -> None:
    bomb = {**parts(tiny_bundle()), "kernel.ptx": bytes(1 << 24)}
    data = zipped(bomb, compression=method)
    with pytest.raises(SpecError, match="kernel.ptx.* is compressed, and bundles are not"):
        Bundle.from_bytes(data)
    assert memory_of(data) < 1 << 20


def test_a_zip_of_very_many_members_is_refused_at_its_end() -> None:
    data = zipped({**parts(tiny_bundle()), **{f"{number}": b"" for number in range(20_000)}})
    assert memory_of(data) < 1 << 20


def test_a_member_that_says_to_be_larger_than_the_file() -> None:
    data = bytearray(tiny_bundle())
    at = data.index(b"PK\1\2")  # of the directory: the sizes of the first member
    struct.pack_into("<2L", data, at + 20, 1 << 31, 1 << 31)
    assert memory_of(bytes(data)) < 1 << 20


def test_two_members_of_one_name() -> None:
    with pytest.warns(UserWarning):
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            for name, data in [*parts(tiny_bundle()).items(), ("bundle.json", b"{}")]:
                archive.writestr(name, data)
    with pytest.raises(SpecError, match="two members of one name"):
        Bundle.from_bytes(stream.getvalue())


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[" * 500 + "]" * 500])
def test_deeply_nested_json(text: str) -> None:
    with pytest.raises(SpecError, match="nested"):
        Bundle.from_bytes(zipped({**parts(tiny_bundle()), "bundle.json": text.encode()}))


@pytest.mark.parametrize("text", ["9" * 5000, '{"schema": ' + "9" * 5000 + "}", '{"schema": NaN}'])
def test_odd_numbers(text: str) -> None:
    with pytest.raises(SpecError, match="not JSON|schema must be"):
        Bundle.from_bytes(zipped({**parts(tiny_bundle()), "bundle.json": text.encode()}))


def test_endless_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError, match="cannot read the bundle '/dev/zero': it is not a regular"):
        Bundle.load("/dev/zero")
    with pytest.raises(SpecError, match="cannot read the bundle"):
        Bundle.load(f"{tmp_path}/{'x' * 300}")
    with pytest.raises(SpecError, match="cannot read the bundle"):
        Bundle.load("null\0byte")


def test_names_as_long_as_the_system_takes(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 250 + ".attn")
    Bundle.from_bytes(tiny_bundle()).save(path)
    assert Bundle.load(path).entry == "e"
    with pytest.raises(SpecError, match="cannot write .*File name too long"):
        Bundle.from_bytes(tiny_bundle()).save(tmp_path / ("x" * 300))


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "old.attn"
    path.write_text("old")
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(SpecError, match="cannot write .*No space left on device"):
        Bundle.from_bytes(tiny_bundle()).save(path)
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["old.attn"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"entry": "gone"}, "entry .* says gone, the PTX has"),
        ({"block": [64, 1, 1]}, "block .* says"),
        ({"programmatic": True}, "programmatic .* says True"),
    ],
)
@pytest.mark.parametrize("read", [Bundle.from_bytes, load, read_bundles])
def test_a_manifest_that_disagrees_with_its_ptx_is_refused(
    pack: Any, read: Callable[[bytes], object], changed: dict[str, Any], message: str
) -> None:
    """The hashes are right, so that only the comparison with the PTX can tell."""
    read(pack())
    with pytest.raises(SpecError, match=message):
        read(pack(**changed))
