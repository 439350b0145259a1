"""The manifest `bundle.json`: schema 1 in typed form, checked field by field.

A kernel's arguments are described twice. `tensors` and `scalars` are what a caller passes, in call
order; `params` are what the machine code expects, in the order of the entry's parameters, each one
computed from the former: an address, a stride, a run-time size, a number, or the 128 bytes of a
tensor map.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from attn_mlir.errors import SpecError, TargetError
from attn_mlir.expr import Expr, from_list
from attn_mlir.runtime.file.fields import DTYPE_BYTES, NAME, Dim3, Reader, check_depth
from attn_mlir.runtime.file.recipes import TensorMapParam, read_tensor_map

SCHEMA = 1  # the newest schema that this runtime can read

SCALAR_TYPES = ("i32", "i64", "f32")
MAX_BLOCK_THREADS = 1024  # threads per block; CUDA programming guide, technical specifications
MAX_CLUSTER = 16  # CTAs per cluster, with an opt-in; CUDA programming guide, clusters
MAX_TENSOR_RANK = 8
INTEGER_BITS = {"i32": 32, "i64": 64}

Role = Literal["in", "out", "inout"]
ROLES: tuple[Role, ...] = ("in", "out", "inout")
Extent = int | str


@dataclass(frozen=True)
class TensorArg:
    """One tensor of the call: dtype, extents (numbers or symbols) and requirements for its layout.

    An `inout` tensor is read and written, such as a workspace. If threads access several elements
    of a row at once, the last extent and the other strides are multiples of `row_multiple`
    elements.
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
    """A scalar of the call."""

    scalar: str
    type: str


Param = TensorMapParam | PointerParam | StrideParam | SymbolParam | ScalarParam


@dataclass(frozen=True)
class Manifest:
    """The contents of `bundle.json`; see the classes of its fields. The grid counts CTAs, not
    clusters.

    The CTAs of a persistent kernel loop over the grid's x axis: at most as many are launched as the
    device has multiprocessors. A programmatic launch may start before the previous kernel in the
    stream has finished; the kernel itself waits (programmatic dependent launch). `sha256` is None
    if the bundle has no machine code. The request is the front end's description of what the kernel
    computes, and may be empty; the runtime does not interpret it.
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


def _extent(value: object, symbols: Sequence[str], where: str) -> Extent:
    parsed = from_list(value, symbols, where=where)
    if isinstance(parsed, tuple) or (isinstance(parsed, int) and parsed < 0):
        raise SpecError(f"bundle.json: {where} must be a number or a symbol, got {value!r:.80}")
    return parsed


def _tensor(reader: Reader, symbols: Sequence[str]) -> TensorArg:
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


def _scalar(reader: Reader) -> ScalarArg:
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


def _param(
    reader: Reader, tensors: Mapping[str, TensorArg], symbols: Sequence[str], scalars: set[str]
) -> Param:
    kind = reader.text("kind", ("tensor_map", "pointer", "stride", "symbol", "scalar"))
    if kind == "symbol":
        return SymbolParam(reader.text("symbol", symbols), reader.text("type", ("i32", "i64")))
    if kind == "scalar":
        scalar = reader.text("scalar", sorted(scalars))
        return ScalarParam(scalar, reader.text("type", SCALAR_TYPES))
    tensor = tensors[reader.text("tensor", list(tensors))]
    if kind == "tensor_map":
        return read_tensor_map(
            reader, tensor.name, tensor.dtype, len(tensor.shape), tensor.unit_stride_axis, symbols
        )
    if kind == "pointer":
        return PointerParam(tensor.name)
    axis = reader.integer("axis", 0, len(tensor.shape) - 1)
    return StrideParam(tensor.name, axis, reader.text("type", ("i32", "i64")))


def parse_manifest(value: object) -> Manifest:
    """Converts decoded JSON to a `Manifest`.

    Raises:
      TargetError: the schema is newer than `SCHEMA`.
      SpecError: a field is missing or wrong; the message names it.
    """
    check_depth(value)
    top = Reader(value, "")
    schema = top.integer("schema", 1)
    if schema > SCHEMA:
        raise TargetError(
            f"the bundle has schema {schema}, this attn-mlir reads up to {SCHEMA}: "
            "upgrade attn-mlir, or compile the bundle again"
        )
    names = top.items("symbols")
    symbols = tuple(name for name in names if isinstance(name, str) and NAME.fullmatch(name))
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
    symbol_names = [*symbols, *(scalar.name for scalar in scalars if scalar.dtype != "f32")]
    grid = [from_list(item, symbol_names, where="grid") for item in top.items("grid")]
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
