"""The state and the engines of the emulated GPU: plain objects that work when they are called.

Written from the machine description alone; nothing here knows PTX text, warps' programs or time.
"""

from .bulk import bulk_copy, bulk_reduce
from .faults import Fault, FaultKind
from .fragments import ldmatrix, movmatrix, stmatrix
from .instruction import Instruction, decode_instruction
from .mbarrier import MBarrier, MBarrierTable, pending_count
from .memory import SHARED_BASE, GlobalMemory, SharedMemory
from .tensorcore import Mma, TensorCore
from .tensormap import TENSOR_MAP_BYTES, TensorMap
from .tensormap import decode as decode_tensor_map
from .tma import (
    gather4,
    load_tile,
    reduce_tile,
    scatter4,
    store_tile,
)
from .tmem import TensorMemory, register_count
from .warpmma import Wgmma, mma_sync, wgmma

__all__ = [
    "SHARED_BASE",
    "TENSOR_MAP_BYTES",
    "Fault",
    "FaultKind",
    "GlobalMemory",
    "Instruction",
    "MBarrier",
    "MBarrierTable",
    "Mma",
    "SharedMemory",
    "TensorCore",
    "TensorMap",
    "TensorMemory",
    "Wgmma",
    "bulk_copy",
    "bulk_reduce",
    "decode_instruction",
    "decode_tensor_map",
    "gather4",
    "ldmatrix",
    "load_tile",
    "mma_sync",
    "movmatrix",
    "pending_count",
    "reduce_tile",
    "register_count",
    "scatter4",
    "stmatrix",
    "store_tile",
    "wgmma",
]
