"""`esupcon`: its commands, and what becomes of mistakes and interruptions."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from esupcon import __version__
from esupcon.cli import exit_codes
from esupcon.cli.bench import bench
from esupcon.cli.calibrate import calibrate
from esupcon.cli.demo import demo
from esupcon.cli.evaluate import evaluate
from esupcon.cli.export import export
from esupcon.cli.methods import methods
from esupcon.cli.mistakes import is_mistake, one_line
from esupcon.cli.output import complain
from esupcon.cli.predict import predict
from esupcon.cli.report import report
from esupcon.cli.reproduce import reproduce
from esupcon.cli.status import status
from esupcon.cli.stopping import Interrupted, Terminated, interruptions_are_ours
from esupcon.cli.train import train

# The class of mistakes on the command line; typer shows it by its children alone.
_USAGE_ERROR: Any = typer.BadParameter.__base__

app = typer.Typer(
    name="esupcon",
    help="Train, calibrate and use classifiers whose embedding and probabilities come from one contrastive objective.",
    epilog="A first look, in under a minute: esupcon demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@dataclass
class _Session:
    """What must be known after a command has failed."""

    debug: bool = False


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"esupcon {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and leave.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of a mistake.")] = False,
) -> None:
    context.obj.debug = debug


def _example(command: str) -> str:
    return f"Example: {command}"


app.command(epilog=_example("esupcon train photos/ --out runs/photos"))(train)
app.command(epilog=_example("esupcon evaluate runs/photos/model photos/ --plot reliability.png"))(evaluate)
app.command(epilog=_example("esupcon predict runs/photos/model new/*.jpg --top-k 3 > labels.csv"))(predict)
app.command(epilog=_example("esupcon calibrate runs/photos/model photos/"))(calibrate)
app.command(epilog=_example("esupcon export runs/photos/model --out photos.onnx"))(export)
app.command(epilog=_example("esupcon demo --out demo-runs"))(demo)
app.command(epilog=_example("esupcon reproduce low_sample --dataset cifar10 --method ce,esupcon --seeds 3"))(reproduce)
app.command(epilog=_example("esupcon status runs/store"))(status)
app.command(epilog=_example("esupcon report runs/store --out report.html"))(report)
app.command(epilog=_example("esupcon bench --encoder resnet18 --batch-size 512"))(bench)
app.command(epilog=_example("esupcon methods --json"))(methods)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line and returns its exit code: 0 done, 1 in part, 2 a mistake of the caller's, 130 or 143
    stopped by Ctrl-C or SIGTERM."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    session = _Session()
    try:
        with interruptions_are_ours():
            command = typer.main.get_command(app)
            code = command.main(args=arguments, prog_name="esupcon", standalone_mode=False, obj=session)
    except (KeyboardInterrupt, Interrupted):
        code = _stopped("interrupted.", exit_codes.INTERRUPTED)
    except Terminated:
        code = _stopped("terminated.", exit_codes.TERMINATED)
    except BrokenPipeError:
        _leave_closed_pipe()
        code = exit_codes.PARTIAL
    except Exception as error:
        if isinstance(error, _USAGE_ERROR):
            code = _misused(error)
        elif is_mistake(error) and not session.debug:
            code = _stopped(one_line(error), exit_codes.MISTAKE)
        else:
            raise
    return code if isinstance(code, int) else 0


def _stopped(line: str, code: int) -> int:
    complain(line)
    return code


def _misused(error: Any) -> int:
    """A word that is no option or command, or a value of the wrong type."""
    message = error.format_message()
    if message:  # else it was no word at all, and help has been shown
        where = error.ctx.command_path if error.ctx is not None else "esupcon"
        complain(f"{message}{'' if message.endswith(('.', '?')) else '.'} See {where} --help.")
    return exit_codes.MISTAKE


def _leave_closed_pipe() -> None:
    """Whoever read our output has left; the interpreter must not complain about it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
