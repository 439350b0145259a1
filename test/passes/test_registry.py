"""Schedules are found, chosen by the target's properties and built without a pass that knows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

import attn_mlir as am
from attn_mlir.dialect import attn, ws
from attn_mlir.dialect._mlir import ir, make_context
from attn_mlir.dialect.attn import build_module
from attn_mlir.dialect.attn.masks import CausalMask
from attn_mlir.dialect.attn.mha import name_schedule
from attn_mlir.dialect.targets.features import Feature
from attn_mlir.dialect.targets.limits import Target
from attn_mlir.errors import SpecError, TargetError, VerifyError
from attn_mlir.passes.infrastructure.pipeline import run_pipeline
from attn_mlir.passes.infrastructure.registry import find
from attn_mlir.schedules import registry
from attn_mlir.schedules.copy.kernel import schedule_tma_copy
from attn_mlir.schedules.core.entries import CONFIG, Entries
from attn_mlir.schedules.policy.tiling import HELD, STREAMED


@dataclass(frozen=True)
class Rows(Entries):
    """Configuration of the schedules below."""

    rows: int = 64


@dataclass(frozen=True)
class Options:
    """Wishes.

    Attributes:
      tile_n: means something else here than rows, but has the name and default of another's.
    """

    tile_n: int = 0


class Registers:
    """Stands for attention with sums in registers: some kernel, no attention."""

    name: ClassVar[str] = "mha-registers"
    operation: ClassVar[type[Any]] = attn.MhaOp
    options: ClassVar[type[Any]] = Options
    needs: ClassVar[frozenset[Feature]] = frozenset({Feature.WARPGROUP_PRODUCTS})

    def takes(self, op: attn.MhaOp, target: Target) -> bool:
        return op.head_dim <= 128

    def configure(self, op: attn.MhaOp, target: Target, options: Mapping[str, Any]) -> None:
        rows = options.get("tile_n", target.rows_per_product)
        op.attributes[CONFIG] = Rows(rows=rows).to_attr()

    def build(self, function: Any, op: attn.MhaOp, target: Target) -> ws.KernelOp:
        assert Rows.of(op).rows in (64, 80)
        return schedule_tma_copy(function.sym_name.value)


class Rival(Registers):
    """Takes the same operations, and those that the other leaves."""

    name: ClassVar[str] = "rival"

    def takes(self, op: attn.MhaOp, target: Target) -> bool:
        return True


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The table with one more schedule, as if a module of `kernels/` had it, and none of its own for sm_90a."""
    find("attn-configure")  # its options are those of the real schedules
    table = dict(registry._schedules)  # pyright: ignore[reportPrivateUsage]
    for name in (STREAMED, HELD):
        del table[name]
    monkeypatch.setattr(registry, "_schedules", table)
    registry.register(Registers)
    return table


def module(head_dim: int = 64) -> ir.Module:
    request = am.mha(heads=2, kv_heads=1, head_dim=head_dim, mask=CausalMask())
    return build_module(make_context(), request)


def roles(kernels: ir.Module) -> list[str]:
    (kernel,) = ir.get_ops_of_type(kernels, ws.KernelOp)
    return [role.label for role in kernel.roles()]


def test_the_target_chooses_between_schedules() -> None:
    """The same request, one schedule each; nobody asks for a chip's name."""
    found: dict[str, list[str]] = {}
    for chip in ("sm_90a", "sm_100a"):
        kernels = module()
        run_pipeline(kernels, f"attn-configure{{target={chip}}},convert-attn-to-ws,ws-plan-memory")
        found[chip] = roles(kernels)
    assert found["sm_90a"] == ["load", "store"]
    assert found["sm_100a"] == ["softmax", "correction", "mma", "epilogue", "load"]


def test_a_configuration_is_its_schedule_s() -> None:
    kernels = module()
    run_pipeline(kernels, "attn-configure{target=sm_90a tile-n=80}")
    (op,) = ir.get_ops_of_type(kernels, attn.MhaOp)
    assert Rows.of(op) == Rows(rows=80)
    with pytest.raises(
        VerifyError, match="expects rows to be an integer|unknown entry 'kv_stages'"
    ):
        run_pipeline(module_with(kernels, "{kv_stages = 3 : i32}"), "convert-attn-to-ws")
    with pytest.raises(SpecError, match="mha-registers on sm_90a has no option kv-stages"):
        run_pipeline(module(), "attn-configure{target=sm_90a kv-stages=3}")


def module_with(kernels: ir.Module, config: str) -> ir.Module:
    """The module with another configuration."""
    (op,) = ir.get_ops_of_type(kernels, attn.MhaOp)
    with kernels.context:
        op.attributes[CONFIG] = ir.Attribute.parse(config)
    return kernels


def test_one_schedule_takes_an_operation(known: dict[str, Any]) -> None:
    with pytest.raises(VerifyError, match="'attn.mha' op has no schedule on sm_90a: mha-registers"):
        run_pipeline(module(192), "attn-configure{target=sm_90a}")
    registry.register(Rival)
    run_pipeline(module(192), "attn-configure{target=sm_90a},convert-attn-to-ws")
    with pytest.raises(VerifyError, match="has several schedules on sm_90a: mha-registers, rival"):
        run_pipeline(module(), "attn-configure{target=sm_90a}")
    known.clear()
    registry.register(Registers)
    with pytest.raises(TargetError, match="to sm_100a: mha-registers needs asynchronous products"):
        run_pipeline(module(), "attn-configure{target=sm_100a}")


def test_a_name_stands_for_one_schedule() -> None:
    class Other(Registers):
        """Another one by the same name."""

    with pytest.raises(AssertionError, match="two schedules are named mha-registers"):
        registry.register(Other)


def named(schedule: str) -> ir.Module:
    kernels = module()
    (op,) = ir.get_ops_of_type(kernels, attn.MhaOp)
    with kernels.context:
        name_schedule(op, schedule)
    return kernels


def test_an_operation_may_name_its_schedule() -> None:
    registry.register(Rival)
    kernels = named("rival")
    run_pipeline(kernels, "attn-configure{target=sm_90a},convert-attn-to-ws,ws-plan-memory")
    assert roles(kernels) == ["load", "store"]
    known = "mha, mha-registers, mha-swapped, rival"
    with pytest.raises(VerifyError, match=f"expects attn.schedule of {known}, got nobody"):
        run_pipeline(named("nobody"), "attn-configure{target=sm_90a}")
    with pytest.raises(TargetError, match="applies to sm_100a: rival needs asynchronous product"):
        run_pipeline(named("rival"), "attn-configure{target=sm_100a}")


def test_a_kernel_without_an_operation_is_found_by_its_name() -> None:
    assert registry.kernel_named("tma_copy") is schedule_tma_copy
    with pytest.raises(SpecError, match="no kernel is named mha: known are tma_copy"):
        registry.kernel_named("mha")
