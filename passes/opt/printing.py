"""Printing of modules by `attn-opt`, at the end and between passes."""

import argparse
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attn_mlir.files import make_folder, write_file
from attn_mlir.passes.infrastructure.pipeline import Step

MAX_NAME = 80  # characters of a pass name that a file name can have


def print_module(module: Any, options: argparse.Namespace) -> str:
    """The text of a module in the form that the flags name, ended by one newline."""
    pretty = options.mlir_pretty_debuginfo
    text: str = module.operation.get_asm(
        large_elements_limit=options.mlir_elide_elementsattrs_if_larger,
        large_resource_limit=options.mlir_elide_resource_strings_if_larger,
        enable_debug_info=options.mlir_print_debuginfo or pretty,
        pretty_debug_info=pretty,
        print_generic_op_form=options.mlir_print_op_generic,
        use_local_scope=options.mlir_print_local_scope,
        use_name_loc_as_prefix=options.mlir_use_nameloc_as_prefix,
        assume_verified=options.mlir_print_assume_verified,
        skip_regions=options.mlir_print_skip_regions,
    )
    return text.rstrip("\n") + "\n"


def _names(text: str | None) -> frozenset[str]:
    return frozenset(name.strip() for name in (text or "").split(",") if name.strip())


@dataclass
class Dumps:
    """Prints the IR before and after passes, to stderr or to files of a directory."""

    options: argparse.Namespace
    count: int = 0
    before_names: frozenset[str] = frozenset()
    after_names: frozenset[str] = frozenset()
    last: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        self.before_names = _names(self.options.mlir_print_ir_before)
        self.after_names = _names(self.options.mlir_print_ir_after)

    @property
    def is_active(self) -> bool:
        """Whether anything is to be printed between passes."""
        options = self.options
        return bool(
            self.before_names
            or self.after_names
            or options.mlir_print_ir_before_all
            or options.mlir_print_ir_after_all
            or options.mlir_print_ir_after_change
            or options.mlir_print_ir_after_failure
            or options.mlir_print_ir_tree_dir
        )

    def before(self, step: Step, module: Any) -> None:
        """Called before each pass."""
        if self.options.mlir_print_ir_after_change:
            self.last = str(module)
        if self.options.mlir_print_ir_before_all or self.before_names & set(step.passes):
            self._write("Before", step.name, "", module)

    def after(self, step: Step, module: Any) -> None:
        """Called after each pass that did not fail."""
        options = self.options
        if options.mlir_print_ir_after_failure:
            return
        if options.mlir_print_ir_after_change and str(module) == self.last:
            return
        if self.after_names:
            is_selected = bool(self.after_names & set(step.passes))
        else:
            is_selected = bool(
                options.mlir_print_ir_after_all
                or options.mlir_print_ir_after_change
                or (options.mlir_print_ir_tree_dir and not self._only_before)
            )
        if is_selected:
            self._write("After", step.name, "", module)

    @property
    def _only_before(self) -> bool:
        return bool(self.before_names or self.options.mlir_print_ir_before_all)

    def failed(self, step: Step, module: Any) -> None:
        """Called after a pass that failed, with the module as it is then."""
        if not self._only_before or self.options.mlir_print_ir_after_failure:
            self._write("After", step.name, " Failed", module)

    def _write(self, when: str, name: str, suffix: str, module: Any) -> None:
        text = print_module(module, self.options)
        title = f"IR Dump {when} {name}{suffix}"
        folder = self.options.mlir_print_ir_tree_dir
        if folder is None:
            sys.stderr.write(f"// -----// {title} //----- //\n{text}\n")
            return
        words = f"{name}{suffix}" if when == "After" else f"{when}_{name}"
        plain = "".join(char if char.isalnum() or char in "-_" else "_" for char in words)
        file = f"{self.count:03}_{plain[:MAX_NAME]}.mlir"
        write_file(make_folder(Path(folder)) / file, text)
        self.count += 1
