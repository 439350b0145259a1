"""What validates at length, as programs, and what tests share: kernels, cases, judges."""
