"""Fat bundles: one file with the code of one kernel for several targets.

A fat bundle is a zip without compression of bundle files (`attn_mlir.runtime.file.bundle`), each
named after its target: `sm_90a.attn`, `sm_100a.attn`. All of them compute the same from the same
arguments; which one runs is decided by the device of each call.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from attn_mlir.errors import SpecError, TargetError, shown
from attn_mlir.files import write_file
from attn_mlir.runtime.file.bundle import SUFFIX, Bundle, read_bundle_file
from attn_mlir.runtime.file.manifest import Manifest
from attn_mlir.runtime.file.members import read_members, zipped

MAX_TARGETS = 8  # bundles of one file: far more than there are targets


@dataclass(frozen=True)
class FatBundle:
    """The code of one kernel for several targets.

    Attributes:
      bundles: one for each target, in the order of the file.
      data: the bytes of the file.
      path: where it was read from, or None.
    """

    bundles: tuple[Bundle, ...]
    data: bytes = field(repr=False)
    path: Path | None = None

    @property
    def targets(self) -> tuple[str, ...]:
        """The chips that the file has code for."""
        return tuple(bundle.target for bundle in self.bundles)

    def for_target(self, target: str) -> Bundle:
        """The bundle for one target.

        Raises:
          TargetError: there is none.
        """
        for bundle in self.bundles:
            if bundle.target == target:
                return bundle
        raise TargetError(
            f"{_file_names(self.path)} has no code for {shown(target, 40)}: it is for "
            f"{' and '.join(self.targets)}"
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the file, completely or not at all, and returns its path."""
        return write_file(Path(path), self.data)

    @staticmethod
    def of(bundles: Sequence[Bundle]) -> FatBundle:
        """Joins bundles of one kernel in one file.

        Raises:
          SpecError: no bundle, two for one target, or bundles that do not compute the same from the
            same arguments.
        """
        data = zipped({f"{bundle.target}{SUFFIX}": bundle.data for bundle in bundles})
        return FatBundle(_checked(bundles, "the file"), data)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> FatBundle:
        """Reads the file of a fat bundle.

        Raises:
          SpecError: no such file, not a fat bundle, or a damaged one.
          TargetError: written by a newer attn-mlir.
        """
        return FatBundle.from_bytes(read_bundle_file(path), path=Path(path))

    @staticmethod
    def from_bytes(data: bytes, *, path: Path | None = None) -> FatBundle:
        """Checks the bytes of the file of a fat bundle and unpacks them; errors as `load`."""
        name = _file_names(path)

        def choose(names: Sequence[str]) -> list[str]:
            bundles = [member for member in names if member.endswith(SUFFIX)]
            if not bundles or len(bundles) < len(names) or len(names) > MAX_TARGETS:
                raise SpecError(
                    f"{name} is not a fat bundle: it must consist of 1 to {MAX_TARGETS} bundle "
                    f"files, each named after its target, as sm_90a{SUFFIX}, got "
                    f"{', '.join(names) or 'none':.80}"
                )
            return bundles

        what = f"bundle files such as sm_90a{SUFFIX}"
        parts = read_members(data, name, what=what, choose=choose)
        bundles: list[Bundle] = []
        for member, part in parts.items():
            place = Path(member) if path is None else path / member
            bundle = Bundle.from_bytes(part, path=place)
            if member != f"{bundle.target}{SUFFIX}":
                raise SpecError(f"{name} is damaged: {member:.80} is for {bundle.target}")
            bundles.append(bundle)
        return FatBundle(_checked(bundles, name), data, path)


def read_bundles(data: bytes, *, path: Path | None = None) -> Bundle | FatBundle:
    """The bundle or bundles in the bytes of a bundle file: code for one target or for several.

    Raises:
      SpecError: not a bundle, or a damaged one.
      TargetError: written by a newer attn-mlir.
    """
    is_fat = False

    def choose(names: Sequence[str]) -> list[str]:
        nonlocal is_fat
        is_fat = any(name.endswith(SUFFIX) for name in names)
        return []

    read_members(data, _file_names(path), what="kernel.ptx and bundle.json", choose=choose)
    return (FatBundle if is_fat else Bundle).from_bytes(data, path=path)


def load_bundles(path: str | os.PathLike[str]) -> Bundle | FatBundle:
    """Reads a bundle file for one target or for several; errors as `read_bundles`."""
    return read_bundles(read_bundle_file(path), path=Path(path))


def bundles_of(bundle: Bundle | FatBundle) -> tuple[Bundle, ...]:
    """The bundles for each target."""
    return bundle.bundles if isinstance(bundle, FatBundle) else (bundle,)


def _file_names(path: Path | None) -> str:
    return f"'{path}'" if path is not None else "the data"


def _checked(bundles: Sequence[Bundle], name: str) -> tuple[Bundle, ...]:
    """The bundles, if they are one kernel for several targets.

    Raises:
      SpecError: they are not.
    """
    if not bundles:
        raise SpecError("a fat bundle needs at least one bundle, got none")
    targets = [bundle.target for bundle in bundles]
    if len(set(targets)) < len(targets):
        raise SpecError(f"{name} has two bundles for one target: {', '.join(targets)}")
    first = bundles[0]
    for bundle in bundles[1:]:
        for what, text in _interface(bundle.manifest).items():
            if text != (expected := _interface(first.manifest)[what]):
                raise SpecError(
                    f"{name} holds two kernels: {what} for {bundle.target} {shown(text, 200)}, for "
                    f"{first.target} {shown(expected, 200)}"
                )
    return tuple(bundles)


def _interface(manifest: Manifest) -> dict[str, object]:
    """The interface that a caller sees; alignments of tensors are each target's own."""
    return {
        "the name is": manifest.entry,
        "the request is": dict(manifest.request),
        "the tensors are": [(x.name, x.role, x.dtype, x.shape) for x in manifest.tensors],
        "the numbers are": manifest.scalars,
        "the sizes are": manifest.symbols,
    }
