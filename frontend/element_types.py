"""Element types: each has one row, in which everything stands that is known of it by hand.

A new type is its row, the conversions that it needs (`lowering.access.narrow`), an encoding of
tensor maps if none of those there are will do (`runtime.call.tensormap`), and the emulator's own
table, which shares nothing with this one.

Sources: OCP 8-bit floating point 1.0 (e4m3, e5m2); OCP Microscaling Formats 1.0 (e3m2, e2m3, e2m1,
e8m0); dlpack.h, DLDataTypeCode; cuda.h, CUtensorMapDataType; PTX ISA, tcgen05, instruction
descriptor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attn_mlir.errors import SpecError

BYTE_BITS = 8

Use = Literal["product", "memory", "view", "format"]


@dataclass(frozen=True)
class ElementType:
    """One element type.

    Attributes:
      name: as bundles, options and messages have it.
      bits: of an element. Elements that do not fill bytes lie without gaps, the first one in the
        lowest bits.
      use: the most that is done with it. Tensor cores multiply elements of `product`, kernels read
        and write those of `memory`, arrays of `view` can be converted, and no kernel and no array
        that users pass may have a `format` yet.
      mlir: its name in MLIR, signed where the operand's is; "" where kernels have none.
      numpy: name of the dtype in numpy or ml_dtypes, which hold each element in whole bytes.
      dlpack: the code of its kind.
      torch: name of the dtype in torch, if that is another; "" where there is none.
      ptx: its name in instructions; "" where none of ours names it.
      tensor_map: as what tensor maps copy it; "" where none does.
      tcgen05: the kind of products of tensor memory, and the type's code there.
      largest: the largest finite number of a float.
      least: the smallest number of a float above 0.
      aliases: further names that users write.
    """

    name: str
    bits: int
    use: Use
    mlir: str
    numpy: str
    dlpack: int
    torch: str
    ptx: str = ""
    tensor_map: str = ""
    tcgen05: tuple[str, int] | None = None
    largest: float = 0.0
    least: float = 0.0
    aliases: tuple[str, ...] = ()

    @property
    def is_declared(self) -> bool:
        """Whether operands of kernels may have it."""
        return self.use in ("product", "memory")

    @property
    def spellings(self) -> tuple[str, ...]:
        """All names by which users may ask for it."""
        torch = (f"torch.{self.torch}",) if self.torch else ()
        return (self.name, self.numpy, *torch, *self.aliases)

    def packed_bytes(self, count: int) -> int:
        """Bytes that so many neighbouring elements take.

        Raises:
          SpecError: they end within a byte.
        """
        whole, rest = divmod(count * self.bits, BYTE_BITS)
        if rest:
            raise SpecError(f"{count} elements of {self.name} end within a byte")
        return whole


F32_LARGEST = (2.0 - 2.0**-23) * 2.0**127

TYPES = (
    ElementType(
        "bf16", 16, "product", "bf16", "bfloat16", 4, "bfloat16", "bf16", "BFLOAT16", ("f16", 1),
        largest=(2.0 - 2.0**-7) * 2.0**127, least=2.0**-133,
    ),
    ElementType(
        "f16", 16, "product", "f16", "float16", 2, "float16", "f16", "FLOAT16", ("f16", 0),
        largest=65504.0, least=2.0**-24, aliases=("fp16", "half"),
    ),
    ElementType(
        "f32", 32, "memory", "f32", "float32", 2, "float32", "f32", "FLOAT32",
        largest=F32_LARGEST, least=2.0**-149, aliases=("fp32", "float"),
    ),
    ElementType(
        "f64", 64, "memory", "f64", "float64", 2, "float64", "f64",
        largest=(2.0 - 2.0**-52) * 2.0**1023, least=2.0**-1074,
    ),
    ElementType(
        "e4m3", 8, "product", "f8E4M3FN", "float8_e4m3fn", 10, "float8_e4m3fn", "e4m3", "UINT8",
        ("f8f6f4", 0), largest=448.0, least=2.0**-9,
    ),
    ElementType(
        "e5m2", 8, "product", "f8E5M2", "float8_e5m2", 12, "float8_e5m2", "e5m2", "UINT8",
        ("f8f6f4", 1), largest=57344.0, least=2.0**-16,
    ),
    ElementType("i8", 8, "memory", "si8", "int8", 0, "int8"),
    ElementType("i16", 16, "memory", "i16", "int16", 0, "int16"),
    ElementType("i32", 32, "memory", "i32", "int32", 0, "int32", tensor_map="INT32"),
    ElementType("i64", 64, "memory", "i64", "int64", 0, "int64", tensor_map="INT64"),
    ElementType("u8", 8, "memory", "ui8", "uint8", 1, "uint8", tensor_map="UINT8"),
    ElementType("u16", 16, "memory", "ui16", "uint16", 1, "uint16"),
    ElementType("bool", 8, "memory", "i8", "bool", 6, "bool"),  # a byte, unsigned unlike i8
    ElementType("u32", 32, "view", "", "uint32", 1, "uint32"),
    ElementType("u64", 64, "view", "", "uint64", 1, "uint64"),
    ElementType(
        "e2m3", 6, "format", "f6E2M3FN", "float6_e2m3fn", 15, "", "e2m3",
        tcgen05=("f8f6f4", 3), largest=7.5, least=2.0**-3,
    ),
    ElementType(
        "e3m2", 6, "format", "f6E3M2FN", "float6_e3m2fn", 16, "", "e3m2",
        tcgen05=("f8f6f4", 4), largest=28.0, least=2.0**-4,
    ),
    ElementType(  # torch's dtype stands for two elements, in a byte
        "e2m1", 4, "format", "f4E2M1FN", "float4_e2m1fn", 17, "float4_e2m1fn_x2", "e2m1",
        tcgen05=("f8f6f4", 5), largest=6.0, least=2.0**-1,
    ),
    ElementType(  # powers of two, of which scales are: no sign, and no 0
        "e8m0", 8, "format", "f8E8M0FNU", "float8_e8m0fnu", 14, "float8_e8m0fnu", "ue8m0",
        largest=2.0**127, least=2.0**-127,
    ),
)  # fmt: skip

ELEMENT_TYPES = {row.name: row for row in TYPES}
DECLARED = tuple(row for row in TYPES if row.is_declared)
WIDE, NARROW = (
    tuple(row.name for row in TYPES if row.use == "product" and row.bits == bits)
    for bits in (16, 8)
)  # types of products, by the bits of their elements
WIDE_MLIR, NARROW_MLIR = (
    tuple(ELEMENT_TYPES[name].mlir for name in names) for names in (WIDE, NARROW)
)
OF_MLIR = {row.mlir: row for row in DECLARED}
OF_NUMPY = {row.numpy: row for row in TYPES}


def type_bits(name: str) -> int:
    """Bits of an element of a type, by our name of it."""
    return ELEMENT_TYPES[name].bits


def name_of_mlir(text: str) -> str:
    """Our name of an element type in MLIR; MLIR's where no operand has it."""
    return OF_MLIR[text].name if text in OF_MLIR else text
