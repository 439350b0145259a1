"""What the copy engine touches where nothing of a box lies inside the tensor: the base of its map.

Each case is a launch in a process of its own, since one that faults leaves its process without a GPU:

    python -m attn_mlir.validation.gpu.empty_boxes CASE     prints `right` or `illegal address`
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from typing import Any, NamedTuple

import numpy as np

from attn_mlir.errors import LaunchError
from attn_mlir.runtime.call.tensors import TensorView
from attn_mlir.runtime.devices import driver
from attn_mlir.runtime.devices.cuda import CudaDevice
from attn_mlir.runtime.kernel import Kernel
from attn_mlir.validation.gpu.check import HOPPER, Machine, check
from attn_mlir.validation.tiny import assembled, kernel_of_text

ROWS, COLUMNS = 8, 64  # of each tensor, and of a box
FRONT = 8  # rows in front of each tensor at which the base of its map lies
ILLEGAL = "illegal address"

# One thread loads the box at `load_row` of one map and stores it at `store_row` of the other.
_PTX = """\
.version 8.6
.target TARGET
.address_size 64

.visible .entry move_box(
    .param .align 64 .b8 source[128], .param .align 64 .b8 destination[128],
    .param .u32 load_row, .param .u32 store_row)
.reqntid 32, 1, 1
{
    .reg .pred %p<3>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<8>;
    .shared .align 1024 .b8 box[1024];
    .shared .align 8 .b64 arrived;
    mov.u32 %r1, %tid.x;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra DONE;
    mov.b64 %rd1, source;
    mov.b64 %rd2, destination;
    cvta.param.u64 %rd3, %rd1;
    cvta.param.u64 %rd4, %rd2;
    ld.param.u32 %r5, [load_row];
    ld.param.u32 %r6, [store_row];
    mov.u32 %r2, box;
    mov.u32 %r3, arrived;
    mov.u32 %r4, 0;
    mbarrier.init.shared::cta.b64 [%r3], 1;
    fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared::cta.b64 %rd5, [%r3], 1024;
    cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
        [%r2], [%rd3, {%r4, %r5}], [%r3];
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 0;
    @!%p2 bra WAIT;
    fence.proxy.async.shared::cta;
    cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd4, {%r4, %r6}], [%r2];
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
DONE:
    ret;
}
"""


def _tensor(name: str, role: str) -> dict[str, Any]:
    return {
        "name": name, "role": role, "dtype": "f16", "shape": ["rows", COLUMNS],
        "unit_stride_axis": 1, "alignment_bytes": 16,
    }  # fmt: skip


def _map(tensor: str) -> dict[str, Any]:
    return {
        "kind": "tensor_map", "tensor": tensor, "box": [COLUMNS, ROWS], "swizzle": "128B",
        "dims": [{"extent": COLUMNS, "axis": 1, "step": 1},
                 {"extent": ["add", "rows", FRONT], "axis": 0, "step": 1, "first": -FRONT}],
    }  # fmt: skip


_MANIFEST: dict[str, Any] = {
    "schema": 1,
    "entry": "move_box",
    "target": "sm_100a",
    "block": [32, 1, 1],
    "cluster": [1, 1, 1],
    "smem_bytes": 0,
    "grid": [1, 1, 1],
    "symbols": ["rows"],
    "tensors": [_tensor("source", "in"), _tensor("destination", "out")],
    "scalars": [
        {"name": name, "dtype": "i32", "default": None, "min_exclusive": None}
        for name in ("load_row", "store_row")
    ],
    "params": [
        _map("source"),
        _map("destination"),
        {"kind": "scalar", "scalar": "load_row", "type": "i32"},
        {"kind": "scalar", "scalar": "store_row", "type": "i32"},
    ],
    "report": {},
    "versions": {},
}


class Case(NamedTuple):
    """One launch.

    Attributes:
      load_row, store_row: rows at which the boxes begin, counted from the base of the map: row
        FRONT is the tensor's first.
      front_has_memory: whether the base of the maps does.
    """

    load_row: int
    store_row: int
    front_has_memory: bool

    @property
    def outcome(self) -> str:
        """What a GPU and the emulator say: a load needs a row inside, or memory at its base."""
        has_rows = self.load_row < FRONT + ROWS
        return "right" if has_rows or self.front_has_memory else ILLEGAL


_LAST, _BEHIND = FRONT + ROWS - 1, FRONT + ROWS
CASES = {
    "load-of-a-row": Case(_LAST, FRONT, False),
    "load-of-nothing": Case(_BEHIND, FRONT, False),
    "load-of-nothing-at-memory": Case(_BEHIND, FRONT, True),
    "store-of-a-row": Case(FRONT, _LAST, False),
    "store-of-nothing": Case(FRONT, _BEHIND, False),
    "store-of-nothing-at-memory": Case(FRONT, _BEHIND, True),
}


def move_box(target: str) -> Kernel:
    """`move_box(source, destination, load_row=, store_row=)`: f16 [8, 64] by maps that begin FRONT rows earlier."""
    return kernel_of_text("move_box", _PTX, target, lambda: assembled(_MANIFEST, _PTX, target))


def arrays() -> tuple[Any, Any]:
    """The tensors of a launch: numbers, and what must be overwritten."""
    source = np.arange(1, ROWS * COLUMNS + 1, dtype=np.float16).reshape(ROWS, COLUMNS)
    return source, np.full_like(source, -1)


def moved(case: Case) -> Any:
    """What the destination holds afterwards."""
    source, wanted = arrays()
    box = np.zeros_like(source)
    loaded, stored = FRONT + ROWS - case.load_row, FRONT + ROWS - case.store_row  # rows inside
    box[:loaded] = source[ROWS - loaded :]
    wanted[ROWS - stored :] = box[:stored]
    return wanted


def _placed(array: Any, *, front_has_memory: bool) -> TensorView:
    """A copy of an array at the beginning of a page of the GPU, of whose neighbour in front memory is known."""
    api = driver.api()
    place = api.CUmemAllocationProp()
    place.type = api.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    place.location.type = api.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    place.location.id = 0
    minimum = api.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    page_bytes = int(driver.call("cuMemGetAllocationGranularity", place, minimum))
    front = int(driver.call("cuMemAddressReserve", 2 * page_bytes, 0, 0, 0))
    access = api.CUmemAccessDesc()
    access.location = place.location
    access.flags = api.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    address = front + page_bytes
    for page in (front, address) if front_has_memory else (address,):
        memory = driver.call("cuMemCreate", page_bytes, place, 0)
        driver.call("cuMemMap", page, page_bytes, 0, memory, 0)
        driver.call("cuMemSetAccess", page, page_bytes, [access], 1)
    driver.call("cuMemcpyHtoD", address, array.ctypes.data, array.nbytes)
    return TensorView("f16", array.shape, (COLUMNS, 1), address, "cuda", 0, False, None)


def _outcome(case: Case, target: str) -> str:
    """What comes of a case on the first GPU."""
    kernel = move_box(target)
    with driver.Current(0):
        source, destination = arrays()
        views = [
            _placed(array, front_has_memory=case.front_has_memory)
            for array in (source, destination)
        ]
        try:
            kernel(*views, load_row=case.load_row, store_row=case.store_row, device="cuda")
            CudaDevice(0).synchronize()
        except LaunchError as error:
            if "CUDA_ERROR_ILLEGAL_ADDRESS" not in str(error):
                raise
            return ILLEGAL
        driver.call("cuMemcpyDtoH", destination.ctypes.data, views[1].address, destination.nbytes)
    return "right" if (destination == moved(case)).all() else f"wrong: {destination[:, 0]}"


@check(asks=move_box)
def an_empty_box_needs_memory_at_the_base(machine: Machine) -> None:
    """A load with nothing inside its tensor faults where the map's base has no memory, and nothing else does."""
    for name, case in CASES.items():
        command = [sys.executable, "-m", __name__, name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        said = done.stdout.strip() or done.stderr.strip()[-500:]
        assert said == case.outcome, f"{name}: {said}, not {case.outcome}"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("case", choices=CASES, help="what is loaded and stored")
    case = CASES[parser.parse_args().case]
    targets = driver.gpus()[0].targets
    print(_outcome(case, targets[0] if targets else HOPPER))
    return 0


if __name__ == "__main__":
    sys.exit(main())
