"""Runs what this folder adds on the emulator, and compares it with the reference.

    python -m stranger.trial mask | schedule | target | all

Each part is a process of its own, as its entries stay in the tables of the process.
"""

import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

import attn_mlir as am
from attn_mlir.validation.numerics.decode import DecodeProblem

BF16 = ml_dtypes.bfloat16
CHIPS = ("sm_90a", "sm_100a")
JUDGED = ("mask", "score_mod", "k_descale", "v_descale")  # options that O depends on


def check(target: str, sizes: tuple[int, ...], kind: Any = BF16, **options: Any) -> None:
    """Runs attention of `batch, sq, sk, heads, kv_heads, head_dim` and judges every element."""
    batch, sq, sk, heads, kv_heads, head_dim = sizes
    random = np.random.default_rng(sq * 1000 + sk)
    shapes = ((sq, heads), (sk, kv_heads), (sk, kv_heads))
    q, k, v = (random.standard_normal((batch, *x, head_dim)).astype(BF16) for x in shapes)
    k, v = k.astype(kind), v.astype(kind)
    device = am.EmulatorDevice("adversarial", 1, multiprocessors=2, target=target, check="all")
    o, lse = am.attention(q, k, v, return_lse=True, device=device, **options)
    judged = {name: given for name, given in options.items() if name in JUDGED}
    verdict = am.reference.check_attention(q, k, v, o, lse, **judged)
    print(f"{target} {sizes} {verdict}")
    assert verdict.ok


def mask() -> None:
    """A mask: as a function, as text, as an attribute, and in kernels of either target."""
    from attn_mlir.masks.text import allowed, parse_mask

    from .block_causal import block_causal

    own = block_causal(24)
    assert am.block_causal is block_causal and am.masks.block_causal is block_causal
    assert parse_mask("block_causal:24") == own and "block_causal:SIZE" in allowed()
    for target in CHIPS:
        check(target, (1, 130, 150, 2, 1, 64), mask=own)
    check("sm_90a", (1, 4, 200, 4, 1, 64), mask=own & am.sliding_window(70))
    check("sm_100a", (1, 70, 40, 1, 1, 64), mask=~own)


def schedule() -> None:
    """A schedule: by its name, on either target."""
    from .one_warp import kernel

    name = kernel.OneWarp.policy.name
    for target in CHIPS:
        check(target, (2, 50, 77, 4, 2, 64), schedule=name, mask=am.causal())
        check(target, (1, 3, 77, 4, 1, 16), schedule=name, mask=am.sliding_window(20))
    relative = {"score_mod": lambda score, b, h, q, k: score + 0.01 * (q - k)}
    check("sm_90a", (1, 16, 100, 2, 2, 128), schedule=name, **relative)
    bundle = am.compile(am.mha(heads=2, head_dim=64, schedule=name))
    assert "one_warp" in bundle.entry and bundle.report["roles"]
    try:
        am.compile(am.mha(heads=2, head_dim=72, schedule=name))
    except am.errors.SpecError as error:
        print(error)
    else:
        raise AssertionError("72 columns are no whole products")


def target() -> None:
    """A target: what has no wgmma, no tensor memory and no setmaxnreg computes all the same."""
    from .plain_chip import PLAIN_CHIP

    chip = PLAIN_CHIP.chip
    check(chip, (2, 1, 300, 8, 2, 128), mask=am.causal())
    check(chip, (1, 70, 90, 2, 2, 64), mask=am.causal())
    check(chip, (1, 4, 900, 8, 1, 64), num_splits=3)
    ones = np.ones((1, 1), np.float32)
    check(chip, (1, 2, 150, 8, 1, 64), ml_dtypes.float8_e4m3fn, k_descale=ones, v_descale=ones)
    DecodeProblem(keys=(70, 0), heads=8, device={"target": chip, "multiprocessors": 2}).run()
    bundle = am.compile(am.mha(heads=8, kv_heads=2, head_dim=128), target=chip)
    assert f".target {chip}" in bundle.ptx and "mma.sync" in bundle.ptx
    for lacking in ("wgmma", "tcgen05", "setmaxnreg"):
        assert lacking not in bundle.ptx
    try:
        am.compile(am.mha(heads=2, head_dim=64, schedule="mha-registers"), target=chip)
    except am.errors.TargetError as error:
        print(error)
    else:
        raise AssertionError(f"{chip} has no products of warpgroups")


def everything() -> None:
    """All three together."""
    from . import block_causal, plain_chip
    from .one_warp import kernel

    options = {"schedule": kernel.OneWarp.policy.name, "mask": block_causal.block_causal(24)}
    check(plain_chip.PLAIN_CHIP.chip, (1, 60, 100, 4, 2, 64), **options)


PARTS: dict[str, Callable[[], None]] = {
    "mask": mask,
    "schedule": schedule,
    "target": target,
    "all": everything,
}

if __name__ == "__main__":
    PARTS[sys.argv[1]]()
