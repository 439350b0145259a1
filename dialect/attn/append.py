"""`attn.append`: writes new keys and values into a cache."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from attn_mlir.dialect._mlir import ext, ir
from attn_mlir.dialect.attn.dialect import AttnDialect
from attn_mlir.dialect.attn.storage import SEQUENCE_RANK, logical_type
from attn_mlir.element_types import NARROW_MLIR, WIDE_MLIR

INTERLEAVED = "attn.interleaved"
ANGLE_TYPES = (*WIDE_MLIR, "f32")
SLOT_TYPES = ("i32", "i64")
TOKEN_RANK = 3  # [tokens, heads, columns]; 4 with a batch dimension
ROTARY_STEP = 16  # rotary_dim is a multiple: halves are whole 16-byte units of 16-bit elements


class AppendOp(AttnDialect.Operation, name="append"):
    """Writes the keys and values of new tokens into a cache.

    A token's sequence is given by `sequences`, or by `offsets` (it is the one whose range holds the
    token), or is its index in the batch dimension. Its position in the sequence is given by
    `positions`; without them, the new tokens of a sequence are its last ones. Where that position
    lies in memory follows from the operations that made the caches. Alternatively `slots` gives the
    place directly: token t goes to row slots[t], where rows are numbered over the cache's first two
    dimensions together.

    A token is left out if it has no place: if its sequence, position or slot is negative, or past
    the room that its sequence has. Whatever the arrays hold, nothing is written outside the tensors
    of the caches, or into the room of another sequence. If two tokens have the same place, one of
    them is written.

    With angles, the first 2 x C columns of a key at position p are rotated, in pairs (x, y) of the
    columns i and i + C, or 2 i and 2 i + 1 if interleaved:

        (x cos[p, i] - y sin[p, i],  y cos[p, i] + x sin[p, i])

    Elements of another type than the cache's, and rotated ones, are computed in f32. Where the
    cache is `attn.scaled` and its elements are narrower than the new ones, they are divided by the
    scales; what is too large for 8 bits becomes the largest number. Scales that every position
    has of its own are those of the new elements, and are written as well: of each group of columns

        max |x| / largest     the largest number of the cache's type, 448 of f8E4M3FN

    between 2^-80 and 2^80 (f16: 2^-14 and 2^15), rounded to the scales' type; NaN does not count.
    A token without a place for its scales is left out.

    Operands:
      k_cache, v_cache: [batch, sequence, heads, columns], tensors or views. Lengths of
        `attn.limited` include the new tokens if `counted` is `all`, and not if it is `cached`.
      k_new, v_new: [tokens, heads, columns], or [batch, n, heads, columns]; of the caches' type,
        or bf16 or f16 for caches of 8 bits.
      slots: none, or [tokens], i32 or i64.
      positions: none, or i32, of the shape of the tokens. With `slots` they are used for angles
        only.
      sequences: none, or [tokens], i32.
      offsets: none, or [batch + 1], i32: sequence b has the tokens offsets[b] to offsets[b + 1] -
        1.
      angles: none, or cos and sin, [positions, C] of bf16, f16 or f32.

    Attributes:
      attn.interleaved (optional, unit): the columns of a pair are neighbours.

    Memory effects: writes the tensors of the caches, and of scales of positions. Hardware: any.

    Example:
      "attn.append"(%k, %v, %k_new, %v_new, %slots)
        {operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0, 0, 0, 0>}
        : (tensor<?x16x4x64xbf16>, tensor<?x16x4x64xbf16>, tensor<?x4x64xbf16>,
          tensor<?x4x64xbf16>, tensor<?xi32>) -> ()
    """

    OPTIONAL_ATTRIBUTES = MappingProxyType({INTERLEAVED: ir.UnitAttr})

    k_cache: ext.Operand[Any]
    v_cache: ext.Operand[Any]
    k_new: ext.Operand[Any]
    v_new: ext.Operand[Any]
    slots: Sequence[ext.Operand[Any]]
    positions: Sequence[ext.Operand[Any]]
    sequences: Sequence[ext.Operand[Any]]
    offsets: Sequence[ext.Operand[Any]]
    angles: Sequence[ext.Operand[Any]]

    @property
    def is_interleaved(self) -> bool:
        """Whether the columns of a pair are neighbours."""
        return INTERLEAVED in self.operation.attributes

    @property
    def rotary_dim(self) -> int:
        """Number of columns that are rotated."""
        return 2 * self.angles[0].type.shape[1] if len(self.angles) else 0

    def verify_invariants(self) -> bool:
        """Checks shapes and element types of caches and tokens, and of the arrays for places."""
        return all(
            check()
            for check in (
                self._check_tensors,
                self._check_types,
                self._check_sources,
                self._check_angles,
            )
        )

    def _check_tensors(self) -> bool:
        for side in ("k", "v"):
            cache, new = (
                logical_type(getattr(self, f"{side}_cache")),
                getattr(self, f"{side}_new").type,
            )
            if not isinstance(cache, ir.RankedTensorType) or cache.rank != SEQUENCE_RANK:
                layout = "[batch, sequence, heads, columns]"
                return self._fail(f"{side}_cache to stand for a tensor {layout}, got {cache}")
            if not isinstance(new, ir.RankedTensorType) or new.rank not in (
                TOKEN_RANK,
                TOKEN_RANK + 1,
            ):
                return self._fail(f"{side}_new to be a tensor of rank 3 or 4, got {new}")
            if any(cache.is_dynamic_dim(axis) for axis in (2, 3)):
                return self._fail(f"static heads and columns in {side}_cache, got {cache}")
            if list(new.shape)[-2:] != list(cache.shape)[2:]:
                return self._fail(f"{side}_new with the heads and columns of {cache}, got {new}")
        caches = [logical_type(self.k_cache), logical_type(self.v_cache)]
        if caches[0].shape[2] != caches[1].shape[2]:
            return self._fail(f"caches of as many heads, got {caches[0]} and {caches[1]}")
        if list(self.k_new.type.shape)[:-1] != list(self.v_new.type.shape)[:-1]:
            return self._fail(
                f"k_new and v_new of one shape but for columns, got {self.k_new.type} and "
                f"{self.v_new.type}"
            )
        return True

    def _check_types(self) -> bool:
        operands = (self.k_cache, self.v_cache, self.k_new, self.v_new)
        cache, values, token, new = (str(logical_type(x).element_type) for x in operands)
        if (cache, token) != (values, new):
            return self._fail(
                "caches of one element type and tokens of one, got "
                + (f"{token} and {new} for {cache}" if cache == values else f"{cache} and {values}")
            )
        allowed = (cache, *(WIDE_MLIR if cache in NARROW_MLIR else ()))
        if cache not in (*WIDE_MLIR, *NARROW_MLIR) or token not in allowed:
            return self._fail(
                "tokens of the cache's type, bf16, f16 or of 8 bits, or of bf16 or f16 for one "
                f"of 8 bits, got {token} for {cache}"
            )
        return True

    def _check_sources(self) -> bool:
        dims = list(self.k_new.type.shape)[:-2]
        lists = {"slots": SLOT_TYPES, "positions": ("i32",), "sequences": ("i32",)}
        for name, types in lists.items():
            for operand in getattr(self, name):
                kind = operand.type
                is_tensor = isinstance(kind, ir.RankedTensorType) and kind.rank == len(dims)
                if not is_tensor or str(kind.element_type) not in types:
                    shape = "[tokens]" if len(dims) == 1 else "[batch, n]"
                    return self._fail(
                        f"{name} to be a tensor {shape} of {', '.join(types)}, got {kind}"
                    )
        for operand in self.offsets:
            kind = operand.type
            is_list = isinstance(kind, ir.RankedTensorType) and kind.rank == 1
            if not is_list or str(kind.element_type) != "i32":
                return self._fail(f"offsets to be a tensor [batch + 1] of i32, got {kind}")
        names = ("slots", "positions", "sequences", "offsets")
        if any(len(getattr(self, name)) > 1 for name in names):
            return self._fail(f"at most one tensor of each of {', '.join(names)}")
        sources = [name for name in ("slots", "sequences", "offsets") if len(getattr(self, name))]
        if len(dims) == 1 and len(sources) != 1:
            got = " and ".join(sources) or "nothing"
            return self._fail(f"tokens [tokens, ...] with slots, sequences or offsets, got {got}")
        if len(dims) == 2 and sources:
            return self._fail(f"tokens [tokens, ...] with {sources[0]}, got [batch, n, ...]")
        if len(self.sequences) and not len(self.positions):
            return self._fail("positions beside sequences")
        return True

    def _check_angles(self) -> bool:
        if not len(self.angles):
            return not self.is_interleaved or self._fail("angles for pairs that are interleaved")
        if len(self.angles) != 2:
            return self._fail(f"cos and sin as angles, got {len(self.angles)} tensors")
        kinds = [angle.type for angle in self.angles]
        if (
            kinds[0] != kinds[1]
            or not isinstance(kinds[0], ir.RankedTensorType)
            or kinds[0].rank != 2
        ):
            return self._fail(
                f"cos and sin [positions, C] of one type, got {kinds[0]} and {kinds[1]}"
            )
        columns, most = kinds[0].shape[1], self.k_new.type.shape[-1]
        if kinds[0].is_dynamic_dim(1) or 2 * columns % ROTARY_STEP or not 0 < 2 * columns <= most:
            return self._fail(
                f"angles of {ROTARY_STEP} columns of a key or a multiple, up to {most}, got "
                f"{kinds[0]}"
            )
        if str(kinds[0].element_type) not in ANGLE_TYPES:
            return self._fail(f"angles of {', '.join(ANGLE_TYPES)}, got {kinds[0]}")
        if str(self.k_new.type.element_type) not in WIDE_MLIR:
            return self._fail(f"keys of bf16 or f16 to rotate, got {self.k_new.type}")
        if len(self.slots) and not len(self.positions):
            return self._fail("positions for the angles beside slots")
        return True

    def _fail(self, message: str) -> bool:
        self.location.emit_error(f"'{self.OPERATION_NAME}' op expects {message}")
        return False
