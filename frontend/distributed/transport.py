"""Moves tensors between the ranks of a group, beside kernels that run.

Two ways: the collectives of `torch.distributed`, and copies out of the peers' memory. A NCCL kernel
waits until an attention kernel that holds all multiprocessors has ended; copy engines do not, so
within a node tensors are pulled from symmetric memory, on a stream of their own.
"""

from __future__ import annotations

import importlib
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from attn_mlir.distributed.members import Members, communicating

torch: Any = importlib.import_module("torch")
dist: Any = importlib.import_module("torch.distributed")

# torch 2.13 renamed the collectives of one tensor, and warns of the old names.
all_gather: Any = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter: Any = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

Wait = Callable[[], None]  # until it is called a tensor is not there
SMALLEST_BYTES = 4096  # of symmetric memory that is made to see whether it can be
SYMMETRIC = "torch.distributed._symmetric_memory"


def transport_of(members: Members, device: Any) -> Transport:
    """The way of tensors on a device: by copy engines where every rank of the group can."""
    found: Transport | None = members.transports.get(device.type)
    if found is None:
        host = socket.gethostname() if _has_symmetric_memory(device) else ""
        hosts = members.exchange(host)
        found = Transport(members)
        if members.size > 1 and host and set(hosts) == {host}:
            reached = _reaches_peers(members, device)
            if all(members.exchange("reached" if reached else "")):
                found = Pulling(members)
        members.transports[device.type] = found
    return found


def _reaches_peers(members: Members, device: Any) -> bool:
    """Whether symmetric memory of this rank and its peers can be mapped."""
    try:
        _Symmetric(members.group, SMALLEST_BYTES, device)
    except RuntimeError:
        return False
    return True


def _has_symmetric_memory(device: Any) -> bool:
    if device.type != "cuda":
        return False
    try:
        importlib.import_module(SYMMETRIC)
    except ImportError:
        return False
    return True


class Transport:
    """By collectives, NCCL's on GPUs."""

    def __init__(self, members: Members):
        self.members = members

    def circulate(self, own: Any) -> Iterator[tuple[int, Any]]:
        """The tensors of all ranks, this one's first, then those of the ranks before it.

        While the caller works with one the next one travels.

        Args:
          own: of the same shape and dtype on all ranks.

        Yields:
          A rank and its tensor, which is valid until the next one is asked for.
        """
        rank, size = self.members.rank, self.members.size
        spare = [torch.empty_like(own) for _ in range(min(2, size - 1))]
        current = own
        for step in range(size):
            wait = None
            if step + 1 < size:
                wait = self.shift(current, spare[step % 2])
            yield (rank - step) % size, current
            if wait is not None:
                wait()
                current = spare[step % 2]

    def shift(self, send: Any, receive: Any) -> Wait:
        """Begins to send to the next rank and to receive from the one before."""
        rank, size, group = self.members.rank, self.members.size, self.members.group
        following, before = ((rank + x) % size for x in (1, -1))
        with communicating():
            works = dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, send, group=group, group_peer=following),
                    dist.P2POp(dist.irecv, receive, group=group, group_peer=before),
                ]
            )
        return _waiting(works)

    def gather(self, pairs: Sequence[tuple[Any, Any]]) -> Wait:
        """Begins to collect tensors of all ranks.

        Args:
          pairs: [ranks, ...] of dense memory, which is written, and this rank's part of it, dense.
        """
        with communicating():
            works = [
                all_gather(whole.flatten(0, 1), own, group=self.members.group, async_op=True)
                for whole, own in pairs
            ]
        return _waiting(works)

    def swap(self, send: Any) -> Any:
        """Part i of [ranks, ...] goes to rank i, and that of rank j comes to place j."""
        received = torch.empty_like(send)
        with communicating():
            dist.all_to_all_single(received, send, group=self.members.group)
        return received


def _waiting(works: Sequence[Any]) -> Wait:
    def wait() -> None:
        with communicating():
            for work in works:
                work.wait()

    return wait


class Pulling(Transport):
    """By copies out of symmetric memory. Collectives that end on the critical path stay NCCL's.

    Calls alternate between two buffers: the barrier of a call comes after this rank's reads of the
    call before, so a buffer is free again when its turn comes.
    """

    def __init__(self, members: Members):
        super().__init__(members)
        self._buffers: list[Any] = []
        self._turn = 0
        self._side = torch.cuda.Stream()

    def circulate(self, own: Any) -> Iterator[tuple[int, Any]]:
        rank, size = self.members.rank, self.members.size
        shared = self._shared(own)
        spare = [torch.empty_like(own) for _ in range(min(2, size - 1))]
        current = own
        for step in range(size):
            wait = None
            source = (rank - step - 1) % size
            if step + 1 < size:
                wait = self._copies([(spare[step % 2], shared[source])])
            yield (source + 1) % size, current
            if wait is not None:
                wait()
                current = spare[step % 2]

    def gather(self, pairs: Sequence[tuple[Any, Any]]) -> Wait:
        rank, size = self.members.rank, self.members.size
        shared = self._shared(torch.cat([own.reshape(-1) for _, own in pairs]))
        ends = [0]
        for _, own in pairs:
            ends.append(ends[-1] + own.numel())
        for whole, own in pairs:
            whole[rank].copy_(own)
        spans = list(zip(pairs, ends[:-1], ends[1:], strict=True))
        return self._copies(
            [
                (whole[other], shared[other][begin:end].view(own.shape))
                for other in ((rank - step) % size for step in range(1, size))
                for (whole, own), begin, end in spans
            ]
        )

    def _shared(self, own: Any) -> list[Any]:
        """Views of every rank's tensor in symmetric memory, when all have written theirs."""
        count = own.numel() * own.element_size()
        if not self._buffers or self._buffers[0].capacity < count:
            self._buffers = [_Symmetric(self.members.group, count, own.device) for _ in range(2)]
        buffer = self._buffers[self._turn]
        self._turn = 1 - self._turn
        return buffer.written(own, self.members.rank, self.members.size)

    def _copies(self, pairs: Sequence[tuple[Any, Any]]) -> Wait:
        """Begins copies of second tensors into first ones, after what the stream has now."""
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            for target, source in pairs:
                target.copy_(source, non_blocking=True)
            done = torch.cuda.Event()
            done.record(self._side)
        return lambda: torch.cuda.current_stream().wait_event(done)


class _Symmetric:
    """A buffer that all ranks of a node may read."""

    def __init__(self, group: Any, count: int, device: Any):
        symmetric: Any = importlib.import_module(SYMMETRIC)
        self.capacity = count
        self._memory = symmetric.empty(count, dtype=torch.uint8, device=device)
        with communicating():
            self._handle = symmetric.rendezvous(self._memory, group)

    def written(self, own: Any, rank: int, size: int) -> list[Any]:
        views = [self._handle.get_buffer(i, own.shape, own.dtype) for i in range(size)]
        views[rank].copy_(own)
        with communicating():
            self._handle.barrier(channel=0)
        return views
