"""The command `esupcon`: commands, errors, exit codes.

Anything slow to import (torch above all) is imported inside the commands that need it, so that help is fast.
"""

from __future__ import annotations

import errno
import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Annotated, Any

import typer
import typer.main
from pydantic import ValidationError

from esupcon import __version__
from esupcon._console import printable
from esupcon.cli import grids, models
from esupcon.cli.bench import bench
from esupcon.cli.output import OPTIONS, answer, as_typed, complain, note, table
from esupcon.cli.stopping import INTERRUPTED, MISTAKE, PARTIAL, Stopped, Stopper
from esupcon.methods import METHODS

__all__ = ["app", "main"]

_USAGE_ERROR: Any = typer.BadParameter.__base__  # typer exports only the classes below it
_PLAIN_WORDS = {
    "Value error, ": "",
    "Invalid value for '(.+?)': ": r"\1 ",
    "Input should be a valid integer.*": "must be a whole number",
    "Input should be a valid number.*": "must be a number",
    "Input should be a valid dictionary": "must be NAME=SHARE,NAME=SHARE,...",
    "Input should be": "must be",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "above",
    "less than": "below",
}
_NO_MEMORY = ("not enough memory", "out of memory", "can't allocate memory")

app = typer.Typer(
    name="esupcon",
    help="Train, calibrate and use classifiers with a contrastive objective.",
    epilog="For a first look, in about a minute: esupcon demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def methods() -> None:
    """List the training methods: objective and trained parts of each."""
    made = table(["key", "name", "what it does"], [[m.key, m.title, m.summary] for m in METHODS.values()])
    for column in made.columns:
        column.justify, column.no_wrap = "left", column is not made.columns[2]
    answer(made)
    note("To use one: esupcon train DATA --method KEY")


_EXAMPLES: dict[Callable[..., None], str] = {
    models.train: "photos/",
    models.evaluate: "runs/photos photos/ --plot reliability.png",
    models.predict: "runs/photos new/*.jpg --top-k 3 > labels.csv",
    models.calibrate: "runs/photos photos/",
    models.export: "runs/photos --out photos.onnx",
    grids.demo: "--out demo-runs",
    grids.reproduce: "low_sample --dataset cifar10 --method ce,esupcon --seeds 3",
    grids.status: "runs/store",
    grids.report: "runs/store --out report.html",
    bench: "--encoder resnet18 --batch-size 512",
    methods: "",
}
for _command, _words in _EXAMPLES.items():
    _help = re.sub(r"(?<=\S)\n(?=\S)", " ", inspect.cleandoc(_command.__doc__ or ""))  # the terminal breaks the lines
    app.command(help=_help, epilog=f"Example: esupcon {_command.__name__} {_words}".rstrip())(_command)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"esupcon {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    context.obj["debug"] = debug
    command: Any = context.command
    # A message about a model may say how to train a better one; reproduce has the settings of train under --set.
    others = () if context.invoked_subcommand == "reproduce" else command.commands["train"].params
    parameters = (*others, *command.commands[context.invoked_subcommand].params)
    OPTIONS.clear()
    OPTIONS.update({one.name: one.opts[0] for one in parameters if one.param_type_name == "option"})


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code (`stopping.EXIT_CODES`)."""
    # Every Python process that we or our libraries start must not import from the current folder, which may hold data.
    os.environ["PYTHONSAFEPATH"] = "1"
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the caller has closed it; a file that is opened next must not take its place
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115
    given = sys.argv[1:] if argv is None else argv
    arguments = ["--unknown=unknown" if word == "--unknown" else word for word in given]  # typer needs a value
    session: dict[str, Any] = {}
    command = typer.main.get_command(app)
    try:
        with Stopper():
            code = command.main(args=arguments, prog_name="esupcon", standalone_mode=False, obj=session)
        try:
            sys.stdout.flush()
        except OSError:  # otherwise the interpreter tries again at exit, and complains
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise
        return code if isinstance(code, int) else 0
    except (Stopped, KeyboardInterrupt) as signal:
        code = int(getattr(signal, "exit_code", INTERRUPTED))
        complain("interrupted." if code == INTERRUPTED else "terminated.")
        return code
    except BrokenPipeError:  # the reader of our output has closed it; the interpreter must not complain at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PARTIAL
    except _USAGE_ERROR as error:
        message = _plain(error.format_message())
        if message:  # otherwise there were no arguments, and the help has been shown
            where = error.ctx.command_path if error.ctx is not None else "esupcon"
            complain(f"{message}{'' if message.endswith(('.', '?')) else '.'} See {where} --help.")
    except Exception as error:
        explained = one_line(error)
        if explained is None or session.get("debug"):
            raise
        complain(as_typed(explained))
    return MISTAKE


def one_line(error: Exception) -> str | None:
    """Return an error that the caller can correct as one line; None for any other: a bug, which keeps its traceback."""
    lacks_memory = isinstance(error, RuntimeError) and any(mark in str(error).lower() for mark in _NO_MEMORY)
    if isinstance(error, MemoryError) or lacks_memory:
        return (
            "there is not enough memory. Pass a smaller --batch-size, or --micro-batch to keep the batch of the loss."
        )
    if isinstance(error, ValidationError):
        return "; ".join(_of_option(name, list(entries)) for name, entries in groupby(error.errors(), _option))
    if isinstance(error, OSError) and error.errno is not None:
        where = f"{error.filename2 or error.filename}: " if error.filename is not None else ""
        match error.errno:
            case errno.ENOSPC | errno.EDQUOT:
                return f"{where}the disk is full. Free some space and run the same command again to continue."
            case errno.EACCES | errno.EPERM | errno.EROFS:
                return f"{where}{error.strerror}. Choose a writable place, or change its permissions."
            case _:
                return f"{where}{error.strerror or error}. Check the path."
    return printable(error) if isinstance(error, ValueError | OSError | ModuleNotFoundError) else None


def _option(entry: Any) -> str:
    """Return the field of an error; pydantic adds the names of the types that it tried."""
    return next((part for part in reversed(entry["loc"]) if isinstance(part, str) and part.isidentifier()), "")


def _of_option(name: str, entries: Sequence[Any]) -> str:
    message, *others = (_plain(entry["msg"]).removeprefix(f"{name} ") for entry in entries)
    message = " or ".join([message, *(other.removeprefix("must be ") for other in others)])
    got = "" if "got " in message else f"; got {entries[0]['input']!r}"
    return f"--{name.replace('_', '-')}{' ' if message.startswith('must') else ': '}{message}{got}"


def _plain(message: str) -> str:
    """Return a message of pydantic or typer in plain words."""
    for pattern, words in _PLAIN_WORDS.items():
        message = re.sub(pattern, words, message)
    return message
