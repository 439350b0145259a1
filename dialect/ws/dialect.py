"""The `ws` dialect and its types: tiles, fragments, rings and buffers of a warp-specialised kernel.

Nothing here depends on a target. A tile lies in a memory space ("shared" or "tensor"). A fragment
is a tile in the registers of the threads of one role, in a layout that the lowering chooses, so a
kernel never indexes it. A pending fragment is the result of a product that is not complete yet. A
ring is a buffer of several stages with a full and an empty barrier for each. `instances` is the
number of parallel instances of a ring or buffer, such as one per query tile.
"""

from collections.abc import Sequence
from typing import Any

from attn_mlir.dialect._mlir import ext, ir
from attn_mlir.errors import SpecError

SPACES = ("shared", "tensor")
LINE_BYTES = 128  # of a row of a shared tile that lie together, where its type says nothing else
SHORT_LINES = (64, 32, 16)  # bytes


class WS(ext.Dialect, name="ws"):
    """Warp-specialised kernels: roles, rings, tiles, fragments."""


DIALECT = WS


def fail(op: Any, message: str) -> bool:
    """Reports a verifier's error on `op`; returns False, the verifier's result."""
    op.location.emit_error(f"'{op.OPERATION_NAME}' op {message}")
    return False


def _parameter(kind: Any, attribute: Any) -> Any:
    """A type's parameter as an attribute of the expected class; None if it is another one."""
    try:
        return kind(attribute)
    except ValueError:
        return None


def _vector_misfit(parameter: Any, *, ranks: Sequence[int] = (1, 2)) -> str:
    """The error in the shape and element type of a tile or fragment; "" if none."""
    kind = _parameter(ir.TypeAttr, parameter)
    vector = _parameter(ir.VectorType, kind.value) if kind is not None else None
    if vector is None or vector.scalable or vector.rank not in ranks:
        dimensions = " or ".join(map(str, ranks))
        return f"to be a vector of {dimensions} dimensions"
    if not hasattr(vector.element_type, "width"):
        return "to have elements of a known width"
    return ""


def _slot_misfit(parameter: Any, counts: Sequence[Any], *, may_be_empty: bool) -> str:
    """The error in the slot type and the counts of a ring or buffer; "" if none."""
    attribute = _parameter(ir.TypeAttr, parameter)
    kind = None if attribute is None else attribute.value
    is_empty = may_be_empty and isinstance(kind, ir.NoneType)
    if not is_empty and not isinstance(kind, TileType):
        return f"to have slots of type !ws.tile{' or none' if may_be_empty else ''}"
    for count in counts:
        number = _parameter(ir.IntegerAttr, count)
        if number is None or number.value < 1:
            return "to have counts of at least 1"
    return kind.misfit() if isinstance(kind, TileType) else ""


class TileType(WS.Type, name="tile"):
    """`!ws.tile<vector<128x64xbf16>, "shared">`: a 1-D or 2-D tile [rows, columns] in a space.

    A shared tile lies in lines of 128 bytes of its rows, one line of all rows behind the other, or
    of 64, 32 or 16, as in `!ws.tile<vector<128x64xf8E4M3FN>, "shared.64">`. A last line that the
    columns do not fill takes its whole length.
    """

    vector: Any
    space_name: Any

    @property
    def shape(self) -> list[int]:
        """[rows, columns] or [rows]."""
        return list(ir.VectorType(ir.TypeAttr(self.params[0]).value).shape)

    @property
    def element(self) -> Any:
        """Element type."""
        return ir.VectorType(ir.TypeAttr(self.params[0]).value).element_type

    @property
    def space(self) -> str:
        """One of `SPACES`."""
        return ir.StringAttr(self.params[1]).value.partition(".")[0]

    @property
    def line_bytes(self) -> int:
        """Bytes of a line of a shared tile."""
        return int(ir.StringAttr(self.params[1]).value.partition(".")[2] or LINE_BYTES)

    def misfit(self) -> str:
        """The error in the parameters; see `_guard`."""
        space = _parameter(ir.StringAttr, self.params[1])
        if space is None or space.value.partition(".")[0] not in SPACES:
            return f"to lie in {' or '.join(SPACES)} memory"
        short = [_in_lines("shared", count) for count in SHORT_LINES]
        if space.value not in (*SPACES, *short):
            return f"to lie in {', '.join((*SPACES, *short))}"
        return _vector_misfit(self.params[0], ranks=(1, 2) if space.value == "shared" else (2,))


class FragmentType(WS.Type, name="frag"):
    """`!ws.frag<vector<128x64xf32>>`: a tile in the registers of a role's threads."""

    vector: Any

    @property
    def shape(self) -> list[int]:
        """[rows, columns] or [rows]."""
        return list(ir.VectorType(ir.TypeAttr(self.params[0]).value).shape)

    @property
    def element(self) -> Any:
        """Element type."""
        return ir.VectorType(ir.TypeAttr(self.params[0]).value).element_type

    def misfit(self) -> str:
        """The error in the parameter; see `_guard`."""
        return _vector_misfit(self.params[0])


class PendingType(WS.Type, name="pending"):
    """`!ws.pending<!ws.frag<vector<64x128xf32>>>`: the result of a product that is not complete
    yet.
    """

    settled: Any

    @property
    def fragment(self) -> FragmentType:
        """The type of the complete result."""
        return FragmentType(ir.TypeAttr(self.params[0]).value)

    def misfit(self) -> str:
        """The error in the parameter; see `_guard`."""
        kind = _parameter(ir.TypeAttr, self.params[0])
        if kind is None or not isinstance(kind.value, FragmentType):
            return "to be a pending !ws.frag"
        return kind.value.misfit()


class RingType(WS.Type, name="ring"):
    """`!ws.ring<!ws.tile<vector<128x64xbf16>, "shared">, 3, 2>`: slots with barriers.

    Three slots of one tile type (`stages`) in each of two parallel `instances`. The slots of
    `!ws.ring<none, 1, 2>` have no memory: they are tokens, whose handover orders what roles do.
    """

    slot: Any
    stage_count: Any
    instance_count: Any

    @property
    def slot_type(self) -> Any:
        """The type of a slot: a tile type or `none`."""
        return ir.TypeAttr(self.params[0]).value

    @property
    def tile(self) -> TileType | None:
        """The tile type of a slot; None for a ring of tokens."""
        kind = self.slot_type
        return None if isinstance(kind, ir.NoneType) else TileType(kind)

    @property
    def stages(self) -> int:
        """Slots per instance."""
        return ir.IntegerAttr(self.params[1]).value

    @property
    def instances(self) -> int:
        """Parallel instances."""
        return ir.IntegerAttr(self.params[2]).value

    def misfit(self) -> str:
        """The error in the parameters; see `_guard`."""
        return _slot_misfit(self.params[0], list(self.params)[1:], may_be_empty=True)


class BufferType(WS.Type, name="buffer"):
    """`!ws.buffer<!ws.tile<vector<128x64xf32>, "tensor">, 2>`: tiles without barriers.

    Two tiles of one type (`instances`), guarded by the handover of some ring.
    """

    slot: Any
    instance_count: Any

    @property
    def tile(self) -> TileType:
        """Type of one tile."""
        return TileType(ir.TypeAttr(self.params[0]).value)

    @property
    def instances(self) -> int:
        """Number of tiles."""
        return ir.IntegerAttr(self.params[1]).value

    def misfit(self) -> str:
        """The error in the parameters; see `_guard`."""
        return _slot_misfit(self.params[0], list(self.params)[1:], may_be_empty=False)


def _vector(shape: Sequence[int], element: Any) -> Any:
    if not 1 <= len(shape) <= 2 or any(extent < 1 for extent in shape):
        raise SpecError(f"a tile has one or two positive extents, got {list(shape)}")
    return ir.VectorType.get(list(shape), element)


def _count(value: int, what: str) -> Any:
    if value < 1:
        raise SpecError(f"{what} must be at least 1, got {value}")
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def _in_lines(space: str, line_bytes: int) -> str:
    """A space as a tile's type names it."""
    return space if line_bytes == LINE_BYTES else f"{space}.{line_bytes}"


def tile_type(
    shape: Sequence[int], element: Any, space: str, line_bytes: int = LINE_BYTES
) -> TileType:
    """Builds a checked tile type; raises SpecError for an extent below 1,
    an unknown space or line.
    """
    if space not in SPACES:
        raise SpecError(f"tile space is one of {', '.join(SPACES)}, got {space!r}")
    lines = (LINE_BYTES, *(SHORT_LINES if space == "shared" else ()))
    if line_bytes not in lines:
        allowed = ", ".join(map(str, lines))
        raise SpecError(f"lines of a {space} tile have {allowed} bytes, got {line_bytes}")
    return TileType.get(_vector(shape, element), ir.StringAttr.get(_in_lines(space, line_bytes)))


def fragment_type(shape: Sequence[int], element: Any) -> FragmentType:
    """Builds a checked fragment type; raises SpecError for an extent below 1."""
    return FragmentType.get(_vector(shape, element))


def pending_type(fragment: FragmentType) -> PendingType:
    """The type of a product's result that is not complete yet."""
    return PendingType.get(fragment)


def ring_type(tile: TileType | None, *, stages: int, instances: int = 1) -> RingType:
    """Builds a checked ring type, of tokens if `tile` is None; raises SpecError for a count below
    1.
    """
    return RingType.get(
        tile or ir.NoneType.get(), _count(stages, "stages"), _count(instances, "instances")
    )


def buffer_type(tile: TileType, *, instances: int = 1) -> BufferType:
    """Builds a checked buffer type; raises SpecError for a count below 1."""
    return BufferType.get(tile, _count(instances, "instances"))


def element_bits(element: Any) -> int:
    """Width of an element type in bits."""
    return element.width


def tile_bytes(tile: TileType) -> int:
    """Bytes of a tile's elements, without padding."""
    bits = element_bits(tile.element)
    for extent in tile.shape:
        bits *= extent
    return bits // 8
