"""What is recorded of a run while it trains: history, timing, findings of the doctor, progress.

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
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from esupcon._console import Log, duration, percent
from esupcon._io import append_line, write_bytes
from esupcon.doctor import LOSSES as WATCHED_LOSSES
from esupcon.doctor import Finding, Watch
from esupcon.methods import Stage, Term
from esupcon.training.objective import term_weight
from esupcon.training.result import HISTORY_FILE, TIMING_FILE

if TYPE_CHECKING:
    from esupcon.training.run import Run

#: Without a terminal, a line of progress at most this often.
SECONDS_BETWEEN_LINES = 30.0


class TrainingFailed(ValueError):  # noqa: N818 - named like TrainingInterrupted
    """Raised if a run cannot continue; the message says why, and what to do."""


class Monitor:
    """Losses, findings and history of a run, stage by stage; part of its checkpoints."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.lines: list[dict[str, Any]] = []  # of the history, one per epoch
        self.findings: list[Finding] = []
        self.unrecorded: list[Finding] = []  # not in a line yet
        self.folder: Path | None = run.out if run.fabric.is_global_zero else None
        self.shown_accuracy = ""  # of the last epoch, for the progress bar

    def begin_stage(self, stage: Stage) -> None:
        """Start to record a stage."""
        self.stage, self.loss_sum, self.steps = stage, 0.0, 0
        self._since = self._last = time.monotonic()
        run, spec, n_steps = self.run, self.run.spec, self.run.n_steps(stage)
        weights: dict[str, float] = {}
        for term in stage.terms:
            weights[term.loss] = weights.get(term.loss, 0.0) + term_weight(term, spec)
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
        if not math.isfinite(loss):
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
        self.shown_accuracy = "" if accuracy is None else f"held-out {percent(accuracy)}"
        if accuracy is None and "logits" in sample:
            self.shown_accuracy = f"training {percent((sample['logits'].argmax(1) == sample['labels']).mean())}"
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
        self.lines.append(line)
        self.unrecorded, self.loss_sum, self.steps = [], 0.0, 0
        self._since = self._last = time.monotonic()

    def report(self, findings: list[Finding]) -> None:
        """Print each finding and keep it for the next line of the history."""
        self.findings += findings
        self.unrecorded += findings
        for finding in findings:
            self.run.log(str(finding))

    def rewrite(self) -> None:
        """Write the history again, without what a killed process wrote after its last checkpoint.

        Lines of `timing.jsonl` stay, because all of that time was spent.
        """
        if self.folder is not None:
            text = "".join(json.dumps(line, sort_keys=True) + "\n" for line in self.lines)
            write_bytes(self.folder / HISTORY_FILE, text.encode())

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


class Progress:
    """A progress bar on a terminal; elsewhere a line now and then. `shown=None`: a bar if stderr is a terminal."""

    def __init__(self, shown: bool | None = None) -> None:
        self._bar: Any = None
        self._what = ""
        if sys.stderr.isatty() if shown is None else shown:
            from rich import progress  # noqa: PLC0415 - only a terminal needs it
            from rich.console import Console  # noqa: PLC0415

            # The columns but the bar, which takes what they leave, need at most 71 of 80 characters.
            facts = (progress.TextColumn("{task.description}"), progress.TextColumn("{task.fields[facts]}"))
            columns = (facts[0], progress.BarColumn(None), facts[1], progress.TimeRemainingColumn())
            self._bar = progress.Progress(*columns, console=Console(stderr=True), expand=True, transient=True)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self, run: Run) -> None:
        """Show where the run is after a step."""
        at, monitor = run.position, run.monitor
        per_stage = [run.n_steps(stage) for stage in run.method.stages]
        done = sum(per_stage[: at.stage]) + at.epoch * run.plan.steps_per_epoch + at.step
        stage = "" if len(per_stage) == 1 else f"stage {at.stage + 1}/{len(per_stage)} "
        n_epochs = math.ceil(per_stage[at.stage] / run.plan.steps_per_epoch)
        facts = f"loss {monitor.loss_sum / max(1, at.step):.3g}  {monitor.shown_accuracy}".rstrip()
        text = f"{stage}epoch {at.epoch + 1}/{n_epochs}"
        self.show("training", done, sum(per_stage), text=text, facts=facts, log=run.log)

    def show(self, what: str, done: int, total: int, *, log: Log, text: str = "", facts: str = "") -> None:
        """Show that `done` of `total` parts of some work are done, which is described by its name or by a text."""
        now = time.monotonic()
        if what != self._what:
            self._what, self._began, self._done_before, self._last_line = what, now, done, now
            if self._bar is not None:
                for old in self._bar.task_ids:
                    self._bar.remove_task(old)
                self._task = self._bar.add_task(what, total=total, completed=done, facts="")
        if self._bar is not None:
            self._bar.update(self._task, description=text or what, completed=done, facts=facts)
        elif now - self._last_line >= SECONDS_BETWEEN_LINES and done > self._done_before:
            left = (total - done) * (now - self._began) / (done - self._done_before)
            parts = f"{text or what}: {percent(done / total, 0)}", *facts.split("  "), f"about {duration(left)} left"
            log(", ".join(filter(None, parts)))
            self._last_line = now

    def say(self, line: str) -> None:
        """Print a line on standard error, above the bar if there is one."""
        if self._bar is None:
            print(line, file=sys.stderr, flush=True)
        else:
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
