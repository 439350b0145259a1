"""The stand-in for a captured array: indexed, in one or several steps, down to one element.

What is known when the function is traced (shape, rank, dtype) is there as in numpy and torch, and
becomes a constant of the kernel where it is used. An array of one element stands for its number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, cast

from attn_mlir.runtime.call.tensors import view

Captures = Graph = Traced = Any  # of `capture` and `graph`, which know this module

_SAME = ("detach", "contiguous", "clone", "copy", "requires_grad_")  # methods: the same numbers
_CASTS = (  # methods without arguments
    *("float", "double", "half", "bfloat16", "long", "int", "short", "char", "byte", "bool"),
)
_CONVERSIONS = ("to", "type", "astype")


class Axis(NamedTuple):
    """One axis of what is left after indexing.

    Attributes:
      source: dimension of the array; None for an axis that `None` as an index made.
      first, step: element i of the axis is element first + i x step of the dimension.
      extent: elements.
    """

    source: int | None
    first: int
    step: int
    extent: int


class ArrayProxy:
    """A stand-in for a captured array, or for the part of it that some indices leave."""

    __array_priority__ = 1000

    def __init__(
        self,
        captures: Captures,
        graph: Graph,
        name: str,
        value: Any,
        coords: tuple[Any, ...] = (),
        axes: tuple[Axis, ...] | None = None,
        casts: tuple[Callable[[Traced], Traced], ...] = (),
    ):
        """Stands for a whole array, or for what indices leave of it.

        Args:
          captures, graph: of the function that captures it.
          name: by which the function finds it, for messages and the kernel's argument.
          value: the array.
          coords: for each dimension of the array the coordinate that an index has set, or None.
          axes: those of what is left; None for all dimensions of the array.
          casts: conversions of an element, in order.
        """
        self._captures = captures
        self.graph = graph
        self._name = name
        self._value = value
        extents = _shape(value, name)
        self._coords = coords or (None,) * len(extents)
        whole = tuple(Axis(i, 0, 1, extent) for i, extent in enumerate(extents))
        self._axes = whole if axes is None else axes
        self._casts = casts

    def _with(self, **changes: Any) -> ArrayProxy:
        fields: dict[str, Any] = {
            "coords": self._coords,
            "axes": self._axes,
            "casts": self._casts,
            **changes,
        }
        return ArrayProxy(self._captures, self.graph, self._name, self._value, **fields)

    @property
    def tensor(self) -> int:
        """Which of the graph's tensors the array is; it becomes one when this is asked for."""
        return self._captures.register(self._name, self._value)

    @property
    def shape(self) -> Any:
        """Extents of what is left; of a whole array in its library's type."""
        extents = tuple(axis.extent for axis in self._axes)
        whole = getattr(self._value, "shape", extents)
        return whole if extents == whole else extents

    @property
    def ndim(self) -> int:
        """Axes that are left."""
        return len(self._axes)

    @property
    def dtype(self) -> Any:
        """The library's dtype of the array, or that of a number that it was converted to."""
        return self._element().dtype if self._casts else self._value.dtype

    @property
    def size(self) -> Any:
        """As in the array's library: the number of elements in numpy, a method in torch."""
        if not callable(getattr(self._value, "size", None)):
            return math.prod(axis.extent for axis in self._axes)

        def size(dim: int | None = None) -> Any:
            return self.shape if dim is None else self.shape[dim]

        return size

    def dim(self) -> int:
        """Axes that are left."""
        return self.ndim

    def numel(self) -> int:
        """Elements that are left."""
        return math.prod(axis.extent for axis in self._axes)

    def __len__(self) -> int:
        if not self._axes:
            raise self.graph.refuse(f"asks for the length of {self._name}, which is one number")
        return self._axes[0].extent

    def __getitem__(self, index: Any) -> Any:
        items = self._expanded(
            cast("tuple[Any, ...]", index if isinstance(index, tuple) else (index,))
        )
        coords: list[Any] = list(self._coords)
        axes: list[Axis] = []
        left = list(self._axes)
        for item in items:
            if item is None:
                axes.append(Axis(None, 0, 1, 1))
                continue
            axis = left.pop(0)
            if isinstance(item, slice):
                axes.append(self._sliced(axis, cast("Any", item)))
                continue
            coordinate = self._coordinate(axis, item)
            if axis.source is not None:
                coords[axis.source] = coordinate
        result = self._with(coords=tuple(coords), axes=(*axes, *left))
        return result if result._axes else result._element()

    def _expanded(self, index: Sequence[Any]) -> list[Any]:
        """The index with `...` written out."""
        items = list(index)
        taken = sum(item is not None and item is not ... for item in items)
        if taken > len(self._axes):
            raise self.graph.refuse(
                f"indexes {self._name} with {taken} coordinates; it has {len(self._axes)}"
            )
        if any(item is ... for item in items):
            at = next(i for i, item in enumerate(items) if item is ...)
            items[at : at + 1] = [slice(None)] * (len(self._axes) - taken)
        if any(item is ... for item in items):
            raise self.graph.refuse(f"indexes {self._name} with more than one ...")
        return items

    def _sliced(self, axis: Axis, bounds: Any) -> Axis:
        try:
            chosen = cast("range", range(axis.extent)[bounds])
        except TypeError:
            raise self.graph.refuse(
                f"slices {self._name} with bounds that are no integers; the bounds of a slice "
                "cannot be traced values"
            ) from None
        if not chosen:
            raise self.graph.refuse(f"slices {self._name}, and nothing of {axis.extent} is left")
        return Axis(
            axis.source,
            axis.first + chosen.start * axis.step,
            axis.step * chosen.step,
            len(chosen),
        )

    def _coordinate(self, axis: Axis, item: Any) -> Any:
        """The coordinate in the array's dimension for an index into an axis."""
        if isinstance(item, list | range) or getattr(item, "shape", ()) != ():
            raise self.graph.refuse(
                f"indexes {self._name} with several indices at once; an index is one integer"
            )
        index = self.graph.index(self._name, item)
        if (axis.first, axis.step) == (0, 1) and axis.extent == self._extent(axis):
            return index
        index = self.graph.from_start(index, axis.extent)
        inside = self.graph.apply("max", self.graph.apply("min", index, axis.extent - 1), 0)
        return inside * axis.step + axis.first

    def _extent(self, axis: Axis) -> int:
        """The extent of the axis's dimension in the array."""
        return axis.extent if axis.source is None else _shape(self._value, self._name)[axis.source]

    def _element(self) -> Traced:
        """The number, where all axes that are left have one element."""
        coords: list[Any] = list(self._coords)
        for axis in self._axes:
            if axis.extent != 1:
                raise self._no_number()
            if axis.source is not None:
                coords[axis.source] = axis.first
        element = self.graph.load(self.tensor, coords)
        for cast_to in self._casts:
            element = cast_to(element)
        return element

    def _no_number(self) -> Any:
        taken = sum(coord is not None for coord in self._coords)
        what = "as a number"
        if taken:
            what = f"as a number after {taken} of {len(self._coords)} coordinates"
        return self.graph.refuse(
            f"uses {self._name} {what}; a captured array is indexed down to one element"
        )

    def lifted(self) -> Traced:
        """The number that an array of one element stands for.

        Raises:
          SpecError: it has several.
        """
        return self._element()

    def _converted(self, name: str) -> Callable[..., ArrayProxy]:
        def convert(*args: Any, **options: Any) -> ArrayProxy:
            def cast_to(element: Traced) -> Traced:
                return getattr(element, name)(*args, **options)

            return self._with(casts=(*self._casts, cast_to))

        return convert

    def _itself(self, *_args: Any, **_options: Any) -> ArrayProxy:
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _SAME:
            return self._itself
        if name == "data":
            return self
        if name == "T":
            return self._with(axes=self._axes[::-1])
        if name in ("device", "requires_grad", "is_cuda"):
            return getattr(self._value, name)
        if name in _CASTS or name in _CONVERSIONS:
            return self._converted(name)
        if name.endswith("_") and not name.startswith("_"):
            raise self._changed()
        if all(axis.extent == 1 for axis in self._axes):
            return getattr(self._element(), name)
        raise self.graph.refuse(
            f"uses {self._name}.{name}; a captured array can only be indexed, so compute "
            f"{self._name}.{name} outside"
        )

    def _changed(self) -> Any:
        return self.graph.refuse(
            f"writes into {self._name}; a captured array can only be read: the function runs once, "
            "when it is traced"
        )

    def __setitem__(self, index: Any, value: Any) -> None:
        raise self._changed()

    def __delitem__(self, index: Any) -> None:
        raise self._changed()

    def __iter__(self) -> Any:
        raise self._no_number()

    def __hash__(self) -> int:
        return hash(id(self._value))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        return self._element().__array_ufunc__(ufunc, method, *inputs, **options)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        return self._element().__array_function__(function, types, args, options)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Sequence[Any] = (), options: Any = None
    ) -> Any:
        array = next(arg for arg in flattened((args, options)) if isinstance(arg, ArrayProxy))
        return array.graph.call_torch(function, args, options or {})


def flattened(value: Any) -> Generator[Any]:
    """The leaves of nested tuples, lists and dicts."""
    if isinstance(value, tuple | list | dict):
        container = cast("Sequence[Any] | dict[Any, Any]", value)
        for item in container.values() if isinstance(container, dict) else container:
            yield from flattened(item)
    else:
        yield value


def _shape(value: Any, name: str) -> tuple[int, ...]:
    shape = getattr(value, "shape", None)
    return tuple(cast("Sequence[int]", shape)) if shape is not None else view(value, name).shape


def _operator(name: str) -> Callable[..., Any]:
    def apply(self: ArrayProxy, *others: Any) -> Any:
        return getattr(self.lifted(), name)(*others)

    return apply


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor"):
    for _form in (f"__{_name}__", f"__r{_name}__"):
        setattr(ArrayProxy, _form, _operator(_form))
for _name in ("eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs", "invert", "lshift", "rshift",
              "rlshift", "rrshift", "bool", "float", "int", "index", "round"):  # fmt: skip
    setattr(ArrayProxy, f"__{_name}__", _operator(f"__{_name}__"))
