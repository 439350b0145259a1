"""`attn-configure`: the schedule of each operation chooses tiles and budgets for the target."""

import dataclasses
import inspect
from typing import Any, ClassVar

from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.targets.module import target_of
from attn_mlir.errors import SpecError
from attn_mlir.passes.check_scalars import check_regions
from attn_mlir.passes.infrastructure.registry import register
from attn_mlir.schedules.choice import configure, schedule_for
from attn_mlir.schedules.core.facts import operations
from attn_mlir.schedules.policy.registry import POLICIES


@dataclasses.dataclass(frozen=True)
class _Configure:
    """Chooses tiles and budgets of each operation by its policy, and stores them as `attn.config`.

    An entry that the operation already carries is kept, so a module can bring its own.

    Attributes:
      target: the chip; the module's, or sm_100a, where none is named.
    """

    name: ClassVar[str] = "attn-configure"
    target: str = ""

    def run(self, module: Any) -> None:
        """Adds a configuration to each operation whose schedule has one.

        Raises:
          TargetError: no schedule of an operation applies to the target.
          VerifyError: an operation without a kernel, or an impossible configuration.
          SpecError: an option that no schedule has.
        """
        attn_ops = [op for kind in operations() for op in ir.get_ops_of_type(module, kind)]
        target = target_of(module, self.target, keep=bool(attn_ops))
        requested = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "target" and getattr(self, field.name) != field.default
        }
        unused = dict(requested)
        chosen = [(op, schedule_for(op, target)) for op in attn_ops]
        for op, schedule in chosen:
            check_regions(op)
            knobs = {knob.name for knob in schedule.policy.options}
            configure(op, schedule, target, {n: v for n, v in requested.items() if n in knobs})
            unused = {n: v for n, v in unused.items() if n not in knobs}
        if chosen and unused:
            names = ", ".join(schedule.policy.name for _, schedule in chosen)
            options = ", ".join(name.replace("_", "-") for name in unused)
            raise SpecError(f"attn-configure: {names} on {target.chip} has no option {options}")


def _options() -> dict[str, tuple[Any, Any]]:
    """Types and defaults of the options of all schedules; an option is identified by its name."""
    options: dict[str, tuple[Any, Any]] = {}
    for policy in sorted(POLICIES, key=lambda policy: policy.name):
        for knob in policy.options:
            kind = bool if knob.is_flag else type(knob.default)
            option = (kind, kind())
            assert options.setdefault(knob.name, option) == option, knob.name
    return options


def _texts() -> str:
    """The lines of a docstring that describe the options of all schedules.

    If an option has several meanings, each text names its schedules.
    """
    meant: dict[str, dict[str, list[str]]] = {}  # option -> text -> schedules
    for policy in POLICIES:
        for knob in policy.options:
            meant.setdefault(knob.name, {}).setdefault(knob.means, []).append(policy.name)
    return "\n".join(f"  {name}: {_in_one_line(texts)}" for name, texts in meant.items())


def _in_one_line(texts: dict[str, list[str]]) -> str:
    """An option's text, or its texts with their schedules."""
    if len(texts) == 1:
        return next(iter(texts))
    return " ".join(f"[{', '.join(names)}] {text}" for text, names in texts.items())


Configure = register(
    dataclasses.make_dataclass(
        "Configure",
        [(name, kind, dataclasses.field(default=d)) for name, (kind, d) in _options().items()],
        bases=(_Configure,),
        namespace={"__doc__": f"{inspect.getdoc(_Configure)}\n{_texts()}"},
        frozen=True,
    )
)
"""The pass: its options are `target` and those of all schedules."""
