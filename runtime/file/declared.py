"""Compares `bundle.json` with what the PTX declares about the kernel.

A wrong manifest makes a correct kernel access wrong memory, or leave results unwritten. The PTX
declares the parameters, threads and cluster of the entry, shows whether its grid may be cut, and
for each tensor map whether boxes are loaded or stored through it. It is read by patterns, not
parsed, since only the header of one entry and four kinds of instructions matter here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from attn_mlir.errors import SpecError
from attn_mlir.runtime.file.fields import Dim3
from attn_mlir.runtime.file.manifest import Manifest, Param, PointerParam
from attn_mlir.runtime.file.recipes import MAP_BYTES, TensorMapParam

MAP_ALIGNMENT_BYTES = 64  # PTX ISA, tensor maps
MAX_PARAM_TEXT = 1000  # most characters of one parameter

# Patterns that need time in proportion to the text, also for malicious text.
_NOT_CODE = r"/\*.*?(?:\*/|\Z)|//[^\n]*|\"[^\"\n]*\""
_LANDMARK = re.compile(rf"{_NOT_CODE}|\.entry\s+(?P<name>[\w$%.]+)|(?P<body>\{{)", re.DOTALL)
_COMMENT = re.compile(_NOT_CODE, re.DOTALL)
_HEADER = re.compile(r"\s*(?:\((?P<params>[^)]*)\))?(?P<directives>[^{]*)", re.DOTALL)
_PARAM = re.compile(
    r"\s*\.param\s+(?:\.align\s+(?P<align>\d+)\s+)?\.(?P<type>\w+)\s+(?:\.ptr\b[^,]*?\s)?"
    r"(?P<name>[\w$%]+)\s*(?:\[\s*(?P<count>\d+)\s*\])?\s*$"
)
# special registers with CTAs or clusters of the grid
_ASKS_HOW_MANY = re.compile(r"%n(?:ctaid|clusterid)\b")
_TARGET = re.compile(r"^[ \t]*\.target[ \t]+(?P<target>\w+)", re.MULTILINE)
_DYNAMIC = re.compile(r"\.extern\s+\.shared\s+(?:\.align\s+\d+\s+)?\.\w+\s+([\w$%]+)\s*\[\s*\]")
_MOVE = re.compile(r"mov\.[bu]64\s+(%\w+),\s*([\w$%]+);")
_CVTA = re.compile(r"cvta\.param\.u64\s+(%\w+),\s*(%\w+);")
_BOX = re.compile(
    r"cp\.(?:reduce\.)?async\.bulk\.(?P<ahead>prefetch\.)?tensor\.(?P<rank>[1-5])d"
    r"(?P<kinds>[\w.:]*)\s+(?P<operands>[^;]{0,400});"
)
_MAP_OPERAND = re.compile(r"\[\s*(%\w+)\s*,\s*\{")


@dataclass(frozen=True)
class Declared:
    """One parameter of an entry.

    Attributes:
      type: such as `u64`; for an array the type of its elements.
      count: number of elements; None for a number.
      align: alignment in bytes, if declared.
    """

    name: str
    type: str
    count: int | None
    align: int | None


def check_declared(manifest: Manifest, ptx: str) -> None:
    """Compares a manifest with its PTX.

    Raises:
      SpecError: names the field of `bundle.json`, its value, and what the PTX declares.
    """
    target = _TARGET.search(_COMMENT.sub(" ", ptx[: _entry_begin(ptx)]))
    if target is None or target["target"] != manifest.target:
        raise _differs("target", manifest.target, "nothing" if target is None else target["target"])
    header = _header(ptx, manifest.entry)
    params = _declared_params(header["params"] or "")
    if len(params) != len(manifest.params):
        raise _differs("params", f"{len(manifest.params)} entries", f"{len(params)} parameters")
    for number, (param, declared) in enumerate(zip(manifest.params, params, strict=True)):
        _check_param(f"params[{number}]", param, declared)
    _check_shape(manifest, header["directives"])
    _check_shared(manifest, ptx)
    if manifest.programmatic != (waits := "griddepcontrol.wait" in _COMMENT.sub(" ", ptx)):
        present = "a kernel that waits" if waits else "no wait"
        raise _differs("programmatic", manifest.programmatic, f"{present} for those before it")
    if manifest.persistent and not _ASKS_HOW_MANY.search(ptx):
        raise _differs("persistent", "true", "a kernel that never asks how many CTAs there are")
    _check_boxes(manifest, ptx, [declared.name for declared in params])


def _differs(field: str, expected: object, declared: object) -> SpecError:
    return SpecError(
        f"bundle.json: {field} does not fit kernel.ptx: it says {expected}, the PTX has {declared}"
    )


def _entries(ptx: str) -> Iterator[tuple[str, int]]:
    """Names of the entries, and where the text after each name begins."""
    for match in _LANDMARK.finditer(ptx):
        if match["name"] is not None:
            yield match["name"], match.end()


def _entry_begin(ptx: str) -> int:
    return next((begin for _, begin in _entries(ptx)), len(ptx))


def _header(ptx: str, entry: str) -> re.Match[str]:
    """Parameters and directives of an entry, up to its body."""
    names: list[str] = []
    for name, begin in _entries(ptx):
        names.append(name)
        if name == entry:
            body = next(
                (match.start() for match in _LANDMARK.finditer(ptx, begin) if match["body"]), None
            )
            match = _HEADER.fullmatch(_COMMENT.sub(" ", ptx[begin:body]))
            if body is None or match is None:
                break
            return match
    raise _differs("entry", entry, f"the entries {', '.join(names) or 'none'}")


def _declared_params(text: str) -> list[Declared]:
    declared: list[Declared] = []
    for part in text.split(",") if text.strip() else ():
        match = _PARAM.match(part) if len(part) <= MAX_PARAM_TEXT else None
        if match is None:
            raise _differs("params", "what bundles may", f"the parameter '{part.strip():.60}'")
        count, align = (
            None if match[name] is None else int(match[name]) for name in ("count", "align")
        )
        declared.append(Declared(match["name"], match["type"], count, align))
    return declared


def _check_param(where: str, param: Param, declared: Declared) -> None:
    if isinstance(param, TensorMapParam):
        kind, fits = (
            f"a tensor map of {MAP_BYTES} bytes, aligned to {MAP_ALIGNMENT_BYTES}",
            declared.type == "b8"
            and declared.count == MAP_BYTES
            and (declared.align or 1) % MAP_ALIGNMENT_BYTES == 0,
        )
    else:
        kind = "i64" if isinstance(param, PointerParam) else param.type
        bits = kind[1:]
        letters = "fb" if kind[0] == "f" else "usb"
        fits = declared.count is None and declared.type in {letter + bits for letter in letters}
    if not fits:
        size = "" if declared.count is None else f"[{declared.count}]"
        align = "" if declared.align is None else f".align {declared.align} "
        kind = "an address" if isinstance(param, PointerParam) else kind
        raise _differs(where, kind, f"{align}.{declared.type} {declared.name}{size}")


def _dim3(directives: str, name: str) -> Dim3 | None:
    """The numbers of `.name x, y, z`, if present; omitted ones are 1."""
    match = re.search(rf"\.{name}\s+(\d+)\s*(?:,\s*(\d+)\s*)?(?:,\s*(\d+))?", directives)
    if match is None:
        return None
    x, y, z = (1 if size is None else int(size) for size in match.groups())
    return (x, y, z)


def _check_shape(manifest: Manifest, directives: str) -> None:
    required = _dim3(directives, "reqntid")
    if required not in (None, manifest.block):
        raise _differs("block", list(manifest.block), f".reqntid {required}")
    most = _dim3(directives, "maxntid")
    threads = manifest.block[0] * manifest.block[1] * manifest.block[2]
    if most is not None and threads > most[0] * most[1] * most[2]:
        raise _differs("block", list(manifest.block), f".maxntid {most}")
    cluster = _dim3(directives, "reqnctapercluster")
    if cluster not in (None, manifest.cluster):
        raise _differs("cluster", list(manifest.cluster), f".reqnctapercluster {cluster}")


def _check_shared(manifest: Manifest, ptx: str) -> None:
    dynamic = _DYNAMIC.search(ptx)
    if dynamic is not None:
        offsets = map(int, re.findall(rf"{re.escape(dynamic[1])}\+(\d{{1,9}})", ptx))
        if (last := max(offsets, default=0)) >= manifest.smem_bytes:
            raise _differs("smem_bytes", manifest.smem_bytes, f"dynamic memory up to byte {last}")


def _check_boxes(manifest: Manifest, ptx: str, names: list[str]) -> None:
    """Compares each tensor map with the instructions that copy boxes through it.

    A map is followed from its parameter through the moves that compilers make; a map that is used
    in other ways is not compared.
    """
    maps: dict[str, str] = {}  # register -> name of the parameter whose address it holds
    for register, name in _MOVE.findall(ptx):
        if name in names:
            maps[register] = name
    for register, source in _CVTA.findall(ptx):
        if source in maps:
            maps[register] = maps[source]
    written = {param.tensor for param in manifest.params if isinstance(param, PointerParam)}
    unknown = set(names)
    for box in _BOX.finditer(ptx):
        operand = _MAP_OPERAND.search(box["operands"])
        if operand is None or operand[1] not in maps:
            continue
        name = maps[operand[1]]
        unknown.discard(name)
        number = names.index(name)
        param = manifest.params[number]
        if isinstance(param, TensorMapParam):
            is_store = box["ahead"] is None and box["kinds"].startswith(".global")
            _check_box(f"params[{number}]", manifest, param, int(box["rank"]), is_store)
            if is_store:
                written.add(param.tensor)
    written |= {
        param.tensor
        for name, param in zip(names, manifest.params, strict=True)
        if isinstance(param, TensorMapParam) and name in unknown
    }
    for tensor in manifest.tensors:
        if tensor.is_written and tensor.name not in written:
            raise _differs("params", f"'{tensor.name}' is an output", "no way to write to it")


def _check_box(
    where: str, manifest: Manifest, param: TensorMapParam, rank: int, is_store: bool
) -> None:
    if rank != len(param.dims):
        raise _differs(f"{where}.dims", f"{len(param.dims)} dimensions", f"boxes of {rank}")
    role = manifest.tensor(param.tensor).role
    if role != "inout" and is_store != (role == "out"):
        description = f"a map of '{param.tensor}', an {role}put"
        raise _differs(where, description, f"boxes that are {'stored' if is_store else 'loaded'}")
