"""From `attn.mla` to a `ws.kernel`: the kernels of attention over keys of two tensors.

Roles, rings and the order of products are those of `mha` and of `mha_registers`; only what fills the
slots of Q and K differs. A slot of Q is filled from q_nope and q_rope, a slot of K from k_nope and
k_rope, each with one barrier that counts the bytes of all its copies:

```text
q  [rows, nope + rope]    | q_nope | q_rope |     once for each query tile
k  [tile_n, nope + rope]  | k_nope | k_rope |     one product of depth nope + rope
v  [tile_n, v_head_dim]   | v |                   in the front of a slot of k, where they share a ring
```
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from attn_mlir.dialect import attn, ws
from attn_mlir.passes.infrastructure.diagnostics import op_error
from attn_mlir.passes.schedule.entries import CONFIG
from attn_mlir.passes.schedule.kernels import mha, mha_config, mha_registers
from attn_mlir.passes.schedule.parts.held import HeldStorage
from attn_mlir.passes.schedule.parts.latent_kernel import latent_kernel
from attn_mlir.passes.schedule.parts.operands import page_size_of
from attn_mlir.passes.schedule.parts.storage import Storage
from attn_mlir.passes.schedule.registry import register
from attn_mlir.passes.target.limits import Target
from attn_mlir.passes.target.tiling import PAGE_SIZES, key_tiles_for

ELEMENT_TYPES = ("bf16", "f16")
LINE_BYTES = 128  # of a tile's columns, which lie together; the parts of a slot begin with one
STEP_BYTES = 32  # depth of one product of the tensor core


@register
class MlaTensor:
    """Latent attention before absorption, with S and O in tensor memory."""

    name: ClassVar[str] = "mla"
    operation: ClassVar[type[Any]] = attn.MlaOp
    options: ClassVar[type[Any]] = mha_config.Options

    def lacks(self, target: Target) -> str:
        """Tensor memory, for which this kernel divides its roles."""
        return "" if target.accumulator == "tensor" else "products that accumulate in tensor memory"

    def takes(self, op: attn.MlaOp, target: Target) -> bool:
        """Any."""
        return True

    def configure(self, op: attn.MlaOp, target: Target, options: Mapping[str, Any]) -> None:
        """Stores the configuration of an attention of nope + rope columns as `attn.config`.

        Raises:
          VerifyError: an operation without a kernel, or a configuration that cannot be.
        """
        _refuse_unsupported(op)
        wishes, page_size = mha_config.Options(**options), page_size_of(op.k_rope)
        config = mha_config.chosen_config(
            op, target, wishes, queries=op.q_nope, page_size=page_size
        )
        op.attributes[CONFIG] = config.to_attr()

    def build(self, function: Any, op: attn.MlaOp, target: Target) -> ws.KernelOp:
        """Builds the kernel of a function of one such operation, which has `attn.config`.

        Raises:
          VerifyError: as `latent_kernel`.
        """
        kind = mha_config.MhaConfig
        with latent_kernel(function, op, kind) as (kernel, problem, source):
            mha.emit_roles(problem, kind.of(op), Storage(problem), source)
        return kernel


@register
class MlaRegisters:
    """Latent attention before absorption, with S, P and O in the registers of groups of threads."""

    name: ClassVar[str] = "mla-registers"
    operation: ClassVar[type[Any]] = attn.MlaOp
    options: ClassVar[type[Any]] = mha_registers.Options

    def lacks(self, target: Target) -> str:
        """Products that leave their sums in registers, for which this kernel divides its roles."""
        return "" if target.accumulator == "registers" else "products that accumulate in registers"

    def takes(self, op: attn.MlaOp, target: Target) -> bool:
        """Any."""
        return True

    def configure(self, op: attn.MlaOp, target: Target, options: Mapping[str, Any]) -> None:
        """As `MlaTensor.configure`."""
        _refuse_unsupported(op)
        wishes, page_size = mha_registers.Options(**options), page_size_of(op.k_rope)
        config = mha_registers.chosen_config(
            op, target, wishes, queries=op.q_nope, page_size=page_size
        )
        op.attributes[CONFIG] = config.to_attr()

    def build(self, function: Any, op: attn.MlaOp, target: Target) -> ws.KernelOp:
        """As `MlaTensor.build`."""
        kind = mha_registers.HeldConfig
        with latent_kernel(function, op, kind) as (kernel, problem, source):
            mha_registers.emit_roles(problem, kind.of(op), HeldStorage(problem), source)
        return kernel


def _refuse_unsupported(op: attn.MlaOp) -> None:
    """Raises VerifyError for a legal `attn.mla` that the kernel does not compute."""
    element = str(op.element_type)
    if element not in ELEMENT_TYPES:
        allowed = " and ".join(ELEMENT_TYPES)
        raise op_error(op, f"has no kernel for {element} elements: supported are {allowed}")
    bits = ws.element_bits(op.element_type)
    for name, count, unit in (
        ("nope", op.nope_dim, LINE_BYTES * 8 // bits),
        ("rope", op.rope_dim, STEP_BYTES * 8 // bits),
    ):
        if count % unit:
            raise op_error(
                op, f"has no kernel for {name} of {count}: supported are multiples of {unit}"
            )
    page_size = page_size_of(op.k_rope)
    if not key_tiles_for(page_size):
        raise op_error(op, f"has no kernel for pages of {page_size}: supported are {PAGE_SIZES}")
