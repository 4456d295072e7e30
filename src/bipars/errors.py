"""The errors a user can cause. Each message names the thing, its value and the remedy."""

import difflib
import errno
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path


def printable(text: str) -> str:
    """What files say, and names, may hold anything; a terminal must not act on it."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


class BiparsError(Exception):
    """Base of everything the library raises on purpose; the command line prints it without a traceback."""

    def __init__(self, message: str, settings: Sequence[str] = ()) -> None:
        """`settings`: paths of those that the message names, such as ppo.clip."""
        super().__init__(printable(message))
        self.settings = tuple(settings)

    def render(self, name: Callable[[str], str]) -> str:
        """The message as a front end shows it, where settings have other names."""
        message = str(self)
        for path in sorted(self.settings, key=len, reverse=True):
            message = message.replace(path, name(path))
        return message


class UsageError(BiparsError, ValueError):
    """A wrong name or value, found before any work started."""


class SettingError(UsageError):
    """A setting with a value that it cannot have."""

    def __init__(self, path: str, value: object, expected: str, others: Sequence[str] = ()) -> None:
        """`others`: paths of other settings that `expected` names."""
        super().__init__(f"{path} is {value!r}; expected {expected}", (path, *others))
        self.path, self.value, self.expected = path, value, expected


class NonFiniteError(BiparsError, FloatingPointError):
    """A reward, a term or a gradient stopped being a number during training."""


class TermError(BiparsError, ValueError):
    """A reward term, or the true reward, failed or returned something else than one number per transition."""


class EnvError(BiparsError, ValueError):
    """An environment returned something else than its spaces promise."""


class CheckpointError(BiparsError):
    """A file on disk is not what was written there."""


class RunDirectoryError(BiparsError):
    """A run directory is in use, or holds something else."""


class NoSpaceError(BiparsError):
    """The disk is full."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"no space is left on the disk of {path}. Everything written so far can be read; "
            "make room, then continue with `bipars resume`"
        )


def no_space(error: BaseException) -> bool:
    """Whether the disk, a quota or a limit on file sizes stands in the way, which is no fault of the run."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def unknown(what: str, name: str, known: Iterable[str]) -> UsageError:
    """An error that lists what exists and guesses what was meant."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    return UsageError(f"unknown {what} '{name}'.{hint} Known: {', '.join(names)}", (what,) if "." in what else ())
