"""The table of element types, against what other libraries say of them."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import attn_mlir as am
from attn_mlir.dialect._mlir import ir, make_context
from attn_mlir.element_types import ELEMENT_TYPES, NARROW, TYPES, WIDE, ElementType
from attn_mlir.errors import SpecError
from attn_mlir.runtime.call.tensors import view

FLOATS = [row for row in TYPES if row.largest]
FORMATS = [row for row in TYPES if row.use == "format"]
SHAPE = (1, 128, 2, 64)


def _names(row: ElementType) -> str:
    return row.name


@pytest.mark.parametrize("row", FLOATS, ids=_names)
def test_floats_are_as_ml_dtypes_has_them(row: ElementType) -> None:
    known = ml_dtypes.finfo(row.numpy)
    assert (row.bits, row.largest) == (known.bits, float(known.max))
    least = known.tiny if row.name == "e8m0" else known.smallest_subnormal
    assert row.least == float(least)


@pytest.mark.parametrize("row", FORMATS, ids=_names)
def test_formats_have_the_numbers_that_their_definitions_give(row: ElementType) -> None:
    """OCP Microscaling Formats: 1 bit of sign but for e8m0, exponents with bias 2^(e-1) - 1."""
    exponent, mantissa = int(row.name[1]), int(row.name[3])
    assert row.bits == exponent + mantissa + (row.name != "e8m0")
    bias = 2 ** (exponent - 1) - 1
    if row.name == "e8m0":  # the highest code is NaN
        assert (row.least, row.largest) == (2.0**-bias, 2.0 ** (2**exponent - 2 - bias))
        return
    top = 2.0 ** (2**exponent - 1 - bias)
    assert row.largest == (2.0 - 2.0**-mantissa) * top
    assert row.least == 2.0 ** (1 - bias - mantissa)


@pytest.mark.parametrize(
    ("name", "count", "size"),
    [("e2m1", 2, 1), ("e2m1", 32, 16), ("e3m2", 4, 3), ("e2m3", 32, 24), ("e8m0", 1, 1)],
)
def test_elements_are_packed_without_gaps(name: str, count: int, size: int) -> None:
    assert ELEMENT_TYPES[name].packed_bytes(count) == size


@pytest.mark.parametrize(("name", "count"), [("e2m1", 3), ("e3m2", 2), ("e2m3", 1)])
def test_a_row_ends_with_a_byte(name: str, count: int) -> None:
    with pytest.raises(SpecError, match=f"^{count} elements of {name} end within a byte$"):
        ELEMENT_TYPES[name].packed_bytes(count)


def test_mlir_has_the_types() -> None:
    with make_context():
        widths = {row.name: ir.Type.parse(row.mlir).width for row in TYPES if row.mlir}
    assert widths == {row.name: row.bits for row in TYPES if row.mlir}


@pytest.mark.parametrize("row", TYPES, ids=_names)
def test_names_of_other_libraries_are_theirs(row: ElementType) -> None:
    dtype = np.dtype(row.numpy)
    assert dtype.itemsize * 8 == row.bits or row.use == "format"
    torch: Any = pytest.importorskip("torch")
    if row.torch:
        assert getattr(torch, row.torch).itemsize * 8 in (row.bits, 2 * row.bits)


def test_the_driver_knows_what_maps_copy() -> None:
    cuda: Any = pytest.importorskip("cuda.bindings.driver")
    for name in {row.tensor_map for row in TYPES} - {""}:
        assert hasattr(cuda.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{name}")


OTHER_ORDER: dict[str, Any] = {
    "dtype": lambda x: am.mha(heads=2, head_dim=64, dtype=x),
    "kv_dtype": lambda x: am.mha(heads=2, head_dim=64, kv_dtype=x),
    "rope_dtype": lambda x: am.MlaSpec(heads=2, nope_dim=64, rope_dim=64, rope_dtype=x),
    "out_dtype": lambda x: am.attention(*[np.ones(SHAPE, np.float16)] * 3, out_dtype=x),
    "dq_dtype": lambda x: am.attention_backward(
        *[np.ones(SHAPE, np.float16)] * 4,
        np.ones((1, 2, 128), np.float32),
        np.ones(SHAPE, np.float16),
        dq_dtype=x,
    ),
}


@pytest.mark.parametrize("argument", OTHER_ORDER)
@pytest.mark.parametrize("kind", ["f2", "f4"])
def test_dtypes_of_the_other_order_of_bytes_are_refused(argument: str, kind: str) -> None:
    """Each has the name of the native one: no array of it is one that a kernel reads or writes."""
    swapped = np.dtype(kind).newbyteorder("S")
    with pytest.raises(SpecError, match=f"^{argument} dtype.* is of the other order of bytes$"):
        OTHER_ORDER[argument](swapped)


def test_products_are_of_16_and_of_8_bits() -> None:
    assert (WIDE, NARROW) == (("bf16", "f16"), ("e4m3", "e5m2"))


@pytest.mark.parametrize("row", FORMATS, ids=_names)
def test_no_kernel_takes_a_format_yet(row: ElementType) -> None:
    for spelling in row.spellings:
        with pytest.raises(SpecError, match="has no kernel: supported are bf16, f16, e4m3, e5m2"):
            am.mha(heads=2, head_dim=64, dtype=spelling)
    array = np.ones(SHAPE, row.numpy)
    with pytest.raises(SpecError, match=f"^q has dtype {row.numpy}, allowed are bfloat16, .*e5m2"):
        am.attention(array, array, array)
    q, k = np.ones(SHAPE, ml_dtypes.bfloat16), np.ones(SHAPE, ml_dtypes.float8_e4m3fn)
    factors = np.ones((1, 2), row.numpy)
    with pytest.raises(SpecError, match=f"k_descale has dtype {row.numpy}, allowed are"):
        am.attention(q, k, k, k_descale=factors, v_descale=factors)
    with pytest.raises(SpecError, match=f"{row.numpy}, allowed are"):
        am.attention(q, q, q, score_mod=lambda s, b, h, i, j: s * factors[b, h])
    with pytest.raises(SpecError, match=f"^k has dtype {row.numpy}, allowed are"):
        am.append_kv(am.ContiguousKV(array, array, np.ones(1, np.int32)), q, q)


@pytest.mark.parametrize("row", [row for row in FORMATS if row.torch], ids=_names)
def test_no_tensor_of_torch_has_a_format(row: ElementType) -> None:
    torch: Any = pytest.importorskip("torch")
    dtype = getattr(importlib.import_module("torch"), row.torch, None)
    if dtype is None:
        pytest.skip("this torch does not have the dtype")
    tensor = torch.zeros(SHAPE, dtype=torch.uint8).view(dtype)
    with pytest.raises(SpecError, match=f"^q has dtype {row.torch}, allowed are bfloat16"):
        view(tensor, "q")


WITH_A_NEW_ROW = '''
import importlib.machinery, sys

ROW = b"""TYPES = (
    ElementType(
        "e4m3uz", 8, "product", "f8E4M3FNUZ", "float8_e4m3fnuz", 11, "float8_e4m3fnuz", "e4m3",
        "UINT8", ("f8f6f4", 0), largest=240.0, least=2.0**-10,
    ),
"""

class Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname):
        path = self.get_filename(fullname)
        text = self.get_data(path)
        assert text.count(b"TYPES = (\\n") == 1
        return compile(text.replace(b"TYPES = (\\n", ROW), path, "exec")

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "attn_mlir.element_types":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        spec.loader = Loader(name, spec.origin)
        return spec

sys.meta_path.insert(0, Finder)
import ml_dtypes, numpy as np
import attn_mlir as am
from attn_mlir.runtime.call.tensors import view
from attn_mlir.errors import VerifyError

print(view(np.zeros(4, ml_dtypes.float8_e4m3fnuz), "q").dtype)
widened = am.mha(heads=8, kv_heads=2, head_dim=64, kv_dtype="float8_e4m3fnuz")
print(am.compile(widened, target="sm_90a").ptx.count("cvt.rn.f16x2.e4m3x2") > 0)
try:
    am.compile(am.mha(heads=2, head_dim=64, dtype="e4m3uz"), target="sm_100a")
except VerifyError as error:
    print(error.op)
'''


def test_a_new_type_is_a_row_and_its_conversions() -> None:
    """Arrays, requests, policies, IR, rings and tensor maps need the row alone.

    Only a conversion that has no instruction is missing: rounding P to the new type.
    """
    command = [sys.executable, "-c", WITH_A_NEW_ROW]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["e4m3uz", "True", "nvvm.convert.f32x2.to.f8x2"], done.stderr
