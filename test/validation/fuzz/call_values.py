"""Arguments for drawn calls: good ones of unusual types and layouts, and bad ones that have to be refused.

Each is a `Given`: what is passed, what it means if it is taken, and whether it has to be.
"""

from __future__ import annotations

import ctypes
import importlib.util
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal

import ml_dtypes
import numpy as np

from attn_mlir.errors import shown
from attn_mlir.runtime.call.dlpack import DLTensor, Export

Verdict = Literal["right", "wrong", "either"]

HAS_TORCH = importlib.util.find_spec("torch") is not None
BF16 = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True)
class Given:
    """An argument.

    Attributes:
      value: what is passed.
      plain: what it means, for the reference.
      verdict: whether it is to be taken, to be refused, or either of both.
      text: what is odd about it.
    """

    value: Any
    plain: Any
    verdict: Verdict = "right"
    text: str = "plain"


class Unspeakable:
    """A value that cannot be shown, compared or turned into a number."""

    def _refuse(self, *_: Any) -> Any:
        raise RuntimeError("go away")

    __repr__ = __eq__ = __float__ = __index__ = __len__ = __bool__ = _refuse
    __hash__ = object.__hash__


def wrong(value: Any, text: str = "") -> Given:
    """An argument that has to be refused."""
    return Given(value, None, "wrong", text or f"{type(value).__name__} {shown(value, 30)}")


def dressed(value: Any, plain: Any) -> Given:
    """A good argument of another library."""
    return Given(value, plain, "right", f"{type(value).__module__}.{type(value).__name__}")


def integer(rng: random.Random, good: int, *also_wrong: Any) -> Given:
    """An integer argument."""
    fine: list[Any] = [np.int64(good), np.array(good), np.int16(good)]
    if HAS_TORCH:
        import torch

        fine.append(torch.tensor(good))
    bad: list[Any] = [
        float(good), str(good), True, np.True_, complex(good), float("nan"), float("inf"), [good],
        np.array([good]), -1, 2**40, 10**400, 10**5000, b"1", object(), Unspeakable(), int, {},
        np.float64(good), Fraction(good), *also_wrong,
    ]  # fmt: skip
    if rng.random() < 0.4:
        return dressed(rng.choice(fine), good)
    return wrong(rng.choice(bad))


def number(rng: random.Random, good: float) -> Given:
    """A scale."""
    fine: list[Any] = [np.float32(good), np.float64(good), np.array(good), Fraction(good)]
    fine += [Decimal(good), np.float16(good), 1, np.int8(1)]
    if HAS_TORCH:
        import torch

        fine.append(torch.tensor(good, dtype=torch.float64))
    bad: list[Any] = [
        str(good), b"1", "", True, np.True_, complex(good), float("nan"), float("inf"), -good, 0, 0.0,
        1e-38, 1e-45, -0.0, 2.01e38, 1e39, 10**400, 10**5000, [good], np.array([good]), object(),
        Unspeakable(), float, np.complex64(good), Fraction(1, 10**400), Decimal("nan"),
    ]  # fmt: skip
    if rng.random() < 0.4:
        value = rng.choice(fine)
        return dressed(value, float(value))
    return wrong(rng.choice(bad))


def flag(rng: random.Random, good: bool) -> Given:
    """True or False."""
    if rng.random() < 0.3:
        return dressed(np.bool_(good), good)
    return wrong(
        rng.choice([1, 0, 1.0, "yes", "", None, [], object(), np.ones(2, bool), Unspeakable()])
    )


class Foreign:
    """An array of a library that is none of numpy, torch and cupy."""

    def __init__(self, array: Any, given: Any = None, device: Any = None):
        self._array = array
        self._given = given
        self._device = array.__dlpack_device__() if device is None else device

    def __array_namespace__(self) -> Any:
        return np

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options) if self._given is None else self._given

    def __dlpack_device__(self) -> Any:
        return self._device


class OnGpu:
    """An array that offers `__cuda_array_interface__` alone."""

    def __init__(self, **fields: Any):
        self.__cuda_array_interface__ = fields


def _capsule(array: Any, field: str, value: Any) -> Any:
    """A capsule of an array with a field of its tensor changed."""
    export = Export(array, array.ctypes.data, device="cpu", index=0, dtype="f16", shape=array.shape)
    capsule = export.__dlpack__()
    tensor = DLTensor.from_address(ctypes.pythonapi.PyCapsule_GetPointer(capsule, b"dltensor"))
    setattr(tensor, field, value)
    return capsule


def _consumed(array: Any) -> Any:
    capsule = _capsule(array, "byte_offset", 0)
    np.from_dlpack(Foreign(array, capsule))
    return capsule


def _placed(array: Any, strides: Callable[[list[int]], Sequence[int]]) -> Any:
    """A copy whose rows lie as these strides in elements, of dense ones, say."""
    dense = [stride // array.itemsize for stride in np.ascontiguousarray(array).strides]
    steps = list(strides(dense))
    reach = sum((n - 1) * s for n, s in zip(array.shape, steps, strict=True)) + 1
    memory = np.zeros(max(reach, 1), array.dtype)
    view = np.lib.stride_tricks.as_strided(
        memory, array.shape, [step * array.itemsize for step in steps]
    )
    view[...] = array
    return view


def laid_out(rng: random.Random, array: Any) -> Given:
    """An operand [..., heads, columns] in another layout, which no copy is made of."""
    kind = rng.choice(["padded", "heads first", "read-only", "torch", "foreign"])
    if kind == "heads first":
        return Given(np.swapaxes(np.swapaxes(array, -3, -2).copy(), -3, -2), array, "right", kind)
    if kind == "read-only":
        value = array.copy()
        value.flags.writeable = False
        return Given(value, array, "right", kind)
    if kind == "foreign" and array.dtype == np.float16:
        return Given(Foreign(array), array, "right", kind)
    if kind == "torch" and HAS_TORCH and array.dtype == np.float16:
        import torch

        return Given(torch.from_numpy(array), array, "right", kind)
    wide = np.zeros((*array.shape[:-1], array.shape[-1] + 16), array.dtype)
    wide[..., : array.shape[-1]] = array
    return Given(wide[..., : array.shape[-1]], array, "right", "padded")


def operand(rng: random.Random, array: Any) -> Given:
    """q, k or v."""
    if rng.random() < 0.5:
        return laid_out(rng, array)
    half = np.zeros(array.shape, np.float16)
    gpu = {"shape": array.shape, "typestr": "<f2", "data": (1 << 40, False), "version": 3}
    hostile: list[Callable[[], Given]] = [
        lambda: wrong(np.ma.array(array, mask=False), "masked"),
        lambda: wrong(array.copy().view(type("Mine", (np.ndarray,), {})), "subclass"),
        lambda: wrong(array.tolist(), "a list"),
        lambda: wrong(None),
        lambda: wrong(array.astype(np.float64), "f64"),
        lambda: wrong(array.astype(object), "objects"),
        lambda: wrong(array.astype(np.float32).astype(">f4"), "big-endian"),
        lambda: wrong(array.astype(np.complex64), "complex"),
        lambda: wrong(array[..., None], "one axis too many"),
        lambda: wrong(array[..., 0], "one axis too few"),
        lambda: wrong(array[..., :60], "60 columns"),
        lambda: wrong(array[..., :0], "no columns"),
        lambda: wrong(array[..., :0, :], "no heads"),
        lambda: wrong(np.array(1.0, array.dtype), "rank 0"),
        lambda: Given(array[..., ::-1].copy()[..., ::-1], array, "wrong", "reversed columns"),
        lambda: Given(array[:, ::-1].copy()[:, ::-1], array, "either", "reversed rows"),
        lambda: Given(np.asfortranarray(array), array, "either", "columns first"),
        lambda: Given(
            _placed(array, lambda s: [x + (i < 2) for i, x in enumerate(s)]), array, "either",
            "odd strides",
        ),
        lambda: wrong(Foreign(half, given=7), "no capsule"),
        lambda: wrong(Foreign(half, given=_consumed(half)), "a consumed capsule"),
        lambda: wrong(Foreign(half, _capsule(half, "ndim", -2)), "a capsule of rank -2"),
        lambda: wrong(Foreign(half, _capsule(half, "data", None)), "a capsule without memory"),
        lambda: wrong(Foreign(half, _capsule(half, "lanes", 4)), "a capsule of vectors"),
        lambda: wrong(Foreign(half, _capsule(half, "bits", 12)), "a capsule of 12 bits"),
        lambda: wrong(Foreign(half, device=(2, 0)), "a capsule elsewhere"),
        lambda: wrong(Foreign(half, device="cpu"), "a device that is none"),
        lambda: wrong(OnGpu(**gpu), "on a GPU"),
        lambda: wrong(OnGpu(**gpu | {rng.choice(list(gpu)): rng.choice([None, -1, "x"])}), "odd GPU"),
        lambda: wrong(OnGpu(), "an empty interface"),
        lambda: wrong(Unspeakable()),
        lambda: wrong(np.ndarray, "a class"),
    ]  # fmt: skip
    return rng.choice(hostile)()


def index_array(rng: random.Random, good: Any) -> Given:
    """Offsets or lengths."""
    long = np.repeat(good, 3)
    fine: list[Given] = [
        Given(good[::-1].copy()[::-1], good, "right", "reversed"),
        Given(long[1::3], good, "right", "every third"),
        Given(long[::-3][::-1], good, "right", "every third, reversed twice"),
        Given(np.stack([good, good], 1)[:, 1], good, "right", "a column"),
    ]
    if HAS_TORCH:
        import torch

        fine.append(Given(torch.from_numpy(good.copy()), good, "right", "torch"))
    bad = [
        good.tolist(), good.astype(np.int64), good.astype(np.float32), good.astype(np.uint32),
        good[None], good[:-1], np.append(good, good[-1:]), np.array(3, np.int32), 3, "3",
        np.ma.array(good), good + 1000, -1 - good, Unspeakable(), good.astype(bool),
    ]  # fmt: skip
    return rng.choice(fine) if rng.random() < 0.4 else wrong(rng.choice(bad))


def output(
    rng: random.Random, shape: tuple[int, ...], dtype: Any, operands: Sequence[Any]
) -> Given:
    """Memory for O; operands are what it must not touch."""
    dense = np.full(shape, np.nan, dtype)
    heads = shape[-2]
    wide = np.full((*shape[:-2], heads + 2, shape[-1]), np.nan, dtype)
    fine = [
        Given(dense, None, "right", "dense"),
        Given(wide[..., 1:-1, :], None, "right", "a slice"),
        Given(np.swapaxes(np.full((*shape[:-3], heads, shape[-3], shape[-1]), np.nan, dtype), -3, -2), None, "right", "heads first"),
    ]  # fmt: skip
    read_only = dense.copy()
    read_only.flags.writeable = False
    bad: list[tuple[Any, str]] = [
        (read_only, "read-only"),
        (dense[..., :-1], "too narrow"),
        (dense.astype(np.float64), "f64"),
        (np.ma.array(dense), "masked"),
        (dense.tolist(), "a list"),
        (5, "5"),
        (_placed(dense, lambda s: [*s[:-3], s[-3] - 8, *s[-2:]]), "rows that overlap"),
        (_placed(dense, lambda s: [*s[:-2], 0, 1]), "heads on one place"),
        (_placed(dense, lambda s: [*s[:-1], 2]), "columns apart"),
        (dense[..., ::-1], "columns reversed"),
    ]
    for one in operands:
        if isinstance(one, np.ndarray) and one.shape == shape and one.dtype == dtype:
            bad.append((one, "an operand"))
    if rng.random() < 0.5:
        return rng.choice(fine)
    value, text = rng.choice(bad)
    return wrong(value, text)


def device(rng: random.Random, seed: int) -> Given:
    """Where to run."""
    from attn_mlir import EmulatorDevice

    if rng.random() < 0.5:
        adversarial = EmulatorDevice(schedule="adversarial", seed=seed)
        return Given(adversarial, None, "right", "adversarial")
    bad = [
        "gpu",
        "cuda:x",
        "cuda:²",
        "cuda:-1",
        "",
        5,
        True,
        [],
        b"emulator",
        np.zeros(2),
        object(),
    ]
    return wrong(rng.choice([*bad, EmulatorDevice, Unspeakable(), "cuda:99999999999999999999"]))


def mask(rng: random.Random, good: Any) -> Given:
    """Which keys are seen."""
    del good
    from attn_mlir import Mask

    return wrong(
        rng.choice(["causal", 5, Mask, np.ones((3, 3), bool), object(), [], Unspeakable()])
    )


def anything(rng: random.Random) -> Any:
    """Something that is hardly ever right."""
    return rng.choice([
        None, 5, -1, 1.5, "x", "", b"x", [], {}, (), object(), True, float("nan"), 1j, 10**400,
        np.zeros(3), np.ma.array([1]), Unspeakable(), int, len, 2**40, "\0", "~" * 400,
    ])  # fmt: skip
