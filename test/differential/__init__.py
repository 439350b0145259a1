"""The same generated programs on a GPU and on the emulator."""
