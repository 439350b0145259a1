"""The parts of `attn-opt`: its command line, how it prints, what it reports, reproducers."""
