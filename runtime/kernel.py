"""A loaded bundle that can be called: `kernel(q, k, v, o, lse, scale=..., stream=...)`."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from attn_mlir import env
from attn_mlir.errors import SpecError, TargetError, shown
from attn_mlir.runtime.binding import Bound, bind
from attn_mlir.runtime.bundle import Bundle
from attn_mlir.runtime.devices.base import Device, Launch
from attn_mlir.runtime.devices.cuda import CudaDevice
from attn_mlir.runtime.devices.emulator import TARGETS, EmulatorDevice
from attn_mlir.runtime.devices.idle import IdleDevice
from attn_mlir.runtime.devices.launchplan import LaunchPlan, PlansLaunches
from attn_mlir.runtime.repeats import Repeats
from attn_mlir.runtime.signatures import Reader, Signature
from attn_mlir.runtime.tensors import TensorView

_DEVICES = re.compile(r"emulator|cuda(:[0-9]{1,4})?")

DeviceChoice = str | Device | None  # "cuda", "cuda:1", "emulator", a device, or automatic

DEVICES_BY_VALUE = (CudaDevice, IdleDevice)  # equal ones plan equal launches
_reader = Reader(DEVICES_BY_VALUE)

_everything_on: list[Device] = []


def load(source: str | os.PathLike[str] | bytes | bytearray | memoryview | Bundle) -> Kernel:
    """Makes a kernel from a bundle, a bundle file or its bytes.

    Raises:
      SpecError: not a bundle, or a damaged one.
      TargetError: written by a newer attn-mlir.
    """
    if isinstance(source, Bundle):
        return Kernel(source)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return Kernel(Bundle.from_bytes(bytes(source)))
    is_path = isinstance(cast(object, source), (str, os.PathLike))
    if not is_path or "\0" in os.fspath(source):
        raise SpecError(
            f"load takes a bundle, the path of its file or its bytes, got {shown(source)}"
        )
    return Kernel(Bundle.load(source))


class Kernel:
    """A bundle, ready to be launched on any device that can run it.

    A call that differs from an earlier one only in the addresses of arrays is carried out by a
    plan; see `attn_mlir.runtime.devices.launchplan`.
    """

    def __init__(self, bundle: Bundle):
        self.bundle = bundle
        self._plans = Repeats[LaunchPlan[Any]]()

    def __repr__(self) -> str:
        names = [tensor.name for tensor in self.bundle.manifest.tensors]
        names += [f"{scalar.name}=" for scalar in self.bundle.manifest.scalars]
        return f"<Kernel {self.bundle.entry}({', '.join(names)}) for {self.bundle.target}>"

    def __call__(
        self,
        *tensors: object,
        device: DeviceChoice = None,
        stream: object | None = None,
        **named: object,
    ) -> Launch:
        """Checks the arguments and launches.

        Args:
          tensors: arrays in the bundle's order; outputs are written in place.
          device: `cuda`, `emulator`, a device, or None to choose by the place of the tensors and
            the available devices, with a line on stderr if that is the emulator.
          stream: a stream of a GPU: an int, or any object with `__cuda_stream__`; None for the
            default stream.
          named: the bundle's scalars, such as `scale=`, and arrays that are not passed by position.

        Raises:
          SpecError: an argument is wrong; nothing was launched.
          TargetError: the device cannot run this bundle; nothing was launched.
          LaunchError: the launch failed.
        """
        return self._launch(tensors, named, device, stream)

    def launch(
        self,
        arguments: Mapping[str, object],
        *,
        device: DeviceChoice = None,
        stream: object | None = None,
    ) -> Launch:
        """As a call, with all arrays and scalars by name; names may be those of keyword arguments."""
        return self._launch((), arguments, device, stream)

    def _launch(
        self,
        tensors: Sequence[object],
        named: Mapping[str, object],
        device: DeviceChoice,
        stream: object | None,
    ) -> Launch:
        signature = Signature(len(tensors), *named)
        where = (device, chosen_for_all())
        is_read = _reader.add(signature, (*tensors, *named.values(), *where))
        key = tuple(signature.key)
        if is_read and (plan := self._plans.get(key)) is not None:
            launched = plan.launch(signature.addresses, stream)
            if launched is not None:
                return launched
        bound = bind(self.bundle.manifest, tensors, named)
        chosen = choose_device(self.bundle, device, bound)
        launched = chosen.launch(self.bundle, bound, stream)
        if is_read:
            arrays = [
                *list(bound.tensors)[: len(tensors)],
                *(x for x in named if x in bound.tensors),
            ]
            if len(arrays) == len(
                signature.arrays
            ):  # otherwise a scalar is an array, whose value may change
                self._plans.note(key, lambda: planned_on(chosen, self.bundle, bound, arrays))
        return launched


def choose_device(bundle: Bundle, device: DeviceChoice, bound: Bound) -> Device:
    """The device of a call whose tensors are known.

    Raises:
      SpecError: no such device name.
      TargetError: automatic choice, and the tensors are on a GPU that cannot run the bundle.
    """
    if _everything_on:
        check_device(device)
        return _everything_on[-1]
    place = next(iter(bound.tensors.values()), None)
    on_gpu = place is not None and place.device == "cuda"
    index = place.device_index if place is not None and on_gpu else 0
    if device is None and on_gpu:
        gpu = CudaDevice(index)
        if reason := gpu.refusal(bundle):
            raise TargetError(f"{reason}; the emulator would run it on tensors in host memory")
        return gpu
    if device is None:
        gpu = CudaDevice(0)
        reason = gpu.refusal(bundle)
        if reason is None:
            return gpu
        say_emulator(reason)
        return EmulatorDevice()
    return named_device(device, index)


def chosen_for_all() -> Device | None:
    """The device set by `launching_on`; None outside of it."""
    return _everything_on[-1] if _everything_on else None


def planned_on(
    device: Device, bundle: Bundle, bound: Bound, names: Sequence[str]
) -> LaunchPlan[Any] | None:
    """A plan of a call, if the device makes plans and the call has parameters; see `PlansLaunches`."""
    if not callable(getattr(device, "plan_launch", None)):
        return None
    try:
        return cast(PlansLaunches, device).plan_launch(bundle, bound, names)
    except SpecError:  # a layout that no tensor map describes, of a device that takes it
        return None


@contextlib.contextmanager
def launching_on(device: Device) -> Generator[None]:
    """A context in which all kernels are launched on one device, whatever device calls name."""
    _everything_on.append(device)
    try:
        yield
    finally:
        _everything_on.pop()


def named_device(device: DeviceChoice, index: int = 0) -> Device:
    """Turn `cuda`, `cuda:1`, `emulator` or a device into a device.

    Raises:
      SpecError: no such device.
    """
    check_device(device)
    if not isinstance(device, str):
        assert device is not None
        return device
    if device == "emulator":
        return EmulatorDevice()
    number = device.partition(":")[2]
    return CudaDevice(int(number) if number else index)


def check_device(device: object) -> None:
    """Refuses an invalid choice of a device, before anything is compiled.

    Raises:
      SpecError: says what was got.
    """
    if device is None or (isinstance(device, str) and _DEVICES.fullmatch(device)):
        return
    if isinstance(device, (str, type)) or not callable(getattr(device, "launch", None)):
        raise SpecError(f"device must be 'cuda', 'emulator', a device or None, got {shown(device)}")


@dataclass(frozen=True)
class Machine:
    """The machine that a call runs on.

    Attributes:
      target: the chip for which kernels are compiled; None for any.
      multiprocessors: number of multiprocessors.
    """

    target: str | None
    multiprocessors: int


def machine_of(device: DeviceChoice, tensor: TensorView) -> Machine:
    """The machine of a call with this tensor, which `choose_device` takes for kernels made for it.

    A device that the call names counts also within `launching_on`.

    Raises:
      SpecError: no such device name.
      TargetError: the named GPU does not exist.
    """
    chosen: Device
    if device is not None and not isinstance(device, str):
        chosen = device
    elif _everything_on:
        chosen = _everything_on[-1]
    elif device is None and tensor.device != "cuda":
        chosen = _usable_gpu() or EmulatorDevice()
    else:
        chosen = named_device("cuda" if device is None else device, tensor.device_index)
    if isinstance(chosen, CudaDevice):
        known = [target for target in chosen.gpu.targets if target in TARGETS]
        return Machine(known[-1] if known else None, chosen.gpu.sm_count)
    if isinstance(chosen, EmulatorDevice):
        return Machine(chosen.target, chosen.multiprocessors)
    target = chosen.target if isinstance(chosen, IdleDevice) else None
    return Machine(target, EmulatorDevice.multiprocessors)


def _usable_gpu() -> CudaDevice | None:
    """The first GPU that a target exists for, or None."""
    device = CudaDevice(0)
    try:
        return device if set(device.gpu.targets) & set(TARGETS) else None
    except TargetError:
        return None


@functools.cache
def say_emulator(reason: str) -> None:
    """Prints to stderr, once per reason, that the emulator was chosen."""
    env.log("warning", f"running on the emulator: {reason}")
