"""Signatures of the libraries whose names `flash`, `flash_mla`, `flashinfer` and `torch` have, and what these take."""
