"""`attn.mha`: multi-head attention with grouped key-value heads."""

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from attn_mlir.dialect._mlir import Pure, ext, ir
from attn_mlir.dialect.attn.attributes import attr_to_mask, mask_misfit, mask_to_attr
from attn_mlir.dialect.attn.blocks import BlocksOp
from attn_mlir.dialect.attn.columns import ColumnsOp
from attn_mlir.dialect.attn.dialect import AttnDialect
from attn_mlir.dialect.attn.join import JoinOp
from attn_mlir.dialect.attn.masks import Mask
from attn_mlir.dialect.attn.masks.shifted import shifted
from attn_mlir.dialect.attn.modifier.keep import KeepOp
from attn_mlir.dialect.attn.modifier.region import region_misfit
from attn_mlir.dialect.attn.modifier.sink import SinkOp
from attn_mlir.dialect.attn.modifier.yield_ import YieldOp
from attn_mlir.dialect.attn.offsets import OffsetsOp
from attn_mlir.dialect.attn.shapes import axes_in_memory, logical_types, shape_misfit
from attn_mlir.dialect.attn.storage import logical_type, stored_type
from attn_mlir.dialect.attn.tile_counter import TileCounterOp
from attn_mlir.dialect.attn.verifier import group_misfit, scale_misfit, tensors_misfit, verified
from attn_mlir.element_types import NARROW_MLIR, WIDE_MLIR
from attn_mlir.errors import SpecError

ELEMENT_TYPES = (*WIDE_MLIR, "f32", *NARROW_MLIR)
PARTIAL = "attn.partial"  # unit attribute
SCHEDULE = "attn.schedule"
LSE_TERMS = 2  # an LSE of a part: as one f32, large scores would hide the number of keys
OUTPUT_TYPES = (*WIDE_MLIR, "f32")  # element types of o for any operands

_LAYOUTS = {
    "q": "[batch, sq, heads, head_dim]",
    "k": "[batch, sk, kv_heads, head_dim]",
    "v": "[batch, sk, kv_heads, v_head_dim]",
    "o": "[batch, sq, heads, v_head_dim]",
    "lse": "[batch, heads, sq]",
}
_SHAPE_AXES = {
    name: tuple(axis.strip() for axis in text.strip("[]").split(","))
    for name, text in _LAYOUTS.items()
}
_RAGGED_RESULTS = {"o": ("total", "heads", "v_head_dim"), "lse": ("heads", "total")}
_PARTIAL_AXES = {"batch": "splits x batch", "total": "splits x total"}
_TERMS = "terms"  # first axis of the LSE of parts
_STATIC_AXES = ("heads", "kv_heads", "head_dim", "v_head_dim")


class _Invalid(Exception):
    """A verifier branch that failed; the text is the message without its op name."""


class MhaOp(AttnDialect.Operation, name="mha", traits=[Pure]):
    """Scaled dot-product attention: o = softmax(mod(scale x q k^T), mask) v, and its LSE.

    Heads and head sizes are static; batch and sequence lengths may be dynamic. `heads` is a
    multiple of `kv_heads`, and query head h reads key-value head h // (heads / kv_heads).

    Results:
      o: [batch, sq, heads, v_head_dim], bf16, f16 or f32. A row that sees no key is 0.
      lse: [batch, heads, sq], f32: natural logarithm of the sum of the exponentials of the
        row's visible, modified scores, without a sink's. A row that sees no key has -inf.
      Both are stored as q is: [total, heads, v_head_dim] and [heads, total] for ragged queries.
        Rows
      for which there is no query are not written.

    Operands:
      q: [batch, sq, heads, head_dim], floats of 32, 16 or 8 bits; q, k and v are tensors
        or views of other storage, see `storage`.
      k: [batch, sk, kv_heads, head_dim], element type of q, or one of 8 bits with a q of 16 bits.
      v: [batch, sk, kv_heads, v_head_dim], element type of k.
      scale: f32, multiplies q k^T before the score modifier.

    Attributes:
      mask: which keys a row sees: `#attn.null`, `#attn.causal`, ...; see `masks/`.
      attn.partial (optional, unit): the keys are split into parts, and o and lse have a result for
        each, one after the other along their dimension of sequences, whose extent is the number of
        parts times q's. `attn.combine` puts them together. O is then f32, and lse [2, ...]: two
        numbers whose sum is the LSE, since one f32 would lose the logarithm of a sum of weights
        next to a large score. A sink would count in every part and is refused.
      attn.schedule (optional): the name of a schedule to use instead of the target's usual one.
      attn.config (optional, by `attn-configure`): tile sizes, stages and registers.

    Region `score_mod`: one block of (score: f32, batch, head, q, k: i32), ended by `attn.yield`
    of the modified score. A block that yields its first argument changes nothing. `attn.keep` in
    it hides scores, one `attn.sink` adds a key without a value, one `attn.blocks` lists the blocks
    of scores to compute, one `attn.join` splits the keys among CTAs, one `attn.tile_counter` says
    where these draw their work from, and one `attn.offsets` where the operands lie in a longer
    problem. The region may read tensors and scalars defined outside
    (`tensor.extract`, `tensor.dim`).

    Memory effects: none, it is a function of its operands. Hardware: any.

    Example:
      func.func @mha(%q: tensor<?x?x16x128xbf16>, %k: tensor<?x?x4x128xbf16>,
                     %v: tensor<?x?x4x128xbf16>, %scale: f32)
          -> (tensor<?x?x16x128xbf16>, tensor<?x16x?xf32>) {
        %o, %lse = "attn.mha"(%q, %k, %v, %scale) ({
        ^bb0(%score: f32, %b: i32, %h: i32, %i: i32, %j: i32):
          "attn.yield"(%score) : (f32) -> ()
        }) {mask = #attn.causal}
          : (tensor<?x?x16x128xbf16>, tensor<?x?x4x128xbf16>, tensor<?x?x4x128xbf16>, f32)
            -> (tensor<?x?x16x128xbf16>, tensor<?x16x?xf32>)
        func.return %o, %lse : tensor<?x?x16x128xbf16>, tensor<?x16x?xf32>
      }
    """

    OPTIONAL_ATTRIBUTES = MappingProxyType({PARTIAL: ir.UnitAttr, SCHEDULE: ir.StringAttr})

    o: ext.Result[Any]
    lse: ext.Result[Any]
    q: ext.Operand[Any]
    k: ext.Operand[Any]
    v: ext.Operand[Any]
    scale: ext.Operand[Any]
    mask: Any
    score_mod: ext.Region

    @property
    def heads(self) -> int:
        """Number of query heads."""
        return logical_type(self.q).shape[2]

    @property
    def kv_heads(self) -> int:
        """Number of key-value heads; divides `heads`."""
        return logical_type(self.k).shape[2]

    @property
    def head_dim(self) -> int:
        """Elements per query and key row."""
        return logical_type(self.q).shape[3]

    @property
    def v_head_dim(self) -> int:
        """Elements per value and output row."""
        return logical_type(self.v).shape[3]

    @property
    def shares_rows(self) -> bool:
        """Whether v is the front of k's rows: an `attn.columns` of k from column 0 on."""
        owner = self.v.owner
        return isinstance(owner, ColumnsOp) and owner.source == self.k and owner.first.value == 0

    @property
    def element_type(self) -> ir.Type:
        """Element type of q."""
        return logical_type(self.q).element_type

    @property
    def stored_element_type(self) -> ir.Type:
        """Element type of k and v."""
        return logical_type(self.k).element_type

    @property
    def output_type(self) -> ir.Type:
        """Element type of o."""
        return self.o.type.element_type

    @property
    def is_partial(self) -> bool:
        """Whether there is a result for each part of the keys."""
        return PARTIAL in self.operation.attributes

    @property
    def mask_rule(self) -> Mask:
        """The mask as an object with formulas."""
        return attr_to_mask(self.mask)

    @property
    def blocks(self) -> BlocksOp | None:
        """The lists of blocks in the score modifier, if there are any."""
        inside = self.score_mod.blocks[0].operations
        return next((op for op in inside if isinstance(op, BlocksOp)), None)

    @property
    def join(self) -> JoinOp | None:
        """The `attn.join` in the score modifier, if there is one."""
        inside = self.score_mod.blocks[0].operations
        return next((op for op in inside if isinstance(op, JoinOp)), None)

    @property
    def tile_counter(self) -> TileCounterOp | None:
        """Where CTAs draw their work tiles from, if they may."""
        inside = self.score_mod.blocks[0].operations
        return next((op for op in inside if isinstance(op, TileCounterOp)), None)

    @property
    def offsets(self) -> OffsetsOp | None:
        """The `attn.offsets` in the score modifier, if there is one."""
        inside = self.score_mod.blocks[0].operations
        return next((op for op in inside if isinstance(op, OffsetsOp)), None)

    @property
    def hides_scores(self) -> bool:
        """Whether the score modifier holds an `attn.keep`."""
        return any(isinstance(op, KeepOp) for op in self.score_mod.blocks[0].operations)

    def verify_invariants(self) -> bool:
        """Checks operand and result types, the mask and the agreement of the shapes."""
        try:
            _check_types(self)
            _check_shapes(self)
            _check_mask(self)
        except _Invalid as invalid:
            return verified(self, str(invalid))
        return True

    def verify_region_invariants(self) -> bool:
        """Checks the score modifier's signature and what it yields."""
        try:
            _check_score_mod(self)
        except _Invalid as invalid:
            return verified(self, str(invalid))
        return True


def _axes(op: MhaOp) -> dict[str, tuple[str, ...]]:
    """Names of the axes of every operand and result; results are stored as q is."""
    axes = axes_in_memory(op, _SHAPE_AXES, {"q": _RAGGED_RESULTS})
    if not op.is_partial:
        return axes
    parts = {
        name: tuple(_PARTIAL_AXES.get(axis, axis) for axis in axes[name])
        for name in _RAGGED_RESULTS
    }
    return axes | parts | {"lse": (_TERMS, *parts["lse"])}


def _check_types(op: MhaOp) -> None:
    """Ranks and element types of every tensor, and the type of the scale."""
    if misfit := tensors_misfit(op, _axes(op)):
        raise _Invalid(misfit)
    element = op.element_type
    if str(element) not in ELEMENT_TYPES:
        raise _Invalid(f"q elements of type {', '.join(ELEMENT_TYPES)}, got {element}")
    stored, values = (logical_type(operand).element_type for operand in (op.k, op.v))
    if stored != element and not (str(stored) in NARROW_MLIR and str(element) in WIDE_MLIR):
        narrow = " or of 8 bits" if str(element) in WIDE_MLIR else ""
        raise _Invalid(f"k elements of q's type {element}{narrow}, got {stored}")
    if values != stored:
        raise _Invalid(f"v elements of k's type {stored}, got {values}")
    if op.is_partial and str(op.output_type) != "f32":
        raise _Invalid(f"partial o elements of type f32, got {op.output_type}")
    if str(op.output_type) not in OUTPUT_TYPES:
        raise _Invalid(f"o elements of type {', '.join(OUTPUT_TYPES)}, got {op.output_type}")
    if str(op.lse.type.element_type) != "f32":
        raise _Invalid(f"lse elements of type f32, got {op.lse.type.element_type}")
    if op.is_partial and op.lse.type.shape[0] != LSE_TERMS:
        raise _Invalid(f"partial lse of {LSE_TERMS} terms, got {op.lse.type}")
    if misfit := scale_misfit(op):
        raise _Invalid(misfit)


def _check_shapes(op: MhaOp) -> None:
    """Checks that an axis has one length wherever it occurs, and heads a multiple of kv_heads."""
    axes = _axes(op)
    if misfit := shape_misfit(logical_types(op, axes), axes, _STATIC_AXES) or group_misfit(op):
        raise _Invalid(misfit)


def _check_mask(op: MhaOp) -> None:
    if misfit := mask_misfit(op.mask):
        raise _Invalid(misfit)


def _check_score_mod(op: MhaOp) -> None:
    """One block of (f32, i32, i32, i32, i32) that yields an f32; one sink, one pair of lists."""
    if misfit := region_misfit(op.score_mod):
        raise _Invalid(misfit)
    block = op.score_mod.blocks[0]
    for kind in (SinkOp, BlocksOp, JoinOp, TileCounterOp, OffsetsOp):
        count = sum(isinstance(inner, kind) for inner in block.operations)
        if count > 1:
            raise _Invalid(f"at most one '{kind.OPERATION_NAME}' in score_mod, got {count}")
    if op.offsets is not None and (misfit := _shift_misfit(op.mask_rule)):
        raise _Invalid(misfit)
    group = op.heads // op.kv_heads
    if op.blocks is not None and group % op.blocks.extents.heads:
        heads = op.blocks.extents.heads
        raise _Invalid(f"blocks of heads that divide a group of {group}, got {heads}")
    if op.is_partial and any(isinstance(inner, SinkOp) for inner in block.operations):
        raise _Invalid("no 'attn.sink' in a partial operation, where every part would count it")
    if op.is_partial and op.blocks is not None:
        raise _Invalid("no 'attn.blocks' in a partial operation: lists are not divided")
    if op.join is not None and (op.is_partial or op.blocks is not None):
        other = PARTIAL if op.is_partial else "'attn.blocks'"
        raise _Invalid(f"no 'attn.join' together with {other}")


def _shift_misfit(mask: Mask) -> str:
    """Why a mask has no formula over positions; empty if it has one."""
    try:
        shifted(mask, 0, 0)
    except SpecError as error:
        return f"a mask that takes 'attn.offsets': {error}"
    return ""


def make_mha(
    q: ir.Value,
    k: ir.Value,
    v: ir.Value,
    scale: ir.Value,
    *,
    mask: Mask,
    output: ir.Type | None = None,
    partial: bool = False,
    score_mod: Callable[[ir.Value, ir.Value, ir.Value, ir.Value, ir.Value], ir.Value] | None = None,
) -> MhaOp:
    """Builds an `attn.mha` at the insertion point; shapes of the results follow from the operands.

    Args:
      q, k, v, scale: the operands, shaped as `MhaOp` says; tensors or views.
      mask: which keys each row sees.
      output: element type of o; by default that of q.
      partial: whether there is a result for each part of the keys.
      score_mod: builds the modified score from (score, batch, head, q, k); by default the identity.
    """
    *positions, heads, _ = stored_type(q).shape
    element: ir.Type = logical_type(q).element_type if output is None else output
    o_type = ir.RankedTensorType.get([*positions, heads, logical_type(v).shape[3]], element)
    f32, i32 = ir.F32Type.get(), ir.IntegerType.get_signless(32)
    *batch, rows = positions
    terms = [LSE_TERMS] if partial else []
    lse_type = ir.RankedTensorType.get([*terms, *batch, heads, rows], f32)
    op = MhaOp(o_type, lse_type, q, k, v, scale, mask_to_attr(mask))
    if partial:
        op.operation.attributes[PARTIAL] = ir.UnitAttr.get()
    block = op.score_mod.blocks.append(f32, i32, i32, i32, i32)
    with ir.InsertionPoint(block):
        score = block.arguments[0]
        YieldOp(score if score_mod is None else score_mod(*block.arguments))
    return op


def name_schedule(op: Any, schedule: str) -> None:
    """Sets the attribute by which an operation asks for a schedule."""
    op.operation.attributes[SCHEDULE] = ir.StringAttr.get(schedule)
