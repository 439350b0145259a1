"""The kernels of latent attention that benchmarks compile."""

from attn_mlir.bench import _latent, _requests


def test_requests_are_different_kernels() -> None:
    """Each has a name and a canonical form of its own, and machine code is counted of four of them."""
    texts = {name: make().canonical_json() for name, make in _requests.LATENT.items()}
    assert len(set(texts.values())) == len(texts) == 7
    assert {kernel.name for kernel in _latent.KERNELS} <= texts.keys()
