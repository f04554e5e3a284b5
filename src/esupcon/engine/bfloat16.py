"""Whether this processor can really compute in bfloat16.

Some virtual machines announce matrix instructions that their host does not execute: the first bfloat16 product ends
the process with an illegal instruction. So it is tried once, in a process of its own, and the verdict kept.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import subprocess
import sys
from pathlib import Path

import torch

from esupcon.data.places import platform_cache
from esupcon.files import read_json, write_json

TRIAL = """
import torch
torch.set_num_threads(1)
x = torch.randn(8, 32, 16, 16, requires_grad=True).contiguous(memory_format=torch.channels_last)
with torch.autocast("cpu", dtype=torch.bfloat16):
    y = torch.nn.Conv2d(32, 32, 3, padding=1)(x).mean((2, 3)) @ torch.randn(32, 64)
y.float().sum().backward()
"""


@functools.cache
def bfloat16_works() -> bool:
    """True where a bfloat16 convolution and product, forward and backward, leave the process alive."""
    known = platform_cache() / f"bfloat16-{_machine()}.json"
    try:
        verdict = read_json(known)["works"]
    except (OSError, ValueError, KeyError, TypeError):
        verdict = None
    if isinstance(verdict, bool):
        return verdict
    works = _try()
    try:
        known.parent.mkdir(parents=True, exist_ok=True)
        write_json(known, {"works": works})
    except OSError:
        return works  # a cache that cannot be written costs a few seconds the next time, nothing else
    return works


def _try() -> bool:
    trial = subprocess.run([sys.executable, "-c", TRIAL], capture_output=True, timeout=120, check=False)
    return trial.returncode == 0


def _machine() -> str:
    """Changes with the processor, the version of torch, and what limits the instructions it may use."""
    cpu = Path("/proc/cpuinfo")
    model = ""
    if cpu.exists():
        lines = cpu.read_text(encoding="utf-8", errors="replace").splitlines()
        model = "".join(sorted({line for line in lines if line.startswith(("model name", "flags"))}))
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "")
    identity = "\n".join((platform.platform(), platform.processor(), model, torch.__version__, limit))
    return hashlib.sha256(identity.encode()).hexdigest()[:12]
