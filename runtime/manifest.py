"""What `bundle.json` says: the typed form of schema 1, checked field by field.

A kernel's arguments are described twice. `tensors` and `scalars` are what a caller passes, in call
order; `params` are what the machine code expects, in the order of the entry's parameters, each one
computed from the former: an address, a stride, a run-time size, a number, or the 128 bytes of a
tensor map.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from attn_mlir.errors import SpecError, TargetError
from attn_mlir.expr import Expr, from_list

SCHEMA = 1  # the newest schema that this runtime reads

DTYPE_BYTES = {
    "bf16": 2,
    "f16": 2,
    "f32": 4,
    "f64": 8,
    "e4m3": 1,
    "e5m2": 1,
    "i8": 1,
    "i16": 2,
    "i32": 4,
    "i64": 8,
    "u8": 1,
    "u16": 2,
    "bool": 1,
}  # element types of tensors
SCALAR_TYPES = ("i32", "i64", "f32")
MAP_DTYPES = ("bf16", "f16", "f32", "e4m3", "e5m2", "i32", "u8")  # that tensor maps have a code for
SWIZZLE_BYTES = {"none": 4096, "32B": 32, "64B": 64, "128B": 128}  # widest box; cuda.h, 256 x 16 B
BOX_LINE_MULTIPLE_BYTES = 16  # cuda.h, cuTensorMapEncodeTiled: boxDim[0]
MAX_BLOCK_THREADS = 1024  # threads per block; CUDA programming guide, technical specifications
MAX_CLUSTER = 16  # CTAs per cluster, with an opt-in; CUDA programming guide, clusters
MAX_TENSOR_RANK = 8
MAP_BYTES = 128  # of a tensor map; cuda.h, CUtensorMap
MAX_DEPTH = 64  # of objects and lists in one another: far above any report
INTEGER_BITS = {"i32": 32, "i64": 64}
F32_MAX = 3.4028234663852886e38

# What an argument, a size, a kernel or a chip may be called: messages and tables print it.
_NAME = re.compile(r"[A-Za-z_$%][\w$%.\-]{0,511}", re.ASCII)

Role = Literal["in", "out", "inout"]
ROLES: tuple[Role, ...] = ("in", "out", "inout")
Extent = int | str
Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class TensorArg:
    """One tensor of the call: dtype, extents (numbers or symbols) and what its layout must be.

    An `inout` tensor is read and written, such as a workspace. Where threads move rows in pieces,
    the last extent and the strides along the other axes are multiples of `row_multiple` elements.
    """

    name: str
    role: Role
    dtype: str
    shape: tuple[Extent, ...]
    unit_stride_axis: int | None
    alignment_bytes: int
    row_multiple: int = 1

    @property
    def is_written(self) -> bool:
        """Whether the kernel writes to it."""
        return self.role != "in"


@dataclass(frozen=True)
class ScalarArg:
    """One keyword argument of the call; without a default it is required."""

    name: str
    dtype: str
    default: float | None
    min_exclusive: float | None
    max: float | None = None


@dataclass(frozen=True)
class MapDim:
    """One dimension of a tensor map: `extent` steps of `step` elements along a tensor axis."""

    extent: Expr
    axis: int
    step: int


@dataclass(frozen=True)
class MovedBack:
    """So many steps of one element along a tensor axis."""

    axis: int
    steps: int


@dataclass(frozen=True)
class TensorMapParam:
    """A 128-byte tensor map, `dims` and `box` innermost first.

    Its base lies `moved_back.steps` steps along an axis in front of the tensor: see
    `lowering.tensors` for what that is good for.
    """

    tensor: str
    box: tuple[int, ...]
    swizzle: str
    dims: tuple[MapDim, ...]
    moved_back: MovedBack | None = None


@dataclass(frozen=True)
class PointerParam:
    """A tensor's 64-bit address."""

    tensor: str


@dataclass(frozen=True)
class StrideParam:
    """A tensor's stride along `axis`, in elements."""

    tensor: str
    axis: int
    type: str


@dataclass(frozen=True)
class SymbolParam:
    """A run-time size."""

    symbol: str
    type: str


@dataclass(frozen=True)
class ScalarParam:
    """A number that the caller gave."""

    scalar: str
    type: str


Param = TensorMapParam | PointerParam | StrideParam | SymbolParam | ScalarParam


@dataclass(frozen=True)
class Manifest:
    """The contents of `bundle.json`; see the fields' classes. Grid counts CTAs, not clusters.

    A persistent kernel's CTAs loop over the grid's x axis: no more are launched than the device has
    multiprocessors. A programmatic launch may begin before the kernel in front of it is over: the
    kernel itself waits (programmatic dependent launch). `sha256` is None where the bundle has no
    machine code. The request says in the front end's words what the kernel computes; it is empty
    where nobody said so, and the runtime only keeps it.
    """

    schema: int
    entry: str
    target: str
    sha256: str | None
    sha256_ptx: str
    block: Dim3
    cluster: Dim3
    smem_bytes: int
    grid: tuple[Expr, Expr, Expr]
    persistent: bool
    programmatic: bool
    symbols: tuple[str, ...]
    tensors: tuple[TensorArg, ...]
    scalars: tuple[ScalarArg, ...]
    params: tuple[Param, ...]
    report: Mapping[str, object]
    versions: Mapping[str, str]
    request: Mapping[str, object]

    def tensor(self, name: str) -> TensorArg:
        """The tensor argument of that name."""
        return next(tensor for tensor in self.tensors if tensor.name == name)


class _Reader:
    """Reads one JSON object and names the field in every complaint."""

    def __init__(self, value: object, where: str):
        if not isinstance(value, dict):
            raise SpecError(f"bundle.json: {where or 'the file'} is not an object: {value!r:.80}")
        self.fields = cast("dict[str, object]", value)
        self.where = where

    def name(self, field: str) -> str:
        return f"{self.where}.{field}" if self.where else field

    def wrong(self, field: str, allowed: str) -> SpecError:
        got = f"got {self.fields[field]!r:.80}" if field in self.fields else "it is missing"
        return SpecError(f"bundle.json: {self.name(field)} must be {allowed}, {got}")

    def text(self, field: str, choices: Sequence[str] | None = None) -> str:
        value = self.fields.get(field)
        if not isinstance(value, str) or (choices is not None and value not in choices):
            raise self.wrong(field, f"one of {list(choices)}" if choices else "a string")
        return value

    def identifier(self, field: str) -> str:
        """A name that can be printed as it is."""
        value = self.text(field)
        if not _NAME.fullmatch(value):
            raise self.wrong(field, "a name of letters, digits, _, $, %, . and -")
        return value

    def integer(self, field: str, low: int, high: int = 2**31 - 1) -> int:
        value = self.fields.get(field)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.wrong(field, f"an integer from {low} to {high}")
        return value

    def number(self, field: str) -> float | None:
        value = self.fields.get(field)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.wrong(field, "a number or null")
        if not abs(value) <= F32_MAX:  # also of a NaN
            raise self.wrong(field, "finite and within f32")
        return float(value)

    def items(self, field: str) -> list[object]:
        value = self.fields.get(field)
        if not isinstance(value, list):
            raise self.wrong(field, "a list")
        return cast("list[object]", value)

    def integers(self, field: str, low: int, high: int) -> tuple[int, ...]:
        values = self.items(field)
        numbers = [v for v in values if isinstance(v, int) and not isinstance(v, bool)]
        if len(numbers) != len(values) or not all(low <= v <= high for v in numbers):
            raise self.wrong(field, f"a list of integers from {low} to {high}")
        return tuple(numbers)

    def flag(self, field: str) -> bool:
        """An optional boolean, False when it is left out."""
        value = self.fields.get(field)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(field, "true or false")
        return bool(value)

    def dim3(self, field: str, most: int) -> Dim3:
        values = self.integers(field, 1, most)
        if len(values) != 3 or math.prod(values) > most:
            raise self.wrong(field, f"three sizes of at most {most} together")
        return (values[0], values[1], values[2])

    def objects(self, field: str) -> list[_Reader]:
        return [
            _Reader(item, f"{self.name(field)}[{index}]")
            for index, item in enumerate(self.items(field))
        ]

    def mapping(self, field: str) -> dict[str, object]:
        return _Reader(self.fields.get(field, {}), self.name(field)).fields


def _extent(value: object, symbols: Sequence[str], where: str) -> Extent:
    parsed = from_list(value, symbols, where=where)
    if isinstance(parsed, tuple) or (isinstance(parsed, int) and parsed < 0):
        raise SpecError(f"bundle.json: {where} must be a number or a symbol, got {value!r:.80}")
    return parsed


def _tensor(reader: _Reader, symbols: Sequence[str]) -> TensorArg:
    shape = tuple(
        _extent(extent, symbols, f"{reader.name('shape')}[{axis}]")
        for axis, extent in enumerate(reader.items("shape"))
    )
    if not 1 <= len(shape) <= MAX_TENSOR_RANK:
        raise reader.wrong("shape", f"1 to {MAX_TENSOR_RANK} extents")
    unit = reader.fields.get("unit_stride_axis")
    alignment = reader.integer("alignment_bytes", 1)
    if alignment & (alignment - 1):
        raise reader.wrong("alignment_bytes", "a power of two")
    return TensorArg(
        name=reader.identifier("name"),
        role=cast("Role", reader.text("role", ROLES)),
        dtype=reader.text("dtype", tuple(DTYPE_BYTES)),
        shape=shape,
        unit_stride_axis=None
        if unit is None
        else reader.integer("unit_stride_axis", 0, len(shape) - 1),
        alignment_bytes=alignment,
        row_multiple=reader.integer("row_multiple", 1) if "row_multiple" in reader.fields else 1,
    )


def _scalar(reader: _Reader) -> ScalarArg:
    scalar = ScalarArg(
        name=reader.identifier("name"),
        dtype=reader.text("dtype", SCALAR_TYPES),
        default=reader.number("default"),
        min_exclusive=reader.number("min_exclusive"),
        max=reader.number("max"),
    )
    default, low = scalar.default, scalar.min_exclusive
    if default is not None:
        bits = INTEGER_BITS.get(scalar.dtype)
        if bits is not None and not (default.is_integer() and abs(default) < 2.0 ** (bits - 1)):
            raise reader.wrong("default", f"a whole number within {scalar.dtype}")
        if low is not None and default <= low:
            raise reader.wrong("default", f"greater than min_exclusive, {low:g}")
    return scalar


def _tensor_map(reader: _Reader, tensor: TensorArg, symbols: Sequence[str]) -> TensorMapParam:
    rank = len(tensor.shape)
    dims = tuple(
        MapDim(
            extent=from_list(dim.fields.get("extent"), symbols, where=dim.name("extent")),
            axis=dim.integer("axis", 0, rank - 1),
            step=dim.integer("step", 1),
        )
        for dim in reader.objects("dims")
    )
    box = reader.integers("box", 1, 256)
    if not 1 <= len(dims) <= 5 or len(box) != len(dims):
        raise reader.wrong("box", f"as long as dims (1 to 5), which has {len(dims)} entries")
    if dims[0].axis != tensor.unit_stride_axis or dims[0].step != 1:
        raise reader.wrong("dims", f"led by the unit-stride axis {tensor.unit_stride_axis}, step 1")
    swizzle = reader.text("swizzle", tuple(SWIZZLE_BYTES))
    line = box[0] * DTYPE_BYTES[tensor.dtype]
    if tensor.dtype not in MAP_DTYPES:
        raise reader.wrong("tensor", f"a tensor of {', '.join(MAP_DTYPES)}")
    if line % BOX_LINE_MULTIPLE_BYTES or line > SWIZZLE_BYTES[swizzle]:
        allowed = (
            f"a multiple of {BOX_LINE_MULTIPLE_BYTES} bytes wide, at most {SWIZZLE_BYTES[swizzle]}"
        )
        raise reader.wrong("box", f"{allowed} with swizzle {swizzle}")
    moved_back: MovedBack | None = None
    if "moved_back" in reader.fields:
        back = _Reader(reader.fields["moved_back"], reader.name("moved_back"))
        moved_back = MovedBack(back.integer("axis", 0, rank - 1), back.integer("steps", 1))
    return TensorMapParam(tensor.name, box, swizzle, dims, moved_back)


def _param(
    reader: _Reader, tensors: Mapping[str, TensorArg], symbols: Sequence[str], scalars: set[str]
) -> Param:
    kind = reader.text("kind", ("tensor_map", "pointer", "stride", "symbol", "scalar"))
    if kind == "symbol":
        return SymbolParam(reader.text("symbol", symbols), reader.text("type", ("i32", "i64")))
    if kind == "scalar":
        scalar = reader.text("scalar", sorted(scalars))
        return ScalarParam(scalar, reader.text("type", SCALAR_TYPES))
    tensor = tensors[reader.text("tensor", list(tensors))]
    if kind == "tensor_map":
        return _tensor_map(reader, tensor, symbols)
    if kind == "pointer":
        return PointerParam(tensor.name)
    axis = reader.integer("axis", 0, len(tensor.shape) - 1)
    return StrideParam(tensor.name, axis, reader.text("type", ("i32", "i64")))


def _check_depth(value: object) -> None:
    """Refuse what is nested so deeply that looking through it would not end well."""
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        inner: list[object] = []
        for item in level:
            if isinstance(item, dict):
                inner += cast("dict[str, object]", item).values()
            elif isinstance(item, list):
                inner += cast("list[object]", item)
        if not inner:
            return
        level = inner
    raise SpecError(f"bundle.json: lists and objects are nested more than {MAX_DEPTH} deep")


def parse_manifest(value: object) -> Manifest:
    """Turn decoded JSON into a `Manifest`.

    Raises:
      TargetError: the schema is newer than `SCHEMA`.
      SpecError: a field is missing or wrong; the message names it.
    """
    _check_depth(value)
    top = _Reader(value, "")
    schema = top.integer("schema", 1)
    if schema > SCHEMA:
        raise TargetError(
            f"the bundle has schema {schema}, this attn-mlir reads up to {SCHEMA}: "
            "upgrade attn-mlir, or compile the bundle again"
        )
    names = top.items("symbols")
    symbols = tuple(name for name in names if isinstance(name, str) and _NAME.fullmatch(name))
    if len(symbols) != len(names) or len(set(symbols)) != len(symbols):
        raise top.wrong("symbols", "a list of different names")
    tensors = tuple(_tensor(reader, symbols) for reader in top.objects("tensors"))
    by_name = {tensor.name: tensor for tensor in tensors}
    scalars = tuple(_scalar(reader) for reader in top.objects("scalars"))
    scalar_names = {scalar.name for scalar in scalars}
    if len(by_name.keys() | scalar_names) != len(tensors) + len(scalars):
        raise top.wrong("tensors", "named differently from each other and from the scalars")
    if both := sorted(scalar_names & set(symbols)):
        raise top.wrong("symbols", f"named differently from the scalars, which have {both}")
    bound = {extent for tensor in tensors for extent in tensor.shape if isinstance(extent, str)}
    if missing := sorted(set(symbols) - bound):
        raise top.wrong("symbols", f"extents of tensors; no tensor tells {missing}")
    known = [*symbols, *(scalar.name for scalar in scalars if scalar.dtype != "f32")]
    grid = [from_list(item, known, where="grid") for item in top.items("grid")]
    if len(grid) != 3:
        raise top.wrong("grid", "three expressions")
    versions = {
        name: version
        for name, version in top.mapping("versions").items()
        if isinstance(version, str)
    }
    if len(versions) != len(top.mapping("versions")):
        raise top.wrong("versions", "strings by name")
    return Manifest(
        schema=schema,
        entry=top.identifier("entry"),
        target=top.identifier("target"),
        sha256=None if top.fields.get("sha256", "") is None else top.text("sha256"),
        sha256_ptx=top.text("sha256_ptx"),
        block=top.dim3("block", MAX_BLOCK_THREADS),
        cluster=top.dim3("cluster", MAX_CLUSTER),
        smem_bytes=top.integer("smem_bytes", 0),
        grid=(grid[0], grid[1], grid[2]),
        persistent=top.flag("persistent"),
        programmatic=top.flag("programmatic"),
        symbols=symbols,
        tensors=tensors,
        scalars=scalars,
        params=tuple(
            _param(reader, by_name, symbols, scalar_names) for reader in top.objects("params")
        ),
        report=top.mapping("report"),
        versions=versions,
        request=top.mapping("request"),
    )
