"""Bundles: the file that the compiler writes and the runtime reads.

A bundle is a zip of `kernel.cubin`, `kernel.ptx`, `bundle.json` (see `attn_mlir.runtime.manifest`
for its fields) and, as the source of the PTX, `kernel.mlir`. A bundle for the emulator only has no
`kernel.cubin`, and null in place of its hash. Reading checks the schema and the hashes, so that a
damaged file is refused before anything is launched, and compares the manifest with the declarations
in the PTX. It needs memory in proportion to the file.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from attn_mlir.errors import SpecError, TargetError
from attn_mlir.files import read_file, reason, write_file
from attn_mlir.runtime.manifest import Manifest, parse_manifest

CUBIN = "kernel.cubin"
PTX = "kernel.ptx"
MANIFEST = "bundle.json"
SOURCE = "kernel.mlir"
MAX_BUNDLE_BYTES = 1 << 26  # bytes; a hundred times our largest
MAX_DIRECTORY_BYTES = 1 << 12  # bytes of a zip directory: 46 and a name per member

_END = struct.Struct(
    "<4s4H2LH"
)  # end record of a zip: signature, disks, members, directory, comment
_END64, _END64_BYTES = b"PK\6\7", 20  # end locator of a large zip, before the end record


@dataclass(frozen=True)
class Bundle:
    """A compiled kernel with everything that a launch needs.

    Attributes:
      manifest: the checked contents of `bundle.json`.
      machine_code: the cubin for `manifest.target`; None in a bundle for the emulator only.
      ptx: the text from which the machine code was assembled; the emulator executes it.
      source: the kernel in the `ws` dialect, to which `.loc` in the PTX refers; may be empty.
      data: the bytes of the bundle file.
      path: where it was read from, or None.
    """

    manifest: Manifest
    machine_code: bytes | None = field(repr=False)
    ptx: str = field(repr=False)
    data: bytes = field(repr=False)
    source: str = field(default="", repr=False)
    path: Path | None = None

    @property
    def target(self) -> str:
        """The chip, such as `sm_100a`."""
        return self.manifest.target

    @property
    def cubin(self) -> bytes:
        """The machine code.

        Raises:
          TargetError: the bundle has none.
        """
        if self.machine_code is None:
            raise TargetError(
                f"the bundle of {self.entry} for {self.target} has no machine code: it was made "
                "with ATTN_MLIR_PTXAS=none and is for the emulator; unset that and compile it again"
            )
        return self.machine_code

    @property
    def entry(self) -> str:
        """The kernel's name in the PTX."""
        return self.manifest.entry

    @property
    def report(self) -> dict[str, object]:
        """The compiler's report: registers, spills, memory map, seconds per stage."""
        return dict(self.manifest.report)

    def json_text(self) -> str:
        """`bundle.json` as it is in the file."""
        return _unzip(self.data, "the bundle")[MANIFEST].decode()

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the bundle file, completely or not at all, and returns its path."""
        return write_file(Path(path), self.data)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Bundle:
        """Reads a bundle file.

        Raises:
          SpecError: no such file, not a bundle, or damaged.
          TargetError: written by a newer attn-mlir.
        """
        path = Path(path)
        try:
            data = read_file(path, most_bytes=MAX_BUNDLE_BYTES)
        except (OSError, ValueError) as error:
            raise SpecError(f"cannot read the bundle '{path}': {reason(error)}") from error
        return Bundle.from_bytes(data, path=path)

    @staticmethod
    def from_bytes(data: bytes, *, path: Path | None = None, is_checked: bool = False) -> Bundle:
        """Checks the bytes of a bundle file and unpacks them; errors as `load`.

        Args:
          is_checked: whether these same bytes were checked before, so that the PTX need not be
            compared.
        """
        name = f"'{path}'" if path is not None else "the data"
        parts = _unzip(data, name)
        try:
            decoded: object = json.loads(parts[MANIFEST])
        except RecursionError:
            raise SpecError(f"{name} is damaged: {MANIFEST} is nested too deeply") from None
        except ValueError as error:
            raise SpecError(f"{name} is damaged: {MANIFEST} is not JSON ({error})") from error
        manifest = parse_manifest(decoded)
        if (CUBIN in parts) != (manifest.sha256 is not None):
            there = "is there" if CUBIN in parts else "is missing"
            raise SpecError(
                f"{name} is damaged: {CUBIN} {there}, {MANIFEST} says otherwise: compile it again"
            )
        for member, expected in ((CUBIN, manifest.sha256), (PTX, manifest.sha256_ptx)):
            if expected is None:
                continue
            found = hashlib.sha256(parts[member]).hexdigest()
            if found != expected:
                raise SpecError(
                    f"{name} is damaged: {member} has sha256 {found[:16]}..., {MANIFEST} says "
                    f"{expected[:16]}...: compile it again"
                )
        ptx, source = (_text(parts, member, name) for member in (PTX, SOURCE))
        if not is_checked:
            from attn_mlir.runtime.declared import (
                check_declared,
            )  # takes 5 ms, which cache hits save

            check_declared(manifest, ptx)
        return Bundle(
            manifest=manifest,
            machine_code=parts.get(CUBIN),
            ptx=ptx,
            source=source,
            data=data,
            path=path,
        )


def _text(parts: Mapping[str, bytes], member: str, name: str) -> str:
    try:
        return parts[member].decode()
    except UnicodeDecodeError as error:
        raise SpecError(f"{name} is damaged: {member} is not text ({error})") from error


def _unzip(data: bytes, name: str) -> dict[str, bytes]:
    """The members by name; source may be empty, and machine code may be missing."""
    try:
        _check_directory(data)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = archive.namelist()
            if missing := sorted({PTX, MANIFEST} - set(names)):
                raise SpecError(f"{name} is not a bundle: it lacks {', '.join(missing)}")
            if len(set(names)) < len(names):
                raise SpecError(f"{name} is not a bundle: it has two members of one name")
            if packed := [i.filename for i in archive.infolist() if i.compress_type]:
                raise SpecError(
                    f"{name} is not a bundle: {', '.join(packed):.80} is compressed, and bundles "
                    "are not"
                )
            members = [PTX, MANIFEST, *(name for name in (CUBIN, SOURCE) if name in names)]
            return {SOURCE: b""} | {member: archive.read(member) for member in members}
    except SpecError:
        raise
    except Exception as error:  # zipfile raises a dozen kinds of errors for damaged files
        raise SpecError(
            f"{name} is not a bundle or is damaged ({error!s:.200}): a bundle is a zip with "
            f"{CUBIN}, {PTX} and {MANIFEST}"
        ) from error


def _check_directory(data: bytes) -> None:
    """Refuses a zip with a longer directory than bundles have, since reading it needs memory.

    Raises:
      ValueError: the file has no end record, or one with a comment.
    """
    end = data[-_END.size :]
    if len(end) < _END.size or data[-_END.size - _END64_BYTES :].startswith(_END64):
        raise ValueError("it does not end as a zip of a few small members does")
    signature, *_, directory_bytes, _, comment_bytes = _END.unpack(end)
    if signature != b"PK\5\6" or comment_bytes or directory_bytes > MAX_DIRECTORY_BYTES:
        raise ValueError("it does not end as a zip of a few small members does")
