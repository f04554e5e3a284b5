"""What is recorded of a run while it trains: history, timing, findings of the doctor, TensorBoard, progress.

`history.jsonl` holds what the run computed, so that equal runs have equal histories, byte for byte; `timing.jsonl`
holds what depends on the clock.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from esupcon._console import duration, percent
from esupcon._io import append_line, write_bytes
from esupcon.doctor import LOSSES as WATCHED_LOSSES
from esupcon.doctor import Finding, Watch
from esupcon.methods import Stage, Term
from esupcon.training.result import HISTORY_FILE, TENSORBOARD_FOLDER, TIMING_FILE

if TYPE_CHECKING:
    from esupcon.training.run import Run

#: Without a terminal, a line of progress at most this often.
SECONDS_BETWEEN_LINES = 30.0


class TrainingFailed(ValueError):  # noqa: N818 - named like TrainingInterrupted
    """Raised if a run cannot continue; the message says why, and what to do."""


class Monitor:
    """Losses, findings and history of a run, stage by stage; part of its checkpoints.

    A run has one Monitor that writes files and messages. If other methods can reuse its first stage, it has a second,
    silent one (`silent_copy_of`) for `stage.core`, which records what a run that trains no head would have recorded.
    """

    def __init__(self, run: Run, silent_copy_of: Monitor | None = None) -> None:
        self.run, self.silent = run, silent_copy_of is not None
        self.lines: list[dict[str, Any]] = []  # of the history, one per epoch
        self.findings: list[Finding] = list(silent_copy_of.findings) if silent_copy_of else []
        self.unrecorded: list[Finding] = list(silent_copy_of.unrecorded) if silent_copy_of else []  # not in a line yet
        self.folder: Path | None = None if self.silent or not run.fabric.is_global_zero else run.out
        self._curves: Any = None

    def begin_stage(self, stage: Stage) -> None:
        """Start to record a stage."""
        self.stage, self.loss_sum, self.steps = stage, 0.0, 0
        self._since = self._last = time.monotonic()
        run, spec, n_steps = self.run, self.run.spec, self.run.n_steps(stage)
        weights: dict[str, float] = {}
        for term in stage.terms:
            weights[term.loss] = weights.get(term.loss, 0.0) + term.weight
        self.watch: Watch | None = None  # for custom losses, whose range is unknown
        if set(weights) <= set(WATCHED_LOSSES):
            self.watch = Watch(
                losses=weights,
                n_batch=run.plan.batch_size,
                n_classes=run.data.n_classes,
                n_steps=n_steps,
                temperature=spec.temperature,
                warmup_steps=int(spec.warmup * n_steps),
                head=run.method.head,
                prototype_weight=spec.prototype_weight,
                spce_average=spec.spce_average,
                class_counts=np.bincount(run.data.y, minlength=run.data.n_classes).tolist(),
                already_reported=self.findings,
            )

    def step(self, losses: Mapping[Term, float], lr: float) -> None:
        """Record the value of each term after one step; raise TrainingFailed if their sum is not finite."""
        loss = sum(losses[term] for term in dict.fromkeys(self.stage.terms))
        if self.watch is not None:
            self.report(self.watch.step(loss, lr))
        if not math.isfinite(loss) and not self.silent:
            at, spec, out = self.run.position, self.run.spec, self.run.out
            kept = "" if out is None else f" The last good checkpoint is kept in {out}."
            raise TrainingFailed(
                f"the loss became {loss} in epoch {at.epoch + 1}, step {at.step + 1}.{kept} Lower the learning rate "
                f"(now {spec.lr or 'automatic'}) or raise the temperature (now {spec.temperature}); look for NaN in "
                "the data."
            )
        self.loss_sum += loss
        self.steps += 1
        self._last = time.monotonic()

    def end_epoch(self, n_steps: int, lr: float, accuracy: float | None, sample: dict[str, Any]) -> None:
        """Record an epoch. `sample` holds outputs of some training samples for `Watch.epoch`."""
        at, loss = self.run.position, self.loss_sum / n_steps
        if self.watch is not None:
            self.report(self.watch.epoch(at.epoch, loss, accuracy, **sample))
        where = {"stage": at.stage, "epoch": at.epoch}
        line: dict[str, Any] = {**where, "loss": loss, "lr": lr, "held_out_accuracy": accuracy}
        if self.unrecorded:
            line["findings"] = [finding.model_dump(mode="json") for finding in self.unrecorded]
        if self.folder is not None:
            seconds, images = self._last - self._since, self.steps * self.run.plan.batch_size
            timing = {**where, "seconds": seconds, "images_per_second": images / seconds if seconds > 0 else 0.0}
            append_line(self.folder / HISTORY_FILE, line)
            append_line(self.folder / TIMING_FILE, timing)
            self._draw_curves({**line, **timing})
        self.lines.append(line)
        self.unrecorded, self.loss_sum, self.steps = [], 0.0, 0
        self._since = self._last = time.monotonic()

    def report(self, findings: list[Finding]) -> None:
        """Print each finding and keep it for the next line of the history."""
        self.findings += findings
        self.unrecorded += findings
        for finding in findings if not self.silent else ():
            self.run.log(str(finding))

    def rewrite(self, lines: list[dict[str, Any]], timing: list[dict[str, Any]] | None = None) -> None:
        """Set the history to these lines: those that a killed process wrote after its last checkpoint are dropped.

        Lines of `timing.jsonl` are kept, because all of that time was spent, unless `timing` replaces them.
        """
        self.lines = list(lines)
        for name, records in ((HISTORY_FILE, self.lines), (TIMING_FILE, timing)):
            if self.folder is not None and records is not None:
                text = "".join(json.dumps(record, sort_keys=True) + "\n" for record in records)
                write_bytes(self.folder / name, text.encode())

    def state_dict(self, *, inside_stage: bool) -> dict[str, Any]:
        """Return the state as plain values. Between stages there is no watch."""
        return {
            "lines": self.lines,
            "findings": [finding.model_dump(mode="json") for finding in self.findings],
            "unrecorded": [finding.model_dump(mode="json") for finding in self.unrecorded],
            "loss_sum": self.loss_sum if inside_stage else 0.0,
            "watch": self.watch.state_dict() if inside_stage and self.watch is not None else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; inside a stage call `begin_stage` first."""
        self.lines, self.loss_sum = list(state["lines"]), float(state["loss_sum"])
        self.findings = [Finding.model_validate(finding) for finding in state["findings"]]
        self.unrecorded = [Finding.model_validate(finding) for finding in state["unrecorded"]]
        if state["watch"] is not None and self.watch is not None:
            self.watch.load_state_dict(state["watch"])

    def _draw_curves(self, record: dict[str, Any]) -> None:
        """Write the numbers of an epoch for TensorBoard, if it is installed."""
        if self._curves is None:
            try:
                from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - an extra that may be missing
            except ImportError:
                self._curves = False
            else:
                # Epochs that a killed process wrote after its last checkpoint are removed.
                self._curves = SummaryWriter(str(self.run.out / TENSORBOARD_FOLDER), purge_step=len(self.lines))  # type: ignore[operator]
        for name in ("loss", "lr", "held_out_accuracy", "images_per_second") if self._curves else ():
            if record[name] is not None:
                self._curves.add_scalar(f"stage{record['stage']}/{name}", record[name], len(self.lines))
        if self._curves:
            self._curves.flush()


class Progress:
    """A progress bar on a terminal; elsewhere a line now and then. `shown=None`: a bar if stderr is a terminal."""

    def __init__(self, shown: bool | None = None) -> None:
        self.shown = sys.stderr.isatty() if shown is None else shown
        self._bar: Any = None

    def __enter__(self) -> Self:
        self._started = self._last_line = time.monotonic()
        self._n_taken = 0
        if self.shown:
            from rich import progress  # noqa: PLC0415 - only a terminal needs it
            from rich.console import Console  # noqa: PLC0415

            console = Console(stderr=True)
            columns = [progress.TextColumn("{task.description}"), progress.TimeRemainingColumn()]
            columns[1:1] = [progress.BarColumn(console.width - 90)] if console.width > 100 else []
            self._bar = progress.Progress(*columns, console=console)
            self._bar.start()
            self._task = self._bar.add_task("", total=None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self, run: Run) -> None:
        """Show where the run is after a step."""
        self._n_taken += 1
        now, at, monitor = time.monotonic(), run.position, run.monitors[0]
        if self._bar is None and now - self._last_line < SECONDS_BETWEEN_LINES:
            return
        per_stage = [run.n_steps(stage) for stage in run.method.stages]
        done = sum(per_stage[: at.stage]) + at.epoch * run.plan.steps_per_epoch + at.step
        total = sum(per_stage)
        rate = self._n_taken / max(now - self._started, 1e-9)
        accuracy = monitor.lines[-1]["held_out_accuracy"] if monitor.lines else None
        text = f"{run.method.title} {done:,}/{total:,} steps  loss {monitor.loss_sum / max(1, at.step):.4f}"
        text += "" if accuracy is None else f"  held-out {percent(accuracy)}"
        text += f"  {rate * run.plan.batch_size:,.0f} samples/s"
        if self._bar is not None:
            self._bar.update(self._task, description=text, completed=done, total=total)
        else:
            run.log(f"{text}  about {duration((total - done) / rate)} left")
            self._last_line = now

    def say(self, line: str) -> None:
        """Print a line on standard error, above the bar if there is one."""
        if self._bar is None:
            print(line, file=sys.stderr, flush=True)
        else:
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
