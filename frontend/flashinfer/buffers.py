"""Index tensors of a wrapper, of the caller where calls are captured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attn_mlir.errors import SpecError
from attn_mlir.flashinfer.options import tensor


@dataclass
class Buffers:
    """Index tensors of a wrapper: a graph that was captured reads what `plan` put there last.

    Attributes:
      device: where they are.
      external: the caller's, by name; None without graphs.
      current: the tensors that `run` reads.
    """

    device: Any
    external: Mapping[str, Any] | None
    current: dict[str, Any]

    @staticmethod
    def of(workspace: Any, is_captured: bool, external: Mapping[str, Any]) -> Buffers:
        """The buffers of a wrapper.

        Args:
          workspace: lies on the device of the calls.

        Raises:
          SpecError: no workspace, or a buffer is missing where graphs are captured.
        """
        device = tensor(workspace, "float_workspace_buffer", 1).device
        if not is_captured:
            return Buffers(device, None, {})
        for name, buffer in external.items():
            tensor(buffer, name, 1, "i32")
        return Buffers(device, dict(external), {})

    def check(self, name: str, value: Any, *, whole: bool = False) -> None:
        """Refuses an index tensor that does not fit its buffer, before anything of a plan is kept.

        Args:
          name: of the buffer.
          whole: whether its length is part of a graph; else what is behind it is not read.

        Raises:
          SpecError: says both lengths.
        """
        if self.external is None:
            return
        capacity, count = self.external[name].shape[0], value.shape[0]
        if count > capacity or (whole and count != capacity):
            raise SpecError(
                f"{name} has {capacity} entries, plan was given {count}: the batch of a wrapper "
                "for graphs stays what it is"
            )

    def store(self, name: str, value: Any) -> None:
        """Puts an index tensor, which `check` has passed, where `run` finds it."""
        if self.external is None:
            self.current[name] = value.to(self.device)
            return
        buffer = self.external[name]
        buffer[: value.shape[0]].copy_(value)
        self.current[name] = buffer
