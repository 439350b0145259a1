"""Swizzles, shared-memory descriptors and instruction descriptors."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attn_mlir.runtime.emulator.machine.descriptors import (
    Architecture,
    SmemDescriptor,
    decode_smem,
    k_major_units,
    mn_major_units,
    operand_gather,
)
from attn_mlir.runtime.emulator.machine.faults import Fault
from attn_mlir.runtime.emulator.machine.instruction import decode_instruction
from attn_mlir.runtime.emulator.machine.swizzle import SWIZZLES, xor_address


@pytest.mark.parametrize(
    ("mode", "address", "expected"),
    [
        ("128B", 0x0480, 0x0490),
        ("128B", 0x0790, 0x07E0),
        ("64B", 0x0480, 0x0490),
        ("64B", 0x0590, 0x05A0),
        ("32B", 0x0480, 0x0490),
        ("32B", 0x0500, 0x0500),
        ("none", 0x0790, 0x0790),
        ("128B_atom32B", 0x0480, 0x04A0),
        ("128B_atom64B", 0x0480, 0x04C0),
        ("128B_atom32B_flip8B", 0x0480, 0x04A8),
    ],
)
def test_golden_xor(mode: str, address: int, expected: int):
    assert xor_address(address, mode) == expected


@given(st.sampled_from(sorted(SWIZZLES)), st.integers(0, 0x3FFFF))
def test_xor_permutes_within_a_row_and_inverts(mode: str, address: int):
    once = xor_address(address, mode)
    assert once >> 7 == address >> 7
    if mode == "128B_atom32B_flip8B":
        assert len({xor_address(address & ~127 | i, mode) for i in range(128)}) == 128
    else:
        assert xor_address(once, mode) == address


def test_decode_worked_examples():
    desc = decode_smem(0x4000404000010000 | 0x8400 >> 4)
    assert desc == SmemDescriptor(start=0x8400, leading=16, stride=1024, swizzle="128B")
    hopper = decode_smem(0x4000004000010000 | 0x8400 >> 4, "sm_90")
    assert hopper == desc
    mn = decode_smem((2 << 61) | (1 << 46) | ((1024 >> 4) << 32) | ((8192 >> 4) << 16) | 0x40)
    assert mn == SmemDescriptor(start=0x400, leading=8192, stride=1024, swizzle="128B")


@pytest.mark.parametrize(
    ("code", "name"), [(0, "none"), (1, "128B_atom32B"), (2, "128B"), (4, "64B"), (6, "32B")]
)
def test_swizzle_codes_sm100(code: int, name: str):
    assert decode_smem(code << 61 | 1 << 46).swizzle == name


@pytest.mark.parametrize(("code", "name"), [(0, "none"), (1, "128B"), (2, "64B"), (3, "32B")])
def test_swizzle_codes_sm90(code: int, name: str):
    assert decode_smem(code << 62, "sm_90").swizzle == name


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (0, "bits 46..48 must be 1"),
        (2 << 46, "bits 46..48"),
        (1 << 46 | 3 << 61, "swizzle code 3"),
        (1 << 46 | 7 << 61, "swizzle code 7"),
        (1 << 46 | 1 << 14, "bits 14..15"),
        (1 << 46 | 1 << 31, "bits 30..31"),
        (1 << 46 | 1 << 60, "bits 53..60"),
        (1 << 46 | 1 << 52, "bit 52"),
        (1 << 46 | 1 << 61 | 1, "32-byte aligned"),
    ],
)
def test_illegal_descriptors(raw: int, text: str):
    with pytest.raises(Fault, match=text):
        decode_smem(raw)


@pytest.mark.parametrize(("code", "start"), [(2, 0x470), (4, 0x630), (6, 0x510), (0, 0x7F0)])
def test_starts_inside_the_first_row_of_a_pattern_are_k_steps(code: int, start: int):
    assert decode_smem(1 << 46 | code << 61 | start >> 4).start == start


@given(st.sampled_from(["32B", "64B", "128B"]), st.integers(0, 7), st.integers(1, 99))
def test_base_offset_moves_the_pattern(swizzle: str, base_offset: int, slot: int):
    """A tile `base_offset` rows into the pattern holds what an aligned tile would, moved along."""
    aligned = SmemDescriptor(start=0x400 * slot, leading=0, stride=1024, swizzle=swizzle)
    moved = SmemDescriptor(
        aligned.start + 128 * base_offset, 0, 1024, swizzle, base_offset=base_offset
    )
    for units in (k_major_units, mn_major_units):
        assert (units(moved, 64, 32) == units(aligned, 64, 32) + 8 * base_offset).all()


@pytest.mark.parametrize(
    ("architecture", "raw"), [("sm_90", 1 << 62), ("sm_100", 2 << 61 | 1 << 46)]
)
def test_a_tile_may_start_in_any_row_of_the_pattern(architecture: Architecture, raw: int):
    """Without a base offset the absolute address counts; with one the pattern starts there."""
    raw |= 1024 >> 4 << 32 | 0x580 >> 4
    absolute, shifted = (decode_smem(raw | b << 49, architecture) for b in (0, 3))
    assert (absolute.start, absolute.base_offset) == (0x580, 0)
    assert (shifted.start, shifted.base_offset) == (0x580, 3)
    rows = [[(0x580 + 128 * r) ^ ((0x580 + 128 * r) >> 7 & 7) << 4] for r in range(8)]
    assert (16 * k_major_units(absolute, 8, 16) == rows).all()
    rows = [[0x580 + 128 * r + 16 * r] for r in range(8)]
    assert (16 * k_major_units(shifted, 8, 16) == rows).all()


def test_leading_offset_of_zero_without_swizzle():
    desc = SmemDescriptor(start=0x400, leading=0, stride=128, swizzle="none")
    assert k_major_units(desc, 8, 32, "sm_90")[0].tolist() == [0x40, 0x40]
    assert k_major_units(desc, 8, 32, "sm_100")[0].tolist() == [0x40, 0x41]


def test_sm90_rejects_the_sm100_constant():
    with pytest.raises(Fault, match=r"bits 46\.\.48"):
        decode_smem(1 << 46, "sm_90")


def k_major_address(desc: SmemDescriptor, r: int, b: int) -> int:
    """Byte address of byte b of row r, straight from the formulas."""
    shift = {"none": 0, "32B": 1, "64B": 2, "128B": 3}.get(desc.swizzle)
    pitch = 128 if shift is None else 16 << shift
    step = max(desc.leading, 16) if desc.swizzle == "none" else 16
    linear = desc.start + (r % 8) * pitch + (r // 8) * desc.stride + (b // 16) * step + b % 16
    if shift is None:
        return linear ^ (((linear >> 7) & 3) << 5)
    return linear ^ (((linear >> 7) & ((1 << shift) - 1)) << 4)


def mn_major_address(desc: SmemDescriptor, x: int, k: int) -> int:
    """Byte address of byte x of the M/N extent at index k."""
    shift = {"none": 0, "32B": 1, "64B": 2, "128B": 3}.get(desc.swizzle)
    if shift is None:
        linear = desc.start + (k % 4) * 128 + (k // 4) * desc.stride
        linear += (x // 128) * desc.leading + x % 128
        return linear ^ (((linear >> 7) & 3) << 5)
    if shift == 0:
        return desc.start + k % 8 * 16 + k // 8 * desc.leading + x // 16 * desc.stride + x % 16
    pitch = 16 << shift
    linear = desc.start + k % 8 * pitch + k // 8 * desc.stride
    linear += x // pitch * desc.leading + x % pitch
    return linear ^ (((linear >> 7) & ((1 << shift) - 1)) << 4)


descriptors = st.builds(
    SmemDescriptor,
    start=st.integers(2, 0x1FF).map(lambda n: n * 32),
    leading=st.integers(0, 64).map(lambda n: n * 16),
    stride=st.integers(0, 128).map(lambda n: n * 16),
    swizzle=st.sampled_from(["none", "32B", "64B", "128B", "128B_atom32B"]),
)


@given(descriptors, st.sampled_from([8, 24, 64]), st.sampled_from([32, 64]))
def test_k_major_units_match_byte_formulas(desc: SmemDescriptor, rows: int, k_bytes: int):
    units = k_major_units(desc, rows, k_bytes)
    for r in range(0, rows, 5):
        for b in range(0, k_bytes, 7):
            assert units[r, b // 16] == k_major_address(desc, r, b) >> 4
            assert k_major_address(desc, r, b) & 15 == b & 15


@given(descriptors, st.sampled_from([16, 128, 256]), st.sampled_from([8, 16]))
def test_mn_major_units_match_byte_formulas(desc: SmemDescriptor, mn_bytes: int, k_count: int):
    units = mn_major_units(desc, mn_bytes, k_count)
    for k in range(k_count):
        for x in range(0, mn_bytes, 9):
            assert units[k, x // 16] == mn_major_address(desc, x, k) >> 4


@pytest.mark.parametrize(("mode", "shift"), [("32B", 1), ("64B", 2), ("128B", 3)])
def test_k_major_reads_what_a_tma_box_wrote(mode: str, shift: int):
    """A box of R-byte rows (R = swizzle span) is a K-major operand with SBO = 8 R."""
    span = 16 << shift
    desc = SmemDescriptor(start=0x2000, leading=0, stride=8 * span, swizzle=mode)
    units = k_major_units(desc, 32, span)
    for r in range(32):
        for c in range(span // 16):
            assert units[r, c] == xor_address(0x2000 + r * span + 16 * c, mode) >> 4


def test_joined_steps_concatenate_along_k():
    base = 0x4000404000010000 | 0x2000 >> 4
    steps = (base, base + 2, base + 4)
    joined = operand_gather(steps, "sm_100", False, 16, 16, 2)
    single = [operand_gather((d,), "sm_100", False, 16, 16, 2).units for d in steps]
    assert (joined.units == np.concatenate(single, axis=1)).all()
    assert (joined.low, joined.high) == (joined.units.min(), joined.units.max() + 1)


def test_mn_major_swizzles_by_element_size():
    atom32 = 1 << 61 | 1 << 46 | 0x40
    plain = 2 << 61 | 1 << 46 | 0x40
    operand_gather((atom32,), "sm_100", True, 64, 8, 4)
    operand_gather((plain,), "sm_100", True, 64, 16, 2)
    for raw, size in ((plain, 4), (atom32, 2), (atom32, 1)):
        with pytest.raises(Fault, match="MN-major operands"):
            operand_gather((raw,), "sm_100", True, 64, 16, size)


# -- instruction descriptors ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("idesc", "kind", "cta_group", "m", "n", "k", "formats", "layout"),
    [
        (0x08400490, "f16", 1, 128, 256, 16, ("bf16", "bf16", "f32"), "D"),
        (0x08200490, "f16", 1, 128, 128, 16, ("bf16", "bf16", "f32"), "D"),
        (0x10400490, "f16", 2, 256, 256, 16, ("bf16", "bf16", "f32"), "A"),
        (0x08400490, "f16", 2, 128, 256, 16, ("bf16", "bf16", "f32"), "B"),
        (0x04200490, "f16", 1, 64, 128, 16, ("bf16", "bf16", "f32"), "F"),
        (0x08400010, "f16", 1, 128, 256, 16, ("f16", "f16", "f32"), "D"),
        (0x08400010, "f8f6f4", 1, 128, 256, 32, ("e4m3", "e4m3", "f32"), "D"),
        (0x08400910, "tf32", 1, 128, 256, 8, ("tf32", "tf32", "f32"), "D"),
        (0x084004A0, "i8", 1, 128, 256, 32, ("s8", "s8", "s32"), "D"),
        (0x08C00000, "mxf8f6f4", 1, 128, 256, 32, ("e4m3", "e4m3", "f32"), "D"),
        (0x08400480, "mxf4nvf4", 1, 128, 256, 64, ("e2m1", "e2m1", "f32"), "D"),
        (0x08C00480, "mxf4nvf4", 1, 128, 256, 64, ("e2m1", "e2m1", "f32"), "D"),
    ],
)
def test_worked_instruction_descriptors(
    idesc: int,
    kind: str,
    cta_group: int,
    m: int,
    n: int,
    k: int,
    formats: tuple[str, str, str],
    layout: str,
):
    ins = decode_instruction(idesc, kind, cta_group)  # type: ignore[arg-type]
    assert (ins.m, ins.n, ins.k, ins.layout) == (m, n, k, layout)
    assert (ins.a_format, ins.b_format, ins.d_format) == formats
    assert not (ins.transpose_a or ins.transpose_b or ins.negate_a or ins.negate_b)
    assert ins.scale_format == {0x08400480: "ue4m3"}.get(
        idesc, "ue8m0" if kind.startswith("mx") else ""
    )


def test_flag_bits_and_ws_layouts():
    ins = decode_instruction(0x08410490 | 1 << 13 | 1 << 15, "f16")
    assert ins.transpose_a and ins.transpose_b and ins.negate_a and not ins.negate_b
    ws = {
        m: decode_instruction(0x490 | 128 >> 3 << 17 | m >> 4 << 24, "f16", ws=True)
        for m in (32, 64, 128)
    }
    assert {m: (i.layout, i.banks) for m, i in ws.items()} == {
        32: ("G", 4),
        64: ("E", 2),
        128: ("D", 1),
    }


@pytest.mark.parametrize(
    ("idesc", "kind", "options", "text"),
    [
        (0x08400410, "f16", {}, "A is f16 and B is bf16"),
        (0x08400480, "f16", {}, "D in f16 needs f16"),
        (0x08400490, "tf32", {}, "A type code 1"),
        (0x084004B0, "f16", {}, "D type code 3"),
        (0x084004D0, "f16", {}, "bit 6"),
        (0x08400498, "f16", {}, "saturate"),
        (0x08400494, "f16", {}, "sparse"),
        (0x0C400490, "f16", {}, "M=192"),
        (0x10400490, "f16", {}, "M=256"),
        (0x08000490, "f16", {}, "N=0"),
        (0x08420490, "f16", {"cta_group": 2}, "N=264"),
        (0x08420490, "f16", {}, "N=264"),
        (0x48400490, "f16", {}, r"needs \.ws"),
        (0x28400490, "f16", {}, "bits 23 and 29"),
        (0x08450490, "f16", {"ws": True}, "N=272"),
        (0x08260490, "f16", {"ws": True}, "N=152"),
        (0x08400000, "mxf8f6f4", {}, "scale type"),
        (0x88C00480, "mxf4nvf4", {}, "K=96"),
        (0x08408290, "f8f6f4", {}, "A of type e2m1 cannot be MN-major"),
        (0x08400110, "f8f6f4", {}, "A type code 2"),
        (0x08030010, "f8f6f4", {}, "N % 16"),
    ],
)
def test_illegal_instruction_descriptors(idesc: int, kind: str, options: dict[str, int], text: str):
    with pytest.raises(Fault, match=text):
        decode_instruction(idesc, kind, **options)  # type: ignore[arg-type]
