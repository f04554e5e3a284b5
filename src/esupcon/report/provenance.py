"""How the figures were come by: commands, commits, versions, machines and time, over all runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from esupcon.experiments.store import StoredRun
from esupcon.report.words import counted, printable


@dataclass(frozen=True)
class Provenance:
    """`facts` are pairs of a name and what is known; where runs differ, every value is given with its count."""

    facts: Sequence[tuple[str, str]]
    seconds: float
    first: str
    last: str


def provenance_of(runs: Iterable[StoredRun]) -> Provenance:
    records = [run.result["provenance"] for run in runs]
    facts = [
        ("commit", _values([record.get("commit") or "not known: installed, not a checkout" for record in records]))
    ]
    versions = [record.get("versions") if isinstance(record.get("versions"), dict) else {} for record in records]
    # The machine's line comes last: it is the longest.
    names = sorted({name for one in versions for name in one}, key=lambda name: (name == "platform", name))
    for name in names:
        title = "machine" if name == "platform" else name
        facts.append((printable(title), _values([one.get(name, "not known") for one in versions])))
    facts.append(("devices", _values([record.get("devices", "not known") for record in records])))
    finished = sorted(str(record["finished"]) for record in records if record.get("finished"))
    return Provenance(
        facts=facts if records else [],
        seconds=sum(float(record.get("seconds") or 0) for record in records),
        first=printable(finished[0]) if finished else "",
        last=printable(finished[-1]) if finished else "",
    )


def _values(values: Sequence[Any]) -> str:
    counts = Counter(printable(value) for value in values)
    if len(counts) == 1:
        return next(iter(counts))
    return "; ".join(f"{value} ({counted(n, 'run')})" for value, n in counts.most_common())
