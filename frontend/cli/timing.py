"""`attn-mlir time`: clocks of a kernel by the model of time, without a GPU."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attn_mlir.cli.outputs import check_new, check_svg
from attn_mlir.errors import LaunchError, SpecError
from attn_mlir.files import read_file, reason, write_file

if TYPE_CHECKING:
    from attn_mlir.runtime.timing import Recorder

_ARRAY = re.compile(r"^(u8|s32|u32|u64|f16|bf16|f32)\[(\d+)\]$")
_BYTES = {"u8": 1, "s32": 4, "u32": 4, "u64": 8, "f16": 2, "bf16": 2, "f32": 4}
_ENTRY = re.compile(r"\.entry\s+([\w$]+)")
_TARGET = re.compile(r"^\s*\.target\s+(\w+)", re.MULTILINE)


@dataclass(frozen=True)
class Timed:
    """A recorded kernel and what is known of its launch."""

    ptx: str
    entry: str
    target: str
    recorder: Recorder
    threads: int
    smem_bytes: int
    clusters: int
    warps: dict[int, str]
    barriers: dict[int, str]


def add_time(parser: argparse.ArgumentParser) -> None:
    """Declares the options of `attn-mlir time`."""
    parser.description = (
        "Replay a kernel on a model of the chip: clocks of a turn of its main loop and of a CTA, "
        "what each role waits for, and which unit is the limit (docs/timing.md)."
    )
    parser.add_argument("kernel", type=Path, help="bundle file, or PTX text (.ptx)")
    parser.add_argument("--target", help="the code for this chip, of a file for several")
    parser.add_argument("--batch", type=int, default=1, help="of a bundle (%(default)s)")
    parser.add_argument("--sq", type=int, default=384, help="queries, of a bundle (%(default)s)")
    parser.add_argument("--sk", type=int, default=1280, help="keys, of a bundle (%(default)s)")
    parser.add_argument("--mask", default=None, help="for a bundle that does not say what it has")
    parser.add_argument("--entry", help="of PTX with several")
    for name, default in (("grid", "1"), ("block", "128"), ("cluster", "1")):
        parser.add_argument(f"--{name}", default=default, help="X[,Y[,Z]] of PTX (%(default)s)")
    parser.add_argument("--smem", type=int, default=0, help="dynamic shared bytes, of PTX")
    parser.add_argument(
        "--param", action="append", default=[], metavar="VALUE",
        help="of PTX, in order: a number, or TYPE[COUNT] for the address of zeros, such as "
        "bf16[4096]",
    )  # fmt: skip
    parser.add_argument("--limit", type=int, default=200_000, help="PTX instructions to record")
    parser.add_argument(
        "--set", action="extend", nargs="+", default=[], metavar="NAME=VALUE", help="constants"
    )
    parser.add_argument("--trace", type=Path, metavar="JSON", help="write a timeline for Perfetto")
    parser.add_argument("--svg", type=Path, help="draw the timeline of CTA 0")
    parser.set_defaults(act=time_kernel)


def time_kernel(args: argparse.Namespace) -> int:
    """`attn-mlir time`."""
    from attn_mlir.runtime.timing import (
        Replay,
        assemble_with_lines,
        barrier_names,
        chip_for,
        chrome_trace,
        compose,
        join,
        machine_code,
        report,
        resident_ctas,
        table,
        write_trace,
    )

    if args.svg is not None:
        check_svg("--svg", args.svg)
    if args.trace is not None:
        check_new("--trace", args.trace, args.kernel)
    if args.limit < 1:
        raise SpecError(f"--limit must be at least 1, got {args.limit}")
    overrides = _overrides(args.set)
    is_ptx = args.kernel.suffix == ".ptx"
    timed = _of_ptx(args) if is_ptx else _of_bundle(args)
    chip = chip_for(timed.target)
    if not timed.recorder.clusters:
        raise SpecError("the launch has no CTAs: there is nothing to time")
    assembled = assemble_with_lines(timed.ptx, timed.target)
    functions = machine_code(assembled.cubin)
    joined = join(functions[timed.entry], timed.recorder.program)
    resident = resident_ctas(
        chip, threads=timed.threads, smem_bytes=timed.smem_bytes, registers=assembled.registers
    )
    record = timed.recorder.clusters[0]
    names = barrier_names(timed.barriers, timed.recorder.dynamic_base)
    together = min(resident, timed.clusters) if len(record.ctas) == 1 else 1
    replays = {
        corner: Replay(
            joined,
            record,
            chip.at(corner, overrides),
            names=names,
            resident=together,
            keep=corner == "nominal",
        ).run()
        for corner in ("low", "nominal", "high")
    }
    for what, count in replays["nominal"].unmatched.items():
        raise LaunchError(
            f"the machine code does not follow the PTX: {count} x {what} was never issued"
        )
    roles = timed.warps if together == 1 else {}
    reports = {corner: report(one, roles) for corner, one in replays.items()}
    title = f"{timed.entry}, {timed.target}, model of the {chip.name}"
    print(table(reports, title=title, clock_mhz=chip.clock_mhz))
    main = reports["nominal"]
    if joined.guesses:
        lines = ", ".join(str(one.line) for one in joined.guesses)
        print(f"\nbranches that are assumed not to be taken, at PTX lines {lines}")
    if main.is_complete:
        values = chip.at("nominal", overrides)
        durations = [main.clocks] * -(-timed.clusters // together)
        whole = compose(
            durations, chip=chip, values=values, cluster_ctas=len(record.ctas), resident=1
        )
        print(
            f"\nthe launch, if all {timed.clusters} clusters take as long: {whole.clocks:.0f} "
            f"clocks, {whole.waves} waves, {together} CTAs on a multiprocessor"
        )
    trace = chrome_trace(
        replays["nominal"], kernel=timed.entry, target=timed.target, names=timed.warps
    )
    if args.trace is not None:
        write_trace(trace, args.trace)
        print(args.trace)
    if args.svg is not None:
        from attn_mlir.cli.timeline import draw, trace_of

        print(write_file(args.svg, draw(trace_of(trace, args.svg))))
    return 0


def _overrides(texts: list[str]) -> dict[str, float]:
    overrides: dict[str, float] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            overrides[name] = float(value)
        except ValueError:
            equals = ""
        if not equals:
            raise SpecError(f"--set takes NAME=VALUE with a number, got {text!r}")
    return overrides


def _of_bundle(args: argparse.Namespace) -> Timed:
    """Records the first cluster of a bundle's launch on random operands."""
    from attn_mlir.cli.experiment import run_attention
    from attn_mlir.masks.text import parse_mask
    from attn_mlir.runtime.devices.emulator import EmulatorDevice, names_of
    from attn_mlir.runtime.file.fat_bundle import FatBundle, bundles_of, load_bundles
    from attn_mlir.runtime.timing import CHIPS, Recorder, chip_for

    loaded = load_bundles(args.kernel)
    if args.target is not None:
        fat = loaded if isinstance(loaded, FatBundle) else FatBundle.of([loaded])
        loaded = fat.for_target(args.target)
    bundles = bundles_of(loaded)
    bundle = next((one for one in bundles if one.target in CHIPS), bundles[0])
    recorder = Recorder(limit=args.limit)
    device = EmulatorDevice(recording=recorder, multiprocessors=chip_for(bundle.target).sms)
    try:
        run_attention(
            bundle, batch=args.batch, sq=args.sq, sk=args.sk, seed=0, device=device,
            mask=None if args.mask is None else parse_mask(args.mask), scale=None,
        )  # fmt: skip
    except LaunchError:
        if not recorder.reached_limit:
            raise
    names = names_of(bundle.report)
    block = bundle.manifest.block
    return Timed(
        bundle.ptx, bundle.entry, bundle.target, recorder, block[0] * block[1] * block[2],
        bundle.manifest.smem_bytes, recorder.count, dict(names.warps), dict(names.barriers),
    )  # fmt: skip


def _of_ptx(args: argparse.Namespace) -> Timed:
    """Records the first cluster of a launch of PTX."""
    import numpy as np

    from attn_mlir.runtime.emulator import Emulator
    from attn_mlir.runtime.timing import Recorder, chip_for

    try:
        ptx = read_file(args.kernel).decode()
    except (OSError, UnicodeDecodeError) as error:
        text = reason(error) if isinstance(error, OSError) else str(error)
        raise SpecError(f"cannot read {args.kernel}: {text}") from error
    entries, target = _ENTRY.findall(ptx), _TARGET.search(ptx)
    entry = args.entry or (entries[0] if len(entries) == 1 else None)
    if entry is None or target is None:
        names = ", ".join(entries) or "none"
        raise SpecError(f"{args.kernel} has entries {names}: name one with --entry")
    name = target[1]
    chip_for(name)
    recorder = Recorder(limit=args.limit)
    emulator = Emulator(target=name, recording=recorder)
    params: list[Any] = []
    for text in args.param:
        array = _ARRAY.match(text)
        try:
            if array:
                params.append(emulator.map(np.zeros(int(array[2]) * _BYTES[array[1]], np.uint8)))
                continue
            params.append(float(text) if "." in text else int(text, 0))
        except ValueError:
            raise SpecError(f"--param takes a number or TYPE[COUNT], got {text!r}") from None
    grid, block, cluster = (
        _extent(getattr(args, one), one) for one in ("grid", "block", "cluster")
    )
    try:
        emulator.launch(
            ptx, entry, grid=grid, block=block, cluster=cluster, shared_bytes=args.smem,
            params=params,
        )  # fmt: skip
    except LaunchError:
        if not recorder.reached_limit:
            raise
    threads = block[0] * block[1] * block[2]
    return Timed(ptx, entry, name, recorder, threads, args.smem, recorder.count, {}, {})


def _extent(text: str, name: str) -> tuple[int, int, int]:
    try:
        x, *others = map(int, text.split(","))
        y, z = others + [1] * (2 - len(others))
    except ValueError:
        raise SpecError(f"--{name} takes X[,Y[,Z]], got {text!r}") from None
    return x, y, z
