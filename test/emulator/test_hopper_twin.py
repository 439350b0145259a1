"""The emulator against a Hopper GPU, bit for bit: the same PTX on both, random operands.

These tests need a GPU of compute capability 9.0. They check what the description of the machine
only reports from others: swizzled addresses of descriptors and of TMA, fragment layouts, the fused
rounding of the tensor core, out-of-bounds fill, reductions.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from attn_mlir.runtime.emulator import Emulator

pytestmark = pytest.mark.sm_90

HEAD = ".version 8.6\n.target sm_90a\n.address_size 64\n"
SHARED_BYTES = 0xC000
Array = npt.NDArray[Any]


@dataclass
class Hopper:
    """A context on the first Hopper GPU.

    Attributes:
      driver: `cuda.bindings.driver`.
    """

    driver: Any

    def call(self, name: str, *args: Any) -> Any:
        """A driver function; its results without the status."""
        status, *results = getattr(self.driver, name)(*args)
        if int(status) != 0:
            raise RuntimeError(f"{name}: {status}")
        return results[0] if len(results) == 1 else results

    def run(
        self, ptx: str, entry: str, grid: int, block: int, arrays: list[Array], extra: list[Any]
    ) -> list[int]:
        """Launch with pointers to copies of `arrays`, then `extra` values; copies back."""
        d = self.driver
        module = self.call("cuModuleLoadData", ptx.encode() + b"\0")
        function = self.call("cuModuleGetFunction", module, entry.encode())
        self.call(
            "cuFuncSetAttribute",
            function,
            d.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
            SHARED_BYTES,
        )
        pointers = [self.call("cuMemAlloc", max(a.nbytes, 16)) for a in arrays]
        for pointer, array in zip(pointers, arrays, strict=True):
            self.call("cuMemcpyHtoD", pointer, array.ctypes.data, array.nbytes)
        addresses = [int(p) for p in pointers]
        values = [struct.pack("<Q", a) for a in addresses]
        values += [e(addresses) if callable(e) else e for e in extra]
        holders = [_aligned(v) for v in values]
        table = np.array([h.ctypes.data for h in holders], np.uint64)
        self.call(
            "cuLaunchKernel", function, grid, 1, 1, block, 1, 1, SHARED_BYTES, 0,
            table.ctypes.data, 0,
        )  # fmt: skip
        self.call("cuCtxSynchronize")
        for pointer, array in zip(pointers, arrays, strict=True):
            self.call("cuMemcpyDtoH", array.ctypes.data, pointer, array.nbytes)
            self.call("cuMemFree", pointer)
        self.call("cuModuleUnload", module)
        return addresses


def _aligned(value: bytes) -> npt.NDArray[np.uint8]:
    raw = np.zeros(len(value) + 64, np.uint8)
    skip = -raw.ctypes.data % 64
    raw[skip : skip + len(value)] = np.frombuffer(value, np.uint8)
    return raw[skip:]


@pytest.fixture(scope="module")
def hopper() -> Hopper:
    driver = pytest.importorskip("cuda.bindings.driver")
    try:
        gpu = Hopper(driver)
        gpu.call("cuInit", 0)
        device = gpu.call("cuDeviceGet", 0)
        attribute = driver.CUdevice_attribute
        major = gpu.call(
            "cuDeviceGetAttribute",
            attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            device,
        )
    except Exception as error:
        pytest.skip(f"no GPU: {error}")
    if major != 9:
        pytest.skip(f"the GPU has compute capability {major}.x, 9.0 is needed")
    gpu.call("cuCtxSetCurrent", gpu.call("cuDevicePrimaryCtxRetain", device))
    return gpu


def both(
    hopper: Hopper,
    ptx: str,
    grid: int,
    block: int,
    arrays: list[Array],
    extra: list[bytes | Callable[[list[int]], bytes]] | None = None,
    numeric: str = "fused",
) -> list[Array]:
    """Run on the GPU (into `arrays`) and on the emulator; returns the emulator's arrays."""
    twins = [a.copy() for a in arrays]
    addresses = hopper.run(ptx, "kernel", grid, block, arrays, list(extra or []))
    emulator = Emulator(target="sm_90a", numeric=numeric)  # type: ignore[arg-type]
    for twin, address in zip(twins, addresses, strict=True):
        emulator.map(twin, address=address)
    values = [e(addresses) if callable(e) else e for e in extra or []]
    emulator.launch(
        ptx, "kernel", grid=(grid, 1, 1), block=(block, 1, 1), shared_bytes=SHARED_BYTES,
        params=[*addresses, *values],
    )  # fmt: skip
    return twins


def differing(gpu: Array, emulated: Array) -> str:
    """Empty if equal, else the first differences."""
    bad = np.argwhere(gpu != emulated)
    if not len(bad):
        return ""
    lines = [
        f"{tuple(int(i) for i in at)}: gpu 0x{int(gpu[tuple(at)]):x}, "
        f"emulator 0x{int(emulated[tuple(at)]):x}"
        for at in bad[:6]
    ]
    return f"{len(bad)} of {gpu.size} differ: " + "; ".join(lines)


# ---- operands ------------------------------------------------------------------------------


def random_codes(
    rng: np.random.Generator, element: str, shape: tuple[int, ...], spread: int, specials: bool
) -> Array:
    """Codes of an element type with exponents over a range of 2 * spread, as unsigned integers."""
    if element in ("e4m3", "e5m2", "u8", "s8"):
        codes = rng.integers(0, 256, shape, np.uint8)
        if not specials and element == "e4m3":
            codes[(codes & 0x7F) == 0x7F] = 0
        if not specials and element == "e5m2":
            codes[(codes & 0x7C) == 0x7C] = 0
        return codes
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-spread, spread + 1, shape)
    x[rng.random(shape) < 0.1] = 0
    if specials:
        for value in (np.inf, -np.inf, np.nan):
            x[rng.random(shape) < 0.004] = value
    if element == "f16":
        with np.errstate(over="ignore"):
            return x.astype(np.float16).view(np.uint16)
    bits = x.astype(np.float32).view(np.uint32)
    return (bits >> 16).astype(np.uint16) if element == "bf16" else bits


# ---- mma.sync ------------------------------------------------------------------------------


def registers(prefix: str, first: int, count: int) -> str:
    return "{" + ", ".join(f"%{prefix}{first + i}" for i in range(count)) + "}"


def mma_ptx(shape: str, types: str, counts: tuple[int, int, int, int]) -> str:
    """One mma.sync per CTA: A, B and C registers of lane t at [i][t], D likewise."""
    na, nb, nc, nd = counts
    total = na + nb + nc
    loads = "\n".join(f"  ld.global.b32 %r{10 + i}, [%d3+{128 * i}];" for i in range(total))
    stores = "\n".join(f"  st.global.b32 [%d5+{128 * i}], %r{60 + i};" for i in range(nd))
    a, b, c, d = (
        registers("r", first, n)
        for first, n in ((10, na), (10 + na, nb), (10 + na + nb, nc), (60, nd))
    )
    return f"""{HEAD}
.visible .entry kernel(.param .u64 src, .param .u64 dst)
{{
  .reg .b32 %r<80>;
  .reg .b64 %d<8>;
  ld.param.u64 %d1, [src];
  ld.param.u64 %d2, [dst];
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, %ctaid.x;
  mul.wide.u32 %d6, %r1, 4;
  mad.wide.u32 %d3, %r2, {128 * total}, %d1;
  add.u64 %d3, %d3, %d6;
  mad.wide.u32 %d5, %r2, {128 * nd}, %d2;
  add.u64 %d5, %d5, %d6;
{loads}
  mma.sync.aligned.{shape}.row.col.{types} {d}, {a}, {b}, {c};
{stores}
  ret;
}}
"""


@pytest.mark.parametrize("specials", [False, True])
@pytest.mark.parametrize("spread", [2, 12])
@pytest.mark.parametrize(
    ("shape", "d", "a", "b", "counts"),
    [
        ("m16n8k16", "f32", "bf16", "bf16", (4, 2, 4, 4)),
        ("m16n8k16", "f32", "f16", "f16", (4, 2, 4, 4)),
        ("m16n8k16", "f16", "f16", "f16", (4, 2, 2, 2)),
        ("m16n8k8", "f32", "bf16", "bf16", (2, 1, 4, 4)),
        ("m16n8k8", "f32", "tf32", "tf32", (4, 2, 4, 4)),
        ("m16n8k32", "s32", "u8", "s8", (4, 2, 4, 4)),
        ("m16n8k32", "f32", "e4m3", "e5m2", (4, 2, 4, 4)),
    ],
)
def test_mma_sync(
    hopper: Hopper,
    shape: str,
    d: str,
    a: str,
    b: str,
    counts: tuple[int, int, int, int],
    spread: int,
    specials: bool,
):
    rng = np.random.default_rng(spread)
    cases = 64
    parts = [
        random_codes(rng, element, (cases, n, 32, 4 // np.dtype(width).itemsize), spread, specials)
        for element, n, width in (
            (a, counts[0], _width(a)),
            (b, counts[1], _width(b)),
            ("u8" if d == "s32" else d, counts[2], np.uint8 if d == "s32" else _width(d)),
        )
    ]
    source = np.concatenate(
        [np.ascontiguousarray(p).view(np.uint32).reshape(cases, -1, 32) for p in parts], axis=1
    )
    result = np.zeros((cases, counts[3], 32), np.uint32)
    arrays = [np.ascontiguousarray(source), result]
    emulated = both(hopper, mma_ptx(shape, f"{d}.{a}.{b}.{d}", counts), cases, 32, arrays)
    assert differing(arrays[1], emulated[1]) == ""


def _width(element: str) -> Any:
    if element in ("bf16", "f16"):
        return np.uint16
    return np.uint32 if element in ("tf32", "f32") else np.uint8


# ---- wgmma ---------------------------------------------------------------------------------


def wgmma_ptx(n: int, types: str, d_count: int, tail: str, a_registers: bool) -> str:
    """One wgmma per CTA: shared memory from an image, descriptors from a table.

    Tables: image bytes, [case] (a, b) descriptors, [case][register][128] D in and out, and
    [case][4][128] A registers.
    """
    d_load = "\n".join(f"  ld.global.b32 %r{100 + i}, [%d5+{512 * i}];" for i in range(d_count))
    d_store = "\n".join(f"  st.global.b32 [%d5+{512 * i}], %r{100 + i};" for i in range(d_count))
    a_load = "\n".join(f"  ld.global.b32 %r{20 + i}, [%d7+{512 * i}];" for i in range(4))
    a = registers("r", 20, 4) if a_registers else "%d10"
    return f"""{HEAD}
.extern .shared .align 1024 .b8 window[];
.visible .entry kernel(.param .u64 image, .param .u64 table, .param .u64 data, .param .u64 left)
.reqntid 128, 1, 1
{{
  .reg .b32 %r<{100 + d_count}>;
  .reg .b64 %d<16>;
  .reg .pred %p<4>;
  ld.param.u64 %d1, [image];
  ld.param.u64 %d2, [table];
  ld.param.u64 %d3, [data];
  ld.param.u64 %d4, [left];
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, %ctaid.x;
  shl.b32 %r3, %r1, 2;
  mov.u32 %r4, window;
  add.u32 %r4, %r4, %r3;
  cvt.u64.u32 %d6, %r3;
  add.u64 %d1, %d1, %d6;
  mov.u32 %r5, 0;
COPY:
  ld.global.b32 %r6, [%d1];
  st.shared.b32 [%r4], %r6;
  add.u64 %d1, %d1, 512;
  add.u32 %r4, %r4, 512;
  add.u32 %r5, %r5, 512;
  setp.lt.u32 %p1, %r5, {SHARED_BYTES};
  @%p1 bra COPY;
  fence.proxy.async.shared::cta;
  bar.sync 0;
  mad.wide.u32 %d2, %r2, 16, %d2;
  ld.global.b64 %d10, [%d2];
  ld.global.b64 %d11, [%d2+8];
  mad.wide.u32 %d5, %r2, {512 * d_count}, %d3;
  add.u64 %d5, %d5, %d6;
  mad.wide.u32 %d7, %r2, 2048, %d4;
  add.u64 %d7, %d7, %d6;
{d_load}
{a_load}
  and.b32 %r7, %r2, 3;
  setp.ne.u32 %p2, %r7, 3;
  wgmma.fence.sync.aligned;
  wgmma.mma_async.sync.aligned.m64n{n}{types} {registers("r", 100, d_count)}, {a}, %d11, %p2{tail};
  wgmma.commit_group.sync.aligned;
  wgmma.wait_group.sync.aligned 0;
{d_store}
  ret;
}}
"""


@dataclass(frozen=True)
class Form:
    """A wgmma form: its types and what follows scale-d."""

    d: str
    a: str
    b: str
    k: int

    def text(self) -> str:
        return f"k{self.k}.{self.d}.{self.a}.{self.b}"

    def tail(self, signs: tuple[int, int], transposes: tuple[int, int], in_registers: bool) -> str:
        if self.a in ("u8", "s8"):
            return ""
        text = f", {signs[0]}, {signs[1]}"
        if self.a in ("f16", "bf16"):
            text += f", {transposes[1]}" if in_registers else f", {transposes[0]}, {transposes[1]}"
        return text


BF16 = Form("f32", "bf16", "bf16", 16)
FORMS = [
    BF16,
    Form("f32", "f16", "f16", 16),
    Form("f16", "f16", "f16", 16),
    Form("f32", "tf32", "tf32", 8),
    Form("f32", "e4m3", "e5m2", 32),
    Form("f16", "e5m2", "e4m3", 32),
    Form("s32", "u8", "s8", 32),
]


def image_of(rng: np.random.Generator, element: str, spread: int, specials: bool) -> Array:
    count = SHARED_BYTES // np.dtype(_width(element)).itemsize
    return np.ascontiguousarray(random_codes(rng, element, (count,), spread, specials)).view(
        np.uint8
    )


def run_wgmma(
    hopper: Hopper,
    form: Form,
    n: int,
    descriptors: Array,
    *,
    spread: int = 3,
    specials: bool = False,
    signs: tuple[int, int] = (1, 1),
    transposes: tuple[int, int] = (0, 0),
    in_registers: bool = False,
) -> str:
    """Differences between GPU and emulator over all cases (rows of `descriptors`)."""
    rng = np.random.default_rng(n + spread)
    cases = len(descriptors)
    d_count = n // 4 if form.d == "f16" else n // 2
    image = image_of(rng, form.a, spread, specials)
    if form.a != form.b and form.a not in ("u8", "s8"):
        image[(image & 0x7C) >= 0x78] = 0  # finite in either 8-bit format
    d_element = "u8" if form.d == "s32" else form.d
    data = random_codes(
        rng, d_element, (cases, d_count, 128 * 4 // np.dtype(_width(d_element)).itemsize),
        spread, specials,
    )  # fmt: skip
    left = random_codes(
        rng, form.a, (cases, 4, 128 * 4 // np.dtype(_width(form.a)).itemsize), spread, specials
    )
    arrays = [
        image,
        np.ascontiguousarray(descriptors),
        np.ascontiguousarray(data).view(np.uint32).reshape(cases, d_count, 128),
        np.ascontiguousarray(left).view(np.uint32).reshape(cases, 4, 128),
    ]
    ptx = wgmma_ptx(
        n, form.text(), d_count, form.tail(signs, transposes, in_registers), in_registers
    )
    emulated = both(hopper, ptx, cases, 128, arrays)
    return differing(arrays[2], emulated[2])


def sm90(start: int, lbo: int, sbo: int, swizzle: int) -> int:
    return swizzle << 62 | (sbo >> 4) << 32 | (lbo >> 4) << 16 | start >> 4


def k_major_cases(rng: np.random.Generator, count: int, rows: int) -> list[int]:
    """Descriptors whose `rows` rows stay in the image: every swizzle, random strides, K steps."""
    out: list[int] = []
    groups = rows // 8
    while len(out) < count:
        code = int(rng.integers(0, 4))
        span = {0: 16, 1: 128, 2: 64, 3: 32}[code]
        sbo = 8 * span * int(rng.integers(1, 3)) if code else 16 * int(rng.integers(1, 40))
        lbo = 16 if code else 16 * int(rng.integers(1, 80))
        unit = 8 * span if code else 16
        last = (groups - 1) * sbo + 8 * span + (lbo if not code else 0)
        if last + unit > SHARED_BYTES:
            continue
        slot = int(rng.integers(0, (SHARED_BYTES - last) // unit))
        step = 32 * int(rng.integers(0, span // 32)) if code else 0
        out.append(sm90(0x400 + slot * unit + step, lbo, sbo, code))
    return out


def mn_major_cases(rng: np.random.Generator, count: int, mn_bytes: int) -> list[int]:
    """Descriptors of MN-major operands, K = 16, with strides that keep them in the image."""
    out: list[int] = []
    while len(out) < count:
        code = int(rng.integers(0, 4))
        span = {0: 16, 1: 128, 2: 64, 3: 32}[code]
        unit = 8 * span
        near, far = (unit * int(rng.integers(1, 5)) for _ in range(2))
        groups = max(mn_bytes // span, 1)
        # without swizzle LBO steps over K and SBO over MN, with one the other way round
        lbo, sbo = (near, far) if code else (far, near)
        over_mn, over_k = (lbo, sbo) if code else (sbo, lbo)
        last = (groups - 1) * over_mn + over_k + unit
        if last + unit > SHARED_BYTES or mn_bytes % span:
            continue
        slot = int(rng.integers(0, (SHARED_BYTES - last) // unit))
        out.append(sm90(0x400 + slot * unit, lbo, sbo, code))
    return out


@pytest.mark.parametrize("in_registers", [False, True])
@pytest.mark.parametrize("form", FORMS, ids=Form.text)
def test_wgmma_k_major(hopper: Hopper, form: Form, in_registers: bool):
    """Every K-major layout; operands span the image, which fills all of shared memory."""
    rng = np.random.default_rng(0)
    n = 64
    pairs = zip(k_major_cases(rng, 48, 64), k_major_cases(rng, 48, n), strict=True)
    table = np.array(list(pairs), np.uint64)
    for spread in (2, 12):
        assert run_wgmma(hopper, form, n, table, spread=spread, in_registers=in_registers) == ""


@pytest.mark.parametrize("transpose_b", [0, 1])
@pytest.mark.parametrize("code", [1, 2, 3])
def test_wgmma_base_offset(hopper: Hopper, code: int, transpose_b: int):
    """Tiles that start in any row of the swizzle pattern, with the base offset that says so."""
    pitch = {1: 128, 2: 64, 3: 32}[code]
    cases = [
        [sm90(at + 128 * phase, 512, 8 * pitch, code) | phase << 49 for at in (0x2400, 0x6400)]
        for phase in range(8)
    ]
    table = np.array(cases, np.uint64)
    assert run_wgmma(hopper, BF16, 64, table, transposes=(0, transpose_b)) == ""


@pytest.mark.parametrize(("lbo", "code"), [(0, 0), (0, 1), (768, 1), (0, 2), (768, 3)])
def test_wgmma_k_major_leading_offset(hopper: Hopper, lbo: int, code: int):
    """Unused with a swizzle; taken as it is without one."""
    pitch = {0: 32, 1: 128, 2: 64, 3: 32}[code]
    table = np.array([[sm90(at, lbo, 8 * pitch, code) for at in (0x2400, 0x6400)]], np.uint64)
    assert run_wgmma(hopper, BF16, 64, table) == ""


@pytest.mark.parametrize("form", FORMS[:3], ids=Form.text)
@pytest.mark.parametrize("transposes", [(0, 1), (1, 0), (1, 1)])
def test_wgmma_mn_major(hopper: Hopper, form: Form, transposes: tuple[int, int]):
    rng = np.random.default_rng(1)
    n = 64
    a = mn_major_cases(rng, 48, 128) if transposes[0] else k_major_cases(rng, 48, 64)
    b = mn_major_cases(rng, 48, 2 * n) if transposes[1] else k_major_cases(rng, 48, n)
    table = np.array(list(zip(a, b, strict=True)), np.uint64)
    assert run_wgmma(hopper, form, n, table, transposes=transposes) == ""


@pytest.mark.parametrize("n", [8, 24, 128, 256])
def test_wgmma_sizes_and_signs(hopper: Hopper, n: int):
    rng = np.random.default_rng(2)
    pairs = zip(k_major_cases(rng, 16, 64), k_major_cases(rng, 16, n), strict=True)
    table = np.array(list(pairs), np.uint64)
    for signs in ((1, 1), (-1, 1), (-1, -1)):
        assert run_wgmma(hopper, BF16, n, table, signs=signs) == ""


@pytest.mark.parametrize("form", FORMS[:4], ids=Form.text)
def test_wgmma_special_values(hopper: Hopper, form: Form):
    rng = np.random.default_rng(3)
    pairs = zip(k_major_cases(rng, 16, 64), k_major_cases(rng, 16, 32), strict=True)
    table = np.array(list(pairs), np.uint64)
    assert run_wgmma(hopper, form, 32, table, spread=40, specials=True) == ""


# ---- ldmatrix, stmatrix, movmatrix ---------------------------------------------------------

MATRIX_PTX = f"""{HEAD}
.extern .shared .align 1024 .b8 window[];
.visible .entry kernel(.param .u64 rows, .param .u64 values, .param .u64 dst)
.reqntid 32, 1, 1
{{
  .reg .b32 %r<40>;
  .reg .b64 %d<12>;
  ld.param.u64 %d1, [rows];
  ld.param.u64 %d2, [values];
  ld.param.u64 %d3, [dst];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %d4, %r1, 4;
  add.u64 %d1, %d1, %d4;
  add.u64 %d2, %d2, %d4;
  add.u64 %d3, %d3, %d4;
  ld.global.b32 %r2, [%d1];
  mov.u32 %r3, window;
  add.u32 %r2, %r2, %r3;
  ld.global.b32 %r10, [%d2];
  ld.global.b32 %r11, [%d2+128];
  ld.global.b32 %r12, [%d2+256];
  ld.global.b32 %r13, [%d2+384];
  stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r2], {{%r10, %r11, %r12, %r13}};
  bar.sync 0;
  ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {{%r20, %r21, %r22, %r23}}, [%r2];
  bar.sync 0;
  stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%r2], {{%r20, %r12}};
  bar.sync 0;
  ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r24, %r25, %r26, %r27}}, [%r2];
  ldmatrix.sync.aligned.m8n8.x2.shared.b16 {{%r28, %r29}}, [%r2];
  movmatrix.sync.aligned.m8n8.trans.b16 %r30, %r13;
  st.global.b32 [%d3], %r20;
  st.global.b32 [%d3+128], %r21;
  st.global.b32 [%d3+256], %r22;
  st.global.b32 [%d3+384], %r23;
  st.global.b32 [%d3+512], %r24;
  st.global.b32 [%d3+640], %r25;
  st.global.b32 [%d3+768], %r26;
  st.global.b32 [%d3+896], %r27;
  st.global.b32 [%d3+1024], %r28;
  st.global.b32 [%d3+1152], %r29;
  st.global.b32 [%d3+1280], %r30;
  ret;
}}
"""


def test_matrix_moves(hopper: Hopper):
    rng = np.random.default_rng(0)
    rows = (16 * rng.permutation(256)[:32]).astype(np.uint32)
    values = rng.integers(0, 1 << 32, (4, 32), np.uint32)
    arrays: list[Array] = [rows, values, np.zeros((11, 32), np.uint32)]
    emulated = both(hopper, MATRIX_PTX, 1, 32, arrays)
    assert differing(arrays[2], emulated[2]) == ""


# ---- TMA -----------------------------------------------------------------------------------


def tma_ptx(rank: int, tx_bytes: int, store: str) -> str:
    """Fill shared memory with 0xEE, load a box, dump the window; optionally store or reduce it."""
    coordinates = "{" + ", ".join(f"%r{20 + i}" for i in range(rank)) + "}"
    loads = "\n".join(f"  ld.param.b32 %r{20 + i}, [where+{4 * i}];" for i in range(rank))
    send = ""
    if store:
        send = (
            f"  @%p2 {store.format(rank=rank)} [%d8, {coordinates}], [%r9];\n"
            "  @%p2 cp.async.bulk.commit_group;\n  @%p2 cp.async.bulk.wait_group 0;"
        )
    return f"""{HEAD}
.extern .shared .align 1024 .b8 window[];
.visible .entry kernel(.param .u64 tensor, .param .u64 dump, .param .u64 target,
  .param .align 64 .b8 map[128], .param .align 64 .b8 map2[128],
  .param .align 4 .b8 where[20], .param .u32 offset)
.reqntid 128, 1, 1
{{
  .reg .b32 %r<40>;
  .reg .b64 %d<12>;
  .reg .pred %p<4>;
  ld.param.u64 %d1, [dump];
  mov.b64 %d2, map;
  cvta.param.u64 %d2, %d2;
  mov.b64 %d8, map2;
  cvta.param.u64 %d8, %d8;
{loads}
  ld.param.u32 %r8, [offset];
  mov.u32 %r1, %tid.x;
  shl.b32 %r3, %r1, 2;
  mov.u32 %r2, window;
  add.u32 %r9, %r2, %r8;
  add.u32 %r10, %r2, {SHARED_BYTES - 8};
  add.u32 %r4, %r2, %r3;
  mov.u32 %r5, 0;
  mov.u32 %r6, 0xEEEEEEEE;
FILL:
  st.shared.b32 [%r4], %r6;
  add.u32 %r4, %r4, 512;
  add.u32 %r5, %r5, 512;
  setp.lt.u32 %p1, %r5, {SHARED_BYTES - 512};
  @%p1 bra FILL;
  setp.eq.u32 %p2, %r1, 0;
  @%p2 mbarrier.init.shared::cta.b64 [%r10], 1;
  fence.mbarrier_init.release.cluster;
  fence.proxy.async.shared::cta;
  bar.sync 0;
  @%p2 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], {tx_bytes};
  @%p2 cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r9], [%d2, {coordinates}], [%r10];
  mov.u32 %r12, 0;
WAIT:
  add.u32 %r12, %r12, 1;
  setp.gt.u32 %p1, %r12, 2000;
  @%p1 trap;
  mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r10], 0;
  @!%p3 bra WAIT;
{send}
  bar.sync 0;
  add.u32 %r4, %r2, %r3;
  cvt.u64.u32 %d3, %r3;
  add.u64 %d1, %d1, %d3;
  mov.u32 %r5, 0;
DUMP:
  ld.shared.b32 %r7, [%r4];
  st.global.b32 [%d1], %r7;
  add.u32 %r4, %r4, 512;
  add.u64 %d1, %d1, 512;
  add.u32 %r5, %r5, 512;
  setp.lt.u32 %p1, %r5, {SHARED_BYTES - 512};
  @%p1 bra DUMP;
  ret;
}}
"""


TYPES = {  # name -> (CUtensorMapDataType, bytes)
    "u8": (0, 1), "f16": (6, 2), "bf16": (9, 2), "f32": (7, 4), "tf32": (11, 4),
    "u32": (2, 4), "u64": (4, 8), "f64": (8, 8), "s32": (3, 4),
}  # fmt: skip


@dataclass(frozen=True)
class Box:
    """A tensor of bytes and how a map cuts it."""

    element: str
    dims: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    swizzle: int
    nan: bool = False

    @property
    def row_bytes(self) -> int:
        return -(-self.dims[0] * TYPES[self.element][1] // 16) * 16

    @property
    def strides(self) -> tuple[int, ...]:
        strides, pitch = list[int](), self.row_bytes
        for extent in self.dims[1:]:
            strides.append(pitch)
            pitch *= extent
        return tuple(strides)

    @property
    def tx_bytes(self) -> int:
        total = self.box[0] * TYPES[self.element][1]
        for n, step in zip(self.box[1:], self.steps[1:], strict=True):
            total *= -(-n // step)
        return total

    @property
    def byte_count(self) -> int:
        total = self.row_bytes
        for extent in self.dims[1:]:
            total *= extent
        return total

    def aligned(self, coords: Iterable[int]) -> tuple[int, ...]:
        """Coordinates whose first is a multiple of 16 bytes: anything else stops the GPU."""
        first, *rest = coords
        step = 16 // TYPES[self.element][1]
        return (first // step * step, *rest)

    def encode(self, hopper: Hopper, address: int) -> bytes:
        """The driver's bytes of the map."""
        d = hopper.driver
        rank = len(self.dims)
        made = hopper.call(
            "cuTensorMapEncodeTiled",
            d.CUtensorMapDataType(TYPES[self.element][0]),
            rank,
            address,
            [d.cuuint64_t(x) for x in self.dims],
            [d.cuuint64_t(x) for x in self.strides] or [d.cuuint64_t(16)],
            [d.cuuint32_t(x) for x in self.box],
            [d.cuuint32_t(x) for x in self.steps],
            d.CUtensorMapInterleave(0),
            d.CUtensorMapSwizzle(self.swizzle),
            d.CUtensorMapL2promotion(0),
            d.CUtensorMapFloatOOBfill(1 if self.nan else 0),
        )
        return b"".join(struct.pack("<Q", int(word)) for word in made.opaque)


def random_box(rng: np.random.Generator) -> Box:
    rank = int(rng.integers(1, 6))
    swizzle = int(rng.integers(0, 4))
    element = str(rng.choice(["u8", "f16", "bf16", "f32", "u64", "tf32"]))
    size = TYPES[element][1]
    span = {0: 256, 1: 32, 2: 64, 3: 128}[swizzle]
    inner = int(rng.integers(1, min(span, 256 * size) // 16 + 1)) * 16 // size
    limit = {1: 1, 2: 100, 3: 10, 4: 5, 5: 3}[rank]
    box = (inner, *(int(rng.integers(1, limit + 1)) for _ in range(rank - 1)))
    dims = tuple(int(rng.integers(1, 2 * b + 2)) for b in box)
    steps = (1, *(int(rng.integers(1, 4)) for _ in range(rank - 1)))
    nan = element in ("f16", "bf16", "f32") and bool(rng.integers(0, 2))
    return Box(element, dims, box, steps, swizzle, nan)


def run_tma(
    hopper: Hopper, box: Box, coords: tuple[int, ...], offset: int, seed: int, store: str = ""
) -> str:
    rng = np.random.default_rng(seed)
    tensor = rng.integers(0, 256, box.byte_count, np.uint8)
    if box.element in ("f16", "bf16", "f32", "tf32", "f64"):
        # finite values; a few specials for the rounding of tf32
        kind = {"f16": np.float16, "f64": np.float64}.get(box.element, np.float32)
        values = rng.standard_normal(box.byte_count // np.dtype(kind).itemsize).astype(kind)
        if box.element == "tf32":
            values[rng.random(values.size) < 0.05] = np.nan
            values[rng.random(values.size) < 0.05] = np.inf
        tensor = values.view(np.uint8)
    target = rng.integers(0, 64, box.byte_count, np.uint8) if store else tensor[:16].copy()
    arrays: list[Array] = [
        tensor.copy(),
        np.zeros((SHARED_BYTES - 512) // 4, np.uint32),
        target.view(np.uint8).copy(),
    ]
    where = np.zeros(5, np.int32)
    where[: len(coords)] = coords
    extra: list[bytes | Callable[[list[int]], bytes]] = [
        lambda at: box.encode(hopper, at[0]),
        lambda at: box.encode(hopper, at[2]) if store else bytes(128),
        where.tobytes(),
        struct.pack("<I", offset),
    ]
    emulated = both(hopper, tma_ptx(len(coords), box.tx_bytes, store), 1, 128, arrays, extra)
    problem = differing(arrays[1], emulated[1])
    return problem or differing(arrays[2], emulated[2])


@pytest.mark.parametrize("seed", range(60))
def test_tma_loads(hopper: Hopper, seed: int):
    """Random boxes, coordinates in and out of bounds, every swizzle, destinations mid-pattern."""
    rng = np.random.default_rng(seed)
    box = random_box(rng)
    coords = box.aligned(
        int(rng.integers(-b, d + b)) for b, d in zip(box.box, box.dims, strict=True)
    )
    offset = 128 * int(rng.integers(0, 24))
    assert run_tma(hopper, box, coords, offset, seed) == "", f"{box} at {coords} to +{offset}"


STORE = "cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group"
REDUCE = "cp.reduce.async.bulk.tensor.{{rank}}d.global.shared::cta.{}.tile.bulk_group"


@pytest.mark.parametrize("seed", range(24))
def test_tma_stores(hopper: Hopper, seed: int):
    rng = np.random.default_rng(1000 + seed)
    box = random_box(rng)
    coords = box.aligned(int(rng.integers(0, d + 1)) for d in box.dims)
    assert run_tma(hopper, box, coords, 1024, seed, STORE) == "", f"{box} at {coords}"


@pytest.mark.parametrize(
    ("element", "operation"),
    [
        ("u32", "add"), ("s32", "min"), ("s32", "max"), ("u32", "inc"), ("u32", "dec"),
        ("u32", "and"), ("u64", "xor"), ("u64", "or"), ("f32", "add"), ("f16", "add"),
        ("bf16", "add"), ("f16", "min"), ("bf16", "max"),
    ],
)  # fmt: skip
def test_tma_reductions(hopper: Hopper, element: str, operation: str):
    size = TYPES[element][1]
    for tail in (0, 1):
        box = Box(element, (64 // size - tail, 20), (64 // size, 8), (1, 1), 2)
        check_reductions(hopper, box, operation)


def check_reductions(hopper: Hopper, box: Box, operation: str) -> None:
    size = TYPES[box.element][1]
    for seed, coords in enumerate(((0, 0), (0, 15), (16 // size, 3))):
        assert run_tma(hopper, box, coords, 0, seed, REDUCE.format(operation)) == ""


# ---- mbarrier ------------------------------------------------------------------------------

MBARRIER_STEPS = [
    "mbarrier.init.shared::cta.b64 [%r2], 5",
    "mbarrier.arrive.shared::cta.b64 {}, [%r2]",
    "mbarrier.arrive.expect_tx.shared::cta.b64 {}, [%r2], 48",
    "mbarrier.arrive.shared::cta.b64 {}, [%r2], 2",
    "mbarrier.arrive_drop.shared::cta.b64 {}, [%r2]",
    "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r2], 32",
    "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r2], 16",
    "mbarrier.arrive.shared::cta.b64 {}, [%r2], 3",
    "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r2], 4096",
    "mbarrier.arrive.expect_tx.shared::cta.b64 {}, [%r2], 4096",
    "mbarrier.arrive.shared::cta.b64 {}, [%r2]",
]


def mbarrier_ptx() -> str:
    """Each step's token, or 0."""
    body = ""
    for i, text in enumerate(MBARRIER_STEPS):
        body += f"""
  mov.b64 %d2, 0;
  {text.format("%d2")};
  st.global.b64 [%d1+{8 * i}], %d2;"""
    return f"""{HEAD}
.extern .shared .align 1024 .b8 window[];
.visible .entry kernel(.param .u64 dst)
.reqntid 32, 1, 1
{{
  .reg .b32 %r<8>;
  .reg .b64 %d<8>;
  .reg .pred %p<2>;
  ld.param.u64 %d1, [dst];
  mov.u32 %r1, %tid.x;
  setp.ne.u32 %p1, %r1, 0;
  @%p1 bra DONE;
  mov.u32 %r2, window;{body}
DONE:
  ret;
}}
"""


TOKEN_BITS = np.uint64(0xFFFFF80000000000)  # parity and pending arrivals; the rest is undefined


def test_mbarrier_tokens(hopper: Hopper):
    """Phase parity and pending arrivals in every token; the other bits are undefined."""
    arrays: list[Array] = [np.zeros(len(MBARRIER_STEPS), np.uint64)]
    emulated = both(hopper, mbarrier_ptx(), 1, 32, arrays)
    assert differing(arrays[0] & TOKEN_BITS, emulated[0] & TOKEN_BITS) == ""
