"""The command line. Each command is a dataclass: its fields are the flags, their docstrings the help."""

import dataclasses
import difflib
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Annotated, Any, cast

import tyro

import bipars
from bipars.cli.asked import as_typed, flag, subcommands
from bipars.cli.explore import Bench, Demo, List, Monks
from bipars.cli.export import Export
from bipars.cli.report import Render, Report, Verify, Watch
from bipars.cli.suite import Resume, SuiteCommand, with_run
from bipars.cli.train import train_command
from bipars.errors import BiparsError, UsageError

OTHERS = subcommands({
    "resume": Resume, "suite": SuiteCommand, "list": List, "demo": Demo, "bench": Bench, "monks": Monks,
    "report": Report, "watch": Watch, "render": Render, "export": Export,
    "verify": Verify,
})  # fmt: skip
HELP_ALL = "--help-all"


def _parse(arguments: list[str]) -> Any:
    if arguments[:1] == ["--version"]:
        print(f"bipars {bipars.__version__}")
        raise SystemExit(0)
    short = bool({"-h", "--help"} & set(arguments))
    train: Any = train_command(show_all=not short)
    training, parse = arguments[:1] == ["train"], cast(Any, tyro.cli)
    parsed = parse(
        Annotated[train, tyro.conf.subcommand("train")] | OTHERS,
        prog="bipars",
        description="Learn how much each hand-written reward term should count, and where.",
        args=["--help" if word == HELP_ALL else word for word in arguments],
        config=(tyro.conf.FlagCreatePairsOff,),
        return_unknown_args=training,
    )
    if training:
        parsed, unknown = parsed
        if unknown:
            word = unknown[0].split("=")[0]
            if not word.startswith("-"):
                before = arguments[arguments.index(unknown[0]) - 1]
                raise UsageError(f"'{word}' is not a flag, and '{before}' does not take it")
            close = difflib.get_close_matches(word, _flags(parsed), n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise UsageError(f"unknown argument '{word}'.{hint} `bipars train --help-all` shows every flag")
    return parsed


def _flags(settings: Any, room: str = "") -> Iterator[str]:
    for part in dataclasses.fields(settings):
        value = getattr(settings, part.name)
        path = f"{room}{part.name}"
        yield from _flags(value, f"{path}.") if dataclasses.is_dataclass(value) else [flag(path)]


def main(arguments: list[str] | None = None) -> int:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    warnings.formatwarning = lambda message, *_: f"bipars: {message}\n"  # one line, without our source
    typed = sys.argv[1:] if arguments is None else arguments
    try:
        try:
            return _parse(with_run(typed)).run()
        finally:
            sys.stdout.flush()  # here, where it may fail: not when Python leaves
    except BiparsError as error:
        message = as_typed(error, typed) if typed[:1] == ["train"] else str(error)
        print(f"bipars: {message}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # who read our output has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if error.filename is None:
            raise
        print(f"bipars: {error.filename} cannot be used: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
