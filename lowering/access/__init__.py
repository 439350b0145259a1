"""Accesses to shared, global and tensor memory, and values as the threads of a role hold them."""
