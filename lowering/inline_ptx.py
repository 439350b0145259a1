"""The few instructions that are written as PTX text, and why."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attn_mlir.dialect._mlir import arith, ir, llvm, nvvm, vector
from attn_mlir.dialect.scalars import i32

Value = Any


def wait_tensor_loads(registers: Sequence[Value]) -> list[Value]:
    """`tcgen05.wait::ld` that redefines what the loads before it wrote.

    `nvvm.tcgen05.wait` names no registers, so the backend is free to use loaded values before
    it; tying them to the wait is what forbids that.

    Args:
      registers: i32 values that loads have defined; of another type, or regrouped, the backend
        would copy them before the wait.

    Returns:
      The same values, to be used from here on.
    """
    count = len(registers)
    struct = ir.Type.parse(f"!llvm.struct<({', '.join(['i32'] * count)})>")
    constraints = ",".join(["=r"] * count + [str(i) for i in range(count)])
    waited = llvm.InlineAsmOp(
        struct,
        list(registers),
        "tcgen05.wait::ld.sync.aligned;",
        constraints,
        has_side_effects=True,
    ).result
    return [
        llvm.ExtractValueOp(i32(), waited, ir.DenseI64ArrayAttr.get([i])).result
        for i in range(count)
    ]


_WORDS = {"i32": "r", "f32": "f"}  # types of one register, and their constraints


def is_word(value: Value) -> bool:
    """Whether `opaque` takes it: an i32 or f32."""
    return str(value.type) in _WORDS


def opaque(value: Value) -> Value:
    """A copy of an i32 or f32 that the optimiser cannot see through or move out of a loop.

    What is computed from it stays where it is written: the descriptors of all K steps, moved out
    of the tile loop, would cost the issuing thread more registers than it has.
    """
    kind = _WORDS[str(value.type)]
    return llvm.InlineAsmOp(
        value.type, [value], "mov.b32 $0, $1;", f"={kind},{kind}", has_side_effects=True
    ).result


def add_round_down(pair: Value, other: Value) -> Value:
    """`add.rm.ftz.f32x2` of two vector<2xf32>: no operation above PTX carries the rounding."""
    i64 = ir.IntegerType.get_signless(64)
    one = ir.VectorType.get([1], i64)

    def pack(value: Value) -> Value:
        return vector.ExtractOp(vector.BitCastOp(one, value), [], [0]).result

    total = nvvm.InlinePtxOp(
        [i64], [pack(pair), pack(other)], [], "add.rm.ftz.f32x2 $0, $1, $2;"
    ).results[0]
    return vector.BitCastOp(pair.type, vector.BroadcastOp(one, total)).result


@dataclass(frozen=True)
class Wgmma:
    """The form of a warpgroup's product.

    Attributes:
      columns: N; M is 64, the sums are f32.
      element: of A and B, as PTX spells it.
      element_bits: its width.
      b_is_mn_major: whether the rows of B are K; 16 bits only.
    """

    columns: int
    element: str
    element_bits: int
    b_is_mn_major: bool

    def instruction(self, sums: str, a: str, b: str, accumulate: str, *, in_registers: bool) -> str:
        """The text of one instruction of 32 bytes of K."""
        signs = "1, 1"
        transposes = "" if in_registers else ", 0"
        transposes += f", {int(self.b_is_mn_major)}"
        flags = signs + (transposes if self.element_bits == 16 else "")
        k = 32 * 8 // self.element_bits
        kinds = f"m64n{self.columns}k{k}.f32.{self.element}.{self.element}"
        return f"wgmma.mma_async.sync.aligned.{kinds} {sums}, {a}, {b}, {accumulate}, {flags};"


def issue_wgmma(
    form: Wgmma,
    sums: Sequence[Value],
    a_steps: Sequence[Sequence[Value]],
    b_steps: Sequence[Value],
    accumulate: Value | bool,
) -> list[Value]:
    """A product as one group: fence, an instruction per K step, commit.

    `nvvm.wgmma.mma_async` has neither A in registers nor `scale-d` at run time.

    Args:
      form: shape and types.
      sums: the accumulator registers; not read where `accumulate` is False.
      a_steps: per K step a descriptor (i64), or four registers (i32).
      b_steps: per K step a descriptor.
      accumulate: i1; whether the first step adds to the sums. The others do.

    Returns:
      What becomes of the sums, pending: for `wait_wgmma` alone.
    """
    count = len(sums)
    tied = [] if accumulate is False else list(sums)
    flag = [] if isinstance(accumulate, bool) else [arith.ExtUIOp(i32(), accumulate).result]
    a_values = [value for step in a_steps for value in step]
    in_registers = len(a_steps[0]) > 1
    inputs = [*tied, *a_values, *b_steps, *flag]
    numbers = iter(range(count + len(tied), count + len(inputs)))
    registers = "{" + ", ".join(f"${i}" for i in range(count)) + "}"
    a_names = [[f"${next(numbers)}" for _ in step] for step in a_steps]
    b_names = [f"${next(numbers)}" for _ in b_steps]
    text = ["wgmma.fence.sync.aligned;"]
    first = str(int(accumulate is True))
    if flag:
        first = "accumulate"
        text.insert(0, f".reg .pred {first}; setp.ne.b32 {first}, ${next(numbers)}, 0;")
    for number, (a, b) in enumerate(zip(a_names, b_names, strict=True)):
        a_name = "{" + ", ".join(a) + "}" if in_registers else a[0]
        add = first if number == 0 else "1"
        text.append(form.instruction(registers, a_name, b, add, in_registers=in_registers))
    text.append("wgmma.commit_group.sync.aligned;")
    constraints = [str(i) for i in range(len(tied))]
    constraints += ["r" if in_registers else "l"] * len(a_values)
    constraints += ["l"] * len(b_steps) + ["r"] * len(flag)
    return _redefined("{ " + " ".join(text) + " }", count, inputs, constraints)


def wait_wgmma(sums: Sequence[Value], newest: int) -> list[Value]:
    """`wgmma.wait_group` for all but the `newest` groups; redefines what the group before them makes.

    As `wait_tensor_loads`: arithmetic on the sums must not move above it.
    """
    text = f"wgmma.wait_group.sync.aligned {newest};"
    return _redefined(text, len(sums), list(sums), [str(i) for i in range(len(sums))])


def _redefined(
    text: str, count: int, inputs: Sequence[Value], constraints: Sequence[str]
) -> list[Value]:
    """Text that defines `count` f32, the first operands of it."""
    struct = ir.Type.parse(f"!llvm.struct<({', '.join(['f32'] * count)})>")
    joined = ",".join(["=f"] * count + list(constraints))
    made = llvm.InlineAsmOp(struct, list(inputs), text, joined, has_side_effects=True).result
    f32 = ir.F32Type.get()
    return [
        llvm.ExtractValueOp(f32, made, ir.DenseI64ArrayAttr.get([i])).result for i in range(count)
    ]
