"""The `Attention` operator's backend cases of ONNX, put to `attn_mlir.attention` on the emulator.

A case has inputs and expected outputs. Inputs of float32 are rounded to fp16, the expected output
stays, and what that rounding costs the plain formula is the yardstick. Key and value caches are put
in front of the new keys and values by the caller, here, as they are for `attention`; head sizes
that are no multiple of 8 are padded with zeros by the caller.
"""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import attn_mlir as am
from attn_mlir import mods
from attn_mlir.masks import Mask
from attn_mlir.reference import Attention, attention_f64, attention_yardstick, compare
from attn_mlir.trace import MaskMod, ScoreMod

Array = npt.NDArray[Any]

HEAD_DIM_STEP = 8  # head sizes that `attention` takes are multiples of this
INPUTS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
OUTPUTS = ("Y", "present_key", "present_value", "qk_matmul_output")
NOT_OFFERED = ("qk_matmul_output",)
ATTRIBUTES = {
    "is_causal", "kv_num_heads", "left_window_size", "q_num_heads", "qk_matmul_output_mode",
    "right_window_size", "scale", "softcap", "softmax_precision",
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A backend case.

    Attributes:
      inputs, outputs: by the operator's names.
      attributes: of the node.
    """

    name: str
    inputs: dict[str, Array]
    outputs: dict[str, Array]
    attributes: dict[str, Any]

    @property
    def missing(self) -> list[str]:
        """What the case asks for and `attention` does not offer."""
        return [name for name in NOT_OFFERED if name in self.outputs]


@dataclass(frozen=True)
class Outcome:
    """How a case went; `reason` is empty when every element of Y is right."""

    reason: str
    ratio: float


@functools.cache
def all_cases() -> dict[str, Case]:
    """The cases whose graph is one `Attention` node; the others are the same ones expanded.

    ONNX keeps one registry per process: nothing else may collect cases here.
    """
    from onnx import helper
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of cases of other operators, which importing makes
        collected: list[Any] = list(collect_testcases("Attention"))
    found: dict[str, Case] = {}
    for case in collected:
        nodes = case.model.graph.node
        if len(nodes) != 1 or nodes[0].op_type != "Attention":
            continue
        inputs, outputs = case.data_sets[0]
        attributes = {a.name: helper.get_attribute_value(a) for a in nodes[0].attribute}
        unknown = attributes.keys() - ATTRIBUTES
        assert not unknown, f"{case.name} has attributes {unknown}, which nobody has thought about"
        found[case.name] = Case(
            case.name,
            _by_name(nodes[0].input, INPUTS, inputs),
            _by_name(nodes[0].output, OUTPUTS, outputs),
            attributes,
        )
    return found


def _by_name(given: Any, names: tuple[str, ...], values: list[Array]) -> dict[str, Array]:
    present = [name for name, text in zip(names, given, strict=False) if text]
    return dict(zip(present, values, strict=True))


@dataclass(frozen=True)
class _Operands:
    """q, k, v as [batch, sequence, heads, head_dim] in fp16 or bf16."""

    q: Array
    k: Array
    v: Array

    def padded(self) -> _Operands:
        """Head sizes filled up with zeros to the next one that has a kernel."""
        return _Operands(*(_padded(x) for x in (self.q, self.k, self.v)))


def _padded(x: Array) -> Array:
    wanted = -(-x.shape[3] // HEAD_DIM_STEP) * HEAD_DIM_STEP
    return np.ascontiguousarray(np.pad(x, [(0, 0)] * 3 + [(0, wanted - x.shape[3])]))


def check(case: Case, device: am.EmulatorDevice | None = None) -> Outcome:
    """Runs a case and judges every element of Y against the expected output."""
    operands, options = _operands(case), _options(case)
    wide = operands.padded()
    o = am.attention(wide.q, wide.k, wide.v, device=device or am.EmulatorDevice(), **options)
    o = o[..., : operands.v.shape[3]]
    expected = case.outputs["Y"].astype(np.float64)
    expected = expected.reshape(o.shape) if expected.ndim == 3 else expected.transpose(0, 2, 1, 3)
    lse = attention_f64(operands.q, operands.k, operands.v, **options).lse
    yardstick = attention_yardstick(operands.q, operands.k, operands.v, **options)
    verdict = compare(o, None, Attention(expected, lse), yardstick)
    return Outcome("" if verdict.ok else str(verdict), verdict.worst_ratio)


def _operands(case: Case) -> _Operands:
    kept = ("float16", "bfloat16")
    made: list[Array] = []
    for name, heads in (("Q", "q_num_heads"), ("K", "kv_num_heads"), ("V", "kv_num_heads")):
        x = case.inputs[name]
        if x.ndim == 3:
            x = x.reshape(*x.shape[:2], case.attributes[heads], -1)
        else:
            x = x.transpose(0, 2, 1, 3)
        past = case.inputs.get({"K": "past_key", "V": "past_value"}.get(name, ""))
        if past is not None:
            x = np.concatenate([past.transpose(0, 2, 1, 3), x], axis=1)
        made.append(x if x.dtype.name in kept else x.astype(np.float16))
    return _Operands(*made)


def _options(case: Case) -> dict[str, Any]:
    """Keyword arguments of `attention` and of the reference."""
    operands = _operands(case)
    sq, sk = operands.q.shape[1], operands.k.shape[1]
    scores: list[ScoreMod] = []
    masks: list[MaskMod] = []
    if case.attributes.get("softcap", 0.0) > 0:
        scores.append(mods.softcap(case.attributes["softcap"]))
    table = case.inputs.get("attn_mask")
    if table is not None:
        table = _of_rank_2_to_4(table, sk)
        if table.dtype == np.bool_:
            masks.append(mods.visible_where(table))
        else:
            scores.append(mods.bias(table))
    lengths = case.inputs.get("nonpad_kv_seqlen")
    if lengths is not None:
        masks.append(mods.key_padding(lengths))
    mask, aligned = _band(case, sq, sk)
    if aligned is not None:
        masks.append(aligned)
    return {
        "mask": mask,
        "scale": case.attributes.get("scale", 1.0 / np.sqrt(operands.q.shape[3])),
        "score_mod": mods.compose(*scores) if scores else None,
        "mask_mod": mods.and_masks(*masks) if masks else None,
    }


def _of_rank_2_to_4(table: Array, sk: int) -> Array:
    """A mask of ONNX as ours: right-aligned axes, short ones hide the keys that they leave out."""
    hidden = False if table.dtype == np.bool_ else -np.inf
    fill = [(0, 0)] * (table.ndim - 1) + [(0, sk - table.shape[-1])]
    table = np.pad(table, fill, constant_values=hidden)
    if table.ndim == 1:
        return table[None]
    return table[None] if table.ndim == 3 else table  # of rank 3 are [heads, q, k] there


def _band(case: Case, sq: int, sk: int) -> tuple[Mask, MaskMod | None]:
    """Causality and windows: in closed form where the last query is at the last key."""
    right = case.attributes.get("right_window_size", -1)
    left = case.attributes.get("left_window_size", -1)
    if case.attributes.get("is_causal"):
        right = 0
    if right < 0 and left < 0:
        return am.full(), None
    if "nonpad_kv_seqlen" in case.inputs:
        offsets = case.inputs["nonpad_kv_seqlen"].reshape(-1) - sq
    else:
        past = case.inputs.get("past_key")
        offsets = np.array([0 if past is None else past.shape[2]] * case.inputs["Q"].shape[0])
    if (offsets == sk - sq).all():
        window = am.sliding_window(None if left < 0 else left, None if right < 0 else right)
        return window, None

    def band(b: Any, h: Any, q: Any, k: Any) -> Any:
        distance = q + offsets[b] - k
        result = distance == distance
        if right >= 0:
            result = result & (distance >= -right)
        return result if left < 0 else result & (distance <= left)

    return am.full(), band
