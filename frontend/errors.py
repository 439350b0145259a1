"""The typed errors of attn-mlir; a leaf that every layer may import.

Every message says what is wrong, what was got, what is allowed and what to do.
"""


class AttnError(Exception):
    """Base class of all errors that attn-mlir raises intentionally."""


class SpecError(AttnError, ValueError):
    """The request is wrong: a shape, a dtype, an option, an argument of a call."""


class SplitError(SpecError):
    """The keys of a call are to be computed in parts, for which no kernel was made."""


class VerifyError(AttnError):
    """The IR is wrong.

    Attributes:
      op: name of the operation, such as `attn.mha`, or None.
      location: `file:line:col` of the operation, or None.
      notes: further diagnostics, in order.
    """

    def __init__(
        self,
        message: str,
        *,
        op: str | None = None,
        location: str | None = None,
        notes: tuple[str, ...] = (),
    ):
        super().__init__(message)
        self.op = op
        self.location = location
        self.notes = notes


class ResourceError(AttnError):
    """Shared memory, tensor memory, registers or barriers are over-subscribed.

    Attributes:
      location: `file:line:col` of the kernel that needs too much, or None.
    """

    def __init__(self, message: str, *, location: str | None = None):
        super().__init__(message)
        self.location = location


class TargetError(AttnError):
    """The chip, the driver or the toolchain cannot do what was requested."""


class LaunchError(AttnError):
    """A launch was refused or failed, on a GPU or on the emulator."""


class RankError(AttnError):
    """Another rank of a group failed: it refused a call, raised, ended or stopped."""


REFUSALS = (SpecError, TargetError, ResourceError)
"""Errors of a call that is refused before anything is launched."""


def no_kernel(subject: str, *reasons: str, context: str = "", many: bool = False) -> str:
    """The one text of a refusal of what kernels could compute and none does.

    Args:
      subject: what has no kernel: an argument with its value, a chip; empty where the error names
        the operation.
      reasons: of each schedule that could have had one, or what there are kernels for.
      context: what the subject goes with, such as `for e4m3`.
      many: whether the subject is several things.
    """
    has = "have no kernel" if many else "has no kernel"
    words = " ".join(filter(None, (subject, has, context)))
    return f"{words}: {'; '.join(reasons)}"


def shown(value: object, width: int = 60) -> str:
    """A value for messages: its `repr` on one line, cut to `width` characters.

    Never raises: a value whose `repr` fails, such as an integer of 5000 digits, is shown as its
    type.
    """
    try:
        text = " ".join(repr(value).split())
    except Exception:  # foreign code, which may raise anything
        text = f"<{type(value).__qualname__}>"
    return text[:width]
