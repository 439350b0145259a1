"""What a generated program is, and the file format of collections of programs.

A file is one LZMA stream: an 8-byte little-endian length, that many bytes of JSON, and a blob that
holds every array; the JSON refers to the blob by (start, length). It needs nothing but numpy, so
the machine with the GPU reads it without this project.
"""

from __future__ import annotations

import json
import lzma
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
ENTRY = "kernel"
HEAD = ".version 8.6\n.target sm_90a\n.address_size 64\n"


@dataclass(frozen=True)
class MapSpec:
    """A tensor map by the arguments of `cuTensorMapEncodeTiled`, innermost dimension first.

    Attributes:
      buffer: index of the program's buffer that the map describes.
      offset: bytes from that buffer's start.
      element: CUtensorMapDataType.
      strides: bytes, of dimensions 1 and up.
    """

    buffer: int
    offset: int
    element: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    interleave: int = 0
    swizzle: int = 0
    promotion: int = 0
    fill: int = 0


@dataclass(frozen=True)
class Column:
    """A piece of an output buffer and how it is judged.

    Attributes:
      label: the instruction that made it, for reports.
      dtype: numpy type, or "bf16".
      check: "exact"; "approx RULE" or "number" (see `judge`), whose operands are the columns that
        follow.
    """

    label: str
    buffer: int
    start: int
    count: int
    dtype: str
    check: str = "exact"


@dataclass
class Program:
    """One kernel, its inputs and what to look at afterwards.

    Parameters of the entry: one `.u64` pointer per buffer, then one 128-byte aggregate per map.

    Attributes:
      name: "family/number".
      covers: opcodes under test, without those that only set the scene.
      results: after a run on the GPU, the bytes of every buffer named by a column; else empty.
      map_bytes: after a run on the GPU, the driver's encoding of each map.
      addresses: of the buffers in that run.
      error: what the GPU's driver said instead.
    """

    name: str
    ptx: str
    buffers: list[Bytes]
    columns: list[Column]
    covers: list[str]
    grid: int = 1
    grid_y: int = 1
    grid_z: int = 1
    block: int = 32
    shared_bytes: int = 0
    maps: list[MapSpec] = field(default_factory=list[MapSpec])
    results: dict[int, Bytes] = field(default_factory=dict[int, Bytes])
    map_bytes: list[bytes] = field(default_factory=list[bytes])
    addresses: list[int] = field(default_factory=list[int])
    error: str = ""

    @property
    def family(self) -> str:
        return self.name.split("/")[0]

    @property
    def outputs(self) -> list[int]:
        """Indices of the buffers that columns name."""
        return sorted({column.buffer for column in self.columns})


def save(
    path: Path, programs: Sequence[Program], about: dict[str, str] | None = None, preset: int = 6
) -> None:
    """Write programs, with whatever results they have.

    Args:
      about: where the results are from, by `gpu.about`.
      preset: LZMA's effort.
    """
    blob = bytearray()

    def put(array: Bytes) -> tuple[int, int]:
        start = len(blob)
        blob.extend(array.tobytes())
        return start, array.size

    entries: list[dict[str, Any]] = []
    for p in programs:
        entry = {k: v for k, v in vars(p).items() if k not in ("buffers", "results", "map_bytes")}
        entry["columns"] = [list(asdict(c).values()) for c in p.columns]
        entry["maps"] = [asdict(m) for m in p.maps]
        entry["buffers"] = [put(b) for b in p.buffers]
        entry["results"] = {str(k): put(v) for k, v in p.results.items()}
        entry["map_bytes"] = [m.hex() for m in p.map_bytes]
        entries.append(entry)
    document = {"about": about or {}, "programs": entries}
    text = json.dumps(document, separators=(",", ":")).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    data = struct.pack("<Q", len(text)) + text + bytes(blob)
    path.write_bytes(lzma.compress(data, preset=preset))


def load(path: Path) -> list[Program]:
    """Programs written by `save`."""
    return load_with_about(path)[0]


def load_with_about(path: Path) -> tuple[list[Program], dict[str, str]]:
    """Programs written by `save`, and where their results are from."""
    data = lzma.decompress(path.read_bytes())
    (length,) = struct.unpack_from("<Q", data)
    document: dict[str, Any] = json.loads(data[8 : 8 + length])
    entries: list[dict[str, Any]] = document["programs"]
    blob = np.frombuffer(data, np.uint8, offset=8 + length)

    def get(place: Sequence[int]) -> Bytes:
        return blob[place[0] : place[0] + place[1]].copy()

    programs: list[Program] = []
    for entry in entries:
        entry["columns"] = [Column(*values) for values in entry["columns"]]
        entry["maps"] = [
            MapSpec(**{k: tuple(v) if isinstance(v, list) else v for k, v in m.items()})
            for m in entry["maps"]
        ]
        entry["buffers"] = [get(place) for place in entry["buffers"]]
        entry["results"] = {int(k): get(place) for k, place in entry["results"].items()}
        entry["map_bytes"] = [bytes.fromhex(m) for m in entry["map_bytes"]]
        programs.append(Program(**entry))
    return programs, document["about"]
