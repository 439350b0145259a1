"""Members of the zips that bundle files are, read in memory in proportion to the file."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable, Mapping, Sequence

from attn_mlir.errors import SpecError

MAX_DIRECTORY_BYTES = 1 << 12  # bytes of a zip directory: 46 and a name per member

# end record of a zip: signature, disks, members, directory, comment
_END = struct.Struct("<4s4H2LH")
_END64, _END64_BYTES = b"PK\6\7", 20  # end locator of a large zip, before the end record


def read_members(
    data: bytes, name: str, *, what: str, choose: Callable[[Sequence[str]], Sequence[str]]
) -> dict[str, bytes]:
    """The chosen members of a zip, by name.

    Args:
      name: of the file, for messages.
      what: members that the file should have, for messages.
      choose: returns those of the names that are read; may raise SpecError.

    Raises:
      SpecError: not such a zip, a damaged one, one with compressed members or two of one name.
    """
    try:
        _check_directory(data)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = archive.namelist()
            chosen = choose(names)
            if len(set(names)) < len(names):
                raise SpecError(f"{name} is not a bundle: it has two members of one name")
            if packed := [i.filename for i in archive.infolist() if i.compress_type]:
                raise SpecError(
                    f"{name} is not a bundle: {', '.join(packed):.80} is compressed, and bundles "
                    "are not"
                )
            return {member: archive.read(member) for member in chosen}
    except SpecError:
        raise
    except Exception as error:  # zipfile raises a dozen kinds of errors for damaged files
        raise SpecError(
            f"{name} is not a bundle or is damaged ({error!s:.200}): a bundle is a zip with {what}"
        ) from error


def zipped(members: Mapping[str, bytes]) -> bytes:
    """A zip of members without compression; the same members give the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data)
    return buffer.getvalue()


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
