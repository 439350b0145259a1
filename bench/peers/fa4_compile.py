"""Compiles one FlashAttention-4 forward kernel without a GPU; runs inside the peers' environment only.

A program, not a module of the benchmarks: `bench/peers/environment.py` makes the environment that it needs and starts it
as `python fa4_compile.py --head-dim 128 --causal --out DIR`. The tensors are fake (torch's FakeTensorMode), the number of
multiprocessors that FlashAttention-4's tile scheduler asks the driver for is that of a B200 or H200, and CuTe DSL writes
what it made into DIR: `NAME.ptx`, `NAME.cubin` and `NAME.json` (shapes, entry, seconds per stage); with `--record` also
`NAME.launch.json`, the launch with the bytes of every parameter (see `fa4_record.py`), which `bench/emulator.py
--recorded DIR/NAME` runs.
"""

import time

_START = time.perf_counter()

import argparse  # noqa: E402  (the clock starts before every import)
import json  # noqa: E402
import os  # noqa: E402
import re  # noqa: E402
import shutil  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
from pathlib import Path  # noqa: E402

SM_COUNTS = {
    "sm_100a": 148,
    "sm_90a": 132,
}  # multiprocessors of a B200 and an H200; schedulers read it


def fake_hardware(target: str) -> type:
    """A class that answers cutlass.utils.HardwareInfo's questions for a target, without a driver."""

    class FakeHardware:
        def __init__(self, device_id: int = 0) -> None:
            self.device_id = device_id

        def get_device_multiprocessor_count(self) -> int:
            return SM_COUNTS[target]

        def get_max_active_clusters(self, cluster_size: int = 1, **_: object) -> int:
            return SM_COUNTS[target] // cluster_size

    return FakeHardware


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--name", default="fa4", help="stem of the files written")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--kv-heads", type=int, default=16)
    parser.add_argument("--sq", type=int, default=512)
    parser.add_argument("--sk", type=int, default=512)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--value-dim", type=int, help="columns of values, where they are others")
    parser.add_argument("--latent", type=int, help="columns of a latent cache beside the head's")
    parser.add_argument("--topk", type=int, help="rows of the cache that a list names")
    parser.add_argument("--dtype", choices=("bf16", "f16"), default="bf16")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--no-lse", action="store_true", help="do not write the log-sum-exp")
    parser.add_argument("--pack-gqa", choices=("auto", "on", "off"), default="auto")
    parser.add_argument("--target", default="sm_100a")
    parser.add_argument("--record", action="store_true", help="also write the launch down")
    parser.add_argument("--out", type=Path, required=True, help="folder for the files")
    return parser.parse_args()


def set_environment(target: str, dump: Path) -> None:
    """The packages read these once, when they are imported."""
    os.environ.update(
        CUTE_DSL_ARCH=target,
        CUTE_DSL_KEEP="ptx,cubin",
        CUTE_DSL_DUMP_DIR=str(dump),
        CUTE_DSL_DISABLE_FILE_CACHING="1",
        FLASH_ATTENTION_ARCH=target,
        FLASH_ATTENTION_NUM_SMS=str(SM_COUNTS[target]),
        FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED="0",
    )


def compile_kernel(args: argparse.Namespace) -> tuple[object, dict[str, float]]:
    """Runs FlashAttention-4's own entry point on fake tensors; returns the function and seconds per stage."""
    import cutlass
    import cutlass.utils.hardware_info as hardware_info
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    hardware_info.HardwareInfo = cutlass.utils.HardwareInfo = fake_hardware(args.target)
    from flash_attn.cute import interface

    imported = time.perf_counter()
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[args.dtype]
    with FakeTensorMode():

        def tensor(length: int, heads: int, columns: int) -> torch.Tensor:
            return torch.empty(args.batch, length, heads, columns, dtype=dtype, device="cuda")

        kv_heads = 1 if args.latent else args.kv_heads
        values = args.latent or args.value_dim or args.head_dim
        options = {}
        if args.latent:
            options["qv"] = tensor(args.sq, args.heads, args.latent)
        if args.topk:
            shape = (args.batch, args.sq, args.topk)
            options["gather_kv_indices"] = torch.empty(shape, dtype=torch.int32, device="cuda")
        interface._flash_attn_fwd(
            tensor(args.sq, args.heads, args.head_dim),
            tensor(args.sk, kv_heads, args.head_dim),
            tensor(args.sk, kv_heads, values),
            causal=args.causal,
            return_lse=not args.no_lse,
            pack_gqa={"auto": None, "on": True, "off": False}[args.pack_gqa],
            **options,
        )
    done = time.perf_counter()
    (function,) = interface._flash_attn_fwd.compile_cache.cache.values()
    return function, {"import": imported - _START, "compile": done - imported}


def the_one(dump: Path, suffix: str) -> Path:
    """The single file of that kind that CuTe DSL left; which one would be a guess if there were more."""
    found = sorted(dump.rglob(f"*{suffix}"))
    if len(found) != 1:
        names = [path.name for path in found]
        sys.exit(f"expected one {suffix} file from CuTe DSL, got {names or 'none'}")
    return found[0]


def main() -> None:
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        dump = Path(folder)
        set_environment(args.target, dump)
        function, seconds = compile_kernel(args)
        ptx = the_one(dump, ".ptx")
        cubin = the_one(dump, ".cubin")
        text = ptx.read_text().rstrip("\0")
        (args.out / f"{args.name}.ptx").write_text(text)
        shutil.copyfile(cubin, args.out / f"{args.name}.cubin")
    entry = re.search(r"\.entry\s+(\w+)", text)
    if entry is None:
        sys.exit("CuTe DSL's PTX has no .entry")
    threads = re.search(r"\.(?:req|max)ntid\s+(\d+)", text)
    cluster = re.search(r"\.reqnctapercluster\s+([\d, ]+)", text)
    shapes = {key: value for key, value in vars(args).items() if key not in ("out", "record")}
    record = {
        **shapes,
        "entry": entry.group(1),
        "threads": int(threads.group(1)) if threads else None,
        "cluster": cluster.group(1).strip() if cluster else None,
        "ptx_lines": text.count("\n") + 1,
        "seconds": seconds,
    }
    if args.record:
        from fa4_record import record as record_launch

        launch = {"entry": entry.group(1), **record_launch(function, text, args)}
        (args.out / f"{args.name}.launch.json").write_text(json.dumps(launch, indent=1) + "\n")
    (args.out / f"{args.name}.json").write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record))


if __name__ == "__main__":
    main()
