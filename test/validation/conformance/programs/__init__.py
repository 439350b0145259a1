"""What launches the kernels of `Kernel` cases: one module per package, run in the environment of the peers."""
