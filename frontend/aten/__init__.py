"""PyTorch's own calls of attention, computed by this package while it is activated.

    attn_mlir.torch.activate()

From then on `torch.nn.functional.scaled_dot_product_attention` and
`torch.nn.attention.varlen.varlen_attn` of CUDA tensors run kernels of this package wherever
PyTorch chooses its flash attention, with gradients. Importing registers names in
`torch.nn.attention`, see `IMPLEMENTATIONS`, and activates none.
"""

from attn_mlir.aten.activation import IMPLEMENTATIONS, Activation, activate, deactivate

__all__ = ["IMPLEMENTATIONS", "Activation", "activate", "deactivate"]
