"""The cost of a call on the host, beside torch's attention; the kernels are small, so that the GPU does not decide.

    python bench/launch.py --write DIR [--target sm_90a]        where the compiler is
    ATTN_MLIR_BUNDLES=DIR python bench/launch.py                where the GPU is; needs torch
    python bench/launch.py                                      without a GPU

The rows of a training step are forward passes that autograd records, and backward passes of one of
them. Each call is timed by itself, from its begin to its return, the calls in turns; a round ends with
waiting for the GPU, so that its queue is never full. Without a GPU the calls are made on a device
that does everything but call the driver, on tensors in host memory, of torch if it is installed,
else of numpy; rows that take a GPU are left out then, and torch's. Exit code: 0 when every result
is that of torch's attention, 1 when one is not.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import attn_mlir as am
from attn_mlir.bench.measuring.stats import Spread, commit, cpu_name
from attn_mlir.compiling.compiler import recording
from attn_mlir.compiling.prebuild import Collector
from attn_mlir.errors import TargetError
from attn_mlir.files import make_folder
from attn_mlir.runtime.devices import driver
from attn_mlir.runtime.devices.idle import IdleDevice
from attn_mlir.runtime.kernel import launching_on

BATCH, QUERIES, KEYS, HEADS, KV_HEADS, HEAD_DIM = 1, 4, 512, 64, 8, 128
PAGE, SPLITS = 64, 4
KERNEL_LIMIT, CALL_LIMIT = 25e-6, 40e-6  # seconds on an H200: what is promised
TOLERANCE = 2.0**-6  # of bf16 O against torch's, O being means of standard normal values
PER_ROUND, WARM_UP = 50, 20  # calls of each kind; a queue holds 1024 launches
FORWARD_LIMIT, BACKWARD_LIMIT = 80e-6, 120e-6  # seconds with gradients, on a quiet core
TORCHS = "torch scaled_dot_product_attention"
TRAINED = (1, 256, 8, 64)  # [batch, sequence, heads, head_dim] of a training step
GRADIENT_TOLERANCE = 2.0**-4  # of bf16 gradients against torch's, O's being standard normal


@dataclass(frozen=True)
class Row:
    """One kind of call; `limit` in seconds, None where nothing is promised.

    Attributes:
      peer: the name of torch's row.
    """

    call: Callable[[], Any]
    limit: float | None = None
    peer: str = TORCHS


def rows(
    q: Any, k: Any, v: Any, o: Any, read: tuple[Any, Any, Any], cache: Any, device: Any
) -> dict[str, Row]:
    """The calls, by what they are.

    Args:
      o: an array like q, for the result of a kernel.
      read: what modifiers read, all of it zeros: f32 [heads], and i32 of each query and of each key.
      cache: the same keys and values in pages; None where index arrays would be in host memory.
      device: None chooses.
    """
    options: dict[str, Any] = {"schedule": "mha-streaming", "device": device}
    (step,) = am.plan(q, k, v, **options).steps
    target = am.plan(q, k, v, **options).target
    kernel = am.load(am.compile(step.request, target=target))
    scale = HEAD_DIM**-0.5
    others = itertools.count(1)
    bias, documents = read[0], am.mods.document(*read[1:])

    def by_kernel() -> Any:
        kernel(q, k, v, o, scale=scale, device=device)
        return o

    def biased(table: Any, *held: Any) -> Any:
        """A new function with each call; one that holds a list is traced every time."""

        def shifted(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
            return score + table[h] * (held[0][0] if held else 1.0)

        return shifted

    def unseen() -> Any:
        return am.attention(q, k, v, scale=scale * (1 + next(others) * 2.0**-20), **options)

    found = {
        "kernel(...)": Row(by_kernel, KERNEL_LIMIT),
        "am.attention(q, k, v)": Row(lambda: am.attention(q, k, v, **options), CALL_LIMIT),
        f"the same, {SPLITS} splits": Row(
            lambda: am.attention(q, k, v, num_splits=SPLITS, **options), CALL_LIMIT
        ),
        "the same, out=": Row(lambda: am.attention(q, k, v, out=o, **options), CALL_LIMIT),
        "the same, score_mod": Row(
            lambda: am.attention(q, k, v, score_mod=biased(bias), **options), CALL_LIMIT
        ),
        "the same, mask_mod": Row(
            lambda: am.attention(q, k, v, mask_mod=documents, **options), CALL_LIMIT
        ),
        "the same, score_mod with a list": Row(
            lambda: am.attention(q, k, v, score_mod=biased(bias, [1.0]), **options)
        ),
        "the same, of no signature before": Row(unseen),
    }
    if cache is not None:
        found["am.attention(q, PagedKV)"] = Row(
            lambda: am.attention(q, cache, **options), CALL_LIMIT
        )
    return found


def training_rows(torch: Any, made: Callable[[tuple[int, ...]], Any]) -> dict[str, Row]:
    """A forward pass that autograd records, and its backward pass, for each function of torch.

    Args:
      made: makes a bf16 tensor of a shape.
    """
    import attn_mlir.torch as ours
    from attn_mlir.flash import flash_attn_func

    q, k, v = leaves = [made(TRAINED).requires_grad_() for _ in range(3)]
    do, turned = made(TRAINED), [x.transpose(1, 2) for x in leaves]
    theirs = torch.nn.functional.scaled_dot_product_attention
    doors: dict[str, Callable[[], Any]] = {
        "am.attention": lambda: am.attention(q, k, v, mask=am.causal()),
        "scaled_dot_product_attention": lambda: ours.scaled_dot_product_attention(
            *turned, is_causal=True
        ).transpose(1, 2),
        "flex_attention": lambda: ours.flex_attention(
            *turned, mask_mod=lambda b, h, q, k: q >= k
        ).transpose(1, 2),
        "flash_attn_func": lambda: flash_attn_func(q, k, v, causal=True),
        "the same, deterministic": lambda: flash_attn_func(
            q, k, v, causal=True, deterministic=True
        ),
        TORCHS: lambda: theirs(*turned, is_causal=True).transpose(1, 2),
    }

    def backward(o: Any) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(o, leaves, do, retain_graph=True)

    found: dict[str, Row] = {}
    for name, call in doors.items():
        forward_limit, backward_limit = FORWARD_LIMIT, BACKWARD_LIMIT
        if name == TORCHS:
            forward_limit = backward_limit = None
        found[f"{name}, recorded"] = Row(call, forward_limit, f"{TORCHS}, recorded")
        of = Row(backward(call()), backward_limit, f"{TORCHS}, backward")
        found[f"{name}, backward"] = of
    return found


def paged(make: Callable[..., Any], k: Any, v: Any, integers: Callable[[list[Any]], Any]) -> Any:
    """The keys and values in pages, in their order."""
    pools = [x.reshape(BATCH * KEYS // PAGE, PAGE, KV_HEADS, HEAD_DIM) for x in (k, v)]
    pages = KEYS // PAGE
    table = integers([[b * pages + i for i in range(pages)] for b in range(BATCH)])
    return make(*pools, page_table=table, seqused=integers([KEYS] * BATCH))


def measured(calls: dict[str, Row], rounds: int, wait: Callable[[], object]) -> dict[str, Spread]:
    """Seconds of the host per call."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, row in calls.items():
            for _ in range(PER_ROUND if number else WARM_UP):
                begin = time.perf_counter()
                row.call()
                end = time.perf_counter()
                if number:
                    times[name].append(end - begin)
            wait()
    return {name: Spread.of(found) for name, found in times.items()}


def show(calls: dict[str, Row], found: dict[str, Spread]) -> None:
    """A line per call."""
    for name, spread in found.items():
        limit, peer, ratio = calls[name].limit, calls[name].peer, ""
        if peer in found and name != peer:
            ratio = f"{spread.median / found[peer].median:6.2f} of torch's"
        told = "" if limit is None else f"  at most {limit * 1e6:.0f}"
        print(f"  {spread.text('us', 1, 1e6):28s} {ratio:20s} {name}{told}")


def on_gpu(rounds: int) -> int:
    """Measures on the first GPU; the exit code."""
    torch = importlib.import_module("torch")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; {conditions()}")
    torch.manual_seed(0)

    def drawn(length: int, heads: int) -> Any:
        size = (BATCH, length, heads, HEAD_DIM)
        return torch.randn(size, device="cuda", dtype=torch.bfloat16)

    def integers(values: list[Any]) -> Any:
        return torch.tensor(values, dtype=torch.int32, device="cuda")

    q, (k, v) = drawn(QUERIES, HEADS), (drawn(KEYS, KV_HEADS) for _ in "kv")
    read = (
        torch.zeros(HEADS, device="cuda"),
        *(integers([[0] * count] * BATCH) for count in (QUERIES, KEYS)),
    )
    calls = rows(q, k, v, torch.empty_like(q), read, paged(am.PagedKV, k, v, integers), None)
    turned = [x.transpose(1, 2) for x in (q, k, v)]
    theirs = torch.nn.functional.scaled_dot_product_attention
    calls[TORCHS] = Row(lambda: theirs(*turned, enable_gqa=True))
    truth, right = calls[TORCHS].call().transpose(1, 2).float(), True
    for name, row in list(calls.items())[:-1]:
        for _ in range(4):  # the first two are planned in full
            error = (row.call().float() - truth).abs().max().item()
            if not error <= TOLERANCE:
                print(f"WRONG by {error:.3g}: {name}")
                right = False
    trained = training_rows(
        torch, lambda shape: torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    )
    for name in list(trained)[1::2]:
        pairs = zip(trained[name].call(), trained[trained[name].peer].call(), strict=True)
        error = max((x.float() - y.float()).abs().max().item() for x, y in pairs)
        if not error <= GRADIENT_TOLERANCE:
            print(f"WRONG by {error:.3g}: {name}")
            right = False
    for rows_of_kind in (calls, trained):
        show(rows_of_kind, measured(rows_of_kind, rounds, torch.cuda.synchronize))
    return int(not right)


def on_host(rounds: int) -> None:
    """Measures on the device that does nothing."""
    try:
        torch = importlib.import_module("torch")
        library = f"torch {torch.__version__}"
    except ImportError:
        torch, library = None, "numpy"
    print(f"no GPU: a device that calls no driver, arrays of {library}; {conditions()}")
    q, k, v = (_zeros(torch, *size) for size in ((QUERIES, HEADS), *[(KEYS, KV_HEADS)] * 2))
    calls = rows(q, k, v, _zeros(torch, QUERIES, HEADS), read_by_modifiers(), None, IdleDevice())
    show(calls, measured(calls, rounds, lambda: None))
    if torch is None:
        return
    with launching_on(IdleDevice("sm_90a")):
        trained = training_rows(torch, lambda shape: torch.zeros(shape, dtype=torch.bfloat16))
        trained = {name: row for name, row in trained.items() if name != row.peer}
        show(trained, measured(trained, rounds, lambda: None))


def _zeros(torch: Any, length: int, heads: int) -> Any:
    """[batch, length, heads, head_dim] of bf16 in host memory; of numpy where torch is None."""
    size = (BATCH, length, heads, HEAD_DIM)
    if torch is not None:
        return torch.zeros(size, dtype=torch.bfloat16)
    import ml_dtypes
    import numpy as np

    return np.zeros(size, ml_dtypes.bfloat16)


def read_by_modifiers() -> tuple[Any, Any, Any]:
    """The arrays that modifiers read, of numpy."""
    import numpy as np

    queries, keys = (np.zeros((BATCH, count), np.int32) for count in (QUERIES, KEYS))
    return np.zeros(HEADS, np.float32), queries, keys


def conditions() -> str:
    """The conditions that the numbers depend on."""
    return (
        f"{cpu_name()}, commit {commit()}; q [{BATCH}, {QUERIES}, {HEADS}, {HEAD_DIM}], {KEYS} keys of "
        f"{KV_HEADS} heads, bf16; median (20 % .. 80 %)"
    )


def write(folder: Path, targets: Sequence[str]) -> None:
    """Compiles the kernels that the benchmark calls; needs torch."""
    import numpy as np

    q, k, v = (_zeros(None, *size) for size in ((QUERIES, HEADS), *[(KEYS, KV_HEADS)] * 2))
    cache = paged(am.PagedKV, k, v, lambda values: np.array(values, np.int32))
    torch = importlib.import_module("torch")
    keep = Collector(make_folder(folder))
    for target in targets:
        with recording(keep), launching_on(IdleDevice(target)):
            o, read = _zeros(None, QUERIES, HEADS), read_by_modifiers()
            for row in rows(q, k, v, o, read, cache, None).values():
                row.call()
            trained = training_rows(torch, lambda x: torch.zeros(x, dtype=torch.bfloat16))
            for name, row in trained.items():
                if name != row.peer:
                    row.call()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", type=Path, metavar="DIR", help="compile what a run needs to DIR")
    parser.add_argument("--target", action="append", help="chip to compile for (default: sm_90a)")
    parser.add_argument(
        "--rounds", type=int, default=40, help=f"rounds of {PER_ROUND} calls of each kind"
    )
    given = parser.parse_args()
    if given.write is not None:
        write(given.write, given.target or ["sm_90a"])
        return 0
    try:
        has_gpu = bool(driver.gpus())
    except TargetError:
        has_gpu = False
    if has_gpu:
        return on_gpu(given.rounds)
    on_host(given.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
