"""Which extension an instruction belongs to (spec-ptx; ptxas agrees, see coverage)."""

from ..machine.chips import CHIPS, Extension, chips_with
from ..ptx.ast import Instruction
from ..ptx.errors import PtxError

_HEADS = {
    "wgmma": Extension.WARPGROUP_PRODUCTS,
    "setmaxnreg": Extension.REGISTER_BUDGETS,
    "tcgen05": Extension.TENSOR_MEMORY,
    "clusterlaunchcontrol": Extension.LAUNCH_CONTROL,
}
_ARITHMETIC = frozenset("cvt add sub mul fma ldmatrix stmatrix".split())
_NARROW_TYPES = frozenset(
    "e2m1x2 e2m3x2 e3m2x2 ue8m0x2 e4m3x4 e5m2x4 e2m3x4 e3m2x4 e2m1x4 b8 b8x16 rs".split()
)
_BOX_FORMS = frozenset("cta_group::1 cta_group::2 tile::gather4 tile::scatter4 cp_mask".split())
_WIDE = frozenset("b64 u64 s64 f64".split())
_TINY = frozenset("e4m3x2 e5m2x2".split())
_HALVES = frozenset("f16 bf16".split())


def extension_of(instruction: Instruction) -> Extension | None:
    """The extension that an instruction belongs to; None if every chip has it."""
    head, parts = instruction.parts[0], instruction.parts
    words = frozenset(parts)
    if head in _ARITHMETIC:
        return _arithmetic(head, parts)
    if head in ("min", "max") and len(instruction.operands) == 4:
        return Extension.THREE_OPERANDS
    if head == "redux" and parts[-1] == "f32":
        return Extension.F32_REDUCTIONS
    if head in ("ld", "st"):
        is_wide = "v8" in words or ("v4" in words and parts[-1] in _WIDE) or "bulk" in words
        return Extension.WIDE_ACCESSES if is_wide else None
    if head == "tcgen05" and parts[1:3] == ("ld", "red"):
        return Extension.LOAD_REDUCTIONS
    if head == "tcgen05" and "kind::i8" in words:
        return Extension.INTEGER_PRODUCTS
    if head == "cp" and words & _BOX_FORMS:
        return Extension.BOX_FORMS
    if head == "tensormap" and "replace" in words:
        return Extension.BOX_FORMS if "swizzle_atomicity" in words else Extension.MAP_FIELDS
    return _HEADS.get(head)


def _arithmetic(head: str, parts: tuple[str, ...]) -> Extension | None:
    """The extension of arithmetic, a conversion, or a move of matrices, by its types."""
    words = frozenset(parts)
    if "f32x2" in words:
        return Extension.PACKED_F32
    if words & _NARROW_TYPES or (head == "cvt" and "bf16x2" in words and words & _TINY):
        return Extension.NARROW_TYPES
    is_mixed = parts[-2:-1] == ("f32",) and parts[-1] in _HALVES
    return Extension.MIXED_SUMS if is_mixed and head in ("add", "sub", "fma") else None


def check_target(text: str, instruction: Instruction, target: str) -> None:
    """Refuse an instruction that a target does not have; an empty target has all.

    Raises:
      PtxError: naming the targets that have it.
    """
    extension = extension_of(instruction)
    extensions = CHIPS[target].extensions if target in CHIPS else frozenset[Extension]()
    if not target or extension is None or extension in extensions:
        return
    needed = " or ".join(chips_with(extension))
    message = f"{target} has no '{instruction.opcode}': it needs {needed}"
    raise PtxError.at(text, instruction.line, message)
