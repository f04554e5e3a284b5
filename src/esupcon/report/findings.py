"""What the doctor said of the runs, one entry a code: how grave, how often, where, and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from esupcon.experiments.store import StoredRun
from esupcon.report.aggregate import TableResult
from esupcon.report.words import dataset_title, method_title, printable

_GRAVITY = ("error", "warning", "note")


@dataclass(frozen=True)
class FindingGroup:
    """`example` is what was said of the first run; `runs` names all of them, by table, setting, method and seed."""

    code: str
    severity: str
    n_runs: int
    example: str
    remedy: str
    runs: Sequence[str]


def grouped_findings(runs: Mapping[str, StoredRun], tables: Iterable[TableResult]) -> list[FindingGroup]:
    """Gravest first, then most frequent. A run counts once for each code, with the gravest of what was said."""
    names = _names(tables)
    found: dict[str, list[tuple[str, Mapping[str, str]]]] = {}
    for key, run in runs.items():
        of_run: dict[str, Mapping[str, str]] = {}
        for finding in run.result.get("findings") or ():
            if not isinstance(finding, dict) or not {"code", "severity", "message"} <= finding.keys():
                continue
            code = str(finding["code"])
            if code not in of_run or _rank(finding) < _rank(of_run[code]):
                of_run[code] = finding
        for code, finding in of_run.items():
            found.setdefault(code, []).append((names.get(key, f"run {key}"), finding))
    groups = []
    for code, said in found.items():
        gravest = min((finding for _, finding in said), key=_rank)
        groups.append(
            FindingGroup(
                code=printable(code),
                severity=printable(gravest["severity"]),
                n_runs=len(said),
                example=printable(gravest["message"]),
                remedy=printable(gravest.get("remedy", "")),
                runs=[name for name, _ in said],
            )
        )
    return sorted(groups, key=lambda group: (_rank({"severity": group.severity}), -group.n_runs, group.code))


def _rank(finding: Mapping[str, str]) -> int:
    severity = finding["severity"]
    return _GRAVITY.index(severity) if severity in _GRAVITY else len(_GRAVITY)


def _names(tables: Iterable[TableResult]) -> dict[str, str]:
    names: dict[str, str] = {}
    for table in tables:
        for place in (place for places in table.places.values() for place in places):
            where = (
                f"{method_title(place.method)} on {dataset_title(place.dataset)}, {place.setting}, seed {place.seed}"
            )
            names.setdefault(place.key, printable(where))
    return names
