"""The parts of `attn-opt`: its command line, printing, reports and reproducers."""
