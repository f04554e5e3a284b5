"""The first stage of a run, kept for runs of other methods that begin with the same one.

SupCon+CE and SupCon+CE(n) train one encoder and differ in the head they then put on it; SupCon+Tt trains the very same
one with a head beside it, from which it learns nothing. So do SPCE and SPCE(M). Where a grid wants several of them, the
first leaves what the others take, and these end as if they had trained it themselves, bit for bit.
"""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import torch

from esupcon.doctor import Finding
from esupcon.engine.history import TIMING
from esupcon.engine.run import Position, Run
from esupcon.files import read_json_lines, write_bytes
from esupcon.methods import first_stage, takes_first_stage
from esupcon.spec import key_of

_DIGEST_BYTES = hashlib.sha256().digest_size


def keep_first_stage(run: Run) -> None:
    """Once its first stage is done, writes what the core of it has come to, whole or not at all."""
    path, own = run.shared_stage, takes_first_stage(run.method)
    if path is None or run.position.stage != 1 or not run.fabric.is_global_zero or not (own or run.core):
        return
    folder = run.history.folder
    findings, lines = (run.findings, run.history.records) if run.core is None else (run.core.findings, run.core.lines)
    state = {
        "identity": _identity(run),
        "parts": {part: module.state_dict() for part, module in _trained_parts(run).items()},
        "history": lines,
        "findings": [finding.as_dict() for finding in findings],
        "timing": [] if folder is None else read_json_lines(folder / TIMING),
    }
    buffer = io.BytesIO()
    torch.save(state, buffer)
    content = buffer.getvalue()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, hashlib.sha256(content).digest() + content)


def take_first_stage(run: Run) -> bool:
    """Puts a run that has not begun behind its first stage; False where none is kept that fits it."""
    path = run.shared_stage
    if path is None or not takes_first_stage(run.method):
        return False
    state = _read(path, run)
    if not isinstance(state, dict) or state.get("identity") != _identity(run):
        return False
    for part, module in _trained_parts(run).items():
        module.load_state_dict(state["parts"][part])
    run.findings = [Finding.from_dict(finding) for finding in state["findings"]]
    run.position = Position(stage=1)
    run.history.restore(state["history"], [{**record, "taken": True} for record in state["timing"]])
    run.save(None)
    run.log(f"The first stage is taken from another run, of which it is a part as well ({path.stem}).")
    return True


def _identity(run: Run) -> str:
    """Of all that a first stage depends on: every setting but the method's name."""
    return key_of(
        {
            "spec": run.spec.model_copy(update={"method": ""}).model_dump(),
            "data": run.data.fingerprint,
            "stage": first_stage(run.method),
            "precision": run.precision,
            "batch_size": run.plan.batch_size,
        }
    )


def _trained_parts(run: Run) -> dict[str, torch.nn.Module]:
    return {part: getattr(run.network, part) for part in run.method.stages[0].core.trains}


def _read(path: Path, run: Run) -> Any:
    """What the file holds; None where there is none, or none that can be read."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    seal, content = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    if hashlib.sha256(content).digest() != seal:
        run.log(f"{path} is damaged (its checksum differs); the first stage is trained anew.")
        return None
    try:
        return torch.load(io.BytesIO(content), map_location=run.device, weights_only=True)
    except Exception as error:  # what is no state raises nearly anything, and runs nothing
        run.log(f"{path} cannot be read ({str(error).partition(chr(10))[0]}); the first stage is trained anew.")
        return None
