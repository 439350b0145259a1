"""A loaded bundle that can be called: `kernel(q, k, v, o, lse, scale=..., stream=...)`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from attn_mlir import env
from attn_mlir.errors import SpecError, TargetError, shown
from attn_mlir.runtime.call.binding import Bound, bind, check_margin
from attn_mlir.runtime.call.repeats import Repeats
from attn_mlir.runtime.call.scalars import integer
from attn_mlir.runtime.call.signatures import Reader, Signature
from attn_mlir.runtime.call.tensors import TensorView, view
from attn_mlir.runtime.call.torch_tensors import is_tensor, is_tracing
from attn_mlir.runtime.devices.base import TARGETS, Device, Launch, fitting
from attn_mlir.runtime.devices.cuda import CudaDevice
from attn_mlir.runtime.devices.emulator import EmulatorDevice
from attn_mlir.runtime.devices.idle import IdleDevice
from attn_mlir.runtime.devices.launchplan import LaunchPlan, PlansLaunches
from attn_mlir.runtime.file.bundle import Bundle
from attn_mlir.runtime.file.fat_bundle import FatBundle, bundles_of, load_bundles, read_bundles

_DEVICES = re.compile(r"emulator|cuda(:[0-9]{1,4})?")

DeviceChoice = str | Device | None  # "cuda", "cuda:1", "emulator", a device, or automatic

DEVICES_BY_VALUE = (CudaDevice, IdleDevice)  # equal ones plan equal launches
_reader = Reader(DEVICES_BY_VALUE)

_everything_on: list[Device] = []


def load(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview | Bundle | FatBundle,
) -> Kernel:
    """Makes a kernel from a bundle, a bundle file or its bytes, for one target or for several.

    Raises:
      SpecError: not a bundle, or a damaged one.
      TargetError: written by a newer attn-mlir.
    """
    if isinstance(source, Bundle | FatBundle):
        return Kernel(source)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return Kernel(read_bundles(bytes(source)))
    is_path = isinstance(cast(object, source), (str, os.PathLike))
    if not is_path or "\0" in os.fspath(source):
        raise SpecError(
            f"load takes a bundle, the path of its file or its bytes, got {shown(source)}"
        )
    return Kernel(load_bundles(source))


class Kernel:
    """A bundle, ready to be launched on any device that can run it.

    A call of a fat bundle runs the code for its device (`devices.base.fitting`). A call that
    differs from an earlier one only in the addresses of arrays is carried out by a plan; see
    `attn_mlir.runtime.devices.launchplan`.
    """

    def __init__(self, bundle: Bundle | FatBundle):
        self.bundles = bundles_of(bundle)
        self._plans = Repeats[LaunchPlan[Any]]()

    @property
    def bundle(self) -> Bundle:
        """The bundle; of a fat bundle the first one."""
        return self.bundles[0]

    def __repr__(self) -> str:
        names = [tensor.name for tensor in self.bundle.manifest.tensors]
        names += [f"{scalar.name}=" for scalar in self.bundle.manifest.scalars]
        targets = ", ".join(bundle.target for bundle in self.bundles)
        return f"<Kernel {self.bundle.entry}({', '.join(names)}) for {targets}>"

    def __call__(
        self,
        *tensors: object,
        device: DeviceChoice = None,
        stream: object | None = None,
        sm_margin: int = 0,
        **keywords: object,
    ) -> Launch:
        """Checks the arguments and launches.

        Args:
          tensors: arrays in the bundle's order; outputs are written in place.
          device: `cuda`, `emulator`, a device, or None to choose by the place of the tensors and
            the available devices, with a line on stderr if that is the emulator.
          stream: a stream of a GPU: an int, or any object with `__cuda_stream__`; None for the
            default stream.
          sm_margin: multiprocessors that the CTAs of a persistent kernel leave free; other kernels
            have a CTA for each work tile.
          keywords: the bundle's scalars, such as `scale=`, and arrays that are not passed by
            position.

        Raises:
          SpecError: an argument is wrong; nothing was launched.
          TargetError: the device cannot run this bundle; nothing was launched.
          LaunchError: the launch failed.
        """
        return self._launch(tensors, keywords, device, stream, sm_margin)

    def launch(
        self,
        arguments: Mapping[str, object],
        *,
        device: DeviceChoice = None,
        stream: object | None = None,
        sm_margin: int = 0,
    ) -> Launch:
        """As a call, with all arrays and scalars by name;
        names may be those of keyword arguments.
        """
        return self._launch((), arguments, device, stream, sm_margin)

    def _launch(
        self,
        tensors: Sequence[object],
        keywords: Mapping[str, object],
        device: DeviceChoice,
        stream: object | None,
        sm_margin: object,
    ) -> Launch:
        if is_tracing() and any(map(is_tensor, (*tensors, *keywords.values()))):
            raise SpecError(
                f"{self.bundle.entry} cannot be recorded by torch.jit.trace, make_fx and "
                "torch.export, nor "
                "transformed by torch.func: call attn_mlir.attention there, which is an operator"
            )
        signature = Signature(len(tensors), *keywords)
        where = (device, chosen_for_all())
        is_read = _reader.add(signature, (*tensors, *keywords.values(), *where, sm_margin))
        key = tuple(signature.key)
        if is_read and (plan := self._plans.get(key)) is not None:
            launched = plan.launch(signature.addresses, stream)
            if launched is not None:
                return launched
        chosen, bound, bundle = self._bound(tensors, keywords, device)
        bound = dataclasses.replace(bound, sm_margin=integer("sm_margin", sm_margin))
        launched = chosen.launch(bundle, bound, stream)
        if is_read:
            arrays = [
                *list(bound.tensors)[: len(tensors)],
                *(x for x in keywords if x in bound.tensors),
            ]
            # otherwise a scalar is an array, whose value may change
            if len(arrays) == len(signature.arrays):
                self._plans.note(key, lambda: planned_on(chosen, bundle, bound, arrays))
        return launched

    def _bound(
        self, tensors: Sequence[object], keywords: Mapping[str, object], device: DeviceChoice
    ) -> tuple[Device, Bound, Bundle]:
        """A checked call with its device and the bundle that has code for it.

        Raises:
          SpecError: an argument is wrong, or no such device.
          TargetError: no bundle has code for the device.
        """
        bundle = self.bundle
        if len(self.bundles) == 1:
            bound = bind(bundle.manifest, tensors, keywords)
            return choose_device(bundle, device, bound), bound, bundle
        name = bundle.manifest.tensors[0].name
        value = tensors[0] if tensors else keywords.get(name)
        place = None if value is None else view(value, name)
        chosen, bundle = _choose(self.bundles, device, place)
        return chosen, bind(bundle.manifest, tensors, keywords), bundle


def choose_device(bundle: Bundle, device: DeviceChoice, bound: Bound) -> Device:
    """The device of a call whose tensors are known.

    Raises:
      SpecError: no such device name.
      TargetError: automatic choice, and the tensors are on a GPU that cannot run the bundle.
    """
    return _choose((bundle,), device, next(iter(bound.tensors.values()), None))[0]


def _choose(
    bundles: Sequence[Bundle], device: DeviceChoice, place: TensorView | None
) -> tuple[Device, Bundle]:
    """The device of a call, and the one of a kernel's bundles that it runs.

    Args:
      place: a tensor of the call. A named device that can run none of several bundles is refused
        here, one that cannot run the only bundle by its launch.

    Raises:
      SpecError: no such device name.
      TargetError: the device has no code; or automatic choice, and the tensors are on a GPU
        without.
    """
    on_gpu = place is not None and place.device == "cuda"
    index = place.device_index if place is not None and on_gpu else 0
    is_automatic = device is None and not _everything_on
    if _everything_on:
        check_device(device)
        chosen = _everything_on[-1]
    else:
        chosen = CudaDevice(index) if device is None else named_device(device, index)
    if len(bundles) == 1 and not is_automatic:
        return chosen, bundles[0]
    bundle = fitting(bundles, chosen)
    if not isinstance(bundle, str):
        return chosen, bundle
    if not is_automatic:
        raise TargetError(bundle)
    if on_gpu:
        raise TargetError(f"{bundle}; the emulator would run it on tensors in host memory")
    say_emulator(bundle)
    bundle = fitting(bundles, emulator := EmulatorDevice())
    return emulator, bundles[0] if isinstance(bundle, str) else bundle


def chosen_for_all() -> Device | None:
    """The device set by `launching_on`; None outside of it."""
    return _everything_on[-1] if _everything_on else None


def planned_on(
    device: Device, bundle: Bundle, bound: Bound, names: Sequence[str]
) -> LaunchPlan[Any] | None:
    """A plan of a call with parameters, if the device makes plans; see `PlansLaunches`."""
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
      multiprocessors: those that a call may use.
      sm_margin: those that it leaves free.
    """

    target: str | None
    multiprocessors: int
    sm_margin: int = 0

    def without(self, sm_margin: object) -> Machine:
        """The machine of a call that leaves so many multiprocessors free.

        Raises:
          SpecError: no integer, or none are left.
        """
        margin = check_margin(sm_margin, self.multiprocessors)
        return dataclasses.replace(
            self, multiprocessors=self.multiprocessors - margin, sm_margin=margin
        )


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
        targets = [target for target in chosen.gpu.targets if target in TARGETS]
        return Machine(targets[-1] if targets else None, chosen.gpu.sm_count)
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
