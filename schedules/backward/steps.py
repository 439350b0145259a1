"""Parts that the steps of all gradients have in common: products, and weights of scores."""

from attn_mlir.dialect import ws
from attn_mlir.schedules import emit as b
from attn_mlir.schedules.core.problem import Problem, Value
from attn_mlir.schedules.softmax.row import LOG2E


def product_of(problem: Problem, stationary: Value, streamed: Value) -> Value:
    """The product [rows, columns] of what stands still and what streams, in flight."""
    config = problem.config
    empty = b.fill([config.tile_m, config.tile_n], b.f32_constant(0.0))
    return b.product(empty, stationary, streamed, accumulate=False, b_layout="nk")


def added_product(accumulators: Value, weights: Value, streamed: Value) -> Value:
    """accumulators + weights x streamed, in flight."""
    return b.product(accumulators, weights, streamed, accumulate=True, b_layout="kn")


def scale_of_exponents(problem: Problem) -> Value:
    """The factor that makes exponents of 2 of scores."""
    to_log2 = b.f32_constant(LOG2E)
    is_scaled = problem.modifier.changes  # else its scores are raw
    return to_log2 if is_scaled else b.fmul(problem.scale, to_log2)


def exponentials(scores: Value, scale_log2: Value, lse: Value) -> Value:
    """P: 2 to the power of scores times c, less the LSE of each query.

    Args:
      scores, lse: fragments [rows, columns].
      scale_log2: as of `scale_of_exponents`.
    """

    def exponent(score: Value, lse: Value) -> Value:
        return b.fma(score, scale_log2, b.fneg(lse))

    exponents = b.map_elements(exponent, scores, lse)
    _, columns = ws.FragmentType(scores.type).shape
    return b.exp2_tile(exponents, period=0, count=0, begin=0, end=columns)


def times(fragment: Value, factors: Value | None) -> Value:
    """The product of two fragments; None is 1."""
    return fragment if factors is None else b.map_elements(b.fmul, fragment, factors)
