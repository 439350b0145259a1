"""Bundles: the file that the compiler writes and the runtime reads.

A bundle is a zip of `kernel.cubin`, `kernel.ptx`, `bundle.json` (see
`attn_mlir.runtime.file.manifest` for its fields) and, as the source of the PTX, `kernel.mlir`. A
bundle for the emulator only has no `kernel.cubin`, and null in place of its hash. Reading checks
the schema and the hashes, so that a damaged file is refused before anything is launched, and
compares the manifest with the declarations in the PTX. It needs memory in proportion to the file.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from attn_mlir.errors import SpecError, TargetError
from attn_mlir.files import read_file, reason, write_file
from attn_mlir.runtime.file.manifest import Manifest, parse_manifest
from attn_mlir.runtime.file.members import read_members

CUBIN = "kernel.cubin"
PTX = "kernel.ptx"
MANIFEST = "bundle.json"
SOURCE = "kernel.mlir"
MAX_BUNDLE_BYTES = 1 << 26  # bytes; a hundred times our largest
SUFFIX = ".attn"  # of bundle files


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
        return Bundle.from_bytes(read_bundle_file(path), path=Path(path))

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
            digest = hashlib.sha256(parts[member]).hexdigest()
            if digest != expected:
                raise SpecError(
                    f"{name} is damaged: {member} has sha256 {digest[:16]}..., {MANIFEST} says "
                    f"{expected[:16]}...: compile it again"
                )
        ptx, source = (_text(parts, member, name) for member in (PTX, SOURCE))
        if not is_checked:
            from attn_mlir.runtime.file.declared import check_declared

            check_declared(manifest, ptx)
        return Bundle(
            manifest=manifest,
            machine_code=parts.get(CUBIN),
            ptx=ptx,
            source=source,
            data=data,
            path=path,
        )


def read_bundle_file(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a bundle file, unchecked.

    Raises:
      SpecError: no such file, or too large for a bundle.
    """
    try:
        return read_file(Path(path), most_bytes=MAX_BUNDLE_BYTES)
    except (OSError, ValueError) as error:
        raise SpecError(f"cannot read the bundle '{Path(path)}': {reason(error)}") from error


def _text(parts: Mapping[str, bytes], member: str, name: str) -> str:
    try:
        return parts[member].decode()
    except UnicodeDecodeError as error:
        raise SpecError(f"{name} is damaged: {member} is not text ({error})") from error


def _unzip(data: bytes, name: str) -> dict[str, bytes]:
    """The members by name; source may be empty, and machine code may be missing."""

    def choose(names: Sequence[str]) -> list[str]:
        if missing := sorted({PTX, MANIFEST} - set(names)):
            bundles = [member for member in names if member.endswith(SUFFIX)]
            several = (
                f", but holds {', '.join(bundles):.80}: FatBundle.load reads it" if bundles else ""
            )
            raise SpecError(f"{name} is not a bundle: it lacks {', '.join(missing)}{several}")
        return [PTX, MANIFEST, *(member for member in (CUBIN, SOURCE) if member in names)]

    what = f"{CUBIN}, {PTX} and {MANIFEST}"
    return {SOURCE: b""} | read_members(data, name, what=what, choose=choose)
