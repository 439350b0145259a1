"""The 32-bit instruction descriptor of tcgen05.mma, decoded and checked (spec-ptx 2.1, 2.2, 3.1).

Ambiguities resolved here:
  - spec 16.3, N % 16 for M=128 with cta_group::1: N % 8 is accepted.
  - spec 2.2 writes 0 into unused bits: a set unused bit faults.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from .faults import Fault

Kind = Literal["f16", "tf32", "f8f6f4", "i8", "mxf8f6f4", "mxf4", "mxf4nvf4"]
Layout = Literal["A", "B", "C", "D", "E", "F", "G"]

_F8F6F4 = {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}
_OPERAND_FORMATS: dict[str, dict[int, str]] = {
    "f16": {0: "f16", 1: "bf16"},
    "tf32": {2: "tf32"},
    "f8f6f4": _F8F6F4,
    "i8": {0: "u8", 1: "s8"},
    "mxf8f6f4": _F8F6F4,
    "mxf4": {1: "e2m1"},
    "mxf4nvf4": {1: "e2m1"},
}
_D_FORMATS: dict[str, dict[int, str]] = {
    "f16": {0: "f16", 1: "f32"},
    "tf32": {1: "f32"},
    "f8f6f4": {0: "f16", 1: "f32"},
    "i8": {2: "s32"},
}
K_DENSE = {"f16": 16, "tf32": 8, "f8f6f4": 32, "i8": 32, "mxf8f6f4": 32, "mxf4": 64, "mxf4nvf4": 64}
BLOCK_SCALED = frozenset({"mxf8f6f4", "mxf4", "mxf4nvf4"})
# legal numbers of scales per row and instruction; spec-ptx 2.8
SCALE_VECTORS = {"mxf8f6f4": (1,), "mxf4": (2,), "mxf4nvf4": (2, 4)}


@dataclass(frozen=True)
class Instruction:
    """One tcgen05.mma shape and its types.

    Attributes:
      m, n: full extents (both CTAs of a pair together). k: elements of K per instruction, counting
        the zeros that sparsity leaves out.
      a_format, b_format, d_format: names of `formats.FORMATS`, or "u8", "s8", "s32".
      layout: how D lies in tensor memory, a letter of spec-ptx 3.1.
      scale_format: "ue8m0", "ue4m3" or "" when not block-scaled; `sfa_id`, `sfb_id` first bytes.
      max_shift: largest column shift of .ws.
    """

    kind: Kind
    m: int
    n: int
    k: int
    a_format: str
    b_format: str
    d_format: str
    layout: Layout
    negate_a: bool
    negate_b: bool
    transpose_a: bool
    transpose_b: bool
    saturate: bool
    sparse: bool
    sparsity_selector: int
    scale_format: str
    sfa_id: int
    sfb_id: int
    max_shift: int

    @property
    def rows_per_cta(self) -> int:
        """Rows of D that one CTA holds."""
        return self.m // 2 if self.layout in "ABC" else self.m

    @property
    def banks(self) -> int:
        """Lane banks that hold different columns of the same rows."""
        return {"B": 2, "E": 2, "G": 4}.get(self.layout, 1)


def _bits(value: int, low: int, high: int) -> int:
    return (value >> low) & ((1 << (high - low)) - 1)


def _pick(table: dict[int, str], code: int, what: str, idesc: int, kind: str) -> str:
    if code not in table:
        choices = ", ".join(f"{c} ({n})" for c, n in table.items())
        raise _reject(idesc, kind, f"{what} code {code} is not one of {choices}")
    return table[code]


def _reject(idesc: int, kind: str, why: str) -> Fault:
    return Fault("descriptor", f"instruction descriptor 0x{idesc:08x} of kind::{kind}: {why}")


@lru_cache(maxsize=1024)
def decode_instruction(
    idesc: int, kind: Kind, cta_group: int = 1, ws: bool = False, sparse: bool = False
) -> Instruction:
    """Decode `idesc` for the spelled mnemonic.

    Args:
      cta_group: 1 or 2. ws: the .ws form. sparse: the .sp form; must agree with bit 2.

    Raises:
      Fault: "descriptor", naming the field, what was got and what is allowed.
    """
    scaled = kind in BLOCK_SCALED
    m, n = _bits(idesc, 24, 29) << 4, _bits(idesc, 17, 23) << 3
    if bool(_bits(idesc, 2, 3)) != sparse:
        raise _reject(idesc, kind, f"bit 2 (sparse) disagrees with {'.sp' if sparse else 'dense'}")
    if _bits(idesc, 6, 7):
        raise _reject(idesc, kind, "bit 6 must be 0")
    scale_format, sfa_id, sfb_id, max_shift = "", 0, 0, 0
    if scaled:
        d_format = "f32"
        sfb_id, sfa_id = _bits(idesc, 4, 6), _bits(idesc, 29, 31)
        scale_format = "ue8m0" if _bits(idesc, 23, 24) else "ue4m3"
        if kind != "mxf4nvf4" and scale_format != "ue8m0":
            raise _reject(idesc, kind, "scale type (bit 23) must be 1 (ue8m0)")
        if _bits(idesc, 31, 32):
            raise _reject(idesc, kind, "K=96 (bit 31) is not on sm_100a")
        b_code = _bits(idesc, 10, 13 if kind == "mxf8f6f4" else 12)
    else:
        d_format = _pick(_D_FORMATS[kind], _bits(idesc, 4, 6), "D type", idesc, kind)
        if _bits(idesc, 23, 24) or _bits(idesc, 29, 30):
            raise _reject(idesc, kind, "bits 23 and 29 must be 0")
        max_shift = (0, 8, 16, 32)[_bits(idesc, 30, 32)]
        if max_shift and not ws:
            raise _reject(idesc, kind, "a column shift (bits 30..31) needs .ws")
        b_code = _bits(idesc, 10, 13)
    formats = _OPERAND_FORMATS[kind]
    a_format = _pick(formats, _bits(idesc, 7, 10), "A type", idesc, kind)
    b_format = _pick(formats, b_code, "B type", idesc, kind)
    if kind == "f16":
        if a_format != b_format:
            raise _reject(idesc, kind, f"A is {a_format} and B is {b_format}: they must agree")
        if d_format == "f16" and a_format != "f16":
            raise _reject(idesc, kind, "D in f16 needs f16 operands")
    if kind == "i8" and _bits(idesc, 13, 15):
        raise _reject(idesc, kind, "negate bits must be 0")
    if kind != "i8" and _bits(idesc, 3, 4):
        raise _reject(idesc, kind, "saturate (bit 3) is for kind::i8 only")
    transpose_a, transpose_b = bool(_bits(idesc, 15, 16)), bool(_bits(idesc, 16, 17))
    for name, transposed, fmt in (("A", transpose_a, a_format), ("B", transpose_b, b_format)):
        if transposed and (kind in ("mxf4", "mxf4nvf4") or fmt in ("e2m3", "e3m2", "e2m1")):
            raise _reject(idesc, kind, f"{name} of type {fmt} cannot be MN-major")
    _check_shape(idesc, kind, m, n, cta_group, ws, sparse)
    if transpose_b and b_format in ("e4m3", "e5m2", "u8", "s8") and n % (16 * cta_group):
        raise _reject(idesc, kind, f"MN-major 8-bit B needs N % {16 * cta_group} == 0, got {n}")
    return Instruction(
        kind=kind,
        m=m,
        n=n,
        k=K_DENSE[kind] * (2 if sparse else 1),
        a_format=a_format,
        b_format=b_format,
        d_format=d_format,
        layout=_layout(m, cta_group, ws, sparse),
        negate_a=bool(_bits(idesc, 13, 14)),
        negate_b=bool(_bits(idesc, 14, 15)),
        transpose_a=transpose_a,
        transpose_b=transpose_b,
        saturate=bool(_bits(idesc, 3, 4)),
        sparse=sparse,
        sparsity_selector=_bits(idesc, 0, 2),
        scale_format=scale_format,
        sfa_id=sfa_id,
        sfb_id=sfb_id,
        max_shift=max_shift,
    )


def _layout(m: int, cta_group: int, ws: bool, sparse: bool) -> Layout:
    if cta_group == 2:
        if m == 256:
            return "A"
        return "C" if sparse else "B"
    if ws:
        return {128: "D", 64: "E", 32: "G"}[m]  # type: ignore[return-value]
    return "D" if m == 128 else "F"


def _check_shape(
    idesc: int, kind: str, m: int, n: int, cta_group: int, ws: bool, sparse: bool
) -> None:
    """Fault unless M and N are legal for the form; the table of spec-ptx 2.1."""
    scaled = kind in BLOCK_SCALED
    if ws:
        if cta_group != 1 or scaled:
            raise _reject(idesc, kind, ".ws is for cta_group::1 and kinds without block scaling")
        m_allowed: tuple[int, ...] = (32, 64, 128)
        n_allowed: tuple[int, ...] = (64, 128) if sparse else (64, 128, 256)
    elif scaled:
        m_allowed = (128,) if cta_group == 1 else (256,) if sparse else (128, 256)
        n_allowed = tuple(range(8 * cta_group, 257, 8 * cta_group))
    else:
        m_allowed = (64 * cta_group, 128 * cta_group)
        if kind == "i8":
            n_allowed = (
                (8, 24, *range(16, 33, 16), *range(48, 257, 16))
                if cta_group == 1
                else tuple(range(32, 257, 32))
            )
        else:
            n_allowed = tuple(range(8 * cta_group, 257, 8 * cta_group))
    form = f"{'.ws' if ws else ''} with cta_group::{cta_group}"
    if m not in m_allowed:
        raise _reject(idesc, kind, f"M={m}{form}: allowed are {', '.join(map(str, m_allowed))}")
    if n not in n_allowed:
        allowed = ", ".join(map(str, sorted(n_allowed)))
        raise _reject(idesc, kind, f"N={n}{form}: allowed are {allowed}")
