"""Damaged, changed and misused bundles: a typed error or a right result, and nothing else.

A case damages the bytes of a bundle file, rebuilds its zip, changes a field of its manifest and
signs it again, changes the header of its PTX, or calls a whole one with wrong tensors; then it
loads the file, prints what `info` would print, and runs it on the emulator with small tensors.

A bundle is code: what a signed manifest says about the meaning of parameters cannot all be
compared with anything. `FREE` lists the fields where wrong numbers may come out, as
`docs/reference/bundle.md` says; everywhere else a result has to be right.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import math
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import ml_dtypes
import numpy as np
from rich.console import Console

import attn_mlir as am
from attn_mlir import mods
from attn_mlir.cli.experiment import _dtype
from attn_mlir.cli.show import print_bundle
from attn_mlir.compiling.bundled import attention_of
from attn_mlir.compiling.compiler import compile_tma_copy
from attn_mlir.errors import AttnError
from attn_mlir.reference import check_attention
from attn_mlir.reference.modifier import Modifier
from attn_mlir.runtime.call.binding import bind
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.file.bundle import Bundle
from attn_mlir.runtime.file.fat_bundle import FatBundle, bundles_of, read_bundles
from attn_mlir.runtime.kernel import Kernel
from attn_mlir.validation.fuzz import changes
from attn_mlir.validation.fuzz.fuzz_limits import time_limit

COUNT = 300

MAX_CTAS = 6  # of a changed grid: those of the problems drawn here; one outside them may loop long
SECONDS = 120  # of one case, on a busy machine
FREE = ("tensors", "scalars", "params", "grid", "symbols")
"""Fields of the manifest that give the parameters their meaning; but see `_manifest`."""

Array = np.ndarray[Any, Any]
TABLE = np.zeros((1, 8), np.int32)


@functools.cache
def bundle(name: str) -> bytes:
    """The bytes of a whole bundle."""
    if name == "copy":
        return compile_tma_copy("sm_90a").data
    if name == "fat":
        return FatBundle.of([compile_tma_copy(target) for target in ("sm_90a", "sm_100a")]).data
    if name == "causal":
        return am.compile(am.mha(heads=2, kv_heads=1, head_dim=64, mask=am.causal())).data
    spec = am.mha(
        heads=1, head_dim=64, score_mod=mods.softcap(20.0), mask_mod=mods.document(TABLE),
        return_lse=False,
    )  # fmt: skip
    return am.compile(spec).data


def attempt(number: int) -> str:
    """Runs case `number`; one line about what came of it.

    Raises:
      Exception: anything that is neither a right result nor a typed error.
    """
    random = Random(f"bundles:{number}")
    name = random.choice(("copy", "copy", "copy", "fat", "fat", "causal", "traced"))
    kind = random.choice(
        ("bytes", "bytes", "zip", "manifest", "manifest", "manifest", "manifest", "ptx", "call")
    )
    with time_limit(SECONDS):
        try:
            return f"{name}, {kind}: {_KINDS[kind](bundle(name), name, random)}"
        except AttnError as error:
            return f"{name}, {kind}: refused: {type(error).__name__}: {error!s:.100}"


def _bytes(data: bytes, name: str, random: Random) -> str:
    return _the_same(changes.damaged_bytes(data, random), data)


def _zip(data: bytes, name: str, random: Random) -> str:
    return _the_same(changes.rebuilt_zip(data, random), data)


def _the_same(changed: bytes, data: bytes) -> str:
    """Loads a file whose manifest was not signed again."""
    wholes = {one.target: one for one in bundles_of(read_bundles(data))}
    for found in bundles_of(read_bundles(changed)):
        whole = wholes[found.target]
        assert found.machine_code == whole.machine_code
        assert (found.manifest, found.ptx) == (whole.manifest, whole.ptx)
    return "right: nothing that is read was changed"


def _inside(data: bytes, random: Random) -> tuple[bytes, Callable[[bytes], Bundle]]:
    """A bundle for one target, and what loads other bytes in its place: in a fat bundle, by that."""
    parts = changes.members(data)
    if "bundle.json" in parts:
        return data, Bundle.from_bytes
    name = random.choice([*parts])

    def load(part: bytes) -> Bundle:
        fat = FatBundle.from_bytes(changes.packed([*{**parts, name: part}.items()]))
        return fat.bundles[[*parts].index(name)]

    return parts[name], load


def _manifest(data: bytes, name: str, random: Random) -> str:
    data, load = _inside(data, random)
    parts = changes.members(data)
    fields, at = changes.changed_manifest(json.loads(parts["bundle.json"]), random)
    found = load(changes.signed(parts, fields))
    _look(found)
    whole = Bundle.from_bytes(data)
    believed = random.random() < 0.3  # the caller goes by the changed manifest
    tensors = _tensors(found if believed else whole, random)
    verdict = _run(found, whole, tensors, random)
    where = ".".join(map(str, at))
    is_extent = "extent" in at  # of a tensor map: compared with the tensor at each call
    if verdict == "right" or believed or (at[0] in FREE and not is_extent):
        return f"{verdict}, {where} changed"
    raise AssertionError(f"{verdict} with {where} = {_shown(fields, at)}")


def _shown(fields: Any, at: changes.Path) -> str:
    try:
        return repr(changes.get(fields, at))[:200]
    except (KeyError, IndexError, TypeError):
        return "nothing"


def _ptx(data: bytes, name: str, random: Random) -> str:
    """Another header; it is loaded and not run, since other code may do anything."""
    data, load = _inside(data, random)
    parts = changes.members(data)
    text = parts["kernel.ptx"]
    end = text.index(b"{\n", text.index(b".entry"))
    parts["kernel.ptx"] = changes.damaged_bytes(text[:end], random) + text[end:]
    load(changes.signed(parts, json.loads(parts["bundle.json"])))
    return "right: the header still declares the same"


def _call(data: bytes, name: str, random: Random) -> str:
    found = read_bundles(data)
    whole = bundles_of(found)[0]
    tensors = _tensors(whole, random)
    label = random.choice([*tensors])
    old = tensors[label]
    match random.choice(
        (
            "dtype",
            "shape",
            "rank",
            "order",
            "stride",
            "overlap",
            "other",
            "readonly",
            "fewer",
            "off",
        )
    ):
        case "dtype":
            kinds = (np.float16, np.float32, np.float64, np.int64, np.complex64, ml_dtypes.bfloat16)
            tensors[label] = np.zeros(old.shape, random.choice(kinds))
        case "shape":
            extents = [max(0, n + random.choice((-1, 0, 0, 1))) for n in old.shape]
            tensors[label] = np.zeros(extents, old.dtype)
        case "rank":
            tensors[label] = old[..., None] if random.random() < 0.5 else old.reshape(-1)
        case "order":
            axes = [*range(old.ndim)]
            random.shuffle(axes)
            tensors[label] = old.transpose(axes)
        case "stride":
            axis = random.randrange(old.ndim)
            step = random.choice((-1, 2))
            wide = np.repeat(old, 2, axis=axis) if step == 2 else np.flip(old, axis)
            tensors[label] = wide[(*[slice(None)] * axis, slice(None, None, step))]
        case "overlap":
            tensors[label] = random.choice([*tensors.values()])
        case "other":
            others = (None, 3, "q", [1.0], object(), old.tolist(), memoryview(b""), type)
            tensors[label] = random.choice(others)
        case "readonly":
            old.flags.writeable = False
        case "off":
            raw = np.zeros(old.nbytes + 64, np.uint8)
            offset = random.choice((1, 2, 4, 8))
            tensors[label] = raw[offset : offset + old.nbytes].view(old.dtype).reshape(old.shape)
            tensors[label][...] = old
        case _:
            del tensors[label]
    verdict = _run(found, whole, tensors, random)
    assert verdict == "right", verdict
    return f"right: {label} was legal"


def _look(found: Bundle) -> None:
    """What `info` does with a bundle, and what `run` asks of it."""
    print_bundle(found, Console(file=io.StringIO(), width=100))
    with contextlib.suppress(AttnError):
        attention_of(found)


def _tensors(found: Bundle, random: Random) -> dict[str, Array]:
    """Operands and poisoned outputs by name."""
    rows, keys = random.choice((1, 40, 129)), random.choice((1, 64, 150))
    sizes = {"batch": 1, "sq": rows, "sk": keys, "rows": rows}
    generator = np.random.default_rng(random.randrange(1 << 30))
    tensors: dict[str, Array] = {}
    for tensor in found.manifest.tensors:
        shape = [sizes.get(n, 3) if isinstance(n, str) else n for n in tensor.shape]
        if math.prod(shape) > 1 << 20:
            shape = [1] * len(shape)
        dtype = _dtype(tensor.dtype) if tensor.dtype != "u8" else np.dtype(np.uint8)
        if tensor.role == "out":
            tensors[tensor.name] = np.full(shape, 0 if dtype.kind in "biu" else np.nan, dtype)
        elif dtype.kind in "biu":
            tensors[tensor.name] = generator.integers(0, 2, shape).astype(dtype)
        else:
            tensors[tensor.name] = generator.standard_normal(shape, np.float32).astype(dtype)
    return tensors


def _run(
    found: Bundle | FatBundle, whole: Bundle, tensors: Mapping[str, Any], random: Random
) -> str:
    """Calls a bundle; whether its outputs are what the whole bundle's would be."""
    scalars = {"scale": 0.125} if whole.manifest.scalars and random.random() < 0.5 else {}
    schedule = random.choice(("fair", "adversarial"))
    bound = bind(bundles_of(found)[0].manifest, [*tensors.values()], scalars)
    if isinstance(found, Bundle) and found is not whole and math.prod(bound.grid) > MAX_CTAS:
        return "too many CTAs to be run"
    target = random.choice((None, "sm_90a", "sm_100a"))
    device = EmulatorDevice(schedule=schedule, seed=random.randrange(1000), target=target)
    Kernel(found)(*tensors.values(), device=device, **scalars)
    with np.errstate(all="ignore"):
        return "right" if _is_right(whole, tensors) else "wrong numbers"


def _is_right(whole: Bundle, tensors: Mapping[str, Any]) -> bool:
    if "src" in tensors:
        source, target = (np.asarray(tensors[name]) for name in ("src", "dst"))
        return source.tobytes() == target.tobytes()
    if not {"q", "k", "v", "o"} <= set(tensors):
        return False
    spec = attention_of(whole)
    assert spec is not None
    names = [t.name for t in spec.modifier.tensors] if spec.modifier else []
    modifier = Modifier(spec.modifier, {name: tensors[name] for name in names})
    q, k, v, o = (tensors[name] for name in "qkvo")
    return check_attention(
        q, k, v, o, tensors.get("lse"), mask=spec.mask, scale=0.125, modifier=modifier
    ).ok


_KINDS: Mapping[str, Callable[[bytes, str, Random], str]] = {
    "bytes": _bytes,
    "zip": _zip,
    "manifest": _manifest,
    "ptx": _ptx,
    "call": _call,
}
