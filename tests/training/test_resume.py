"""A run that was stopped, killed or damaged ends as if nothing had happened, bit for bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from small_data import blobs, quick_spec

from esupcon.training import TrainingInterrupted, fit


def same(first, second, *folders: Path) -> None:
    for (name, a), b in zip(first.network.state_dict().items(), second.network.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    assert first.history == second.history
    assert (first.classifier.logits(first.data.x) == second.classifier.logits(second.data.x)).all()
    histories = {(folder / "history.jsonl").read_bytes() for folder in folders}
    assert len(histories) == 1


def stop_after(steps: int):
    """True at the given step; asked once a step."""
    count = iter(range(1, 10**6))
    return lambda: next(count) == steps


@pytest.mark.parametrize("method", ["esupcon", "supcon_ce"])
@pytest.mark.parametrize("steps", [1, 4, 9])
def test_interrupted_run_continues_bit_identical(tmp_path: Path, method: str, steps: int) -> None:
    spec, data = quick_spec(method=method, epochs=4), blobs()
    whole = fit(spec, data, out=tmp_path / "whole")
    with pytest.raises(TrainingInterrupted):
        fit(spec, data, out=tmp_path / "parts", should_stop=stop_after(steps))
    said: list[str] = []
    again = fit(spec, data, out=tmp_path / "parts", log=said.append)
    assert any("Continuing at epoch" in line for line in said)
    same(whole, again, tmp_path / "whole", tmp_path / "parts")


def test_interrupted_several_times_with_early_stopping(tmp_path: Path) -> None:
    spec, data = quick_spec(epochs=6, patience=2), blobs()
    whole = fit(spec, data, out=tmp_path / "whole")
    for steps in (2, 3, 5):
        try:
            fit(spec, data, out=tmp_path / "parts", should_stop=stop_after(steps))
        except TrainingInterrupted:
            continue
    same(whole, fit(spec, data, out=tmp_path / "parts"), tmp_path / "whole", tmp_path / "parts")


def test_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    spec, data = quick_spec(), blobs()
    first = fit(spec, data, out=tmp_path)
    second = fit(spec, data, out=tmp_path, should_stop=lambda: pytest.fail("a step was taken"))
    same(first, second, tmp_path)


def test_damaged_checkpoint_falls_back_to_the_one_before(tmp_path: Path) -> None:
    spec, data = quick_spec(epochs=4), blobs()
    whole = fit(spec, data, out=tmp_path / "whole")
    with pytest.raises(TrainingInterrupted):
        fit(spec, data, out=tmp_path / "parts", should_stop=stop_after(8), checkpoint_seconds=0)
    newest = max((tmp_path / "parts").glob("checkpoint-*.pt"))
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    said: list[str] = []
    again = fit(spec, data, out=tmp_path / "parts", log=said.append)
    assert any("damaged" in line and "the checkpoint before it" in line for line in said)
    same(whole, again, tmp_path / "whole", tmp_path / "parts")


def test_changed_spec_or_data_never_continues_another_run(tmp_path: Path) -> None:
    fit(quick_spec(), blobs(), out=tmp_path)
    with pytest.raises(ValueError, match=r"another run: epochs was 2, now 3; temperature was 0\.1, now 0\.2"):
        fit(quick_spec(epochs=3, temperature=0.2), blobs(), out=tmp_path)
    with pytest.raises(ValueError, match="another run: the data differ"):
        fit(quick_spec(), blobs(seed=1), out=tmp_path)
    replaced = fit(quick_spec(epochs=3), blobs(), out=tmp_path, overwrite=True)
    assert len(replaced.history) == 3


SCRIPT = """
import sys; sys.path.insert(0, sys.argv[2])
from pathlib import Path
from small_data import blobs, quick_spec
from esupcon.training import fit
print("ready", flush=True)
fit(quick_spec(epochs=40), blobs(), out=Path(sys.argv[1]), checkpoint_seconds=0)
"""


@pytest.mark.parametrize("fraction", [0.3, 0.8])
def test_kill_minus_nine(tmp_path: Path, fraction: float) -> None:
    spec, data = quick_spec(epochs=40), blobs()
    start = time.monotonic()
    whole = fit(spec, data, out=tmp_path / "whole")
    seconds = time.monotonic() - start
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "parts"), str(Path(__file__).parent)]
    environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(fraction * seconds)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    same(whole, fit(spec, data, out=tmp_path / "parts"), tmp_path / "whole", tmp_path / "parts")
