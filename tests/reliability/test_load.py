"""Long work in bounded memory and with a bounded number of open files."""

from __future__ import annotations

from pathlib import Path

import pytest
from warm import Warm

from tiny_images import write_folder

pytestmark = pytest.mark.reliability

N_IMAGES, N_IMAGES_LONG = 4_000, 100_000
LONG_SECONDS = 3600
SOAK = Path(__file__).parents[2] / "scripts" / "soak.py"

STREAM = """
import os, resource, sys
from pathlib import Path
from esupcon.classifier import load_classifier, predict_files

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

def opened():
    return len(os.listdir("/proc/self/fd"))

names = [str(path) for path in sorted(Path({photos!r}).rglob("*.png"))]
n = {n}
paths = (names[i % len(names)] for i in range(n))
start = None
for i, one in enumerate(predict_files(load_classifier({model!r}), paths, unreadable=print, workers=1)):
    if i == n // 10:
        start = resident(), opened()
print(i + 1, resident() - start[0], opened() - start[1])
"""


@pytest.mark.timeout(LONG_SECONDS)
def test_predictions_stream_in_bounded_memory(warm: Warm, shared_run: Path, tmp_path: Path, long_version: bool) -> None:
    """After a tenth of the images memory grows by less than 16 MB."""
    photos = write_folder(tmp_path / "photos", n_each=10)
    n = N_IMAGES_LONG if long_version else N_IMAGES
    ended = warm.script(STREAM.format(photos=str(photos), model=str(shared_run), n=n))
    assert ended.code == 0, ended.err
    count, memory, files = map(int, ended.out.split())
    assert count == n
    assert memory < 16 << 20
    assert files <= 0


def test_soak_round(warm: Warm, tmp_path: Path) -> None:
    """Takes over 10 s: all commands, and a grid of two runs."""
    script = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(SOAK.parent)!r})
import soak
steps = soak.steps(Path({str(tmp_path)!r}), n_images=30)
print(soak.soak(steps, seconds=0, rounds_at_least=1, say=lambda line: None), *steps)
"""
    ended = warm.script(script, environment={"ESUPCON_DATA": str(tmp_path / "cache")})
    assert ended.code == 0, ended.err
    assert ended.out.startswith("[] train evaluate calibrate predict")
    assert (tmp_path / "run" / "result.json").is_file()
