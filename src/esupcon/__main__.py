"""Start the command: `esupcon`, or `python -m esupcon`."""

import os
import signal
import sys


def _end(number: int, frame: object) -> None:
    os.write(2, b"esupcon: interrupted.\n")
    os._exit(128 + number)


def main() -> int:
    """Run the command line. A signal during the imports ends the process without a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    from esupcon.cli import main as run  # noqa: PLC0415 - after the handler is set

    code = run()
    if code > 128:  # stopped by a signal: the interpreter would take seconds to free gigabytes
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
