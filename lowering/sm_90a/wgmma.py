"""`wgmma` as PTX text: `nvvm.wgmma.mma_async` has neither A in registers nor `scale-d` at run time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attn_mlir.dialect._mlir import arith, ir, llvm
from attn_mlir.dialect.scalars import i32

Value = Any


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

    The text names the sums: arithmetic on them must not move above it.
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
