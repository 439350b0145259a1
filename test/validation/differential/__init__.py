"""Generated PTX on a Hopper GPU and on the emulator."""
