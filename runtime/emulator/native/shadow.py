"""The usual access of a warp's lanes to a shadow memory, as LLVM IR.

`checkers/shadow.py` says what an access finds and leaves. This function does the same for a weak
access without a conflict, of lanes at different addresses, to granules that have at most one last
writer and reader. It leaves all others to Python, without effect.

CPython calls it as a builtin (METH_FASTCALL). Its first argument is a bytes object that describes
the shadow (`described`); the others are

    addresses  u32, u64 or s64[lanes]
    lanes      s64[lanes], their numbers
    known      s32[actors], the steps that all of the lanes know
    actor      of lane 0
    step, width in bytes
    values     u8[lanes, width], the bytes of a store; a load does not have these two
    element    size in bytes of the store's elements

It returns True when the access is recorded, else False.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from .driver import (
    ARRAY_DATA,
    ARRAY_DTYPE,
    ARRAY_FLAGS,
    ARRAY_ND,
    ARRAY_SHAPE,
    BYTES_DATA,
    READABLE,
    TYPE,
    load_field,
)

LANES = 32  # most lanes of an access
_LOAD_ARGUMENTS = 6
_POINTERS = (
    "writes reads earlier_writes earlier_reads sizes host type u32 u64 s64 s32 u8 no yes integer"
).split()
_NUMBERS = ("granules", "base", "shift")


def described(arrays: tuple[Any, ...], host: int, base: int, granule: int, integer: int) -> bytes:
    """The first argument of `record_access`.

    Args:
      arrays: cells of writes, reads, earlier writes and earlier reads, int64[granules], and element
        sizes of stores, int8[granules].
      host: where address 0 would lie on the host; 0 if memory is not to be read.
      base: address of the first byte.
      granule: bytes of a granule, a power of two.
      integer: address of PyLong_AsLongLong.
    """
    dtypes = (id(np.dtype(kind)) for kind in (np.uint32, np.uint64, np.int64, np.int32, np.uint8))
    pointers = (
        *(array.ctypes.data for array in arrays),
        host,
        id(np.ndarray),
        *dtypes,
        id(False),
        id(True),
        integer,
    )
    return struct.pack(
        f"<{len(_POINTERS)}Q{len(_NUMBERS)}q",
        *pointers,
        arrays[0].size,
        base,
        granule.bit_length() - 1,
    )


def _header() -> str:
    fields = [(name, "ptr") for name in _POINTERS] + [(name, "i64") for name in _NUMBERS]
    return "".join(load_field(name, kind, "%h", 8 * n) for n, (name, kind) in enumerate(fields))


def _argument(number: int) -> str:
    return load_field(f"a{number}", "ptr", "%arguments", 8 * number)


def _loop(name: str, index: str, count: str, body: str, *, before: str, after: str) -> str:
    """A loop over `%index` from 0 up to below `%count`, begun by a branch to `%{name}s`.

    Args:
      body: of one turn; goes on by a branch to `%{name}_next`.
      before, after: the blocks that the loop is entered from and left to.
    """
    return f"""
{name}s:
  %{index} = phi i64 [ 0, %{before} ], [ %{index}.next, %{name}_next ]
  %{index}.more = icmp ult i64 %{index}, %{count}
  br i1 %{index}.more, label %{name}, label %{after}
{name}:{body}{name}_next:
  %{index}.next = add i64 %{index}, 1
  br label %{name}s
"""


def _all(function: str, arguments: str, count: str, test: str) -> str:
    """A function that returns whether `%k`, as `test` computes it from `%i`, is true for all of
    `%count` indices.
    """
    body = f"""
{test}
  br i1 %k, label %one_next, label %no
"""
    return f"""
define internal i1 @{function}({arguments}) {{
entry:
  br label %ones
{_loop("one", "i", count, body, before="entry", after="yes")}
yes:
  ret i1 true
no:
  ret i1 false
}}
"""


_IS_FIRST = _all(
    "is_first",
    "ptr %data, i64 %at, i1 %narrow, i64 %address",
    "at",
    """  %b = call i64 @address_of(ptr %data, i64 %i, i1 %narrow)
  %k = icmp ne i64 %b, %address""",
)
_ARE_EQUAL = _all(
    "are_equal",
    "ptr %a, ptr %b, i64 %count",
    "count",
    """  %p = getelementptr i8, ptr %a, i64 %i
  %q = getelementptr i8, ptr %b, i64 %i
  %v = load i8, ptr %p
  %w = load i8, ptr %q
  %k = icmp eq i8 %v, %w""",
)


_LOOK_GRANULE = """
  %g = add i64 %first, %k
  %w.p = getelementptr i64, ptr %writes, i64 %g
  %w = load i64, ptr %w.p
  %r.p = getelementptr i64, ptr %reads, i64 %g
  %r = load i64, ptr %r.p
  %w.known = call i1 @is_known(i64 %w, i64 %own, ptr %known, i64 %actors)
  %r.known = call i1 @is_known(i64 %r, i64 %own, ptr %known, i64 %actors)
  %both = and i1 %w.known, %r.known
  br i1 %both, label %ordered, label %refuse
ordered:
  br i1 %is_load, label %look_granule_next, label %look_store
look_store:
  %ew.p = getelementptr i64, ptr %earlier_writes, i64 %g
  %ew = load i64, ptr %ew.p
  %er.p = getelementptr i64, ptr %earlier_reads, i64 %g
  %er = load i64, ptr %er.p
  %signs = or i64 %ew, %er
  %rows_there = icmp slt i64 %signs, 0
  br i1 %rows_there, label %refuse, label %agreement
agreement:
  ; A store of the same bytes by the last writer may agree with it.
  %writer = lshr i64 %w, 32
  %s.p = getelementptr i8, ptr %sizes, i64 %g
  %s = load i8, ptr %s.p
  %again = icmp eq i64 %writer, %own
  %alike = icmp eq i8 %s, %kind
  %may_agree = and i1 %again, %alike
  br i1 %may_agree, label %bytes, label %look_granule_next
bytes:
  %blind = icmp eq ptr %host, null
  br i1 %blind, label %refuse, label %compare
compare:
  %within = shl i64 %k, %shift
  %place = add i64 %address, %within
  %there = getelementptr i8, ptr %host, i64 %place
  %row = mul i64 %j, %width
  %column = add i64 %row, %within
  %new = getelementptr i8, ptr %values, i64 %column
  %equal = call i1 @are_equal(ptr %there, ptr %new, i64 %size)
  br i1 %equal, label %refuse, label %look_granule_next
"""
_LOOK_LANE = """
  %address = call i64 @address_of(ptr %addresses, i64 %j, i1 %narrow)
  %offset = sub i64 %address, %base
  %odd = and i64 %offset, %low
  %aligned = icmp eq i64 %odd, 0
  %first = lshr i64 %offset, %shift
  %inside = icmp ule i64 %first, %room
  %alone = call i1 @is_first(ptr %addresses, i64 %j, i1 %narrow, i64 %address)
  %g0 = and i1 %aligned, %inside
  %g1 = and i1 %g0, %alone
  %lane.p = getelementptr i64, ptr %lanes, i64 %j
  %lane = load i64, ptr %lane.p
  %own = add i64 %actor, %lane
  br i1 %g1, label %look_granules, label %refuse
"""
_PUT_GRANULE = """
  %pg = add i64 %pfirst, %pk
  %pr.p = getelementptr i64, ptr %reads, i64 %pg
  br i1 %is_load, label %put_load, label %put_store
put_load:
  store i64 %cell, ptr %pr.p
  br label %put_granule_next
put_store:
  %pr = load i64, ptr %pr.p
  %pw.p = getelementptr i64, ptr %writes, i64 %pg
  %pw = load i64, ptr %pw.p
  %pew.p = getelementptr i64, ptr %earlier_writes, i64 %pg
  %per.p = getelementptr i64, ptr %earlier_reads, i64 %pg
  %ps.p = getelementptr i8, ptr %sizes, i64 %pg
  store i64 %pr, ptr %per.p
  store i64 %pw, ptr %pew.p
  store i64 0, ptr %pr.p
  store i64 %cell, ptr %pw.p
  store i8 %kind, ptr %ps.p
  br label %put_granule_next
"""
_PUT_LANE = """
  %paddress = call i64 @address_of(ptr %addresses, i64 %pj, i1 %narrow)
  %poffset = sub i64 %paddress, %base
  %pfirst = lshr i64 %poffset, %shift
  %plane.p = getelementptr i64, ptr %lanes, i64 %pj
  %plane = load i64, ptr %plane.p
  %pown = add i64 %actor, %plane
  %phigh = shl i64 %pown, 32
  %cell = or i64 %phigh, %step
  br label %put_granules
"""


def _each_granule(name: str, prefix: str, lane: str, granule: str, *, after: str) -> str:
    """Code for each granule of each lane: what `lane` computes of it first, then `granule`."""
    granules = _loop(
        f"{name}_granule",
        f"{prefix}k",
        "each",
        granule,
        before=f"{name}_lane",
        after=f"{name}_lane_next",
    )
    return _loop(f"{name}_lane", f"{prefix}j", "count", lane + granules, before=name, after=after)


_LOOK = _each_granule("look", "", _LOOK_LANE, _LOOK_GRANULE, after="put")
_PUT = _each_granule("put", "p", _PUT_LANE, _PUT_GRANULE, after="end")

RECORDER = f"""
define internal ptr @data_of(ptr %o, ptr %type, ptr %dtype, i32 %rank) {{
{load_field("t", "ptr", "%o", TYPE)}
  %k0 = icmp eq ptr %t, %type
  br i1 %k0, label %array, label %no
array:
{load_field("d", "ptr", "%o", ARRAY_DTYPE)}
{load_field("n", "i32", "%o", ARRAY_ND)}
{load_field("f", "i32", "%o", ARRAY_FLAGS)}
  %k1 = icmp eq ptr %d, %dtype
  %k2 = icmp eq i32 %n, %rank
  %g = and i32 %f, {READABLE}
  %k3 = icmp eq i32 %g, {READABLE}
  %k4 = and i1 %k1, %k2
  %k5 = and i1 %k3, %k4
  br i1 %k5, label %yes, label %no
yes:
{load_field("data", "ptr", "%o", ARRAY_DATA)}
  ret ptr %data
no:
  ret ptr null
}}

define internal i64 @length_of(ptr %o, i64 %axis) {{
{load_field("s", "ptr", "%o", ARRAY_SHAPE)}
  %p = getelementptr i64, ptr %s, i64 %axis
  %n = load i64, ptr %p
  ret i64 %n
}}

define internal i64 @address_of(ptr %data, i64 %at, i1 %narrow) {{
  br i1 %narrow, label %short, label %long
short:
  %p = getelementptr i32, ptr %data, i64 %at
  %v = load i32, ptr %p
  %w = zext i32 %v to i64
  ret i64 %w
long:
  %q = getelementptr i64, ptr %data, i64 %at
  %x = load i64, ptr %q
  ret i64 %x
}}

; Whether no lane before this one has its address.
{_IS_FIRST}
; Whether a cell is that of one actor, whose step is known or which is the accessor itself.
define internal i1 @is_known(i64 %cell, i64 %own, ptr %known, i64 %actors) {{
  %actor = lshr i64 %cell, 32
  %k0 = icmp ult i64 %actor, %actors
  br i1 %k0, label %inside, label %no
inside:
  %p = getelementptr i32, ptr %known, i64 %actor
  %v = load i32, ptr %p
  %k = sext i32 %v to i64
  %step = and i64 %cell, 4294967295
  %k1 = icmp sle i64 %step, %k
  %k2 = icmp eq i64 %actor, %own
  %k3 = or i1 %k1, %k2
  ret i1 %k3
no:
  ret i1 false
}}

{_ARE_EQUAL}
define internal i64 @integer_of(ptr %integer, ptr %object) {{
  %v = call i64 %integer(ptr %object)
  ret i64 %v
}}

define ptr @record_access(ptr %self, ptr %arguments, i64 %argument_count) {{
entry:
  %h = getelementptr i8, ptr %self, i64 {BYTES_DATA}
{_header()}
{"".join(map(_argument, range(_LOAD_ARGUMENTS)))}
  %d32 = call ptr @data_of(ptr %a0, ptr %type, ptr %u32, i32 1)
  %d64 = call ptr @data_of(ptr %a0, ptr %type, ptr %u64, i32 1)
  %ds64 = call ptr @data_of(ptr %a0, ptr %type, ptr %s64, i32 1)
  %narrow = icmp ne ptr %d32, null
  %unsigned = icmp ne ptr %d64, null
  %wide = select i1 %unsigned, ptr %d64, ptr %ds64
  %addresses = select i1 %narrow, ptr %d32, ptr %wide
  %lanes = call ptr @data_of(ptr %a1, ptr %type, ptr %s64, i32 1)
  %known = call ptr @data_of(ptr %a2, ptr %type, ptr %s32, i32 1)
  %n0 = icmp eq ptr %addresses, null
  %n1 = icmp eq ptr %lanes, null
  %n2 = icmp eq ptr %known, null
  %n3 = or i1 %n0, %n1
  %n4 = or i1 %n2, %n3
  br i1 %n4, label %refuse, label %arrays
arrays:
  %count = call i64 @length_of(ptr %a0, i64 0)
  %lane_count = call i64 @length_of(ptr %a1, i64 0)
  %actors = call i64 @length_of(ptr %a2, i64 0)
  %actor = call i64 @integer_of(ptr %integer, ptr %a3)
  %step = call i64 @integer_of(ptr %integer, ptr %a4)
  %width = call i64 @integer_of(ptr %integer, ptr %a5)
  %size = shl i64 1, %shift
  %each = lshr i64 %width, %shift
  %whole = shl i64 %each, %shift
  %room = sub i64 %granules, %each
  %low = sub i64 %width, 1
  %c0 = icmp eq i64 %count, %lane_count
  %c1 = icmp ule i64 %count, {LANES}
  %c2 = icmp eq i64 %whole, %width
  %c3 = icmp ne i64 %each, 0
  %c4 = icmp sge i64 %room, 0
  %c5 = and i1 %c0, %c1
  %c6 = and i1 %c2, %c3
  %c7 = and i1 %c4, %c5
  %c8 = and i1 %c6, %c7
  br i1 %c8, label %sizes_fit, label %refuse
sizes_fit:
  %is_load = icmp eq i64 %argument_count, {_LOAD_ARGUMENTS}
  br i1 %is_load, label %look, label %store_arguments
store_arguments:
{_argument(6)}
{_argument(7)}
  %given = call ptr @data_of(ptr %a6, ptr %type, ptr %u8, i32 2)
  %v0 = icmp eq ptr %given, null
  br i1 %v0, label %refuse, label %values_array
values_array:
  %rows = call i64 @length_of(ptr %a6, i64 0)
  %columns = call i64 @length_of(ptr %a6, i64 1)
  %element = call i64 @integer_of(ptr %integer, ptr %a7)
  %v1 = icmp eq i64 %rows, %count
  %v2 = icmp eq i64 %columns, %width
  %v3 = and i1 %v1, %v2
  br i1 %v3, label %look, label %refuse

look:
  %values = phi ptr [ null, %sizes_fit ], [ %given, %values_array ]
  %element8 = phi i64 [ 0, %sizes_fit ], [ %element, %values_array ]
  %kind = trunc i64 %element8 to i8
  br label %look_lanes
{_LOOK}
put:
  br label %put_lanes
{_PUT}
end:
  %true = call ptr @give(ptr %yes)
  ret ptr %true
refuse:
  %false = call ptr @give(ptr %no)
  ret ptr %false
}}
"""
