"""Schedules are found, chosen by the target's properties and built without a pass that knows them."""

from __future__ import annotations

import subprocess
import sys
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
from attn_mlir.dialect.targets.limits import Target, target_named
from attn_mlir.errors import SpecError, TargetError, VerifyError
from attn_mlir.passes.infrastructure.pipeline import run_pipeline
from attn_mlir.schedules import registry
from attn_mlir.schedules.attention.streaming.policy import STREAMING
from attn_mlir.schedules.attention.warpgroups.policy import WARPGROUPS
from attn_mlir.schedules.choice import schedule_for
from attn_mlir.schedules.copy.kernel import schedule_tma_copy
from attn_mlir.schedules.core.entries import CONFIG, Entries
from attn_mlir.schedules.policy import registry as policy_registry
from attn_mlir.schedules.policy.base import Call, Claims, Policy
from attn_mlir.schedules.policy.facts import Facts
from attn_mlir.schedules.policy.knobs import Domain, Knob, Knobs, multiple_of
from attn_mlir.schedules.policy.registry import POLICIES


@dataclass(frozen=True)
class RowState(Entries):
    """Configuration of the schedules below."""

    tile_n: int = 64


class RegistersPolicy(Policy):
    """Stands for attention with sums in registers."""

    name: ClassVar[str] = "mha-registers"
    operation: ClassVar[str] = "mha"
    needs: ClassVar[frozenset[Feature]] = frozenset({Feature.WARPGROUP_PRODUCTS})
    claims: ClassVar[Claims] = Claims(most=(128, 128))
    knobs: ClassVar[tuple[Knob, ...]] = (Knob("tile_n", 64, "rows.", is_option=True),)

    def takes(self, facts: Facts, call: Call) -> bool:
        return True

    def domains(self, facts: Facts, target: Target, knobs: Knobs) -> Mapping[str, Domain]:
        return {"tile_n": multiple_of(16)}


class RivalPolicy(RegistersPolicy):
    """Takes what the other leaves."""

    name: ClassVar[str] = "rival"
    claims: ClassVar[Claims] = Claims()


class Registers:
    """Some kernel, no attention."""

    policy: ClassVar[Policy] = RegistersPolicy()

    def build(self, function: Any, op: attn.MhaOp, target: Target) -> ws.KernelOp:
        assert RowState.of(op).tile_n in (64, 80)
        return schedule_tma_copy(function.sym_name.value)


class Rival(Registers):
    """The same kernel."""

    policy: ClassVar[Policy] = RivalPolicy()


OWN = [registry.schedule_of(policy) for policy in POLICIES]
"""The schedules of this project, before a test adds one."""


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The table with one more schedule, as if a module of `kernels/` had it, and none of its own for sm_90a."""
    table = dict(registry._schedules)  # pyright: ignore[reportPrivateUsage]
    policies = [x for x in POLICIES if x not in (STREAMING, WARPGROUPS)]
    for policy in (STREAMING, WARPGROUPS):
        del table[policy.name]
    monkeypatch.setattr(registry, "_schedules", table)
    monkeypatch.setattr(registry, "POLICIES", policies)
    monkeypatch.setattr(policy_registry, "POLICIES", policies)
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
    assert RowState.of(op) == RowState(tile_n=80)
    with pytest.raises(VerifyError, match="unknown entry 'kv_stages' in 'attn.config'"):
        run_pipeline(module_with(kernels, "{kv_stages = 3 : i32}"), "convert-attn-to-ws")
    with pytest.raises(VerifyError, match="expects tile_n to be a multiple of 16, got 72"):
        run_pipeline(module(), "attn-configure{target=sm_90a tile-n=72}")
    with pytest.raises(SpecError, match="mha-registers on sm_90a has no option kv-stages"):
        run_pipeline(module(), "attn-configure{target=sm_90a kv-stages=3}")


def module_with(kernels: ir.Module, config: str) -> ir.Module:
    """The module with another configuration."""
    (op,) = ir.get_ops_of_type(kernels, attn.MhaOp)
    with kernels.context:
        op.attributes[CONFIG] = ir.Attribute.parse(config)
    return kernels


def test_the_first_schedule_that_takes_an_operation_gets_it(known: dict[str, Any]) -> None:
    reason = "mha-registers: head_dim must be a multiple of 8 up to 128, got 192"
    with pytest.raises(VerifyError, match=f"^'attn.mha' op has no kernel: {reason}$"):
        run_pipeline(module(192), "attn-configure{target=sm_90a}")
    registry.register(Rival)
    for head_dim, name in ((192, "rival"), (64, "mha-registers")):
        kernels = module(head_dim)
        (op,) = ir.get_ops_of_type(kernels, attn.MhaOp)
        assert schedule_for(op, target_named("sm_90a")).policy.name == name
        run_pipeline(kernels, "attn-configure{target=sm_90a},convert-attn-to-ws")


def test_a_target_without_a_feature_has_no_schedule(
    known: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_registry, "POLICIES", [Registers.policy])
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
    known = "mha-swapped, mha, mha-registers, rival"
    with pytest.raises(VerifyError, match=f"expects attn.schedule of {known}, got nobody"):
        run_pipeline(named("nobody"), "attn-configure{target=sm_90a}")
    with pytest.raises(TargetError, match="applies to sm_100a: rival needs asynchronous product"):
        run_pipeline(named("rival"), "attn-configure{target=sm_100a}")


def test_only_the_kernel_that_is_built_is_imported() -> None:
    program = """
import sys
import attn_mlir as am
from attn_mlir.dialect._mlir import make_context
from attn_mlir.dialect.attn import build_module
from attn_mlir.passes.infrastructure.pipeline import run_pipeline
module = build_module(make_context(), am.mha(heads=2, head_dim=64))
run_pipeline(module, "attn-configure{target=sm_90a},convert-attn-to-ws")
print(*sorted(name for name in sys.modules if name.rpartition(".")[2].startswith("kernel")))
"""
    command = [sys.executable, "-c", program]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    ours = [name.removeprefix("attn_mlir.schedules.") for name in printed.split()]
    assert ours == ["attention.warpgroups.kernel", "emit.kernels", "kernel"]


def test_a_kernel_without_an_operation_is_found_by_its_name() -> None:
    assert registry.kernel_named("tma_copy") is schedule_tma_copy
    with pytest.raises(SpecError, match="no kernel is named mha: known are tma_copy"):
        registry.kernel_named("mha")
