"""Launch plans: a checked call that can be repeated with other addresses.

A call's parameters depend on shapes, strides, numbers and addresses. A plan keeps the block of
parameters of one call; each word in it that depends on an address is that address plus a constant
(in a tensor map its first word, `attn_mlir.runtime.call.tensormap`). Another launch rewrites these
words. Checks that depend on addresses run with every launch: alignment, and whether an output may
share memory with another tensor. It does not if their byte ranges are disjoint, or if their
relative position is that of the checked call. A plan keeps no tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from attn_mlir.runtime.call.binding import Bound, parameters
from attn_mlir.runtime.call.tensormap import ADDRESS_ALIGNMENT_BYTES, MapDescription
from attn_mlir.runtime.devices.base import Launch
from attn_mlir.runtime.devices.parameters import PackedParameters
from attn_mlir.runtime.file.bundle import Bundle
from attn_mlir.runtime.file.manifest import PointerParam
from attn_mlir.runtime.file.recipes import TensorMapParam

P = TypeVar("P", bound=PackedParameters)


class PlansLaunches(Protocol):
    """A device that can make launch plans."""

    def plan_launch(
        self, bundle: Bundle, bound: Bound, names: Sequence[str]
    ) -> LaunchPlan[Any] | None:
        """A plan of a call that this device has launched; None if the call cannot have one.

        Args:
          names: names of the tensors, in the order in which launches of the plan pass addresses.
        """


class LaunchPlan(Generic[P]):
    """A call that can be repeated at other addresses, by several threads at the same time.

    Args:
      bound: the call, without empty tensors.
      names: names of the tensors, in the order of the addresses.
      encode: returns the bytes of a tensor map.
      pack: packs the parameters of a launch, with anything else that `start` needs.
      start: launches, given packed parameters and the caller's stream; no other thread uses these
        parameters until it returns.
      launched: the return value of `launch`.
    """

    def __init__(
        self,
        bound: Bound,
        names: Sequence[str],
        encode: Callable[[MapDescription], bytes],
        *,
        pack: Callable[[list[Any]], P],
        start: Callable[[P, object | None], None],
        launched: Launch,
    ):
        self._pack, self._start, self._launched = pack, start, launched
        index = {name: number for number, name in enumerate(names)}
        tensors = bound.tensors
        based: list[int] = []  # the addresses in tensor maps, in order

        def note(description: MapDescription) -> bytes:
            based.append(description.address)
            return encode(description)

        addresses = {name: tensor.address for name, tensor in tensors.items()}
        self._params = parameters(bound, addresses, note)
        self._idle = [pack(self._params)]  # packed parameters that no launch is using
        masks = [bound.manifest.tensor(name).alignment_bytes - 1 for name in names]
        self._slots: list[tuple[int, int, int]] = []  # word, index of its tensor, constant
        bases = iter(based)
        for place, param in zip(self._idle[0].places, bound.manifest.params, strict=True):
            if isinstance(param, PointerParam):
                self._slots.append((place, index[param.tensor], 0))
            elif isinstance(param, TensorMapParam):
                offset = next(bases) - addresses[param.tensor]
                masks[index[param.tensor]] |= ADDRESS_ALIGNMENT_BYTES - 1
                self._slots.append((place, index[param.tensor], offset))
        self._low_bits = [
            (mask, addresses[name] & mask) for mask, name in zip(masks, names, strict=True)
        ]
        self._least = -min([0, *(offset for *_, offset in self._slots)])
        self._written = [
            (
                index[one.name],
                tensors[one.name].span_bytes,
                [
                    (index[x], tensors[x].span_bytes, addresses[x] - addresses[one.name])
                    for x in names
                    if x != one.name
                ],
            )
            for one in bound.manifest.tensors
            if one.is_written
        ]

    def launch(self, addresses: Sequence[int], stream: object | None) -> Launch | None:
        """Launches; or does nothing and returns None if the addresses need a full check.

        Args:
          addresses: addresses of the tensors, in the order of `names`.
          stream: as in a kernel's call.

        Raises:
          SpecError: the stream is invalid.
          LaunchError: the launch failed.
        """
        for address, (mask, low) in zip(addresses, self._low_bits, strict=True):
            if address & mask != low or address <= self._least:
                return None
        for index, span, other_spans in self._written:
            begin = addresses[index]
            for other, length, checked in other_spans:
                distance = addresses[other] - begin
                if -length < distance < span and distance != checked:
                    return None
        try:
            packed = self._idle.pop()
        except IndexError:
            packed = self._pack(self._params)
        words = packed.words
        for word, index, offset in self._slots:
            words[word] = addresses[index] + offset
        self._start(packed, stream)
        self._idle.append(packed)
        return self._launched


def can_be_planned(bound: Bound) -> bool:
    """Whether a call's parameters depend on addresses only by added constants.

    Not if a tensor is empty, as it gets another tensor's address, or if nothing is launched.
    """
    return not bound.launches_nothing and not any(x.empty for x in bound.tensors.values())
