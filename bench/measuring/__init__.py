"""How benchmarks run, time and print: conditions, quantiles, graphs, pictures, other commits."""
