"""Parameters in the driver's form: values in one block, and an array of pointers to them."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence

from attn_mlir.runtime.call.binding import KernelParam

MAP_ALIGNMENT_BYTES = 64  # cuda.h, CUtensorMap
WORD_BYTES = 8
_FORMATS = {"u64": "<Q", "i32": "<i", "i64": "<q", "f32": "<f"}


class PackedParameters:
    """The parameters of one launch.

    Attributes:
      pointer: address of the array of pointers.
      places: the index of each parameter's first word in `words`.
      words: the block as words of 8 bytes, which may be modified between launches.
    """

    def __init__(self, params: Sequence[KernelParam]):
        block, self.places = _laid_out(params)
        raw = ctypes.create_string_buffer(len(block) + MAP_ALIGNMENT_BYTES)
        skipped = -ctypes.addressof(raw) % MAP_ALIGNMENT_BYTES
        self.words = memoryview(raw).cast("B")[skipped : skipped + len(block)].cast("Q")
        self.words.cast("B")[:] = block
        begin = ctypes.addressof(raw) + skipped
        addresses = [begin + WORD_BYTES * place for place in self.places]
        self._pointers = (ctypes.c_void_p * max(len(addresses), 1))(*addresses)
        self.pointer = ctypes.addressof(self._pointers)


def _laid_out(params: Sequence[KernelParam]) -> tuple[bytes, list[int]]:
    """The bytes of the block, and the index of each parameter's first word."""
    block, places = bytearray(), list[int]()
    for param in params:
        if isinstance(param.value, bytes):
            value, alignment = param.value, MAP_ALIGNMENT_BYTES
        else:
            value, alignment = struct.pack(_FORMATS[param.type], param.value), WORD_BYTES
        block += bytes(-len(block) % alignment)
        places.append(len(block) // WORD_BYTES)
        block += value
    return bytes(block) + bytes(-len(block) % WORD_BYTES), places
