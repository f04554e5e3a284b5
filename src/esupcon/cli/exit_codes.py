"""What a command's end means to whoever called it."""

import signal

PARTIAL = 1
MISTAKE = 2
INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM
