"""`attn-configure`: the schedule of each operation chooses tiles and budgets for the target."""

import dataclasses
import inspect
import typing
from typing import Any, ClassVar

from attn_mlir.dialect._mlir import ir
from attn_mlir.dialect.targets.module import target_of
from attn_mlir.errors import SpecError
from attn_mlir.passes.check_scalars import check_regions
from attn_mlir.passes.infrastructure.registry import register
from attn_mlir.passes.opt.listing import option_texts
from attn_mlir.schedules.registry import operations, schedule_for, schedules


@dataclasses.dataclass(frozen=True)
class _Configure:
    """Chooses tiles and budgets of each operation by its schedule, and stores them as `attn.config`.

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
        found = [op for kind in operations() for op in ir.get_ops_of_type(module, kind)]
        target = target_of(module, self.target, keep=bool(found))
        given = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "target" and getattr(self, field.name) != field.default
        }
        unused = dict(given)
        chosen = [(op, schedule_for(op, target)) for op in found]
        for op, schedule in chosen:
            check_regions(op)
            known = {field.name for field in dataclasses.fields(schedule.options)}
            schedule.configure(op, target, {n: v for n, v in given.items() if n in known})
            unused = {n: v for n, v in unused.items() if n not in known}
        if chosen and unused:
            names = ", ".join(schedule.name for _, schedule in chosen)
            options = ", ".join(name.replace("_", "-") for name in unused)
            raise SpecError(f"attn-configure: {names} on {target.chip} has no option {options}")


def _options() -> dict[str, tuple[Any, Any]]:
    """Types and defaults of the options of all schedules; options of one name are the same option."""
    found: dict[str, tuple[Any, Any]] = {}
    for schedule in schedules():
        kinds = typing.get_type_hints(schedule.options)
        for field in dataclasses.fields(schedule.options):
            option = (kinds[field.name], field.default)
            assert found.setdefault(field.name, option) == option, field.name
    return found


def _texts() -> str:
    """The lines of a docstring that describe the options of all schedules.

    Where schedules mean different things by an option, each text names its schedules.
    """
    meant: dict[str, dict[str, list[str]]] = {}  # option -> text -> schedules
    for schedule in schedules():
        for name, text in option_texts(schedule.options).items():
            meant.setdefault(name, {}).setdefault(text, []).append(schedule.name)
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
