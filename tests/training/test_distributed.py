"""Two gloo processes train as one process with the whole batch does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_data import blobs, changes, quick_spec, rowwise_encoder
from torch.testing import assert_close

from assets import made_once
from esupcon.training import fit

WORKER = """
import sys; sys.path.insert(0, sys.argv[2])
import torch
from pathlib import Path
from small_data import blobs, changes, quick_spec, rowwise_encoder
from esupcon.training import fit
torch.set_num_threads(1)
out = Path(sys.argv[1])
for job in sys.argv[3:]:
    method, micro, *more = job.split(":")
    torch.manual_seed(7)
    spec = quick_spec(method=method, precision="64", epochs=3, micro_batch=int(micro) or None, **changes(more))
    fitted = fit(spec, blobs(), encoder=rowwise_encoder(), accelerator="cpu", out=out / job.replace(":", "-"))
    if torch.distributed.get_rank() == 0:
        about = {"weights": fitted.network.state_dict(), "history": fitted.history}
        torch.save(about, out / f"{job.replace(':', '-')}.pt")
    torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""

JOBS = ["supcon_tt:0", "spce:0", "esupcon:0", "ce:0", "esupcon:3", "esupcon:0:0.3", "ce:3:0.3", "esupcon:0:frozen"]


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def train(out: Path) -> None:
        (out / "worker.py").write_text(WORKER)
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        words = [*launcher, str(out / "worker.py"), str(out), str(Path(__file__).parent), *JOBS]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        run = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=240, check=False)
        assert run.returncode == 0, run.stderr[-3000:]

    return made_once(tmp_path_factory, "two_processes", train)


@pytest.mark.parametrize("job", JOBS)
def test_two_processes_equal_one(two_processes: Path, job: str) -> None:
    """Loss of every epoch and weights after nine steps, to 1e-6; anchors, gather, cached embeddings and the memory of
    labels and views of frozen blocks included."""
    method, _, *more = job.split(":")
    two = torch.load(two_processes / f"{job.replace(':', '-')}.pt", weights_only=True)
    torch.manual_seed(7)
    spec = quick_spec(method=method, precision="64", epochs=3, **changes(more))
    one = fit(spec, blobs(), encoder=rowwise_encoder())
    assert [r["loss"] for r in two["history"]] == pytest.approx([r["loss"] for r in one.history], rel=1e-6)
    for name, value in one.network.state_dict().items():
        assert_close(two["weights"][name], value, rtol=1e-6, atol=1e-6)
