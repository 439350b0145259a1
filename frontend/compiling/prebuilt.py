"""Bundles that were compiled elsewhere, for machines without a compiler.

`ATTN_MLIR_BUNDLES` names a folder of bundle files, as `attn-mlir prebuild` writes it, or a zip of
these files. A file's name says what it is for: the kernel, the target, and a digest of both with the
request in canonical form.
"""

from __future__ import annotations

import functools
import hashlib
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath

from attn_mlir.errors import SpecError, TargetError
from attn_mlir.files import read_file, reason, write_file
from attn_mlir.runtime.bundle import MAX_BUNDLE_BYTES, Bundle

SUFFIX = ".attn"


def file_name(kernel: str, request: str, target: str) -> str:
    """Of the bundle file for a request.

    Args:
      kernel: entry name.
      request: canonical text of what is asked.
      target: the chip.
    """
    digest = hashlib.sha256(f"{target} {request}".encode()).hexdigest()[:16]
    return f"{kernel}.{target}.{digest}{SUFFIX}"


def find(place: Path | None, kernel: str, request: str, target: str, missing: str) -> Bundle:
    """The bundle for a request, where there is no compiler.

    Args:
      place: folder or zip, None where the user named none.
      kernel, request, target: as of `file_name`.
      missing: what the compiler lacks, for the message.

    Raises:
      TargetError: the request is not there, or another one lies in its place.
      SpecError: the file is damaged, or the place cannot be read.
    """
    make = "on a machine that can compile, run `attn-mlir prebuild -o FOLDER SCRIPT`, with the program that asks for it"
    if place is None:
        raise TargetError(
            f"this installation cannot compile {kernel} for {target}, {missing}: pip install "
            f"attn-mlir with its dependencies; or, {make}, and set ATTN_MLIR_BUNDLES to the folder"
        )
    name = file_name(kernel, request, target)
    data = _read(place, name)
    if data is None:
        raise TargetError(
            f"this installation cannot compile, {missing}, and {place} has no bundle of {kernel} "
            f"for {target} ({name}; the request is {request:.1000}): {make}, and bring the folder here"
        )
    bundle = Bundle.from_bytes(data, path=place / name)
    said = dict(bundle.manifest.request)
    if bundle.target != target or said not in ({}, json.loads(request)):
        raise TargetError(
            f"{bundle.path} is a bundle of {bundle.entry} for {bundle.target}, which is not what "
            f"its name says: make the folder again, {make}"
        )
    return bundle


def _read(place: Path, name: str) -> bytes | None:
    """The bytes of a bundle file in a folder or a zip; None where it is not there.

    Raises:
      SpecError: the place, or the file, cannot be read.
    """
    try:
        if place.is_dir():
            path = place / name
            return read_file(path, most_bytes=MAX_BUNDLE_BYTES) if path.exists() else None
        status = place.stat()
        member = _members(place, status.st_mtime_ns, status.st_size).get(name)
        if member is None:
            return None
        with zipfile.ZipFile(place) as archive:
            if archive.getinfo(member).file_size > MAX_BUNDLE_BYTES:
                raise ValueError(f"{member} has more than {MAX_BUNDLE_BYTES} bytes")
            return archive.read(member)
    except Exception as error:  # zipfile meets damage with a dozen kinds of error
        told = reason(error) if isinstance(error, OSError | ValueError) else str(error)
        raise SpecError(
            f"ATTN_MLIR_BUNDLES names {place}, which cannot be read: {told}; it must be a folder of "
            "bundle files, or a zip of such files"
        ) from error


@functools.lru_cache(maxsize=4)
def _members(place: Path, changed_ns: int, byte_count: int) -> Mapping[str, str]:
    """Members of an archive by file name, whatever folder they lie in there."""
    with zipfile.ZipFile(place) as archive:
        return {PurePosixPath(name).name: name for name in archive.namelist()}


def write_archive(folder: Path, archive: Path, keep: Callable[[str], bool] = bool) -> Path:
    """Packs the bundle files of a folder into one zip, the same bytes for the same files.

    Args:
      keep: says by its name whether a file is packed.

    Raises:
      SpecError: the folder cannot be read, or the archive not written.
    """
    import io

    buffer = io.BytesIO()
    try:
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
            for path in sorted(folder.glob(f"*{SUFFIX}")):
                if keep(path.name):
                    member = zipfile.ZipInfo(path.name)  # dated 1980, as bundles are
                    member.compress_type = zipfile.ZIP_DEFLATED
                    packed.writestr(member, path.read_bytes())
    except OSError as error:
        raise SpecError(f"cannot read the bundles of '{folder}': {reason(error)}") from error
    return write_file(archive, buffer.getvalue())
