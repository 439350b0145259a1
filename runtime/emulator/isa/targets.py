"""Which instructions exist on one target only (spec-ptx; ptxas agrees, see coverage)."""

from ..ptx.ast import Instruction
from ..ptx.errors import PtxError

_BLACKWELL_TYPES = frozenset(
    "f32x2 e2m1x2 e2m3x2 e3m2x2 ue8m0x2 e4m3x4 e5m2x4 e2m3x4 e3m2x4 e2m1x4 b8 b8x16".split()
)
_BLACKWELL_COPIES = frozenset(
    "cta_group::1 cta_group::2 tile::gather4 tile::scatter4 cp_mask".split()
)
_WIDE = frozenset("b64 u64 s64 f64".split())
_TINY = frozenset("e4m3x2 e5m2x2".split())
_HALVES = frozenset("f16 bf16".split())


def only_target(instruction: Instruction) -> str | None:
    """The one target that has an instruction, or None when both have it."""
    head, parts = instruction.parts[0], instruction.parts
    if head == "wgmma":
        return "sm_90a"
    words = frozenset(parts)
    if head in ("tcgen05", "clusterlaunchcontrol"):
        is_blackwell = True
    elif head in ("cvt", "add", "sub", "mul", "fma", "ldmatrix", "stmatrix"):
        is_blackwell = bool(words & _BLACKWELL_TYPES) or "rs" in words
        is_blackwell |= head == "cvt" and "bf16x2" in words and bool(words & _TINY)
        is_blackwell |= (
            head in ("add", "sub", "fma") and parts[-2:-1] == ("f32",) and parts[-1] in _HALVES
        )
    elif head in ("min", "max"):
        is_blackwell = len(instruction.operands) == 4
    elif head == "redux":
        is_blackwell = parts[-1] == "f32"
    elif head in ("ld", "st"):
        is_blackwell = "v8" in words or ("v4" in words and parts[-1] in _WIDE) or "bulk" in words
    elif head == "cp":
        is_blackwell = bool(words & _BLACKWELL_COPIES)
    else:
        is_blackwell = head == "tensormap" and "swizzle_atomicity" in words
    return "sm_100a" if is_blackwell else None


def check_target(text: str, instruction: Instruction, target: str) -> None:
    """Refuse an instruction that a target does not have; an empty target has all.

    Raises:
      PtxError: naming the target that has it.
    """
    only = only_target(instruction)
    if target and only not in (None, target):
        message = f"{target} has no '{instruction.opcode}': it needs {only}"
        raise PtxError.at(text, instruction.line, message)
