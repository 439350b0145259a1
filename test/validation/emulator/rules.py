"""Rules of the PTX ISA that decide between the kernels of a pair, in our words, with the section's name.

A rule that begins with `open` has no such sentence: what it decides is a finding of the check `unpromised`.
"""

from __future__ import annotations

ALLOC_ADDRESS = (
    "tcgen05, asynchronous operations: allocation instructions that access shared memory keep same-address order"
    " with other instructions; tcgen05.alloc: all threads of the warp execute it (.sync.aligned)"
)
ALLOC_SYNCHRONOUS = (
    "tcgen05, asynchronous operations: alloc is a synchronous instruction; tcgen05.fence: before_thread_sync orders"
    " asynchronous ones, after_thread_sync is for those behind the synchronisation"
)
INIT_ORDER = (
    "fence.mbarrier_init: orders only inits of the executing thread, for a relaxed arrival on the cluster's barrier;"
    " barrier.cluster: arrive releases and wait acquires unless they say otherwise"
)
INIT_PROXY = (
    "memory consistency model, proxies: a proxy fence stands between accesses of one place through two proxies;"
    " the copy engine completes bytes on an mbarrier through the async proxy"
)
PHASE_COMPLETE = (
    "mbarrier, phase completion: a phase is complete when no arrival and no byte of it is pending, so that every"
    " arrival it counts has happened; a later phase, and an arrival's earlier stores, need their own order"
)
REGISTER_DEPENDENCY = (
    "tcgen05, register dependencies of one thread: a register of tcgen05.ld may be read without wait::ld;"
    " tcgen05.wait: wait::ld says that the thread's loads are complete, which orders memory"
)
FENCES = (
    "tcgen05.fence: an asynchronous operation is ordered with the synchronisation behind it by before_thread_sync,"
    " with that before it by after_thread_sync"
)
LANES = (
    "open: tcgen05, access restrictions: warp w of a warpgroup accesses lanes 32 w to 32 w + 31; nothing says what"
    " another lane in the address means"
)
SCALES = (
    "open: tcgen05, block scaling: factors are duplicated to all four quarters of the lanes; nothing says which"
    " quarter a row of A takes its own from"
)
