"""Drawn networks of roles: runs that leave turns out against runs in full.

    python -m attn_mlir.validation.ws.ring_draws --count 1000 --seed 0

Roles hand over slots of three rings, which may share a place, before, in and behind two loops of m and n turns, in drawn orders and by drawn
agents; more than half of the networks deadlock for some sizes. For each the proof is asked for many sizes, and every one of
them is run in full besides: who fails and which ring is used before which has to be the same.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import permutations, product

from attn_mlir.errors import VerifyError
from attn_mlir.passes.analysis.protocol.recurrence import Skip
from attn_mlir.passes.analysis.protocol.runs import Runs
from attn_mlir.passes.analysis.protocol.simulate import Network
from attn_mlir.passes.analysis.protocol.trace import Trace, precedes
from attn_mlir.validation.ws.ring_texts import Kernel, fill, role, use

PHASES = ("before", "first", "between", "second", "behind")
LOOPS = {"first": "%m", "second": "%n"}
SIZES = tuple(product((0, 1, 2, 3, 5, 8, 11, 14), (0, 1, 3, 9)))

Order = tuple[bool, ...]  # which ring precedes which


def drawn(seed: int, inside: str = "") -> Kernel:
    """A kernel of two to four roles; the rings named in `inside` lie in the slots of `a`."""
    draw = random.Random(seed)
    roles = [f"role{number}" for number in range(draw.choice((2, 3, 4)))]
    lanes = {name: draw.choice((1, 1, 32)) for name in roles}
    steps: dict[str, dict[str, list[str]]] = {name: {at: [] for at in PHASES} for name in roles}
    for ring in "abc":
        filling, *reading = draw.sample(roles, draw.choice((2, 2, min(3, len(roles)))))
        counts = {at: draw.choice((0, 0, 1)) for at in PHASES}
        counts |= {"first": draw.choice((0, 1, 1, 2)), "second": draw.choice((0, 1, 1))}
        if not any(counts.values()):
            counts["first"] = 1
        agents = ["threads", "copy_engine", "tensor_core"]
        for name in (filling, *reading):
            hand_over, by = use, draw.choice(agents)
            if name == filling:
                hand_over, by = fill, draw.choice([*agents, "thread_copies"])
            for at, count in counts.items():
                steps[name][at] += [hand_over(ring, by) for _ in range(count)]
    texts = [
        role(name, _body(draw, phases), first=4 * number, lanes=lanes[name])
        for number, (name, phases) in enumerate(steps.items())
    ]
    return Kernel(*texts, stages=draw.choice((1, 2, 2, 3, 4)), inside=inside)


def _body(draw: random.Random, phases: dict[str, list[str]]) -> str:
    lines: list[str] = []
    for at, handovers in phases.items():
        if draw.random() < 0.1:
            draw.shuffle(handovers)
        merged = _merged(draw, [text.strip().splitlines() for text in handovers])
        if draw.random() < 0.15:
            merged.insert(draw.randrange(len(merged) + 1), '"ws.barrier"() : () -> ()')
        if at in LOOPS and merged:
            merged = [f"scf.for %i = %c0 to {LOOPS[at]} step %c1 : i32 {{", *merged, "}"]
        lines += merged
    return "\n".join(lines)


def _merged(draw: random.Random, sequences: Sequence[list[str]]) -> list[str]:
    """The lines of all sequences, mostly one after the other, with slots held over other steps."""
    pending = [list(lines) for lines in sequences]
    found: list[str] = []
    while left := [lines for lines in pending if lines]:
        lines = draw.choice(left) if draw.random() < 0.25 else left[0]
        found.append(lines.pop(0))
    return found


def compare(kernel: Kernel, found: Counter[str], sizes: Sequence[tuple[int, int]] = SIZES) -> None:
    """Compares the proof's runs of a kernel with all runs in full.

    Args:
      found: counts of runs are added: `full`, `short`, `left out` and `failing`.
      sizes: pairs of m and n, in the order in which the proof has them.

    Raises:
      AssertionError: they differ.
    """
    network = Network(kernel.members)
    runs, seen = Runs(network), set[Order]()

    def order(run: Callable[[], Trace | None]) -> Order | str | None:
        try:
            trace = run()
        except VerifyError:
            return "fails"
        pairs = permutations(kernel.rings.values(), 2)
        return None if trace is None else tuple(precedes(trace, *pair) for pair in pairs)

    for m, n in sizes:
        call, where = {"m": m, "n": n}, f"with m = {m}, n = {n}"
        skips: list[Skip] = []
        in_full = order(partial(network.run, call))
        short = order(partial(network.run, call, skips=skips))
        assert short == in_full, f"{where} a run gives {in_full}, without {skips} {short}"
        made = order(partial(runs.make, call, ({},)))
        found["failing"] += in_full == "fails"
        if made is None:
            assert in_full in seen, f"{where} nothing is run, but there is {in_full}"
        elif isinstance(made, tuple):
            assert made == in_full, f"{where} a run gives {in_full}, the proof has {made}"
            seen.add(made)
        found["left out" if made is None else "short" if skips else "full"] += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=1000, help="networks")
    parser.add_argument("--seed", type=int, default=0, help="of the first one")
    args = parser.parse_args()
    found: Counter[str] = Counter()
    for seed in range(args.seed, args.seed + args.count):
        draw = random.Random(seed)
        sizes = draw.sample(SIZES, len(SIZES)) if draw.random() < 0.5 else SIZES
        try:
            compare(drawn(seed), found, sizes)
        except AssertionError as error:
            sys.exit(f"seed {seed}: {error}")
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(found.items()))
    print(f"{args.count} networks, no difference; runs: {counts}")


if __name__ == "__main__":
    main()
