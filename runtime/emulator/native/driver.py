"""The native function that runs a block, as LLVM IR.

It is called by CPython as a builtin (METH_FASTCALL). Its first argument is a bytes object, the
block; the others are the warp's list of registers and then bool[32] arrays of lanes. The bytes hold
a header, the inputs, the outputs and the records:

    header  u64 frame, type of arrays, False, True; i32 inputs, outputs, records, 0
    input   i32 source, index, place, byte count; u64 dtype, or the address of a constant
    output  i32 rows, index, place, byte count; u64 dtype
    record  u64 function; i32 result, a, b, c

A source is rows of a register (1 or 2), -1 for an argument, 0 for a constant. It returns False when
all is done, and True without effect when an input is not the array that is expected.
"""

from __future__ import annotations

from .operations import ARRAY_SHAPES, LANES, PYTHON_TABLE

ARGUMENT, CONSTANT = -1, 0  # sources that are no register

# Offsets in CPython's and numpy's objects; objects.py checks them on this interpreter.
BYTES_DATA = 32
TYPE = 8
LIST_ITEMS = 24
ARRAY_DATA, ARRAY_ND, ARRAY_SHAPE, ARRAY_BASE = 16, 24, 32, 48
ARRAY_DTYPE, ARRAY_FLAGS, ARRAY_WEAK = 56, 64, 72
READABLE = 0x001  # C_CONTIGUOUS
_WRITABLE = 0x505  # C_CONTIGUOUS, OWNDATA, ALIGNED, WRITEABLE


def load_field(name: str, kind: str, pointer: str, offset: int) -> str:
    """IR that loads a field at a byte offset of an object into %name."""
    return (
        f"  %{name}.p = getelementptr i8, ptr {pointer}, i64 {offset}\n"
        f"  %{name} = load {kind}, ptr %{name}.p\n"
    )


DRIVER = f"""
define internal i1 @is_lanes(ptr %o, ptr %type, ptr %dtype, i32 %rows, i32 %flags) {{
{load_field("t", "ptr", "%o", TYPE)}
  %k0 = icmp eq ptr %t, %type
  br i1 %k0, label %array, label %no
array:
{load_field("d", "ptr", "%o", ARRAY_DTYPE)}
{load_field("n", "i32", "%o", ARRAY_ND)}
{load_field("f", "i32", "%o", ARRAY_FLAGS)}
{load_field("s", "ptr", "%o", ARRAY_SHAPE)}
  %k1 = icmp eq ptr %d, %dtype
  %k2 = icmp eq i32 %n, %rows
  %g = and i32 %f, %flags
  %k3 = icmp eq i32 %g, %flags
  %k4 = and i1 %k1, %k2
  %k5 = and i1 %k3, %k4
  br i1 %k5, label %shape, label %no
shape:
  %m = sub i32 %rows, 1
  %mw = sext i32 %m to i64
  %lp = getelementptr i64, ptr %s, i64 %mw
  %l = load i64, ptr %lp
  %k6 = icmp eq i64 %l, {LANES}
  %two = icmp eq i32 %rows, 2
  br i1 %two, label %first, label %last
first:
  %r = load i64, ptr %s
  %k7 = icmp eq i64 %r, 2
  %k8 = and i1 %k6, %k7
  ret i1 %k8
last:
  ret i1 %k6
no:
  ret i1 false
}}

define internal void @move(ptr %to, ptr %from, i64 %count) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %p = getelementptr i8, ptr %from, i64 %i
  %q = getelementptr i8, ptr %to, i64 %i
  %v = load <32 x i8>, ptr %p, align 1
  store <32 x i8> %v, ptr %q, align 1
  %next = add i64 %i, 32
  %more = icmp ult i64 %next, %count
  br i1 %more, label %loop, label %end
end:
  ret void
}}

define internal ptr @give(ptr %object) {{
  %n = load i32, ptr %object
  %immortal = icmp slt i32 %n, 0
  br i1 %immortal, label %end, label %count
count:
  %m = add i32 %n, 1
  store i32 %m, ptr %object
  br label %end
end:
  ret ptr %object
}}

define ptr @run_block(ptr %self, ptr %arguments, i64 %count) {{
entry:
  %h = getelementptr i8, ptr %self, i64 {BYTES_DATA}
{load_field("frame", "ptr", "%h", 0)}
{load_field("type", "ptr", "%h", 8)}
{load_field("done", "ptr", "%h", 16)}
{load_field("refused", "ptr", "%h", 24)}
{load_field("ins", "i32", "%h", 32)}
{load_field("outs", "i32", "%h", 36)}
{load_field("recs", "i32", "%h", 40)}
  %list = load ptr, ptr %arguments
{load_field("items", "ptr", "%list", LIST_ITEMS)}
  %in0 = getelementptr i8, ptr %h, i64 48
  %insw = sext i32 %ins to i64
  %outsw = sext i32 %outs to i64
  %recsw = sext i32 %recs to i64
  %in1 = getelementptr [24 x i8], ptr %in0, i64 %insw
  %out1 = getelementptr [24 x i8], ptr %in1, i64 %outsw
  %rec1 = getelementptr [24 x i8], ptr %out1, i64 %recsw
  %python = getelementptr i8, ptr %frame, i64 {PYTHON_TABLE}
{load_field("new", "ptr", "%python", 0)}
{load_field("hold", "ptr", "%python", 8)}
{load_field("drop", "ptr", "%python", 16)}
  %shapes = getelementptr i8, ptr %frame, i64 {ARRAY_SHAPES}
  br label %inputs

inputs:
  %in = phi ptr [ %in0, %entry ], [ %in.next, %copied ]
  %in.more = icmp ult ptr %in, %in1
  br i1 %in.more, label %input, label %records
input:
{load_field("source", "i32", "%in", 0)}
{load_field("index", "i32", "%in", 4)}
{load_field("place", "i32", "%in", 8)}
{load_field("size", "i32", "%in", 12)}
{load_field("extra", "ptr", "%in", 16)}
  %indexw = sext i32 %index to i64
  %placew = sext i32 %place to i64
  %sizew = sext i32 %size to i64
  %to = getelementptr i8, ptr %frame, i64 %placew
  %in.next = getelementptr i8, ptr %in, i64 24
  %constant = icmp eq i32 %source, {CONSTANT}
  br i1 %constant, label %copy, label %object
object:
  %argument = icmp slt i32 %source, 0
  %table = select i1 %argument, ptr %arguments, ptr %items
  %slot = getelementptr ptr, ptr %table, i64 %indexw
  %o = load ptr, ptr %slot
  %rows = call i32 @llvm.abs.i32(i32 %source, i1 false)
  %good = call i1 @is_lanes(ptr %o, ptr %type, ptr %extra, i32 %rows, i32 {READABLE})
  br i1 %good, label %array, label %refuse
array:
{load_field("data", "ptr", "%o", ARRAY_DATA)}
  br label %copy
copy:
  %from = phi ptr [ %extra, %input ], [ %data, %array ]
  call void @move(ptr %to, ptr %from, i64 %sizew)
  br label %copied
copied:
  br label %inputs
refuse:
  %r2 = call ptr @give(ptr %refused)
  ret ptr %r2

records:
  %rec = phi ptr [ %out1, %inputs ], [ %rec.next, %record ]
  %rec.more = icmp ult ptr %rec, %rec1
  br i1 %rec.more, label %record, label %outputs
record:
  %f = load ptr, ptr %rec
  call void %f(ptr %frame, ptr %rec)
  %rec.next = getelementptr i8, ptr %rec, i64 24
  br label %records

outputs:
  %out = phi ptr [ %in1, %records ], [ %out.next, %written ]
  %out.more = icmp ult ptr %out, %out1
  br i1 %out.more, label %output, label %end
output:
{load_field("orows", "i32", "%out", 0)}
{load_field("oindex", "i32", "%out", 4)}
{load_field("oplace", "i32", "%out", 8)}
{load_field("osize", "i32", "%out", 12)}
{load_field("odtype", "ptr", "%out", 16)}
  %oindexw = sext i32 %oindex to i64
  %oplacew = sext i32 %oplace to i64
  %osizew = sext i32 %osize to i64
  %out.next = getelementptr i8, ptr %out, i64 24
  %oslot = getelementptr ptr, ptr %items, i64 %oindexw
  %oo = load ptr, ptr %oslot
  %ogood = call i1 @is_lanes(ptr %oo, ptr %type, ptr %odtype, i32 %orows, i32 {_WRITABLE})
  br i1 %ogood, label %alone, label %fresh
alone:
  ; Nobody but the list holds the array, and it is no view: so nobody sees that it changes.
  %refs = load i32, ptr %oo
{load_field("base", "ptr", "%oo", ARRAY_BASE)}
{load_field("weak", "ptr", "%oo", ARRAY_WEAK)}
  %a1 = icmp eq i32 %refs, 1
  %a2 = icmp eq ptr %base, null
  %a3 = icmp eq ptr %weak, null
  %a4 = and i1 %a1, %a2
  %a5 = and i1 %a3, %a4
  br i1 %a5, label %written, label %fresh
fresh:
  call void %hold(ptr %odtype)
  %skip = sub i32 2, %orows
  %skipw = sext i32 %skip to i64
  %shape = getelementptr i64, ptr %shapes, i64 %skipw
  %made = call ptr %new(ptr %type, ptr %odtype, i32 %orows, ptr %shape, ptr null, ptr null,
                        i32 0, ptr null)
  %failed = icmp eq ptr %made, null
  br i1 %failed, label %failure, label %replace
replace:
  store ptr %made, ptr %oslot
  call void %drop(ptr %oo)
  br label %written
written:
  %goal = phi ptr [ %oo, %alone ], [ %made, %replace ]
{load_field("odata", "ptr", "%goal", ARRAY_DATA)}
  %ofrom = getelementptr i8, ptr %frame, i64 %oplacew
  call void @move(ptr %odata, ptr %ofrom, i64 %osizew)
  br label %outputs
failure:
  ret ptr null

end:
  %result = call ptr @give(ptr %done)
  ret ptr %result
}}

declare i32 @llvm.abs.i32(i32, i1)
"""
