"""Bulk copies: consecutive bytes between global and shared memory, without a tensor map.

Each function does its copy when called and returns the bytes that are credited to an mbarrier
(spec-ptx 7.1).
"""

import numpy as np

from .faults import Fault
from .memory import Bytes, GlobalMemory, SharedMemory
from .reductions import as_bytes, reduce_values, storage_type

Space = GlobalMemory | SharedMemory
BULK_GRANULE_BYTES = 16  # bulk addresses and sizes; spec-ptx 7.1


def check_units(byte_count: int, *addresses: int) -> None:
    """Checks what a bulk copy or prefetch is about.

    Raises:
      Fault: a size or an address that is no multiple of 16.
    """
    if byte_count % BULK_GRANULE_BYTES or byte_count < 0:
        raise Fault("misaligned", f"a bulk copy of {byte_count} B: a multiple of 16 is needed")
    for address in addresses:
        if address % BULK_GRANULE_BYTES:
            raise Fault("misaligned", "a bulk copy needs a multiple of 16", address=address)


def _view(
    space: Space, address: int, byte_count: int, *, writing: bool = False, adds: bool = False
) -> Bytes:
    if isinstance(space, GlobalMemory) and space.watch is not None:
        space.watch.box(address, [byte_count], [1], writing, adds)
    return space.view(address, byte_count, writing=writing)


def bulk_copy(
    dst_space: Space,
    dst: int,
    src_space: Space,
    src: int,
    byte_count: int,
    byte_mask: int | None = None,
) -> int:
    """cp.async.bulk between two spaces; returns the bytes credited.

    Args:
      byte_mask: .cp_mask, bit i allows byte i of every 16-byte chunk to be written.
    """
    check_units(byte_count, dst, src)
    if byte_count == 0:
        return 0
    source = _view(src_space, src, byte_count)
    target = _view(dst_space, dst, byte_count, writing=True)
    if byte_mask is None:
        target[...] = source
    else:
        chosen = [i for i in range(16) if (byte_mask >> i) & 1]
        target.reshape(-1, 16)[:, chosen] = source.reshape(-1, 16)[:, chosen]
    return byte_count


def bulk_reduce(
    dst_space: Space,
    dst: int,
    src_space: Space,
    src: int,
    byte_count: int,
    operation: str,
    type_name: str,
) -> int:
    """cp.reduce.async.bulk: dst = operation(dst, src) element by element.

    Args:
      operation: add, min, max, inc, dec, and, or, xor.
      type_name: u32, s32, u64, s64, b32, b64, f16, bf16, f32 or f64.
    """
    check_units(byte_count, dst, src)
    if byte_count == 0:
        return 0
    storage = storage_type(type_name)
    new = np.ascontiguousarray(_view(src_space, src, byte_count)).view(storage)
    target = _view(dst_space, dst, byte_count, writing=True, adds=True)
    old = np.ascontiguousarray(target).view(storage)
    target[...] = as_bytes(reduce_values(operation, type_name, old, new))
    return byte_count
