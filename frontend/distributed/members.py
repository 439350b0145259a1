"""The ranks of a group: what they have to agree on before they communicate, and who failed.

Agreement goes through the group's store, between hosts: each rank writes its arguments and reads
those of the others before the first collective, so that a rank with other arguments raises instead
of waiting for ever. Then each plans and compiles its kernels, and says whether it has them.

A call with the arguments of the call before it is agreed on already if what may differ between
ranks, their tokens, follows from what all have alike. That is sound: were the arguments other ones
on some rank, that rank would wait for this one and name it. Tokens that do not follow are told
anew in each call: this rank may have as many as before while another one has more.

A rank that fails writes why, and aborts its connections. The others then look who wrote and who
does not answer.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import json
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from attn_mlir.errors import RankError, SpecError, shown

dist: Any = importlib.import_module("torch.distributed")
c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")

PREFIX = "attn_mlir"
ROLL_CALL_SECONDS = 10.0  # that a rank has to answer after another one saw a failure
UNNAMED = "another rank failed"

_known: dict[str, Members] = {}


class TransportError(RuntimeError):
    """`torch.distributed` failed, often because another rank did; `watched` replaces it."""


@contextlib.contextmanager
def communicating() -> Generator[None]:
    """Tells errors of `torch.distributed` from all others.

    Raises:
      TransportError: from an error of it; gloo raises plain ones of RuntimeError.
    """
    try:
        yield
    except RuntimeError as error:
        if type(error) is RuntimeError or isinstance(error, dist.DistError):
            raise TransportError(str(error)) from error
        raise


def members_of(group: Any) -> Members:
    """The ranks of a process group, of a mesh of one dimension, or all of them for None.

    Raises:
      SpecError: no group, one that this rank is not in, or no initialised `torch.distributed`.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise SpecError("torch.distributed is not initialised: call init_process_group first")
    if hasattr(group, "get_group"):
        if group.ndim != 1:
            raise SpecError(
                f"group is a mesh of {group.ndim} dimensions: pass one of them, mesh[name]"
            )
        group = group.get_group()
    group = dist.group.WORLD if group is None else group
    if not isinstance(group, dist.ProcessGroup) or dist.get_rank(group) < 0:
        raise SpecError(f"group must be a process group with this rank in it, got {shown(group)}")
    name = group.group_name
    if name not in _known or _known[name].group is not group:
        _known[name] = Members(group)
    return _known[name]


class Members:
    """The ranks of a group, seen from one of them.

    Attributes:
      group: the process group.
      rank, size: of this rank in the group, and the number of ranks.
      transports: how tensors travel, by kind of device, once that is decided.
    """

    def __init__(self, group: Any):
        self.group = group
        self.rank: int = dist.get_rank(group)
        self.size: int = dist.get_world_size(group)
        self._store = dist.PrefixStore(PREFIX, c10d._get_process_group_store(group))
        self._calls, self._posted = 0, list[str]()
        self._agreed: tuple[object, ...] = ()
        self._found = list[dict[str, Any]]()  # the arguments of all ranks in that call
        self._is_prepared = False  # for that call
        self._failure = ""
        self.transports: dict[str, Any] = {}

    @property
    def timeout(self) -> datetime.timedelta:
        """That of the group's collectives."""
        device = next(iter(self.group._device_types))
        return self.group._get_backend(device).options._timeout

    def agree(
        self, call: str, shared: Mapping[str, object], tokens: Any, *, follows: bool = False
    ) -> tuple[Any, ...]:
        """Makes sure that all ranks make the same call.

        Args:
          call: name of the function.
          shared: what has to be equal on all ranks, by names for messages.
          tokens: of this rank, which may differ: a number, or a tuple of such.
          follows: whether the tokens of all ranks follow from `shared`.

        Returns:
          The tokens of every rank.

        Raises:
          SpecError: something differs; the message says which rank has what.
          RankError: another rank refused its arguments, or did not call within the timeout.
        """
        self._check_usable()
        self._calls += 1
        if self.size == 1:
            return (tokens,)
        own = (call, *shared.items(), tokens)
        if not (follows and own == self._agreed):
            plain = {"call": call, **{name: str(value) for name, value in shared.items()}}
            self._post({"shared": plain, "tokens": tokens})
            with self.agreeing():
                found = self._read_all()
                self._check_equal(found)
            self._is_prepared &= found == self._found  # the same on all ranks
            self._agreed, self._found = own, found
        return tuple(x["tokens"] for x in self._found)

    def prepare(self, kernels: Callable[[], None]) -> None:
        """Makes sure that every rank has the kernels of the call that all have agreed on.

        Args:
          kernels: plans and compiles those of this rank; it is called once for an agreement.

        Raises:
          RankError: another rank refused the call, or did not come so far within the timeout.
        """
        if self._is_prepared or self.size == 1:
            return
        with self.checked():
            kernels()
        with self.agreeing():
            self.exchange("prepared")
        self._is_prepared = True

    def exchange(self, text: str) -> list[str]:
        """A text of each rank, in order; for what is decided once in the life of a group."""
        self._calls += 1
        self._post({"shared": {}, "tokens": 0, "text": text})
        return [posted["text"] for posted in self._read_all()]

    @contextlib.contextmanager
    def checked(self) -> Generator[None]:
        """Tells the others when this rank refuses a call, which it has not agreed on yet."""
        calls = self._calls
        try:
            yield
        except Exception as error:
            if self._calls == calls and self.size > 1 and not self._failure:
                self._calls, self._agreed = self._calls + 1, ()
                self._post({"refused": f"{type(error).__name__}: {error}"})
            raise

    @contextlib.contextmanager
    def agreeing(self) -> Generator[None]:
        """For checks of what all ranks have told one another, which all ranks pass or refuse.

        After a refusal the next call is compared again: on some rank it has other arguments.
        """
        try:
            yield
        except (RankError, SpecError):
            self._agreed = ()
            raise

    @contextlib.contextmanager
    def watched(self, call: str) -> Generator[None]:
        """Watches communication: an error in it ends the group, and names who failed.

        Raises:
          RankError: another rank failed; from the error of `torch.distributed`.
        """
        self._check_usable()
        try:
            yield
        except Exception as error:
            if self.size == 1:
                raise
            is_own = not isinstance(error, TransportError)
            text = f"{type(error).__name__}: {error}" if is_own else ""
            self._failure = text or UNNAMED
            with contextlib.suppress(Exception):
                self._store.set(f"failed/{self.rank}", json.dumps({"call": call, "error": text}))
            with contextlib.suppress(Exception):
                self.group.abort()
            if is_own:
                raise
            self._failure = self._who(call)
            raise RankError(self._failure) from error.__cause__

    def _check_usable(self) -> None:
        if self._failure:
            raise RankError(f"the group is unusable since a call failed: {self._failure}")

    def _post(self, message: Mapping[str, object]) -> None:
        """Writes what the others read of this call.

        Raises:
          RankError: the store does not answer.
        """
        key = f"call/{self._calls}/{self.rank}"
        try:
            self._store.set(key, json.dumps(message))
        except dist.DistError as error:
            raise RankError(
                "the store of the group does not answer: its host, often rank 0, has ended"
            ) from error
        self._posted.append(key)

    def _read_all(self) -> list[dict[str, Any]]:
        """Reads what each rank wrote of this call; then all have read what was written before.

        Raises:
          RankError: a rank refused, or wrote nothing within the timeout.
        """
        keys = [f"call/{self._calls}/{rank}" for rank in range(self.size)]
        try:
            self._store.wait(keys, self.timeout)
            found = [json.loads(text) for text in self._store.multi_get(keys)]
        except Exception as error:
            raise RankError(self._who_is_missing(keys)) from error
        for rank, posted in enumerate(found):
            if "refused" in posted:
                raise RankError(f"rank {rank} refused the call: {posted['refused']}")
        while len(self._posted) > 1:
            self._store.delete_key(self._posted.pop(0))
        return found

    def _who_is_missing(self, keys: Sequence[str]) -> str:
        """The message for ranks that wrote nothing under their keys."""
        rank = 0
        with contextlib.suppress(Exception):
            rank = next(rank for rank, key in enumerate(keys) if not self._store.check([key]))
        seconds = self.timeout.total_seconds()
        return (
            f"rank {rank} did not make call {self._calls} of the group within {seconds:g} s, or "
            "made it with the arguments of its call before, and this rank with others"
        )

    def _check_equal(self, found: list[dict[str, Any]]) -> None:
        for rank, posted in enumerate(found):
            first, other = found[0]["shared"], posted["shared"]
            names = [name for name in first if other.get(name) != first[name]]
            if names:
                name = names[0]
                raise SpecError(
                    f"{name} must be the same on all ranks: rank 0 has {first[name]}, rank {rank} "
                    f"has {other.get(name)}"
                )

    def _who(self, call: str) -> str:
        """The message of a failure of another rank."""
        seconds = min(ROLL_CALL_SECONDS, self.timeout.total_seconds())
        end, silent = time.monotonic() + seconds, list[int]()
        for rank in range(self.size):
            try:
                left = max(0.01, end - time.monotonic())
                self._store.wait([f"failed/{rank}"], datetime.timedelta(seconds=left))
                failure = json.loads(self._store.get(f"failed/{rank}"))
            except Exception:
                silent.append(rank)
                continue
            if failure["error"]:
                return f"rank {rank} raised in {failure['call']}: {failure['error']}"
        if len(silent) == self.size:
            return (
                f"{call} failed, and the store does not answer: its host, often rank 0, has ended"
            )
        ranks = f"rank{'s' * (len(silent) > 1)} {', '.join(map(str, silent))}"
        if silent:
            return f"{ranks} ended or stopped in {call}: no answer for {seconds:g} s"
        return f"{call} failed on all ranks, none of which raised an error of its own"
