"""Small kernels in `ws`, compiled and run on the emulator."""
