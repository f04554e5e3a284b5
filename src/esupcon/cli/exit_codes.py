"""What a command's end means to whoever called it."""

import signal

#: done in part: some runs failed or some files could not be read; each is named on standard error
PARTIAL = 1
#: a mistake that the caller can put right, said in one line on standard error; or all runs failed
MISTAKE = 2
#: stopped by Ctrl-C; a training run has saved a checkpoint, from which the same command goes on
INTERRUPTED = 128 + signal.SIGINT
#: stopped by SIGTERM; otherwise as with Ctrl-C
TERMINATED = 128 + signal.SIGTERM
