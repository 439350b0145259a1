"""What kernels are put together from: operands, sequences, masks, online softmax, roles."""
