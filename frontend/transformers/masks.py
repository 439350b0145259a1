"""Masks of models of `transformers`: made once a step, and handed to every layer.

Positions are absolute in mask functions and counted from the first query and key in kernels. A mask
in closed form is aligned so that the last query is at the last key: where a cache has more slots
than tokens, its kernel is told how many keys there are, and never reads the slots behind them.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attn_mlir.errors import SpecError, shown
from attn_mlir.masks import Mask, causal, chunked, full, sliding_window
from attn_mlir.transformers.forms import Form, MaskFunction, form_in_graph, form_of, tells_sequences

torch: Any = importlib.import_module("torch")
host: Any = importlib.import_module("transformers.masking_utils")

# What the package adds for its own attention: which masks it may leave out, and the dtype of an
# additive one.
# Only masks that are not causal have the second one.
NEUTRAL = ("allow_is_causal_skip", "allow_is_bidirectional_skip", "dtype", "config")


@dataclass(frozen=True)
class VisibleKeys:
    """Which keys each query of a step sees.

    Attributes:
      shape: [batch, 1, sq, sk], as of a mask with an element for each score.
      mask: in closed form.
      predicate: of batch, head, query and key, counted from 0; None if the mask says all.
      seqused: [batch] i32, how many of the keys there are; None for all.
      is_causal: whether keys behind a query are known to be hidden.
      is_packed: whether the predicate only tells packed sequences apart.
    """

    shape: tuple[int, int, int, int]
    mask: Mask
    predicate: MaskFunction | None = None
    seqused: Any = None
    is_causal: bool = False
    is_packed: bool = False

    ndim = 4

    def contiguous(self) -> VisibleKeys:
        """Itself: `generate` calls this of every mask."""
        return self

    def dense(self, device: Any) -> Any:
        """The same as a bool tensor [batch, 1, sq, sk], True where a query sees a key."""
        batch, _, sq, sk = self.shape
        b, q, k = (torch.arange(n, device=device) for n in (batch, sq, sk))
        b, q = b[:, None, None, None], q[:, None]
        length = sk if self.seqused is None else self.seqused[:, None, None, None]
        seen = torch.as_tensor(self.mask.visible(q, k, sq, length), device=device) & (k < length)
        if self.predicate is not None:
            seen = seen & self.predicate(b, torch.zeros_like(b), q, k)
        return seen.expand(self.shape)


@dataclass(frozen=True)
class _Step:
    """The sizes of a step, and where its first query and key are."""

    batch: int
    sq: int
    sk: int
    q_offset: Any
    kv_offset: Any
    device: Any

    @property
    def length(self) -> Any:
        """Number of keys up to the last query's own: an integer or a tensor."""
        return self.q_offset + self.sq - self.kv_offset

    def relative(self, function: MaskFunction) -> MaskFunction:
        """A mask function of absolute positions as a predicate of a kernel, for which offsets are
        data.
        """
        first = [self._as_data(offset) for offset in (self.q_offset, self.kv_offset)]
        if all(offset is None for offset in first):
            return function
        q_offset, kv_offset = (0 if offset is None else offset for offset in first)

        def visible(b: Any, h: Any, q: Any, k: Any) -> Any:
            return function(b, h, q + q_offset, k + kv_offset)

        return visible

    def _as_data(self, offset: Any) -> Any:
        """A tensor of one element; None for 0."""
        if isinstance(offset, torch.Tensor):
            return offset
        return torch.full((), offset, dtype=torch.int32, device=self.device) if offset else None


def attention_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: Any = 0,
    mask_function: MaskFunction = host.causal_mask_function,
    attention_mask: Any = None,
    local_size: int | None = None,
    use_vmap: bool = False,
    device: Any = "cpu",
    **options: Any,
) -> VisibleKeys:
    """The mask of a step, with the signature that the package calls.

    Args:
      batch_size, q_length, kv_length: sizes of queries and keys; a cache has as many keys as slots.
      q_offset, kv_offset: positions of the first query and the first key, integers or tensors.
      mask_function: of batch, head, and absolute positions of query and key.
      attention_mask: bool [batch, positions], False where a position is padding, as are those
        behind; or a mask that was made before.
      local_size: size of a window or of chunks; all keys that a causal mask shows are among that
        many.
      use_vmap: whether functions of the model or the user are part of the mask function.

    Raises:
      SpecError: an argument that is not known, or a mask for other sizes.
    """
    for name in options.keys() - set(NEUTRAL):
        raise SpecError(
            f"{name} of a mask of transformers is not known, got {shown(options[name])}"
        )
    shape = (batch_size, 1, q_length, kv_length)
    if isinstance(attention_mask, VisibleKeys):
        if attention_mask.shape != shape:
            raise SpecError(
                f"attention_mask is for [batch, 1, sq, sk] = {list(attention_mask.shape)}, this "
                f"step has {list(shape)}"
            )
        return attention_mask
    if isinstance(q_offset, torch.Tensor):  # a cache counts on in it during the step
        q_offset = q_offset.to(device, torch.int32, copy=True).reshape(())
    step = _Step(batch_size, q_length, kv_length, q_offset, kv_offset, device)
    is_padded = _is_padded(attention_mask, step)
    if torch.compiler.is_dynamo_compiling():
        is_static = not use_vmap and "allow_is_bidirectional_skip" not in options
        form = form_in_graph(mask_function, local_size if is_static else None)
    else:
        form = form_of(mask_function, is_padded=is_padded)
    mask, seqused, end = full(), None, kv_length + kv_offset
    functions: tuple[MaskFunction, ...] = (mask_function,)
    if (aligned := _aligned(form, step)) is not None:
        mask, seqused = aligned
        functions = form.predicates
        end = q_offset + q_length if form.right == 0 else end
    predicates = [step.relative(_all_of(functions))] if functions else []
    is_packed = bool(functions) and all(map(tells_sequences, functions))
    if is_padded or (attention_mask is not None and attention_mask.shape[1] < end):
        predicates.append(host.padding_mask_function(_of_keys(attention_mask, step)))
        is_packed = False
    predicate = _all_of(predicates) if predicates else None
    return VisibleKeys(shape, mask, predicate, seqused, form.right == 0, is_packed)


def _is_padded(padding: Any, step: _Step) -> bool:
    """Whether some of the positions may be padding.

    The values are read from the device, once a step, as the package does for its own attention; in
    a graph they are not.

    Raises:
      SpecError: no [batch, positions].
    """
    if padding is None:
        return False
    if padding.ndim != 2 or padding.shape[0] != step.batch:
        raise SpecError(
            f"attention_mask must be [batch, positions] with batch {step.batch}, got "
            f"{list(padding.shape)}"
        )
    return bool(host.is_tracing(padding)) or not bool(padding.all())


def _aligned(form: Form, step: _Step) -> tuple[Mask, Any] | None:
    """A form as a mask of a kernel and the number of keys there are; None if no kernel says it."""
    if form.left is None and form.right is None and form.chunk is None:
        return full(), None
    if form.chunk is not None and not _is_zero(step.kv_offset):
        return None
    seqused, is_data = None, isinstance(step.length, torch.Tensor)
    if is_data or step.length != step.sk:
        if form.right != 0 or not (is_data or 0 <= step.length <= step.sk):
            return None
        seqused = torch.zeros(step.batch, dtype=torch.int32, device=step.device) + step.length
    mask = causal() if (form.left, form.right) == (None, 0) else full()
    if form.left is not None or form.right != 0:
        mask = sliding_window(form.left, form.right)
    return mask if form.chunk is None else mask & chunked(form.chunk), seqused


def _of_keys(padding: Any, step: _Step) -> Any:
    """Which keys are tokens, [batch, sk], of which positions are."""
    tokens = padding[:, step.kv_offset : step.kv_offset + step.sk]
    return torch.nn.functional.pad(tokens, (0, step.sk - tokens.shape[1]))


def _all_of(functions: Sequence[MaskFunction]) -> MaskFunction:
    """A mask function that says what all of several do."""
    return functions[0] if len(functions) == 1 else host.and_masks(*functions)


def _is_zero(offset: Any) -> bool:
    return not isinstance(offset, torch.Tensor) and offset == 0
