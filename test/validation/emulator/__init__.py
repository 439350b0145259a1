"""Small PTX programs: benches, pairs of a wrong and a right kernel, twins on a Hopper GPU."""
