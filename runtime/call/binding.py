"""Checks a call's arguments against a bundle, and computes the kernel's parameters from them.

`bind` refuses every call that the kernel could not compute correctly, with a message that names the
argument, what was got and what is allowed. `parameters` then computes the parameters of the machine
code, given the address of each tensor on the device.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from attn_mlir.errors import SpecError, shown
from attn_mlir.expr import evaluate, show
from attn_mlir.runtime.call.overlap import overlap, overlaps_itself
from attn_mlir.runtime.call.scalars import as_float, integer
from attn_mlir.runtime.call.tensormap import MapDescription, describe
from attn_mlir.runtime.call.tensors import TensorView, check_has_memory, view
from attn_mlir.runtime.file.fields import F32_MAX
from attn_mlir.runtime.file.manifest import (
    Manifest,
    PointerParam,
    ScalarArg,
    ScalarParam,
    StrideParam,
    SymbolParam,
    TensorArg,
)
from attn_mlir.runtime.file.recipes import TensorMapParam

GRID_LIMITS = (2**31 - 1, 65535, 65535)  # CTAs per axis; CUDA programming guide, technical specs
OFFSETS = ("cu_seqlens_q", "cu_seqlens_k", "indptr")  # [sequences + 1]
F32_TINY = 2.0**-126  # the least number that kernels do not flush to 0

ParamType = Literal["u64", "i32", "i64", "f32", "map"]


@dataclass(frozen=True)
class Bound:
    """A checked call.

    Attributes:
      tensors: by argument name, in call order.
      symbols: run-time sizes.
      scalars: numbers, with defaults filled in.
      grid: CTAs per axis.
      sm_margin: multiprocessors that the CTAs of a persistent kernel leave free.
    """

    manifest: Manifest
    tensors: Mapping[str, TensorView]
    symbols: Mapping[str, int]
    scalars: Mapping[str, float]
    grid: tuple[int, int, int]
    sm_margin: int = 0

    def grid_on(self, multiprocessors: int) -> tuple[int, int, int]:
        """CTAs to launch on a device with this number of multiprocessors.

        Raises:
          SpecError: the margin leaves none of them.
        """
        x, y, z = self.grid
        margin = check_margin(self.sm_margin, multiprocessors)
        if not self.manifest.persistent:
            return self.grid
        ctas = self.manifest.cluster[0]
        most = max((multiprocessors - margin) // ctas, 1) * ctas  # whole clusters
        return min(x, most), y, z

    @property
    def launches_nothing(self) -> bool:
        """Whether there is no work: an axis of the grid is 0, or every output is empty."""
        outputs = [tensor.name for tensor in self.manifest.tensors if tensor.is_written]
        return 0 in self.grid or all(self.tensors[name].empty for name in outputs)


def check_margin(sm_margin: object, multiprocessors: int) -> int:
    """The number of multiprocessors that a launch leaves free, of a device with so many.

    Raises:
      SpecError: no integer, or none are left.
    """
    return integer("sm_margin", sm_margin, 0, max(multiprocessors - 1, 0))


@dataclass(frozen=True)
class KernelParam:
    """One parameter of the entry: a number of `type`, or the bytes of a tensor map."""

    type: ParamType
    value: int | float | bytes


def bind(manifest: Manifest, tensors: Sequence[object], keywords: Mapping[str, object]) -> Bound:
    """Checks tensors and numbers against the bundle.

    Args:
      tensors: arrays in the bundle's order; the remaining ones are in `keywords`.
      keywords: arrays and numbers by name; a number that is None or absent takes its default.

    Raises:
      SpecError: names the argument, what was got and what is allowed.
    """
    arrays, scalars = _by_name(manifest, tensors, keywords)
    views: dict[str, TensorView] = {}
    symbols: dict[str, int] = {}
    set_by: dict[str, str] = {}
    for tensor in manifest.tensors:
        output = view(arrays[tensor.name], tensor.name)
        check_has_memory(output, tensor.name)
        _check_shape(tensor, output, symbols, set_by)
        _check_layout(tensor, output)
        views[tensor.name] = output
    check_devices(views)
    _check_aliases(manifest, views)
    numbers = _scalars(manifest, scalars)
    sizes = symbols | {
        scalar.name: int(numbers[scalar.name])
        for scalar in manifest.scalars
        if scalar.dtype != "f32"
    }
    bound = Bound(manifest, views, symbols, numbers, _grid(manifest, sizes))
    _check_work(bound, sizes)
    return bound


def _by_name(
    manifest: Manifest, tensors: Sequence[object], keywords: Mapping[str, object]
) -> tuple[dict[str, object], dict[str, object]]:
    """The arrays and numbers of a call, by name.

    Raises:
      SpecError: arrays that are missing, too many, or passed twice.
    """
    names = [tensor.name for tensor in manifest.tensors]
    by_name = {name: value for name, value in keywords.items() if name in names}
    missing = [name for name in names[len(tensors) :] if name not in by_name]
    if len(tensors) > len(names) or missing:
        got = f"got {len(tensors)}" + (f" and {', '.join(by_name)}" if by_name else "")
        raise SpecError(f"{manifest.entry} takes {len(names)} tensors ({', '.join(names)}), {got}")
    if twice := [name for name in names[: len(tensors)] if name in by_name]:
        raise SpecError(f"{manifest.entry} got {', '.join(twice)} twice: by position and by name")
    arrays = dict(zip(names, tensors, strict=False)) | by_name
    return arrays, {name: value for name, value in keywords.items() if name not in names}


def _check_work(bound: Bound, sizes: Mapping[str, int]) -> None:
    """Refuses a kernel without outputs, and a grid without CTAs if no size of the call is 0.

    Raises:
      SpecError: names the outputs that would not be written.
    """
    outputs = [tensor.name for tensor in bound.manifest.tensors if tensor.is_written]
    if not outputs:
        raise SpecError(f"bundle.json: no tensor of {bound.manifest.entry} is an output")
    unwritten = [name for name in outputs if not bound.tensors[name].empty]
    batches = [x.shape[0] - 1 for name, x in bound.tensors.items() if name in OFFSETS]
    if unwritten and 0 in bound.grid and 0 not in (*sizes.values(), *batches):
        raise SpecError(
            f"bundle.json: the grid {list(bound.grid)} has no CTA, so that nothing would write to "
            f"{', '.join(unwritten)}: compile the bundle again"
        )


def shape_text(tensor: TensorArg) -> str:
    """A declared shape as text: `[batch, sq, 16, 128]`."""
    return f"[{', '.join(str(extent) for extent in tensor.shape)}]"


def check_output(tensor: TensorArg, output: TensorView, outputs: Mapping[str, TensorView]) -> None:
    """Refuses memory to which results of this shape cannot be written; needs no kernel.

    Args:
      tensor: the shape and dtype that are needed, with the caller's name.
      outputs: the other tensors of the call, by name, with which it must share no memory.

    Raises:
      SpecError: names the tensor, what was got and what is allowed.
    """
    _check_shape(tensor, output, {}, {})
    _check_layout(tensor, output)
    check_devices({tensor.name: output, **outputs})
    check_apart(tensor.name, output, outputs)


def _check_shape(
    tensor: TensorArg, output: TensorView, symbols: dict[str, int], sources: dict[str, str]
) -> None:
    name = tensor.name
    if output.dtype != tensor.dtype:
        raise SpecError(f"{name} must be {tensor.dtype}, got {output.dtype}")
    if len(output.shape) != len(tensor.shape):
        raise _wrong_shape(
            tensor, output, f"{len(output.shape)} dimensions instead of {len(tensor.shape)}"
        )
    for axis, (want, got) in enumerate(zip(tensor.shape, output.shape, strict=True)):
        if isinstance(want, int):
            if got != want:
                detail = f"dimension {axis} is {got}, the kernel has {want}"
                raise _wrong_shape(tensor, output, detail)
        elif symbols.setdefault(want, got) != got:
            source = f"{sources[want]} says {symbols[want]}"
            raise _wrong_shape(tensor, output, f"dimension {axis} says {want} = {got}, {source}")
        else:
            sources.setdefault(want, name)


def _wrong_shape(tensor: TensorArg, output: TensorView, detail: str) -> SpecError:
    return SpecError(
        f"{tensor.name} must have shape {shape_text(tensor)}, got {list(output.shape)}: {detail}"
    )


def _check_layout(tensor: TensorArg, output: TensorView) -> None:
    name = tensor.name
    if output.empty:
        return
    axis = tensor.unit_stride_axis
    if axis is not None and output.shape[axis] > 1 and output.strides[axis] != 1:
        raise SpecError(
            f"{name} has strides {list(output.strides)}: axis {axis} must be dense (stride 1), got "
            f"{output.strides[axis]}; copy {name} into a dense tensor"
        )
    if min(output.strides) < 0:
        raise SpecError(
            f"{name} has strides {list(output.strides)}: negative strides must go, copy {name} "
            "into a dense tensor"
        )
    if output.address % tensor.alignment_bytes:
        raise SpecError(
            f"{name} starts at {output.address:#x}: it must be aligned to {tensor.alignment_bytes} "
            f"bytes, is off by {output.address % tensor.alignment_bytes}"
        )
    _check_rows(tensor, output)
    if not tensor.is_written:
        return
    if output.read_only:
        raise SpecError(f"{name} is an output, but its memory is read-only")
    if overlaps_itself(output):
        raise SpecError(
            f"{name} is an output, but its elements share memory: shape {list(output.shape)}, "
            f"strides {list(output.strides)}; pass a tensor of its own"
        )


def _check_rows(tensor: TensorArg, output: TensorView) -> None:
    """Refuses rows that begin or end within one of the accesses by which threads move them."""
    allowed = f"the kernel takes multiples of {tensor.row_multiple}"
    if output.shape[-1] % tensor.row_multiple:
        raise SpecError(f"{tensor.name} has {output.shape[-1]} elements in a row: {allowed}")
    for axis, (extent, stride) in enumerate(
        zip(output.shape[:-1], output.strides[:-1], strict=True)
    ):
        if extent > 1 and stride % tensor.row_multiple:
            strides = list(output.strides)
            raise SpecError(f"{tensor.name} has strides {strides}: {allowed} along axis {axis}")


def check_devices(views: Mapping[str, TensorView]) -> None:
    """Refuses tensors that are not all on one device.

    Raises:
      SpecError: says where each is.
    """
    devices = {name: found.place for name, found in views.items()}
    if len(set(devices.values())) > 1:
        list_text = ", ".join(f"{name} on {place}" for name, place in devices.items())
        raise SpecError(f"all tensors must be on one device, got {list_text}")


def _check_aliases(manifest: Manifest, views: Mapping[str, TensorView]) -> None:
    """Refuses an output that shares memory with another tensor."""
    for out in manifest.tensors:
        if out.is_written:
            tensors = {name: other for name, other in views.items() if name != out.name}
            check_apart(out.name, views[out.name], tensors)


def check_apart(name: str, output: TensorView, tensors: Mapping[str, TensorView]) -> None:
    """Refuses an output that shares memory with another tensor.

    Raises:
      SpecError: names both.
    """
    for other, tensor in tensors.items():
        if overlap(output, tensor):
            raise SpecError(
                f"{name} is an output, but it shares memory with {other}: pass {name} memory of "
                "its own"
            )


def _scalars(manifest: Manifest, value: Mapping[str, object | None]) -> dict[str, float]:
    names = [scalar.name for scalar in manifest.scalars]
    if unknown := sorted(set(value) - set(names)):
        raise SpecError(f"{manifest.entry} has no argument {unknown}, allowed are {names}")
    return {scalar.name: _scalar(scalar, value.get(scalar.name)) for scalar in manifest.scalars}


def _scalar(scalar: ScalarArg, value: object | None) -> float:
    """A number in the type of the kernel's parameter."""
    if value is None:
        if scalar.default is None:
            raise SpecError(f"{scalar.name} has no default: pass {scalar.name}=")
        return scalar.default
    if scalar.dtype == "f32":
        return f32_number(scalar.name, value, scalar.min_exclusive, scalar.max)
    most = 2 ** (31 if scalar.dtype == "i32" else 63) - 1
    low = -most if scalar.min_exclusive is None else math.floor(scalar.min_exclusive) + 1
    return integer(scalar.name, value, low, most if scalar.max is None else int(scalar.max))


def f32_number(name: str, value: object, above: float | None, most: float | None) -> float:
    """A number rounded to float32.

    Kernels flush subnormal numbers to 0, so these are refused, like numbers that are too large.

    Args:
      above, most: the number is greater than `above` and at most `most`; None for float32's bounds.

    Raises:
      SpecError: it is no number, or out of bounds.
    """
    number = as_float(value, name)
    if number is None:
        raise SpecError(f"{name} must be a number, got {shown(value)}")
    most = F32_MAX if most is None else most
    if math.isfinite(number) and abs(number) <= most and (above is None or number > above):
        rounded = struct.unpack("<f", struct.pack("<f", number))[0]
        if abs(rounded) >= F32_TINY or number == 0.0:
            return rounded
    bound = "" if above is None else f" and greater than {above:g}"
    raise SpecError(
        f"{name} must be finite{bound}, in float32 of a magnitude from {F32_TINY:.4g} to "
        f"{most:.4g}, got {shown(value)}"
    )


def _grid(manifest: Manifest, symbols: Mapping[str, int]) -> tuple[int, int, int]:
    sizes: list[int] = []
    for axis, (rule, limit) in enumerate(zip(manifest.grid, GRID_LIMITS, strict=True)):
        size = evaluate(rule, symbols)
        if not 0 <= size <= limit:
            text = ", ".join(f"{name} = {value}" for name, value in symbols.items())
            raise SpecError(
                f"the grid's axis {'xyz'[axis]} would have {show(rule)} = {size} CTAs for {text}, "
                f"allowed are 0 to {limit}"
            )
        sizes.append(size)
    for size, cluster in zip(sizes, manifest.cluster, strict=True):
        if size % cluster:
            raise SpecError(f"the grid {sizes} is no multiple of the cluster {manifest.cluster}")
    return (sizes[0], sizes[1], sizes[2])


def parameters(
    bound: Bound,
    addresses: Mapping[str, int],
    encode: Callable[[MapDescription], bytes],
) -> list[KernelParam]:
    """The entry's parameters, in order.

    Args:
      bound: a checked call that launches something.
      addresses: the address of each tensor on the device; unused for empty tensors.
      encode: returns the bytes of a tensor map.

    Raises:
      SpecError: a layout that no tensor map can have, or a number too large for its parameter.
    """
    packed: list[KernelParam] = []
    for param in bound.manifest.params:
        match param:
            case TensorMapParam():
                tensor = bound.tensors[param.tensor]
                address = _address(bound, param.tensor, addresses)
                description = describe(param, tensor, bound.symbols, address)
                packed.append(KernelParam("map", encode(description)))
            case PointerParam():
                packed.append(KernelParam("u64", _address(bound, param.tensor, addresses)))
            case StrideParam():
                stride = bound.tensors[param.tensor].strides[param.axis]
                what = f"{param.tensor}'s stride along axis {param.axis}"
                packed.append(_integer(stride, param.type, what))
            case SymbolParam():
                packed.append(_integer(bound.symbols[param.symbol], param.type, param.symbol))
            case ScalarParam():
                number = bound.scalars[param.scalar]
                if param.type == "f32":
                    packed.append(KernelParam("f32", number))
                else:
                    packed.append(_integer(int(number), param.type, param.scalar))
    return packed


def _address(bound: Bound, name: str, addresses: Mapping[str, int]) -> int:
    """A tensor's address; an empty tensor has an output's, which is mapped."""
    if not bound.tensors[name].empty:
        return addresses[name]
    for tensor in bound.manifest.tensors:
        if tensor.is_written and not bound.tensors[tensor.name].empty:
            return addresses[tensor.name]
    raise AssertionError("a call whose outputs are all empty launches nothing")


def _integer(value: int, kind: str, what: str) -> KernelParam:
    bits = 32 if kind == "i32" else 64
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise SpecError(f"{what} is {value}: the kernel takes {bits}-bit sizes")
    return KernelParam("i32" if kind == "i32" else "i64", value)
