"""Number formats against ml_dtypes and against their definitions."""

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.runtime.emulator.machine.formats import (
    FORMATS,
    decode,
    encode,
    unpack_4_bit,
    unpack_6_bit,
)

PEERS = {
    "bf16": (ml_dtypes.bfloat16, np.uint16),
    "f16": (np.float16, np.uint16),
    "e4m3": (ml_dtypes.float8_e4m3fn, np.uint8),
    "e5m2": (ml_dtypes.float8_e5m2, np.uint8),
    "e2m3": (ml_dtypes.float6_e2m3fn, np.uint8),
    "e3m2": (ml_dtypes.float6_e3m2fn, np.uint8),
    "e2m1": (ml_dtypes.float4_e2m1fn, np.uint8),
    "ue8m0": (ml_dtypes.float8_e8m0fnu, np.uint8),
}


@pytest.mark.parametrize("name", sorted(PEERS))
def test_every_code_decodes_as_ml_dtypes_does(name: str):
    dtype, storage = PEERS[name]
    codes = np.arange(1 << FORMATS[name].bits).astype(storage)
    got = decode(name, codes)
    expected = codes.view(dtype).astype(np.float32)
    assert np.array_equal(got, expected, equal_nan=True)
    assert np.array_equal(np.signbit(got), np.signbit(expected))


@pytest.mark.parametrize("name", sorted(PEERS))
def test_every_code_survives_a_round_trip(name: str):
    codes = np.arange(1 << FORMATS[name].bits).astype(PEERS[name][1])
    values = decode(name, codes)
    finite = np.isfinite(values)
    assert (encode(name, values[finite]) == codes[finite]).all()


@pytest.mark.parametrize("name", ["bf16", "f16", "e4m3", "e5m2", "e2m3", "e3m2", "e2m1"])
def test_nearest_rounding_matches_ml_dtypes(name: str):
    dtype, storage = PEERS[name]
    rng = np.random.default_rng(1)
    limit = min(FORMATS[name].max_value, 1e30)
    values = np.concatenate(
        [
            rng.uniform(-limit, limit, 4000),
            rng.standard_normal(4000),
            rng.standard_normal(4000) * 2.0 ** rng.integers(-30, 0, 4000),
        ]
    ).astype(np.float32)
    expected = values.astype(dtype).view(storage).astype(np.uint32)
    got = encode(name, values)
    if name in ("e2m3", "e3m2", "e2m1"):
        # ml_dtypes may keep the sign bit elsewhere; compare values
        got_values = decode(name, got.astype(np.uint8))
        assert np.array_equal(got_values, values.astype(dtype).astype(np.float32))
    else:
        assert (got == expected).all()


@pytest.mark.parametrize("name", ["bf16", "f16", "e4m3", "e5m2", "e2m3", "e3m2", "e2m1", "tf32"])
def test_midpoints_go_to_even_and_neighbours_do_not(name: str):
    fmt = FORMATS[name]
    step = 2.0**-fmt.fraction_bits
    for base in (1.0, 1.0 + step):
        middle = base + step / 2
        low, high = encode(name, np.array([base, base + step]))
        at, below, above = encode(name, np.array([middle, middle - 1e-6, middle + 1e-6]))
        even = low if (int(low) >> (13 if name == "tf32" else 0)) % 2 == 0 else high
        assert (at, below, above) == (even, low, high)


@pytest.mark.parametrize(
    ("name", "value", "saturate", "code"),
    [
        ("e4m3", 1e6, True, 0x7E),
        ("e4m3", -1e6, True, 0xFE),
        ("e4m3", 1e6, False, 0x7F),
        ("e4m3", np.nan, True, 0x7F),
        ("e4m3", 464.0, False, 0x7E),
        ("e4m3", 464.1, False, 0x7F),
        ("e5m2", np.inf, True, 0x7B),
        ("e5m2", np.inf, False, 0x7C),
        ("e5m2", -np.inf, False, 0xFC),
        ("e2m1", np.nan, True, 0x7),
        ("e2m1", 100.0, True, 0x7),
        ("e2m1", -100.0, True, 0xF),
        ("f16", 65520.0, False, 0x7C00),
        ("f16", 65519.0, False, 0x7BFF),
        ("bf16", np.inf, False, 0x7F80),
        ("ue8m0", np.nan, True, 0xFF),
        ("ue8m0", 0.0, True, 0),
        ("ue8m0", np.inf, True, 254),
        ("e4m3", -0.0, True, 0x80),
    ],
)
def test_overflow_and_specials(name: str, value: float, saturate: bool, code: int):
    assert encode(name, np.array([value]), saturate=saturate)[0] == code


def test_directed_rounding():
    values = np.array([1.9, -1.9])
    assert decode("e2m1", encode("e2m1", values, "rz").astype(np.uint8)).tolist() == [1.5, -1.5]
    assert decode("e2m1", encode("e2m1", values, "rp").astype(np.uint8)).tolist() == [2.0, -1.5]
    scales = np.array([3.0, 4.0, 4.1])
    assert (encode("ue8m0", scales, "rz") - 127).tolist() == [1, 2, 2]
    assert (encode("ue8m0", scales, "rp") - 127).tolist() == [2, 2, 3]


def test_overflow_toward_zero_stays_finite_without_saturation():
    assert encode("f16", np.array([1e9, -1e9]), "rz", saturate=False).tolist() == [0x7BFF, 0xFBFF]
    assert encode("f16", np.array([1e9, -1e9]), "rp", saturate=False).tolist() == [0x7C00, 0xFBFF]


def test_ue4m3_is_e4m3_without_its_sign():
    codes = np.arange(128, dtype=np.uint8)
    assert np.array_equal(decode("ue4m3", codes), decode("e4m3", codes), equal_nan=True)
    assert np.array_equal(decode("ue4m3", codes), decode("ue4m3", codes | 128), equal_nan=True)


def test_tf32_ignores_low_bits():
    assert decode("tf32", np.array([0x3F801FFF], np.uint32))[0] == 1.0


def test_unpacking():
    assert unpack_4_bit(np.array([0x21, 0x43], np.uint8)).tolist() == [1, 2, 3, 4]
    codes = np.random.default_rng(0).integers(0, 64, 16)
    word = sum(int(c) << (6 * i) for i, c in enumerate(codes))
    unit = np.frombuffer(word.to_bytes(12, "little") + b"\xff" * 4, np.uint8)
    assert unpack_6_bit(unit).tolist() == codes.tolist()
