"""The tables that compare settings of the methods: the search by held-out accuracy, trials by test accuracy."""

from __future__ import annotations

from study_tables import BASELINE, OURS, share

from esupcon.experiments.store import StoredRun
from esupcon.report.content import Content
from esupcon.report.words import method_title

COMMON = (100, "simclr")  # batch size and augmentation of the study
_OWN_HEADS = "rate | temperature | prototypes: weight | rate | weight decay"


def search(content: Content) -> str:
    """Every run of the search with the common batch and augmentation, the best of each method and length in bold."""
    runs = sorted(
        common(content),
        key=lambda run: (run.spec.train.epochs, _order(content, run), -_held_out(run), run.key),
    )
    best = {}
    for run in runs:
        best.setdefault((run.spec.train.epochs, run.spec.train.method), run.key)
    rows = [f"| epochs | method | {_OWN_HEADS} | held out |", f"|--:|---|{'--:|' * 6}"]
    for run in runs:
        train = run.spec.train
        figure = f"{_held_out(run):.1f}"
        if best[train.epochs, train.method] == run.key:
            figure = f"**{figure}**"
        rows.append(f"| {train.epochs} | {method_title(train.method)} | {_own(run)} | {figure} |")
    return "\n".join(rows)


def _own(run: StoredRun) -> str:
    """The cells of what each method was set to; a dash where it has no such setting."""
    train = run.spec.train
    temperature = "–" if train.method == BASELINE else f"{train.temperature:g}"
    head = f"{train.prototype_weight:g} | {train.lr * train.prototype_lr:g}" if train.method == OURS else "– | –"
    return f"{train.lr:g} | {temperature} | {head} | {train.weight_decay:g}"


def tested(content: Content) -> str:
    """Runs of one column that settle a question and choose nothing: network, settings, test accuracy."""
    runs = sorted(
        content.collected.runs.values(),
        key=lambda run: (run.spec.train.encoder, _order(content, run), -share(run), run.key),
    )
    rows = [f"| network | epochs | method | {_OWN_HEADS} | test |", f"|---|--:|---|{'--:|' * 6}"]
    for run in runs:
        train = run.spec.train
        name = f"`{train.encoder}` | {train.epochs} | {method_title(train.method)}"
        rows.append(f"| {name} | {_own(run)} | {100 * share(run):.1f} |")
    return "\n".join(rows)


def common(content: Content) -> list[StoredRun]:
    """Runs with the study's batch and augmentation, of which settings of a method's own can be compared."""
    return [run for run in content.collected.runs.values() if _surroundings(run) == COMMON]


def _surroundings(run: StoredRun) -> tuple[int, str]:
    """What is no method's own, and the same for all of them in the study."""
    return run.spec.train.batch_size, run.spec.train.augmentation


def surroundings(content: Content) -> str:
    """The best of CE and ours under each batch size and augmentation that was tried, at the shortest length."""
    epochs = min(run.spec.train.epochs for run in content.collected.runs.values())
    found: dict[tuple[int, str], dict[str, float]] = {}
    for run in content.collected.runs.values():
        if run.spec.train.epochs == epochs:
            best = found.setdefault(_surroundings(run), {})
            method = run.spec.train.method
            best[method] = max(best.get(method, 0.0), _held_out(run))
    rows = [f"| batch | augmentation | {method_title(BASELINE)} | {method_title(OURS)} |", "|--:|---|--:|--:|"]
    for place in sorted(found, key=lambda place: (place != COMMON, place)):
        best = found[place]
        rows.append(f"| {place[0]} | `{place[1]}` | {best[BASELINE]:.1f} | {best[OURS]:.1f} |")
    return "\n".join(rows)


def tries(content: Content) -> str:
    """How many settings each method has had, by length, and its best."""
    lengths = sorted({run.spec.train.epochs for run in content.collected.runs.values()})
    rows = [
        f"| method | {' | '.join(f'{n} epochs: tries | best held out' for n in lengths)} |",
        f"|---|{'--:|' * (2 * len(lengths))}",
    ]
    for method in content.methods:
        cells = []
        for n in lengths:
            found = [
                _held_out(r) for r in common(content) if r.spec.train.method == method and r.spec.train.epochs == n
            ]
            cells += [str(len(found)), f"{max(found):.1f}" if found else "–"]
        rows.append(f"| {method_title(method)} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _order(content: Content, run: StoredRun) -> int:
    return content.methods.index(run.spec.train.method)


def _held_out(run: StoredRun) -> float:
    return 100 * float(run.result["metrics"]["held_out"]["accuracy"])
