"""What a run of a stage's core alone would write down, kept by a run that trains a head beside it.

Where the encoder learns nothing from the head, another method may want that encoder and no head yet (see
`Stage.core`). It takes the weights, and with them the history and the findings it would have had itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from esupcon.doctor import Finding, Watch
from esupcon.methods import Stage


def epoch_line(
    stage: int, epoch: int, loss: float, lr: float, accuracy: float | None, findings: list[Finding]
) -> dict[str, Any]:
    """An epoch, as the history has it."""
    line: dict[str, Any] = {"stage": stage, "epoch": epoch, "loss": loss, "lr": lr, "held_out_accuracy": accuracy}
    if findings:
        line["findings"] = [finding.as_dict() for finding in findings]
    return line


@dataclass
class CoreRecord:
    stage: Stage
    watch: Watch
    findings: list[Finding]
    unrecorded: list[Finding]
    lines: list[dict[str, Any]] = field(default_factory=list)
    loss_sum: float = 0.0

    def step(self, loss: float, lr: float) -> None:
        self.loss_sum += loss
        self._find(self.watch.step(loss, lr))

    def end_epoch(self, epoch: int, lr: float, steps: int, accuracy: float | None, sample: dict[str, Any]) -> None:
        """`sample`: embeddings of training samples with their labels, as `Watch.epoch` has them."""
        loss, self.loss_sum = self.loss_sum / steps, 0.0
        self._find(self.watch.epoch(epoch, loss, accuracy, **sample))
        self.lines.append(epoch_line(0, epoch, loss, lr, accuracy, self.unrecorded))
        self.unrecorded = []

    def state_dict(self) -> dict[str, Any]:
        return {
            "watch": self.watch.state_dict(),
            "findings": [finding.as_dict() for finding in self.findings],
            "unrecorded": [finding.as_dict() for finding in self.unrecorded],
            "lines": self.lines,
            "loss_sum": self.loss_sum,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.watch.load_state_dict(state["watch"])
        self.findings = [Finding.from_dict(finding) for finding in state["findings"]]
        self.unrecorded = [Finding.from_dict(finding) for finding in state["unrecorded"]]
        self.lines, self.loss_sum = list(state["lines"]), float(state["loss_sum"])

    def _find(self, findings: list[Finding]) -> None:
        self.findings += findings
        self.unrecorded += findings
