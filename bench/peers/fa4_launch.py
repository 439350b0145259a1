"""FlashAttention's own Hopper kernel on a GPU, from what `fa4_compile.py --record` has left: no compiler, no package.

The parameters were computed by FlashAttention's host code for tensors at addresses that it was told; here
these words, also those in tensor maps, are replaced by the addresses of the tensors that there are.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attn_mlir.runtime.devices import driver

WORD = struct.Struct("<Q")


def placed(params: list[str], addresses: Mapping[int, int]) -> list[bytes]:
    """The bytes of parameters, with other addresses.

    Args:
      params: hexadecimal, as recorded; their words of 8 bytes are aligned.
      addresses: recorded address to that of the tensor; a word is an address if it is one of these.
    """
    found: list[bytes] = []
    for text in params:
        raw = bytearray.fromhex(text)
        for at in range(0, len(raw) - WORD.size + 1, WORD.size):
            (word,) = WORD.unpack_from(raw, at)
            WORD.pack_into(raw, at, addresses.get(word, word))
        found.append(bytes(raw))
    return found


class FlashAttention:
    """One recorded launch, for tensors of the recorded shapes.

    Args:
      stem: of `STEM.cubin` and `STEM.launch.json`.
    """

    def __init__(self, stem: Path):
        self._launch: dict[str, Any] = json.loads(
            stem.with_name(f"{stem.name}.launch.json").read_text()
        )
        cubin = stem.with_name(f"{stem.name}.cubin").read_bytes()
        with driver.Current(0):
            self._module = driver.call("cuModuleLoadData", cubin, what="load FlashAttention")
            entry = str(self._launch["entry"])
            self._function = driver.call("cuModuleGetFunction", self._module, entry.encode())
            most = driver.api().CUfunction_attribute
            driver.call(
                "cuFuncSetAttribute",
                self._function,
                most.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                self._launch["shared_bytes"],
            )
        self._kept: dict[tuple[int, ...], tuple[Any, ...]] = {}

    def __call__(self, q: Any, k: Any, v: Any) -> Any:
        """O of contiguous tensors of torch; later calls with them write to the same O."""
        torch: Any = importlib.import_module("torch")
        key = tuple(x.data_ptr() for x in (q, k, v))
        if key not in self._kept:
            shapes = self._launch["shapes"]
            assert [list(x.shape) for x in (q, k, v)] == [shapes[name] for name in "qkv"]
            o = torch.empty_like(q)
            lse = torch.empty(shapes["lse"], dtype=torch.float32, device=q.device)
            tensors = {"q": q, "k": k, "v": v, "o": o, "lse": lse}
            addresses = {
                int(self._launch["addresses"][name], 16): x.data_ptr()
                for name, x in tensors.items()
            }
            buffers = [
                ctypes.create_string_buffer(raw, len(raw))
                for raw in placed(self._launch["params"], addresses)
            ]
            pointers = (ctypes.c_void_p * len(buffers))(*map(ctypes.addressof, buffers))
            self._kept[key] = (o, lse, buffers, pointers)
        o, _, _, pointers = self._kept[key]
        stream = driver.api().CUstream(torch.cuda.current_stream().cuda_stream)
        sizes = (*self._launch["grid"], *self._launch["block"], self._launch["shared_bytes"])
        with driver.Current(0):
            driver.call(
                "cuLaunchKernel", self._function, *sizes, stream, ctypes.addressof(pointers), 0
            )
        return o
