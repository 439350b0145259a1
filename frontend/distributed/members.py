"""The ranks of a group: they agree on a call before they communicate, and name a failed rank.

The ranks agree through the group's store: before the first collective each rank writes its
arguments and reads the arguments of all other ranks, so that a mismatch raises instead of hanging.
Then each rank plans and compiles its kernels, and writes whether it has them.

Ranks skip this exchange for a call whose arguments are those of the previous call, if the token
counts of all ranks follow from these arguments. That is sound: a rank whose arguments changed
compares them, waits for this rank, and names it in its error. Token counts that do not follow from
the arguments are exchanged in every call, because another rank's count may change while this
rank's does not.

A rank that fails writes its error to the store, and aborts its connections. The other ranks then
read which rank wrote an error, and which rank does not answer.
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
ROLL_CALL_SECONDS = 10.0  # within which every rank must answer after one of them saw a failure
UNNAMED = "another rank failed"

_members: dict[str, Members] = {}


class TransportError(RuntimeError):
    """`torch.distributed` failed, often because another rank did; `watched` raises `RankError`."""


@contextlib.contextmanager
def communicating() -> Generator[None]:
    """Turns errors of `torch.distributed` into `TransportError`.

    Raises:
      TransportError: from an error of `torch.distributed`; gloo raises plain `RuntimeError`.
    """
    try:
        yield
    except RuntimeError as error:
        if type(error) is RuntimeError or isinstance(error, dist.DistError):
            raise TransportError(str(error)) from error
        raise


def members_of(group: Any) -> Members:
    """The ranks of a process group or of a mesh of one dimension; None stands for all ranks.

    Raises:
      SpecError: `group` is neither, or this rank is not in it, or `torch.distributed` is not
        initialised.
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
    if name not in _members or _members[name].group is not group:
        _members[name] = Members(group)
    return _members[name]


class Members:
    """The ranks of a group, seen from one of them.

    Attributes:
      group: the process group.
      rank, size: the number of this rank in the group, and the number of ranks.
      transports: the `Transport` of each device type, filled in at its first use.
    """

    def __init__(self, group: Any):
        self.group = group
        self.rank: int = dist.get_rank(group)
        self.size: int = dist.get_world_size(group)
        self._store = dist.PrefixStore(PREFIX, c10d._get_process_group_store(group))
        self._calls, self._posted = 0, list[str]()
        self._agreed: tuple[object, ...] = ()
        self._messages = list[dict[str, Any]]()  # of all ranks, about the agreed call
        self._is_prepared = False  # the agreed call
        self._failure = ""
        self.transports: dict[str, Any] = {}

    @property
    def timeout(self) -> datetime.timedelta:
        """The timeout of the group's collectives."""
        device = next(iter(self.group._device_types))
        return self.group._get_backend(device).options._timeout

    def agree(
        self, call: str, shared: Mapping[str, object], tokens: Any, *, follows: bool = False
    ) -> tuple[Any, ...]:
        """Makes sure that all ranks make the same call.

        Args:
          call: name of the function.
          shared: values that must be equal on all ranks, by the names that messages use.
          tokens: the token count of this rank, or a tuple of counts; it may differ between ranks.
          follows: whether the token counts of all ranks follow from `shared`.

        Returns:
          The `tokens` of every rank, by rank.

        Raises:
          SpecError: a value of `shared` differs; the message names two ranks and their values.
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
                messages = self._read_all()
                self._check_equal(messages)
            self._is_prepared &= messages == self._messages  # the same on all ranks
            self._agreed, self._messages = own, messages
        return tuple(x["tokens"] for x in self._messages)

    def prepare(self, kernels: Callable[[], None]) -> None:
        """Makes sure that every rank has the kernels of the call that all have agreed on.

        Args:
          kernels: plans and compiles the kernels of this rank; it is called once for each agreed
            call.

        Raises:
          RankError: another rank refused the call, or did not answer within the timeout.
        """
        if self._is_prepared or self.size == 1:
            return
        with self.checked():
            kernels()
        with self.agreeing():
            self.exchange("prepared")
        self._is_prepared = True

    def exchange(self, text: str) -> list[str]:
        """The texts of all ranks, by rank; for decisions that a group makes once."""
        self._calls += 1
        self._post({"shared": {}, "tokens": 0, "text": text})
        return [posted["text"] for posted in self._read_all()]

    @contextlib.contextmanager
    def checked(self) -> Generator[None]:
        """Tells the other ranks if this rank raises before the ranks have agreed on the call."""
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
        """Surrounds checks of exchanged values: they pass or fail on all ranks alike.

        After a failure the ranks compare the next call in any case.
        """
        try:
            yield
        except (RankError, SpecError):
            self._agreed = ()
            raise

    @contextlib.contextmanager
    def watched(self, call: str) -> Generator[None]:
        """Surrounds communication: an error in it makes the group unusable.

        Raises:
          RankError: another rank failed, which the message names; from the error of
            `torch.distributed`.
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
            self._failure = self._failure_text(call)
            raise RankError(self._failure) from error.__cause__

    def _check_usable(self) -> None:
        if self._failure:
            raise RankError(f"the group is unusable since a call failed: {self._failure}")

    def _post(self, message: Mapping[str, object]) -> None:
        """Writes this rank's message about the call to the store.

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
        """Reads the messages of all ranks about the call, and deletes this rank's earlier messages.

        Raises:
          RankError: a rank refused, or wrote nothing within the timeout.
        """
        keys = [f"call/{self._calls}/{rank}" for rank in range(self.size)]
        try:
            self._store.wait(keys, self.timeout)
            messages = [json.loads(text) for text in self._store.multi_get(keys)]
        except Exception as error:
            raise RankError(self._missing_text(keys)) from error
        for rank, posted in enumerate(messages):
            if "refused" in posted:
                raise RankError(f"rank {rank} refused the call: {posted['refused']}")
        while len(self._posted) > 1:
            self._store.delete_key(self._posted.pop(0))
        return messages

    def _missing_text(self, keys: Sequence[str]) -> str:
        """The text of the error for ranks that wrote nothing under their keys."""
        rank = 0
        with contextlib.suppress(Exception):
            rank = next(rank for rank, key in enumerate(keys) if not self._store.check([key]))
        seconds = self.timeout.total_seconds()
        return (
            f"rank {rank} did not make call {self._calls} of the group within {seconds:g} s, or "
            "made it with the arguments of its call before, and this rank with others"
        )

    def _check_equal(self, messages: list[dict[str, Any]]) -> None:
        for rank, posted in enumerate(messages):
            first, other = messages[0]["shared"], posted["shared"]
            names = [name for name in first if other.get(name) != first[name]]
            if names:
                name = names[0]
                raise SpecError(
                    f"{name} must be the same on all ranks: rank 0 has {first[name]}, rank {rank} "
                    f"has {other.get(name)}"
                )

    def _failure_text(self, call: str) -> str:
        """The text of the error after another rank failed."""
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
