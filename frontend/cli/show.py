"""Bundles and reports as tables in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table

from attn_mlir import env
from attn_mlir.compiling.bundled import request_lines
from attn_mlir.expr import show
from attn_mlir.runtime.file.bundle import Bundle
from attn_mlir.runtime.file.fat_bundle import FatBundle, bundles_of

UNWRAPPED = 1 << 14  # columns; more than any line of ours


def output() -> Console:
    """Standard output; where that is no terminal, no line is wrapped."""
    return Console(width=None if sys.stdout.isatty() else UNWRAPPED)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """A plain table; numbers are right-aligned."""
    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for index, column in enumerate(columns):
        numeric = all(isinstance(row[index], int | float) for row in rows) and bool(rows)
        made.add_column(escape(column), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        made.add_row(*(_cell(value) for value in row))
    return made


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return "\\[" + ", ".join(_cell(item) for item in cast("list[object]", value)) + "]"
    return escape(printable(value))


def printable(value: object) -> str:
    """A value of a file as text for a terminal, with escapes for characters that it obeys."""
    text = str(value)
    return text if text.isprintable() else ascii(text)[1:-1]


def records(value: object) -> list[Mapping[str, Any]]:
    """The objects of a report's list; anything else counts as empty."""
    if not isinstance(value, list):
        return []
    return [
        cast("Mapping[str, Any]", item)
        for item in cast("list[object]", value)
        if isinstance(item, dict)
    ]


def record_table(title: str, items: Sequence[Mapping[str, Any]]) -> Table:
    """A table whose columns are the fields, in order of first appearance."""
    columns = list(dict.fromkeys(name for item in items for name in item))
    return table(title, columns, [[item.get(name) for name in columns] for item in items])


def _number(value: object) -> float:
    """A number of a report; anything else counts as 0."""
    return float(value) if isinstance(value, int | float) and abs(value) < 1e9 else 0.0


def stage_table(bundle: Bundle) -> Table:
    """The time and the result of each stage of the compilation."""
    stages = records(bundle.report.get("stages"))
    seconds = [_number(stage.get("seconds")) for stage in stages]
    rows: list[list[object]] = [
        [stage.get("name"), f"{took * 1e3:.1f} ms", stage.get("bytes")]
        for stage, took in zip(stages, seconds, strict=True)
    ]
    total = sum(seconds)
    made = table("stages", ["stage", "time", "bytes"], rows)
    made.columns[1].justify = made.columns[2].justify = "right"
    made.add_row("total", f"{total * 1e3:.1f} ms", "", style="bold")
    return made


def resource_lines(bundle: Bundle) -> list[str]:
    """Registers, spills and shared memory in words."""
    report = bundle.report
    shared = f"shared memory {bundle.manifest.smem_bytes} B per CTA"
    if bundle.machine_code is None:
        return [f"no machine code, for the emulator alone; {shared}"]
    return [
        f"registers per thread {_cell(report.get('registers', '?'))}, "
        f"spilled {_cell(report.get('spill_bytes', '?'))} B, {shared}"
    ]


def memory_table(bundle: Bundle) -> RenderableType:
    """The map of shared and tensor memory, if the report has one."""
    items = records(bundle.report.get("memory_map"))
    return record_table("memory map", items) if items else "no memory map in this bundle"


def barrier_table(bundle: Bundle) -> RenderableType:
    """The barriers of each ring, a full and an empty one for each slot, if the report has them."""
    items = records(bundle.report.get("barriers"))
    return record_table("barriers", items) if items else "no barriers in this bundle"


def role_table(bundle: Bundle) -> RenderableType:
    """The roles of the kernel, if the report has them."""
    items = records(bundle.report.get("roles"))
    return record_table("roles", items) if items else "no roles in this bundle"


def ring_table(bundle: Bundle) -> RenderableType:
    """The rings of the kernel: what a slot holds, and which roles fill and read it."""
    items = records(bundle.report.get("rings"))
    if not items:
        return "no rings in this bundle"
    columns = ("ring", "holds", "space", "stages", "instances", "producers", "consumers", "inside")
    rows = [[_plain(item.get(name)) for name in columns] for item in items]
    return table("rings", columns, rows)


def _plain(value: object) -> object:
    """A list of names as words."""
    return ", ".join(map(str, cast("list[object]", value))) if isinstance(value, list) else value


def print_rings(bundle: Bundle, console: Console | None = None) -> None:
    """Prints the roles of a kernel, the rings between them, and where these lie."""
    console = console or output()
    for section in (role_table(bundle), ring_table(bundle), memory_table(bundle)):
        console.print(section, highlight=False)


def print_bundle(bundle: Bundle, console: Console | None = None) -> None:
    """Prints what a bundle contains and how to call it."""
    manifest = bundle.manifest
    console = console or output()
    grid = ", ".join(show(expr) for expr in manifest.grid)
    code = f"cubin {len(bundle.machine_code)} B" if bundle.machine_code is not None else "no cubin"
    console.print(
        f"[bold]{manifest.entry}[/] for {manifest.target}, schema {manifest.schema}, "
        f"{code}, PTX {len(bundle.ptx)} B",
        highlight=False,
    )
    console.print(
        f"grid ({grid}), block {manifest.block}, cluster {manifest.cluster}", highlight=False
    )
    for line in request_lines(manifest.request):
        console.print(escape(line), highlight=False)
    arguments: list[list[object]] = [
        [
            tensor.name,
            tensor.role,
            tensor.dtype,
            list(tensor.shape),
            f"axis {tensor.unit_stride_axis} dense, {tensor.alignment_bytes}-byte aligned",
        ]
        for tensor in manifest.tensors
    ]
    for scalar in manifest.scalars:
        default = "required" if scalar.default is None else f"default {scalar.default:g}"
        bound = "" if scalar.min_exclusive is None else f", > {scalar.min_exclusive:g}"
        arguments.append([scalar.name, "scalar", scalar.dtype, "", f"{default}{bound}"])
    sections: list[RenderableType] = [
        "",
        table("arguments", ["name", "role", "dtype", "shape", "layout"], arguments),
        "",
        *resource_lines(bundle),
        "",
        role_table(bundle),
        "",
        memory_table(bundle),
        "",
        barrier_table(bundle),
    ]
    if records(bundle.report.get("stages")):
        sections += ["", stage_table(bundle)]
    sections += ["", table("versions", ["package", "version"], list(manifest.versions.items()))]
    if manifest.sha256 is not None:
        sections += ["", f"sha256 {manifest.sha256}"]
    console.print(Group(*sections), highlight=False)


def print_bundles(loaded: Bundle | FatBundle, console: Console | None = None) -> None:
    """Prints a bundle, or what of a fat bundle is for which target,
    and then each of its bundles.
    """
    console = console or output()
    bundles = bundles_of(loaded)
    if isinstance(loaded, FatBundle):
        rows = [
            [bundle.target, f"{len(bundle.data)} B", *resource_lines(bundle)] for bundle in bundles
        ]
        title = f"{loaded.bundles[0].entry}: code for {len(bundles)} targets"
        console.print(table(title, ["target", "bundle", "resources"], rows), highlight=False)
    for bundle in bundles:
        if isinstance(loaded, FatBundle):
            console.print()
        print_bundle(bundle, console)


def print_environment(console: Console | None = None) -> None:
    """Prints the environment variables with their meaning, allowed values and current value."""
    settings = env.settings()
    console = console or output()
    for variable in env.VARIABLES:
        value: object = getattr(settings, variable.name.removeprefix("ATTN_MLIR_").lower())
        for line in (
            f"{variable.name} = {env.text_of(value)}",
            f"    {variable.help}",
            f"    allowed: {variable.allowed}",
        ):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
