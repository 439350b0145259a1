"""Block-scaled operands: where each element's bits and each scale's byte lie."""

import ml_dtypes
import numpy as np
import pytest

from attn_mlir.validation.conformance.cases import FORMATS, ScaledGemm
from attn_mlir.validation.conformance.formats import dequantised, random_operand
from attn_mlir.validation.conformance.judging import judge, operands


@pytest.mark.parametrize("name", FORMATS)
def test_elements_and_scales_by_hand(name: str) -> None:
    form = FORMATS[name]
    batch, rows, k = 2, 200, 256
    data, scales = random_operand(np.random.default_rng(3), form, (batch, rows, k))
    assert data.shape == (batch, rows, k * form.bits // 8)
    assert scales.shape == (batch, 2, k // form.block // 4, 32, 4, 4)
    got = dequantised(data, scales, form, k)
    element = np.dtype(getattr(ml_dtypes, f"float{form.element}"))
    scale = np.dtype(getattr(ml_dtypes, f"float{form.scale}"))
    assert len(np.unique(got)) > 20
    for b, row, at in [(0, 0, 0), (1, 199, 255), (0, 131, 17), (1, 64, 130), (0, 33, 96)]:
        number = int.from_bytes(data[b, row].tobytes(), "little") >> (at * form.bits)
        code = np.uint8(number & ((1 << form.bits) - 1))
        block = at // form.block
        place = 512 * (row // 128 * (k // form.block // 4) + block // 4)
        place += row % 32 * 16 + row % 128 // 32 * 4 + block % 4
        factor = scales[b].reshape(-1)[place]
        value = float(code.view(element)) * float(factor.view(scale))
        assert got[b, row, at] == value


def test_a_scaled_gemm_is_judged_by_its_scales() -> None:
    case = ScaledGemm("s", 64, 48, 128, (128, 128), (1, 1), ("mxfp4", "mxfp8_e4m3"))
    arrays = operands(case)
    a, b = (
        dequantised(arrays[x], arrays[f"{x}_scale"], FORMATS[form], case.k)
        for x, form in zip("ab", case.formats, strict=True)
    )
    arrays["d"][:] = np.einsum("bmk,bnk->bmn", a, b)
    assert judge(case, arrays)[0].ok
    arrays["b_scale"][0, 0, 0, 5, 1, 2] = 127 + 20  # 2 ** 20 for row 37, elements 64 to 95
    (verdict,) = judge(case, arrays)
    assert case.m * 3 // 4 < verdict.wrong <= case.m
