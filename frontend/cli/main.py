"""The command line: `attn-mlir compile | run | emulate | ...`, see `attn-mlir --help`.

Exit codes: 0 for success, 1 for a diagnosed failure (one line on stderr) or wrong numbers, 2 for a
wrong command line.
"""

from __future__ import annotations

import argparse
import atexit
import errno
import gc
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attn_mlir.cli.doctor import add_doctor
from attn_mlir.cli.emulate import add_emulate
from attn_mlir.cli.outputs import check_new, check_svg
from attn_mlir.cli.plan_parallel import add_plan_parallel
from attn_mlir.cli.prebuild import add_prebuild
from attn_mlir.cli.timing import add_time
from attn_mlir.dialect.targets.limits import DEFAULT_TARGET
from attn_mlir.element_types import NARROW, WIDE
from attn_mlir.errors import AttnError, SpecError
from attn_mlir.files import write_file
from attn_mlir.masks.text import examples, parse_mask

if TYPE_CHECKING:
    from attn_mlir.runtime.file.bundle import Bundle
    from attn_mlir.runtime.file.fat_bundle import FatBundle

FULL = (errno.ENOSPC, errno.EDQUOT)  # of a disk under the output
HEAD_DIM_HELP = "a multiple of 8 up to 256, of 16 for 8-bit types (%(default)s)"


def main(arguments: Sequence[str] | None = None) -> int:
    """`attn-mlir`."""
    parser = argparse.ArgumentParser(
        prog="attn-mlir",
        description="Attention kernels for NVIDIA Blackwell and Hopper: compile, look at, run and "
        "check them.",
        epilog="Environment variables are listed by `attn-mlir info --env`.",
    )
    parser.add_argument("--version", action="store_true", help="print the version and leave")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    _add_compile(commands.add_parser("compile", help="compile attention to a bundle file"))
    add_prebuild(commands.add_parser("prebuild", help="collect the bundles a program asks for"))
    _add_run(commands.add_parser("run", help="run a bundle on random operands and check it"))
    add_emulate(commands.add_parser("emulate", help="run a PTX file on the emulator and check it"))
    _add_trace(commands.add_parser("trace", help="draw a trace of the emulator as a picture"))
    add_time(commands.add_parser("time", help="clocks of a kernel by a model of the chip"))
    add_plan_parallel(
        commands.add_parser("plan-parallel", help="which scheme for a sequence on several GPUs")
    )
    _add_info(commands.add_parser("info", help="print what a bundle file holds"))
    add_doctor(commands.add_parser("doctor", help="check the installation and the GPU's speed"))
    _add_demo(commands.add_parser("demo", help="compile, run, compare, and show what was built"))
    args, unknown = parser.parse_known_args(arguments)
    if unknown:
        chosen = commands.choices.get(args.command, parser)
        chosen.error(f"unrecognized arguments: {' '.join(unknown)}")
    if args.version:
        from attn_mlir._version import __version__

        print(f"attn-mlir {__version__}")
        return 0
    if args.command is None:
        parser.print_help(sys.stderr)
        return 2
    return _guarded(args)


def compile_main(arguments: Sequence[str] | None = None) -> int:
    """`attn-compile`: the same as `attn-mlir compile`."""
    parser = argparse.ArgumentParser(prog="attn-compile")
    _add_compile(parser)
    return _guarded(parser.parse_args(arguments))


def ends_with_the_process() -> None:
    """Leaves what is alive at the end to the operating system.

    Python would search it for cycles and take it apart, which is a tenth of a cold compile; nothing
    of what commands make has to be told that the process ends.
    """
    atexit.register(gc.freeze)


def _guarded(args: argparse.Namespace) -> int:
    ends_with_the_process()
    try:
        code = args.act(args)
        sys.stdout.flush()
        return code
    except AttnError as error:
        print(f"attn-mlir: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except MemoryError:
        print("attn-mlir: not enough memory for tensors of these sizes", file=sys.stderr)
        return 1
    except BrokenPipeError:
        return 1
    except OSError as error:
        if error.errno not in FULL:
            raise
        print(f"attn-mlir: cannot write the output: {error.strerror}", file=sys.stderr)
        _discard_output()
        return 1
    except KeyboardInterrupt:
        return 130


def _discard_output() -> None:
    """Sends what is still to be written to nowhere: Python would try again when it ends."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _natural(text: str) -> int:
    """An integer of at least 0."""
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


def _add_spec(parser: argparse.ArgumentParser, *, heads: int, kv_heads: int | None) -> None:
    """Declares the options for an `MhaSpec`."""
    parser.add_argument("--heads", type=int, default=heads, help="query heads (%(default)s)")
    fewer = "default: as many as heads" if kv_heads is None else "%(default)s"
    parser.add_argument("--kv-heads", type=int, default=kv_heads, help=f"KV heads ({fewer})")
    parser.add_argument("--head-dim", type=int, default=128, help=HEAD_DIM_HELP)
    parser.add_argument(
        "--dtype", default="bf16", help=f"{', '.join((*WIDE, *NARROW))} (%(default)s)"
    )
    parser.add_argument("--mask", default="causal", help=f"{examples()} (%(default)s)")


def _add_compile(parser: argparse.ArgumentParser) -> None:
    parser.description = "Compile attention, or take it from the cache, and write the bundle file."
    _add_spec(parser, heads=16, kv_heads=None)
    parser.add_argument(
        "--target",
        default=DEFAULT_TARGET,
        help="the chip, or several separated by commas, whose code then is in one file "
        "(%(default)s)",
    )
    parser.add_argument("-o", "--output", type=Path, help="bundle file (default: only the cache)")
    parser.add_argument("--fresh", action="store_true", help="compile, whatever the cache has")
    parser.add_argument("-q", "--quiet", action="store_true", help="no line per stage")
    parser.set_defaults(act=_compile)


def _compile(args: argparse.Namespace) -> int:
    from attn_mlir.compiling.compiler import compile, compile_afresh, for_targets
    from attn_mlir.compiling.spec import mha

    spec = mha(
        heads=args.heads,
        kv_heads=args.kv_heads,
        head_dim=args.head_dim,
        dtype=args.dtype,
        mask=parse_mask(args.mask),
    )

    def progress(stage: str) -> None:
        if not args.quiet:
            print(f"  {stage}", file=sys.stderr, flush=True)

    chosen = compile_afresh if args.fresh else compile

    def made(target: str) -> Bundle:
        return chosen(spec, target=target, progress=progress)

    targets = args.target.split(",")
    bundle = for_targets(targets if len(targets) > 1 else args.target, made)
    path = bundle.save(args.output) if args.output is not None else bundle.path
    if not args.quiet:
        print(path if path is not None else f"{len(bundle.data)} bytes, kept nowhere: pass -o")
    return 0


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Run an attention bundle on random operands and compare every element with float64."
    )
    parser.add_argument("bundle", type=Path, help="bundle file")
    parser.add_argument("--target", help="the code for this chip, of a file for several")
    parser.add_argument("--batch", type=int, default=1, help="(%(default)s)")
    parser.add_argument("--sq", type=int, default=256, help="queries (%(default)s)")
    parser.add_argument("--sk", type=int, default=None, help="keys (default: as many as queries)")
    parser.add_argument("--mask", default=None, help="for a bundle that does not say what it has")
    parser.add_argument("--scale", type=float, default=None, help="(default: 1 / sqrt(head dim))")
    parser.add_argument("--seed", type=_natural, default=0, help="of the operands (%(default)s)")
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="JSON",
        help="write what the emulator did when; open it in ui.perfetto.dev or draw it with `trace`",
    )
    _add_device(parser)
    parser.set_defaults(act=_run)


def _bundles(args: argparse.Namespace) -> Bundle | FatBundle:
    """The bundle of `target` in the file `bundle`, or all bundles."""
    from attn_mlir.runtime.file.fat_bundle import FatBundle, load_bundles

    loaded = load_bundles(args.bundle)
    if args.target is None:
        return loaded
    return (loaded if isinstance(loaded, FatBundle) else FatBundle.of([loaded])).for_target(
        args.target
    )


def _add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default=None, help="cuda, cuda:N or emulator (default: auto)")
    parser.add_argument(
        "--schedule", choices=("fair", "adversarial"), default="fair", help="of the emulator"
    )
    parser.add_argument(
        "--schedule-seed", type=_natural, default=0, help="of the adversarial schedule"
    )


def _run(args: argparse.Namespace) -> int:
    from attn_mlir.cli.experiment import device_of, run_attention

    if args.trace is not None:
        check_new("--trace", args.trace, args.bundle)
    trial = run_attention(
        _bundles(args),
        batch=args.batch,
        sq=args.sq,
        sk=args.sq if args.sk is None else args.sk,
        mask=None if args.mask is None else parse_mask(args.mask),
        scale=args.scale,
        seed=args.seed,
        device=device_of(args.device, args.schedule, args.schedule_seed, args.trace),
    )
    print(f"{trial.launch.device}, grid {trial.launch.grid}: {trial.comparison}")
    return 0 if trial.comparison.ok else 1


def _add_trace(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Draw one CTA of a trace, as `run --trace` writes it: who works and who waits, over time."
    )
    parser.add_argument("trace", type=Path, help="trace file (JSON)")
    parser.add_argument("-o", "--output", type=Path, required=True, help="SVG file to write")
    parser.add_argument("--cta", type=int, default=0, help="number of the CTA (%(default)s)")
    parser.add_argument("--begin", type=int, default=None, help="first step (default: all)")
    parser.add_argument("--end", type=int, default=None, help="last step (default: all)")
    parser.add_argument("--title", default=None, help="(default: the kernel's name)")
    parser.set_defaults(act=_trace)


def _trace(args: argparse.Namespace) -> int:
    from attn_mlir.cli.timeline import draw, read_trace

    check_svg("--output", args.output)
    picture = draw(
        read_trace(args.trace), cta=args.cta, begin=args.begin, end=args.end, title=args.title
    )
    print(write_file(args.output, picture))
    return 0


def _add_info(parser: argparse.ArgumentParser) -> None:
    parser.description = "Print what a bundle file holds: arguments, launch, resources, versions."
    parser.add_argument("bundle", type=Path, nargs="?", help="bundle file")
    parser.add_argument("--target", help="only the code for this chip, of a file for several")
    parser.add_argument("--ptx", action="store_true", help="print the PTX and nothing else")
    parser.add_argument("--sass", action="store_true", help="print the machine code as text")
    parser.add_argument("--json", action="store_true", help="print bundle.json")
    parser.add_argument(
        "--rings", action="store_true", help="print roles, rings and memory map alone"
    )
    parser.add_argument("--svg", type=Path, metavar="FILE", help="with --rings: draw them as well")
    parser.add_argument("--env", action="store_true", help="list the environment variables")
    parser.set_defaults(act=_info)


def _info(args: argparse.Namespace) -> int:
    from attn_mlir.cli import show

    if args.env:
        show.print_environment()
        return 0
    if args.bundle is None:
        print("attn-mlir info: name a bundle file, or pass --env", file=sys.stderr)
        return 2
    from attn_mlir.runtime.file.fat_bundle import bundles_of

    if args.svg is not None and not args.rings:
        print("attn-mlir info: --svg draws what --rings prints: pass both", file=sys.stderr)
        return 2
    if sum((args.ptx, args.sass, args.json, args.rings)) > 1:
        print("attn-mlir info: pass one of --ptx, --sass, --json and --rings", file=sys.stderr)
        return 2
    if args.svg is not None:
        check_svg("--svg", args.svg)
    loaded = _bundles(args)
    bundle, *more = bundles_of(loaded)
    if more and (args.ptx or args.sass or args.json or args.rings):
        targets = ", ".join(one.target for one in (bundle, *more))
        raise SpecError(f"{args.bundle} has code for {targets}: name one with --target")
    if args.ptx:
        print(bundle.ptx)
    elif args.sass:
        from attn_mlir.tools import disassemble

        print(disassemble(bundle.cubin))
    elif args.json:
        print(bundle.json_text())
    elif args.rings:
        show.print_rings(bundle)
        if args.svg is not None:
            from attn_mlir.cli.ring_picture import draw
            from attn_mlir.files import write_file

            write_file(args.svg, draw(bundle).encode())
    else:
        show.print_bundles(loaded)
    return 0


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        f"Compile attention for the GPU that there is, or for {DEFAULT_TARGET}, run it on the GPU "
        "or on the emulator, compare it with float64, and show what was built. Exits with 1 when "
        "the numbers are wrong."
    )
    _add_spec(parser, heads=2, kv_heads=1)
    parser.add_argument("--batch", type=int, default=1, help="(%(default)s)")
    parser.add_argument("--sq", type=int, default=512, help="queries (%(default)s)")
    parser.add_argument("--sk", type=int, default=None, help="keys (default: as many as queries)")
    parser.add_argument("--seed", type=_natural, default=0, help="of the operands (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="folder (%(default)s)")
    _add_device(parser)
    parser.set_defaults(act=_demo)


def _demo(args: argparse.Namespace) -> int:
    from attn_mlir.cli.demo import demo
    from attn_mlir.cli.experiment import device_of
    from attn_mlir.compiling.spec import mha

    spec = mha(
        heads=args.heads,
        kv_heads=args.kv_heads,
        head_dim=args.head_dim,
        dtype=args.dtype,
        mask=parse_mask(args.mask),
    )
    return demo(
        spec,
        batch=args.batch,
        sq=args.sq,
        sk=args.sq if args.sk is None else args.sk,
        seed=args.seed,
        out=args.out,
        device=device_of(args.device, args.schedule, args.schedule_seed),
    )
