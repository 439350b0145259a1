"""Programs of chained per-thread instructions.

Each thread loads operands from columns of an input buffer, runs a handful of instructions whose
sources are loaded values and earlier results, and stores every result in a column of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from attn_mlir.validation.differential.case import HEAD, Column, Program
from attn_mlir.validation.differential.ops import WIDTH, Op, choose
from attn_mlir.validation.differential.values import Rng, draw

THREADS = 32
_PREFIX = {16: "h", 32: "r", 64: "d"}
_DTYPE = {"i16": "u2", "i32": "u4", "i64": "u8", "f16": "f2", "f32": "f4", "f64": "f8",
          "bf16": "bf16", "f16x2": "f2x2", "bf16x2": "bf16x2"}  # fmt: skip
DECLARE = ".reg .pred p<200>; .reg .b16 h<64>; .reg .b32 r<400>; .reg .b64 d<64>;"


class Builder:
    """Text, operands and results of one program."""

    def __init__(self, rng: Rng, threads: int = THREADS):
        self.rng = rng
        self.threads = threads
        self.lines: list[str] = []
        self.loads: list[str] = []
        self.inputs: list[bytes] = []
        self.input_bytes = 0
        self.output_bytes = 0
        self.columns: list[Column] = []
        self.pool: dict[str, list[str]] = {}
        self.loaded: dict[str, int] = {}
        self.counts = {"p": 0, "h": 0, "r": 8, "d": 8}

    def register(self, kind: str) -> str:
        """A fresh register of a type."""
        prefix = "p" if kind == "pred" else _PREFIX[WIDTH[kind]]
        self.counts[prefix] += 1
        return f"{prefix}{self.counts[prefix] - 1}"

    def load(self, kind: str, values: np.ndarray | None = None) -> str:
        """A register with an operand from memory."""
        if kind == "pred":
            word, name = self.load("i32"), self.register("pred")
            self.loads.append(f"and.b32 {word}, {word}, 1; setp.ne.s32 {name}, {word}, 0;")
            self.pool["i32"].remove(word)
        else:
            width = WIDTH[kind] // 8
            array = draw(self.rng, kind, self.threads) if values is None else values
            assert array.itemsize == width and array.size == self.threads
            start = -(-self.input_bytes // 8) * 8
            self.inputs.append(bytes(start - self.input_bytes) + array.tobytes())
            self.input_bytes = start + array.nbytes
            name = self.register(kind)
            self.loads.append(f"ld.global.b{8 * width} {name}, [d{_BASE[width]}+{start}];")
        self.pool.setdefault(kind, []).append(name)
        self.loaded[kind] = self.loaded.get(kind, 0) + 1
        return name

    def source(self, kind: str) -> str:
        """A register with some value of a type; mostly an operand from memory."""
        if kind.startswith("#"):
            return str(int(self.rng.integers(0, int(kind[1:]))))
        have = self.pool.get(kind, [])
        if self.loaded.get(kind, 0) < 3 and (len(have) < 2 or self.rng.random() < 0.5):
            return self.load(kind)
        return have[int(self.rng.integers(0, len(have)))]

    def store(self, name: str, kind: str, label: str, check: str = "exact") -> None:
        """A column for a result."""
        if kind == "pred":
            word = self.register("i32")
            self.lines.append(f"selp.b32 {word}, 1, 0, {name};")
            name, kind = word, "i32"
        width = WIDTH[kind] // 8
        start = -(-self.output_bytes // 8) * 8
        self.output_bytes = start + width * self.threads
        self.lines.append(f"st.global.b{8 * width} [d{_BASE[width] + 3}+{start}], {name};")
        dtype = _DTYPE.get(kind, f"u{width}")
        count = self.threads * (2 if dtype.endswith("x2") else 1)
        self.columns.append(Column(label, 1, start, count, dtype.removesuffix("x2"), check))

    def apply(self, op: Op) -> None:
        """One more instruction."""
        sources = [self.load(kind) if op.fresh else self.source(kind) for kind in op.sources]
        names = [self.register(kind) for kind in op.results]
        slots = dict(zip("de", names, strict=False))
        text = op.text.format(*sources, **slots)
        self.lines.append(text)
        for name, kind in zip(names, op.results, strict=True):
            self.store(name, kind, text, op.check)
            if op.check == "exact" and not op.last:
                self.pool.setdefault(kind, []).append(name)
        if op.check != "exact":  # the judge wants to see the operands
            for position, (name, kind) in enumerate(zip(sources, op.sources, strict=True)):
                self.store(name, kind, f"operand {position} of {text}")

    def program(self, name: str, covers: Sequence[str]) -> Program:
        """The finished program."""
        body = "\n  ".join([*self.loads, *self.lines])
        ptx = f"""{HEAD}
.visible .entry kernel(.param .u64 inputs, .param .u64 outputs)
{{
  {DECLARE}
  ld.param.u64 d0, [inputs];
  ld.param.u64 d1, [outputs];
  mov.u32 r0, %tid.x;
{bases(0, 2)}
{bases(1, 5)}
  {body}
  ret;
}}
"""
        inputs = np.frombuffer(b"".join(self.inputs) or bytes(16), np.uint8).copy()
        outputs = np.zeros(max(self.output_bytes, 16), np.uint8)
        return Program(
            name, ptx, [inputs, outputs], self.columns, sorted(set(covers)), block=self.threads
        )


_BASE = {2: 2, 4: 3, 8: 4}  # element width -> register with the thread's address of inputs


def bases(pointer: int, first: int) -> str:
    """d{first}.. = d{pointer} + tid * 2, 4, 8."""
    return "\n".join(
        f"  mad.wide.u32 d{first + i}, r0, {width}, d{pointer};"
        for i, width in enumerate((2, 4, 8))
    )


def chains(
    family: str, table: Callable[[], Iterator[Op]], seed: int, rounds: int, length: int
) -> Iterator[Program]:
    """Programs that use every op of a table `rounds` times, `length` to a program."""
    number = 0
    for turn in range(rounds):
        rng = np.random.default_rng([seed, turn])
        ops = [choose(op) for op in table()]
        order = rng.permutation(len(ops))
        for first in range(0, len(ops), length):
            builder = Builder(rng)
            chosen = [ops[int(i)] for i in order[first : first + length]]
            for op in chosen:
                builder.apply(op)
            covers = [opcode for op in chosen for opcode in op.opcodes]
            yield builder.program(f"{family}/{number}", covers)
            number += 1
