"""Ways to damage a bundle file: its bytes, its zip, its manifest; drawn from a seeded generator."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import warnings
import zipfile
from random import Random
from typing import Any

Json = Any
Path = tuple[str | int, ...]

WORDS = (
    "", "q", "k", "v", "o", "lse", "src", "dst", "batch", "sq", "sk", "rows", "scale", "in", "out",
    "bf16", "f16", "f32", "i32", "i64", "e4m3", "u8", "bool", "none", "32B", "64B", "128B", "add",
    "sub", "mul", "ceildiv", "floordiv", "max", "min", "pointer", "stride", "symbol", "scalar",
    "tensor_map", "sm_90a", "sm_100a", "full", "causal", "[/]", "\x1b[0m", "é", "\0", "a" * 600,
)  # fmt: skip
NUMBERS = (
    0, 1, -1, 2, 3, 7, 64, 65, 127, 128, 255, 256, 1024, 1025, 2**31 - 1, 2**31, 2**63, -(2**63),
    10**30, 0.0, 0.5, -0.0, 1e-300, 1e300, float("inf"), float("nan"), True, False,
)  # fmt: skip


def members(data: bytes) -> dict[str, bytes]:
    """The members of a bundle file."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(parts: list[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> bytes:
    """A zip of members, in order; one name may come twice."""
    stream = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(stream, "w", method) as archive:
        warnings.simplefilter("ignore")
        for name, data in parts:
            archive.writestr(name, data)
    return stream.getvalue()


def signed(parts: dict[str, bytes], fields: Json) -> bytes:
    """A bundle file with another manifest, whose hashes are right."""
    if isinstance(fields, dict):
        for name, member in (("sha256", "kernel.cubin"), ("sha256_ptx", "kernel.ptx")):
            if fields.get(name) is not None:
                fields[name] = hashlib.sha256(parts[member]).hexdigest()
    return packed([*{**parts, "bundle.json": json.dumps(fields).encode()}.items()])


def damaged_bytes(data: bytes, random: Random) -> bytes:
    """One to three places changed: bits, ranges, the length."""
    changed = bytearray(data)
    for _ in range(random.randint(1, 3)):
        if not changed:
            break
        # headers and the directory are small: every second place is near one of them
        marks = [at for at in range(len(changed) - 3) if changed[at : at + 2] == b"PK"]
        near = random.choice(marks) + random.randint(0, 60) if marks else 0
        at = min(
            near if random.random() < 0.5 else random.randrange(len(changed)), len(changed) - 1
        )
        length = random.choice((1, 1, 1, 4, 100, 5000))
        match random.choice(("set", "set", "bit", "zero", "cut", "end", "insert", "copy")):
            case "set":
                changed[at] = random.randrange(256)
            case "bit":
                changed[at] ^= 1 << random.randrange(8)
            case "zero":
                changed[at : at + length] = bytes(len(changed[at : at + length]))
            case "cut":
                del changed[at : at + length]
            case "end":
                del changed[at:]
            case "insert":
                changed[at:at] = random.randbytes(length)
            case _:
                changed[at:at] = changed[random.randrange(len(changed)) :][:length]
    return bytes(changed)


def rebuilt_zip(data: bytes, random: Random) -> bytes:
    """The same members in a zip that nobody of ours would write."""
    parts = [*members(data).items()]
    number = random.randrange(len(parts))
    name, content = parts[number]
    match random.choice(
        ("method", "missing", "twice", "renamed", "swapped", "extra", "empty", "large", "order",
         "comment", "tail", "head", "flag", "size", "many")
    ):  # fmt: skip
        case "method":
            methods = (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
            return packed(parts, random.choice(methods))
        case "missing":
            del parts[number]
        case "twice":
            parts.insert(random.randrange(len(parts)), (name, random.choice((b"", content, b"{}"))))
        case "renamed":
            parts[number] = (
                random.choice((name.upper(), f"./{name}", f"{name}/", "../x")),
                content,
            )
        case "swapped":
            other = random.randrange(len(parts))
            parts[number], parts[other] = (name, parts[other][1]), (parts[other][0], content)
        case "extra":
            parts.append((random.choice(("extra", "x" * 5000, "kernel.cubin/x")), bytes(1000)))
        case "empty":
            parts[number] = (name, b"")
        case "large":
            parts[number] = (name, content + bytes(1 << 20))
        case "order":
            random.shuffle(parts)
        case "many":
            parts += [(f"{index}", b"") for index in range(random.choice((10, 1000)))]
        case "comment":
            return packed(parts)[:-2] + b"\5\0hello"
        case "tail":
            return packed(parts) + random.randbytes(random.choice((1, 22, 1000)))
        case "head":
            return random.randbytes(random.choice((1, 22, 1000))) + packed(parts)
        case what:
            changed = bytearray(packed(parts))
            at = changed.index(b"PK\1\2" if random.random() < 0.5 else b"PK\3\4")
            offsets = (6, 8) if what == "flag" else (18, 20, 22, 24, 26)
            changed[at + random.choice(offsets) + random.randrange(4)] ^= 1 << random.randrange(8)
            return bytes(changed)
    return packed(parts)


def paths(value: Json, at: Path = ()) -> list[Path]:
    """All places in decoded JSON below the top."""
    found = [at] if at else []
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            found += paths(item, (*at, key))
    return found


def get(value: Json, at: Path) -> Json:
    """What is at a place."""
    for step in at:
        value = value[step]
    return value


def changed_manifest(fields: Json, random: Random) -> tuple[Json, Path]:
    """A manifest with one place changed, and which place.

    Fields are drawn evenly, then places within them: long lists do not take all draws.
    """
    fields = copy.deepcopy(fields)
    drawn = [name for name in fields if not name.startswith("sha256")]
    field = random.choice([*drawn, *("params", "params", "tensors", "grid", "request")])
    if field not in fields:  # of a bundle that does not say what it computes
        field = "params"
    at = random.choice([path for path in paths(fields) if path[0] == field])
    holder, key = get(fields, at[:-1]), at[-1]
    old = holder[key]
    siblings = [get(fields, p) for p in paths(fields) if p[0] == field and p[-1:] == at[-1:]]
    match random.choice(("value", "value", "value", "sibling", "sibling", "near", "drop", "more")):
        case "sibling":
            holder[key] = copy.deepcopy(random.choice(siblings))
        case "near" if isinstance(old, int):
            holder[key] = (
                old + random.choice((-1, 1, 64, -64)) if random.random() < 0.7 else 2 * old
            )
        case "near" if isinstance(old, list) and old:
            random.shuffle(old)
        case "drop":
            del holder[key]
        case "more" if isinstance(holder, list):
            holder.insert(random.randrange(len(holder) + 1), copy.deepcopy(random.choice(holder)))
        case "more" if isinstance(holder, dict):
            holder[random.choice(WORDS)] = random.choice(NUMBERS)
        case _:
            holder[key] = _value(random)
    return fields, at


def _value(random: Random, depth: int = 0) -> Json:
    kind = random.randrange(8 if depth < 3 else 5)
    if kind < 2:
        return random.choice(NUMBERS)
    if kind < 4:
        return random.choice(WORDS)
    if kind == 4:
        return None
    if kind == 5:
        return [
            random.choice(("add", "sub", "mul", "ceildiv")),
            _value(random, 3),
            _value(random, 3),
        ]
    inner = [_value(random, depth + 1) for _ in range(random.randrange(4))]
    return inner if kind == 6 else {random.choice(WORDS): item for item in inner}
