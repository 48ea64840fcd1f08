"""Every error that metalane raises; all derive from :class:`Error` and carry a finished sentence."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .check import CheckFinding

__all__ = [
    "ArgumentError",
    "CheckError",
    "CommandBufferError",
    "CompileError",
    "DTypeError",
    "DeviceError",
    "Error",
    "GgufError",
    "KernelNotFoundError",
    "OutOfMemoryError",
    "TensorNotFoundError",
    "TimeoutError",
]


class Error(Exception):
    """Base of all errors of metalane."""


class ArgumentError(Error, ValueError):
    """A bad argument: which one of which operator, what was expected, what was given."""

    op: str = ""
    argument: str = ""
    expected: str = ""
    given: str = ""


class DTypeError(ArgumentError, TypeError):
    """A wrong element type or argument type."""


class OutOfMemoryError(Error, MemoryError):
    """Memory that could not be had."""


class KernelNotFoundError(Error, KeyError):
    """A kernel, source or header that is not registered."""

    def __str__(self) -> str:
        # KeyError shows the repr of its key; this is a sentence.
        return Exception.__str__(self)


class TensorNotFoundError(Error, KeyError):
    """A tensor that a file does not have."""

    def __str__(self) -> str:
        return Exception.__str__(self)


class GgufError(Error):
    """A GGUF file that cannot be read: no such file, malformed, or shrunk since it was opened."""

    path: str = ""
    field: str = ""
    """The field of the format at fault: "version", 'tensors["output.weight"].offset', ..."""


class CompileError(Error):
    """A source that does not compile; the text holds kernel, file, line and the compiler's words."""

    kernel: str = ""


class DeviceError(Error, RuntimeError):
    """A device that cannot be had or used: unknown kind, or inherited through fork."""


class CommandBufferError(Error):
    """Work that failed on the device."""

    code: str = ""
    """What happened, in one word: "fault", "stack-overflow", "timeout", "barrier", "cancelled", ..."""
    label: str = ""
    """Label of the launch or of the submission that failed."""
    is_transient: bool = False
    """True where the same work may succeed when submitted again."""


class CheckError(CommandBufferError):
    """Work that the checker found at fault; the text names every finding."""

    findings: tuple[CheckFinding, ...] = ()
    """Errors, and the warnings of the same submission."""


class TimeoutError(Error, builtins.TimeoutError):
    """A wait that ran out of time; what was waited for goes on."""
