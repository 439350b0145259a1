"""Compiles a function with Triton for a GPU that is not there and writes its launch down.

Grid and parameters are those that Triton's launcher would pass.
"""

from __future__ import annotations

import os
import re
import struct
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ._recording import ADDRESS_STEP, FIRST_ADDRESS, Recorder

BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "i32": 4, "i64": 8, "fp8e4nv": 1, "u8": 1}
CAPABILITIES = {"sm_100a": 100, "sm_90a": 90}


def launch(
    recorder: Recorder,
    function: Any,
    buffers: Mapping[str, tuple[str, int]],
    scalars: Mapping[str, int | float],
    constants: Mapping[str, Any],
    grid: Sequence[int],
    *,
    warps: int = 4,
    stages: int = 3,
) -> None:
    """One launch; several of one recorder share the buffers of the same name.

    Args:
      function: of `triton.jit`; takes buffers, scalars and constants in this order.
      buffers: Triton's name of the element type and the number of elements.
    """
    types = {name: "i32" if isinstance(value, int) else "fp32" for name, value in scalars.items()}
    source = ASTSource(
        function,
        {**{name: f"*{kind}" for name, (kind, _) in buffers.items()}, **types}
        | dict.fromkeys(constants, "constexpr"),
        dict(constants),
        {(at,): [["tt.divisibility", 16]] for at in range(len(buffers))},
    )
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        compiled = triton.compile(
            source,
            target=GPUTarget("cuda", CAPABILITIES[recorder.target], 32),
            options={"num_warps": warps, "num_stages": stages},
        )
    ptx, metadata = compiled.asm["ptx"], compiled.metadata
    values: list[int | float] = [
        _buffer(recorder, name, count * BYTES[kind]) for name, (kind, count) in buffers.items()
    ]
    values += scalars.values()
    programs = grid[0] * grid[1] * grid[2]
    for name in ("global_scratch", "profile_scratch"):
        count = programs * getattr(metadata, f"{name}_size")
        values.append(_buffer(recorder, f"{name}{len(recorder.launches)}", count) if count else 0)
    (threads,) = re.findall(r"\.(?:req|max)ntid\s+(\d+)", ptx)
    recorder.add(
        ptx,
        {
            "grid": list(grid),
            "block": [int(threads), 1, 1],
            "cluster": [1, 1, 1],
            "shared_bytes": metadata.shared,
            "params": [_packed(kind, v) for kind, v in zip(_parameters(ptx), values, strict=True)],
        },
    )


def _buffer(recorder: Recorder, name: str, byte_count: int) -> int:
    for buffer in recorder.buffers.values():
        if buffer["name"] == name:
            return buffer["address"]
    address = FIRST_ADDRESS + len(recorder.buffers) * ADDRESS_STEP
    recorder.buffers[address] = {
        "address": address,
        "bytes": byte_count,
        "name": name,
        "zeroed": False,
    }
    return address


def _parameters(ptx: str) -> list[str]:
    """Types of the entry's parameters: u64, u32, f32 and so on."""
    signature = ptx[ptx.index(".entry") :].partition(")")[0]
    return re.findall(r"\.param\s+\.(\w+)", signature)


def _packed(kind: str, value: float) -> str:
    form = {"f32": "<f", "u32": "<i", "b32": "<i", "s32": "<i", "u64": "<Q", "b64": "<Q"}[kind]
    return struct.pack(form, value).hex()
