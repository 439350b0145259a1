"""Fields of the 128-byte CUtensorMap as `tensormap.replace` writes them (spec-ptx 7.4).

The instruction's codes are not always the hardware's: element types are numbered differently, and
extents are stored minus one, strides in units of 16 bytes.
"""

from .faults import Fault

# element code of the instruction -> (hardware code, tf32 flag)
_ELEMENT_CODES = {
    **{code: (code, 0) for code in range(11)},
    11: (7, 1),  # tf32
    12: (8, 1),  # tf32.ftz
    13: (11, 0),  # b4x16
    14: (12, 0),  # b4x16_p64
    15: (13, 0),  # b6x16_p32
}
ORDINAL_FIELDS = {"box_dim": 5, "global_dim": 5, "global_stride": 4, "element_stride": 5}
FIELDS = (
    *("global_address", "rank", *ORDINAL_FIELDS, "elemtype"),
    *("interleave_layout", "swizzle_mode", "swizzle_atomicity", "fill_mode"),
)


def _with_bits(word: int, low: int, high: int, value: int) -> int:
    mask = (1 << (high - low)) - 1
    return word & ~(mask << low) | (value & mask) << low


def _checked(field: str, value: int, first: int, last: int) -> int:
    if not first <= value <= last:
        raise Fault("tensor-map", f"{field} {value}: {first}..{last} allowed")
    return value


def replaced(data: bytes, field: str, ordinal: int, value: int) -> bytes:
    """The map with one field replaced.

    Args:
      data: 128 bytes, not necessarily a complete map yet.
      field: one of `FIELDS`.
      ordinal: dimension of a field of `ORDINAL_FIELDS`, else 0.
      value: as the instruction takes it: rank minus one, extents and box as they are, strides in
        bytes, the instruction's own codes for the rest.

    Raises:
      Fault: "tensor-map", a value or dimension that the field cannot hold.
    """
    w = [int.from_bytes(data[4 * i : 4 * i + 4], "little") for i in range(32)]
    _checked(f"dimension of {field}", ordinal, 0, ORDINAL_FIELDS.get(field, 1) - 1)
    match field:
        case "global_address":
            w[0], w[1] = value & 0xFFFF_FFFF, value >> 32
        case "rank":
            w[2] = _with_bits(w[2], 4, 7, _checked("rank - 1", value, 0, 4))
        case "box_dim":
            size = _checked("box_dim", value, 1, 256) - 1
            if ordinal == 0:
                w[13] = _with_bits(w[13], 24, 32, size)
            else:
                w[14] = _with_bits(w[14], 8 * ordinal - 8, 8 * ordinal, size)
        case "global_dim":
            w[8 + ordinal] = (value - 1) & 0xFFFF_FFFF  # 0 stands for 2^32
        case "global_stride":
            if value % 16 or not 0 <= value < 1 << 40:
                raise Fault("tensor-map", f"global_stride {value}: multiples of 16 below 2^40")
            w[3 + ordinal] = value >> 4 & 0xFFFF_FFFF
            w[7] = _with_bits(w[7], 4 * ordinal, 4 * ordinal + 4, value >> 36)
        case "element_stride":
            step = _checked("element_stride", value, 1, 8) - 1
            w[13] = _with_bits(w[13], 3 * ordinal, 3 * ordinal + 3, step)
        case "elemtype":
            code, is_tf32 = _ELEMENT_CODES[_checked("elemtype", value, 0, 15)]
            # An H200 sets the flag of tf32 here and never clears it: a map that was of tf32 stays
            # so as f32, and is refused as any other type
            # (test/validation/differential/mapmaking.py).
            w[2] = _with_bits(w[2], 7, 11, code) | is_tf32 << 16
        case "interleave_layout":
            w[2] = _with_bits(w[2], 11, 13, _checked(field, value, 0, 2))
        case "swizzle_mode":
            w[2] = _with_bits(w[2], 13, 15, _checked(field, value, 0, 3))
        case "swizzle_atomicity":
            w[2] = _with_bits(w[2], 19, 21, _checked(field, value, 0, 3))
        case "fill_mode":
            w[2] = _with_bits(w[2], 15, 16, _checked(field, value, 0, 1))
        case _:
            raise AssertionError(field)
    return b"".join(word.to_bytes(4, "little") for word in w)
