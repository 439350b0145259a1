"""The parts that kernels are assembled from: operands, sequences, masks, online softmax, roles."""
