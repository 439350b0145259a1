"""Online softmax: the formulas of a row, its state, and the mask."""
