"""Positions in scores: ALiBi as a modifier, and Llama's rotation of keys that lie in one tensor."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from attn_mlir.errors import SpecError, no_kernel, shown
from attn_mlir.flashinfer.options import number
from attn_mlir.flashinfer.table import ALIBI, NO_POSITIONS, ROTATED
from attn_mlir.mods import alibi_slopes
from attn_mlir.trace import ScoreMod

torch: Any = importlib.import_module("torch")

MODES = (NO_POSITIONS, ALIBI, ROTATED)
THETA = 1e4  # flashinfer/prefill.py: `rope_theta` where it is None


def checked_mode(mode: object, *, rotates: bool, cap: float) -> str:
    """A `pos_encoding_mode`.

    Args:
      rotates: whether q and k are rotated before the kernel, as keys in one tensor can be.
      cap: of the scores; 0: none.

    Raises:
      SpecError: another word, or one that has no kernel here.
    """
    if not isinstance(mode, str) or mode not in MODES:
        raise SpecError(f"pos_encoding_mode must be {' or '.join(MODES)}, got {shown(mode, 40)}")
    if mode == ROTATED and not rotates:
        hint = "rotate q before the call, and k when it is appended"
        raise SpecError(no_kernel("pos_encoding_mode ROPE_LLAMA of keys in pages", hint))
    if mode == ALIBI and cap:
        raise SpecError(no_kernel("pos_encoding_mode ALIBI with logits_soft_cap", "use one"))
    return mode


def alibi(heads: int, device: Any) -> ScoreMod:
    """score + slope[h] x (k - q), where q and k are numbers in their sequences.

    FlashInfer's `variants.cuh` has this form: beside the usual distance it adds a number to each
    row, which LSE contains.
    """
    return functools.partial(_along_keys, slopes=_slopes(heads, str(device)))


@functools.lru_cache
def _slopes(heads: int, device: str) -> Any:
    return torch.from_numpy(alibi_slopes(heads)).to(device)


def _along_keys(score: Any, b: Any, h: Any, q: Any, k: Any, *, slopes: Any) -> Any:
    return score + slopes[h] * (k - q)


def rotated(x: Any, positions: Any, rope_scale: object, rope_theta: object) -> Any:
    """Rows rotated as Llama's: columns i and i + D / 2 are a pair.

    Args:
      x: [tokens, heads, D], D even; positions: [tokens] of integers.
      rope_scale: positions are divided by it; 1 if None. rope_theta: the base; 10^4 if None.

    Raises:
      SpecError: D is odd, or a number is none or not greater than 0.
    """
    columns = x.shape[-1]
    if columns % 2:
        raise SpecError(f"head_dim must be even for pos_encoding_mode ROPE_LLAMA, got {columns}")
    scale, theta = number("rope_scale", rope_scale, 1.0), number("rope_theta", rope_theta, THETA)
    for name, value in (("rope_scale", scale), ("rope_theta", theta)):
        if value <= 0:
            raise SpecError(f"{name} must be greater than 0, got {value}")
    pairs = torch.arange(0, columns, 2, device=x.device, dtype=torch.float32) / columns
    angles = positions.to(x.device, torch.float32)[:, None] * (theta**-pairs / scale)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second = x.float().chunk(2, -1)
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
    return turned.to(x.dtype)


def positions_in(offsets: Any, lengths: Any) -> Any:
    """The position of each token of a ragged batch, whose last one is its sequence's last.

    Args:
      offsets: [batch + 1], where the tokens of a sequence begin; lengths: [batch], its positions.
    """
    counts = offsets.diff()
    shift = (lengths - counts - offsets[:-1]).repeat_interleave(counts)
    return torch.arange(shift.shape[0], device=offsets.device) + shift
