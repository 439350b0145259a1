"""Opcodes: what of them is a type, and the order in which the emulator keeps their parts.

A mnemonic comes first. The modifiers behind it stand in any order, except that types keep their
order among types and state spaces theirs among spaces: `ptxas` takes all such orders
(test/emulator/test_opcode_orders.py asks it). Nothing may therefore look for a modifier by its
place, but for the types, which are kept last.
"""

import re

SPACES = frozenset("global shared shared::cta shared::cluster local const param".split())
_TYPE = re.compile(r"[bsu]\d{1,3}(x\d+)?|b\dx16_p\d\d|b?f\d+(x2)?|tf32|u?e\dm\d+(x\d)?|pred|v[24]")


def split_opcode(opcode: str) -> tuple[str, ...]:
    """The parts of an opcode, types last."""
    head, *modifiers = opcode.split(".")
    types = [part for part in modifiers if _TYPE.fullmatch(part)]
    return (head, *(part for part in modifiers if not _TYPE.fullmatch(part)), *types)
