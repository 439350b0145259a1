"""Bundle files: what is read back, and what is refused."""

from __future__ import annotations

import io
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from attn_mlir.errors import SpecError, TargetError
from attn_mlir.runtime.bundle import Bundle


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
    with pytest.raises(SpecError, match=r"lacks bundle.json, kernel.cubin"):
        Bundle.from_bytes(stream.getvalue())


@pytest.mark.parametrize("needle", [b"no machine code", b"scale_rows(", b'"schema"'])
def test_any_changed_byte_is_found(pack: Callable[..., bytes], needle: bytes) -> None:
    data = bytearray(pack())
    data[data.index(needle)] ^= 1
    with pytest.raises(SpecError, match="damaged"):
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
