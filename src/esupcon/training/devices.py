"""Processes and precision: how a run is launched, in which number format it computes, and how a batch is shared.

Several processes train on one batch: each encodes its share and computes the loss of its own rows against the
embeddings of all, gathered with their gradient. The sum over the processes, of values and of gradients, is that of one
process with the whole batch. Batch normalisation is synchronised on GPUs; on CPUs, where PyTorch has no such layer,
each process normalises by its own share.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import platform
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from esupcon._console import printable
from esupcon._io import read_json, write_json
from esupcon.data.cache import cache_root
from esupcon.methods import Term
from esupcon.training.objective import BatchOutputs

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# For float64 network and input are converted by us: Fabric's double precision rounds the outputs to float32.
_FABRIC_PRECISION = {"32": "32-true", "bf16": "bf16-mixed", "64": "32-true"}


# What torchrun tells its processes.
_LAUNCH = ("WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_WORLD_SIZE")

# --- Processes -------------------------------------------------------------------------------------------------------


def rank() -> int:
    """Return the number of this process among those that train together, from the environment of its launcher.

    Raise a ValueError if the environment names a rank but not how the processes find each other, or if its numbers
    contradict each other.
    """
    given = {name: value for name in _LAUNCH if (value := os.environ.get(name))}
    found = given.get("RANK") or given.get("LOCAL_RANK") or "0"
    if found == "0" and not _by_torchrun():
        return 0
    needed = _LAUNCH if "RANK" in given or _by_torchrun() else _LAUNCH[:4]  # Fabric's launcher sets these
    fits = all(name == "MASTER_ADDR" or given.get(name, "").isdecimal() for name in needed) and "MASTER_ADDR" in given
    if fits and needed == _LAUNCH:
        n, n_here = int(given["WORLD_SIZE"]), int(given["LOCAL_WORLD_SIZE"])
        fits = int(found) < n and int(given["LOCAL_RANK"]) < n_here and n % n_here == 0
    if not fits:
        shown = ", ".join(f"{name} {printable(repr(value))}" for name, value in given.items())
        expected = f"expected {', '.join(needed)} that fit together"
        raise ValueError(
            f"the environment names a run in several processes, but not all of it: {expected}; got {shown}. Start the "
            f"processes with torchrun, or unset {', '.join(given)}."
        )
    return int(found)


def _by_torchrun() -> bool:
    return bool(os.environ.get("WORLD_SIZE") and os.environ.get("LOCAL_WORLD_SIZE"))


def n_processes(devices: int) -> int:
    """Return how many processes train together: as torchrun started them, or as asked for."""
    if devices < 1:
        raise ValueError(f"devices must be 1 or more; got {devices}.")
    rank()  # raises if the environment cannot be that of a launch
    return int(os.environ["WORLD_SIZE"]) if _by_torchrun() else devices


def launch(devices: int, accelerator: str, precision: str) -> Fabric:
    """Launch the processes; every one of them returns from here when all have arrived."""
    from lightning_fabric import Fabric  # noqa: PLC0415 - imports torch._dynamo: 2 s that only training needs

    world = n_processes(devices)
    here = int(os.environ["LOCAL_WORLD_SIZE"]) if _by_torchrun() and world > 1 else devices
    for name in ("lightning.fabric", "lightning_fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning_fabric")  # it gives advice on hardware that is absent
        try:
            fabric = Fabric(
                accelerator=accelerator,
                devices=here,
                num_nodes=world // here,
                strategy="ddp" if world > 1 else "auto",
                precision=_FABRIC_PRECISION[precision],  # type: ignore[arg-type]
            )
            fabric.launch()
        except Exception as error:  # Fabric raises several kinds
            raise ValueError(
                f"{devices} {accelerator!r} device(s) cannot be used here: {' '.join(str(error).split())} "
                "Use accelerator 'auto', or 'cpu'."
            ) from error
    return fabric


def share(fabric: Fabric, n_views: int) -> tuple[Tensor | slice, Tensor | slice]:
    """Return the rows of a batch that this process encodes, both views of its images, and those of all, as gathered."""
    if fabric.world_size == 1:
        return slice(None), slice(None)
    images = torch.arange(n_views // 2, device=fabric.device).chunk(fabric.world_size)
    shares = [torch.cat([part, part + n_views // 2]) for part in images]
    return shares[fabric.global_rank], torch.cat(shares)


def gather(fabric: Fabric, outputs: dict[str, Tensor], labels: Tensor, **more: Any) -> BatchOutputs:
    """Return the rows of all processes, whose labels are known; the rows of this process are the anchors."""
    if fabric.world_size == 1:
        return BatchOutputs(outputs, labels, **more)
    from torch.distributed.nn.functional import all_gather  # noqa: PLC0415 - absent from builds without processes

    n_own = len(labels) // fabric.world_size
    everything = {name: torch.cat(all_gather(z.contiguous())) for name, z in outputs.items()}  # with their gradient
    own = slice(fabric.global_rank * n_own, (fabric.global_rank + 1) * n_own)
    return BatchOutputs(everything, labels, anchors=own, **more)


def average_gradients(fabric: Fabric, module: nn.Module) -> None:
    """Do once what DistributedDataParallel does during a backward pass."""
    for parameter in module.parameters() if fabric.world_size > 1 else ():
        if parameter.grad is not None:
            parameter.grad = _mean(fabric, parameter.grad)


def totals(fabric: Fabric, losses: Mapping[Term, Tensor]) -> dict[Term, float]:
    """Return the sum over the processes of each value."""
    return {term: float(_mean(fabric, loss.detach() * fabric.world_size)) for term, loss in losses.items()}


def any_process(fabric: Fabric, flag: bool) -> bool:
    """Return whether the flag is True in any process, so that all of them do the same."""
    return flag if fabric.world_size == 1 else bool(_mean(fabric, torch.tensor(float(flag), device=fabric.device)) > 0)


def _mean(fabric: Fabric, value: Tensor) -> Tensor:
    mean = fabric.all_reduce(value, reduce_op="mean")
    assert isinstance(mean, Tensor)
    return mean


@contextmanager
def torch_threads(n: int | None) -> Iterator[None]:
    """Compute with `n` threads inside: other numbers round differently. None: do not change the number."""
    before = torch.get_num_threads()
    torch.set_num_threads(n or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# --- Precision -------------------------------------------------------------------------------------------------------


def choose_precision(asked: str, accelerator: str = "auto", *, images: bool = True) -> tuple[str, str]:
    """Return the precision to compute in ("32", "bf16" or "64") and the reason.

    "auto" is a rule about the machine; no timing decides. Raise a ValueError if bf16 is asked for and does not work.
    """
    if asked != "auto":
        if asked == "bf16" and not _uses_gpu(accelerator) and not bfloat16_works():
            raise ValueError(
                "precision bf16 needs a processor that computes in bfloat16; this one stops with an illegal "
                "instruction. Use precision 32, or try ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment."
            )
        return asked, "as asked for"
    if not images:
        return "32", "tables are computed in float32"
    if _uses_gpu(accelerator):
        found = torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
        return (
            ("bf16", "the GPU has bfloat16 instructions") if found else ("32", "the GPU has no bfloat16 instructions")
        )
    if not _has_bfloat16_instructions():
        return "32", "the processor has no bfloat16 instructions"
    if not bfloat16_works():
        return "32", "the processor announces bfloat16 instructions and stops at the first"
    return "bf16", "the processor has bfloat16 instructions"


def _uses_gpu(accelerator: str) -> bool:
    if accelerator == "auto":
        return torch.cuda.is_available() or torch.backends.mps.is_available()
    return accelerator in ("gpu", "cuda", "mps")


def _cpu_lines() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _has_bfloat16_instructions() -> bool:
    """Return whether the processor reports native bfloat16 products (x86: amx_bf16, avx512_bf16; Arm: bf16)."""
    flags = {flag for line in _cpu_lines() if line.startswith(("flags", "Features")) for flag in line.split()}
    return bool(flags & {"amx_bf16", "avx512_bf16", "bf16"})


# Some virtual machines announce instructions that their host does not execute: the first bfloat16 product ends the
# process with an illegal instruction. So it is tried once, in another process.
PROBE = """
import torch
torch.set_num_threads(1)
x = torch.randn(8, 32, 16, 16, requires_grad=True).contiguous(memory_format=torch.channels_last)
with torch.autocast("cpu", dtype=torch.bfloat16):
    y = torch.nn.Conv2d(32, 32, 3, padding=1)(x).mean((2, 3)) @ torch.randn(32, 64)
y.float().sum().backward()
"""
PROBE_TRIES, PROBE_SECONDS = 3, 120


@functools.cache
def bfloat16_works() -> bool:
    """Return whether a bfloat16 convolution and product, forward and backward, run on this processor.

    The answer is stored in the cache folder. A probe that fails for another reason than an illegal instruction is
    repeated, then an error, and is not stored.
    """
    stored = (cache_root() or Path(os.devnull)) / f"bfloat16-{_machine()}.json"
    try:
        verdict = read_json(stored)["works"]
    except (OSError, ValueError, KeyError, TypeError):
        verdict = None
    if isinstance(verdict, bool):
        return verdict
    works = _probe()
    try:
        stored.parent.mkdir(parents=True, exist_ok=True)
        write_json(stored, {"works": works})
    except OSError:
        pass  # without the file the next process tries again
    return works


def _probe() -> bool:
    reason = ""
    for _ in range(PROBE_TRIES):
        words = [sys.executable, "-P", "-c", PROBE]  # -P: import nothing from the current folder
        try:
            trial = subprocess.run(words, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            reason = f"no answer within {PROBE_SECONDS} s"
            continue
        if trial.returncode in (0, -signal.SIGILL):
            return trial.returncode == 0
        reason = (trial.stderr.strip() or f"exit code {trial.returncode}").splitlines()[-1]
    raise ValueError(
        f"whether this processor computes in bfloat16 could not be found out: the trial failed {PROBE_TRIES} times "
        f"({reason}). Free memory and try again, or pass precision 32."
    )


def _machine() -> str:
    """Return a name that changes with the processor, the version of torch and limits on the instructions it uses."""
    cpu = "".join(sorted({line for line in _cpu_lines() if line.startswith(("model name", "flags", "Features"))}))
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "")
    identity = "\n".join((platform.platform(), platform.processor(), cpu, torch.__version__, limit))
    return hashlib.sha256(identity.encode()).hexdigest()[:12]
