"""A layer of attention of jax learns to look up: gradients by this package, in one jitted step.

    python examples/jax_regression.py

Each query is a noisy key, and its target that key's value. The queries' projection is learned by plain gradient descent, with
this package's attention and with that of `jax.nn`. Exit code: 0 if both losses fall alike, else 1.
"""

# pyright: basic, reportMissingImports=false
# jax is installed where this runs, and not where it is checked.

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp

from attn_mlir.jax import dot_product_attention

ROWS, HEADS, WIDTH, STEPS, RATE = 32, 2, 64, 4, 30.0


def losses(attend: Any) -> list[float]:
    """The loss in front of each step."""
    keys = jax.random.split(jax.random.key(0), 4)
    key, value, noise = (jax.random.normal(x, (1, ROWS, HEADS, WIDTH)) for x in keys[:3])
    rows = key + 0.1 * noise
    weights = 0.05 * jax.random.normal(keys[3], (WIDTH, WIDTH))

    def loss(weights: Any) -> Any:
        operands = (x.astype(jnp.bfloat16) for x in (rows @ weights, key, value))
        return jnp.square(attend(*operands).astype(jnp.float32) - value).mean()

    step = jax.jit(jax.value_and_grad(loss))
    found: list[float] = []
    for _ in range(STEPS):
        now, gradient = step(weights)
        weights = weights - RATE * gradient
        found.append(float(now))
    return found


def main() -> int:
    """The command line."""
    ours, theirs = losses(dot_product_attention), losses(jax.nn.dot_product_attention)
    for name, found in (("ours", ours), ("jax.nn", theirs)):
        print(name, " ".join(f"{x:.4f}" for x in found))
    alike = all(abs(x - y) < 0.01 for x, y in zip(ours, theirs, strict=True))
    return 0 if alike and ours[-1] < 0.9 * ours[0] else 1


if __name__ == "__main__":
    sys.exit(main())
