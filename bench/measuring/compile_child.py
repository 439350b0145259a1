"""Compiles one kernel in a fresh process and tells how long it took; `bench/compile.py` starts it.

    python compile_child.py --out FILE [--again N] [--traced] [kernel options of bench/problems/problem.py]
    python compile_child.py --out FILE --latent NAME          a kernel of latent_requests.py or of latent_frame.py,
                                                              both in bench/problems, instead

Prints one line of JSON: `ready`, the seconds since this program's first line at which the bundle lay in FILE;
`import`, of these the seconds for the front door; `again`, the seconds of N further compiles in this process;
`stages`, the bundle's own account. Which cache applies is the environment's business (`ATTN_MLIR_NO_CACHE`,
`ATTN_MLIR_CACHE_DIR`).
"""

import time

_START = time.perf_counter()

import argparse  # noqa: E402  (the clock starts before every import)
import json  # noqa: E402
from typing import Any  # noqa: E402

import attn_mlir as am  # noqa: E402

_IMPORTED = time.perf_counter()

from attn_mlir.bench.problems.latent_requests import LATENT  # noqa: E402
from attn_mlir.bench.problems.problem import Problem  # noqa: E402
from attn_mlir.cli.main import ends_with_the_process  # noqa: E402

assert am  # imported for its time


def traced() -> dict[str, Any]:
    """A modifier and a predicate, both traced: the costliest pair of `bench/sass.py --masks`."""
    import numpy as np

    from attn_mlir import mods

    ids = np.zeros((1, 1), np.int32)
    return {"score_mod": mods.softcap(30.0), "mask_mod": mods.document(ids)}


def latent(name: str) -> Any:
    """A request for latent attention."""
    if name in LATENT:
        return LATENT[name]()
    from attn_mlir.bench.problems.latent_frame import kernels

    return kernels()[name].make()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    Problem.add_options(parser)
    parser.add_argument("--out", required=True)
    parser.add_argument("--again", type=int, default=0, metavar="N")
    parser.add_argument("--traced", action="store_true", help="with a softcap and documents")
    parser.add_argument("--latent", metavar="NAME", help="this kernel of latent attention")
    args = parser.parse_args()
    ends_with_the_process()
    problem = Problem.of(args)
    options = traced() if args.traced else {}

    def compiled() -> Any:
        if args.latent:
            return am.compile(latent(args.latent), target=problem.target)
        return problem.compile(**options)

    bundle = compiled()
    bundle.save(args.out)
    ready = time.perf_counter() - _START
    again: list[float] = []
    for _ in range(args.again):
        begin = time.perf_counter()
        compiled()
        again.append(time.perf_counter() - begin)
    record = {
        "ready": ready,
        "import": _IMPORTED - _START,
        "again": again,
        "stages": bundle.report.get("stages", []),
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main()
