"""The kernels that benchmarks compile, by name or by the options of a command line."""
