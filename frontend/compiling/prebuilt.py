"""Bundles that were compiled elsewhere, for machines without a compiler.

`ATTN_MLIR_BUNDLES` names a folder of bundle files, as `attn-mlir prebuild` writes it, or a zip of
them. A file's name consists of the kernel, the target, and a digest of both with the canonical
request.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import zipfile
from collections.abc import Callable, Generator, Mapping
from pathlib import Path, PurePosixPath

from attn_mlir.errors import SpecError, TargetError
from attn_mlir.files import open_regular, read_file, reason, write_file
from attn_mlir.runtime.file.bundle import MAX_BUNDLE_BYTES, SUFFIX, Bundle


def file_name(kernel: str, request: str, target: str) -> str:
    """The name of the bundle file for a request.

    Args:
      kernel: entry name of the kernel.
      request: canonical text of the request.
      target: the chip.
    """
    digest = hashlib.sha256(f"{target} {request}".encode()).hexdigest()[:16]
    return f"{kernel}.{target}.{digest}{SUFFIX}"


def find(source: Path | None, kernel: str, request: str, target: str, missing: str) -> Bundle:
    """The prebuilt bundle for a request.

    Args:
      source: folder or zip; None if the user named none.
      kernel, request, target: as in `file_name`.
      missing: why nothing can be compiled here, for the message.

    Raises:
      TargetError: there is no bundle for the request, or the file is for another one.
      SpecError: the file is damaged, or the place cannot be read.
    """
    make = (
        "on a machine that can compile, run `attn-mlir prebuild -o FOLDER SCRIPT`, with the "
        "program that asks for it"
    )
    if source is None:
        raise TargetError(
            f"this installation cannot compile {kernel} for {target}, {missing}: pip install "
            f"attn-mlir with its dependencies; or, {make}, and set ATTN_MLIR_BUNDLES to the folder"
        )
    name = file_name(kernel, request, target)
    data = _read(source, name)
    if data is None:
        raise TargetError(
            f"this installation cannot compile, {missing}, and {source} has no bundle of {kernel} "
            f"for {target} ({name}; the request is {request:.1000}): {make}, and bring the folder "
            "here"
        )
    bundle = Bundle.from_bytes(data, path=source / name)
    recorded = dict(bundle.manifest.request)
    if bundle.target != target or recorded not in ({}, json.loads(request)):
        raise TargetError(
            f"{bundle.path} is a bundle of {bundle.entry} for {bundle.target}, which is not what "
            f"its name says: make the folder again, {make}"
        )
    return bundle


def _read(source: Path, name: str) -> bytes | None:
    """The bytes of a bundle file in a folder or zip; None if it does not exist.

    Raises:
      SpecError: the place, or the file, cannot be read.
    """
    try:
        if source.is_dir():
            path = source / name
            return read_file(path, most_bytes=MAX_BUNDLE_BYTES) if path.exists() else None
        status = source.stat()
        member = _members(source, status.st_mtime_ns, status.st_size).get(name)
        if member is None:
            return None
        with _archive(source) as archive:
            if archive.getinfo(member).file_size > MAX_BUNDLE_BYTES:
                raise ValueError(f"{member} has more than {MAX_BUNDLE_BYTES} bytes")
            return archive.read(member)
    except Exception as error:  # zipfile raises a dozen kinds of errors for damaged files
        problem = reason(error) if isinstance(error, OSError | ValueError) else str(error)
        raise SpecError(
            f"ATTN_MLIR_BUNDLES names {source}, which cannot be read: {problem}; it must be a "
            "folder of bundle files, or a zip of such files"
        ) from error


@contextlib.contextmanager
def _archive(source: Path) -> Generator[zipfile.ZipFile]:
    """A zip that is a regular file, opened for reading."""
    with open(open_regular(source), "rb") as stream, zipfile.ZipFile(stream) as archive:
        yield archive


@functools.lru_cache(maxsize=4)
def _members(source: Path, changed_ns: int, byte_count: int) -> Mapping[str, str]:
    """Members of an archive by file name without folder."""
    with _archive(source) as archive:
        return {PurePosixPath(name).name: name for name in archive.namelist()}


def write_archive(folder: Path, archive: Path, keep: Callable[[str], bool] = bool) -> Path:
    """Packs the bundle files of a folder into a zip; the same files give the same bytes.

    Args:
      keep: whether to pack a file, by its name.

    Raises:
      SpecError: the folder cannot be read, or the archive not written.
    """
    import io

    buffer = io.BytesIO()
    try:
        with zipfile.ZipFile(buffer, "w") as packed:
            for path in sorted(folder.glob(f"*{SUFFIX}")):
                if keep(path.name):
                    member = zipfile.ZipInfo(path.name)  # dated 1980, like the members of bundles
                    member.compress_type = zipfile.ZIP_LZMA  # two thirds of ZIP_DEFLATED's
                    packed.writestr(member, read_file(path, most_bytes=MAX_BUNDLE_BYTES))
    except (OSError, ValueError) as error:
        raise SpecError(f"cannot read the bundles of '{folder}': {reason(error)}") from error
    return write_file(archive, buffer.getvalue())
