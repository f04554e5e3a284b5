"""Equal rows where none should be: between train and test, and within train under different labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from esupcon.doctor.finding import Finding, class_name, percent
from esupcon.doctor.rows import Scan, group_ids
from esupcon.probability.validation import IntArray

N_EXAMPLES = 3
_CHANCE = " In a table of few distinct values equal rows can be chance."


def duplicate_findings(
    train: Scan, y_train: IntArray, test: Scan, *, table: bool, classes: Sequence[Any] | None
) -> list[Finding]:
    """Leaks and contradictions. Blank images, all alike, are left out: they have a finding of their own."""
    train_rows, test_rows = np.flatnonzero(~train.constant), np.flatnonzero(~test.constant)
    train_ids, test_ids = group_ids(train.digests[train_rows], test.digests[test_rows])
    n_groups = 1 + max(int(ids.max(initial=-1)) for ids in (train_ids, test_ids))
    first = np.full(n_groups, -1)  # the first training row of every group
    first[train_ids[::-1]] = train_rows[::-1]
    leaked = first[test_ids] >= 0
    pairs = np.stack([test_rows[leaked], first[test_ids[leaked]]], axis=1)
    n_twins = int(np.isin(train_ids, test_ids[leaked]).sum())
    differs = y_train[train_rows] != y_train[first[train_ids]]  # from the first of the group
    contradicted = np.isin(train_ids, train_ids[differs])
    return [
        *_leak(pairs, len(test.digests), n_twins, table=table),
        *_contradiction(
            np.stack([first[train_ids[differs]], train_rows[differs]], axis=1),
            y_train,
            int(contradicted.sum()),
            table=table,
            classes=classes,
        ),
    ]


def _leak(pairs: IntArray, n_test: int, n_twins: int, *, table: bool) -> list[Finding]:
    """`pairs` (m, 2): a row of test and the first row of train that equals it."""
    if not len(pairs):
        return []
    things = "rows" if table else "images"
    examples = ", ".join(f"test {i} = train {j}" for i, j in pairs[:N_EXAMPLES])
    return [
        Finding(
            "leak",
            "note" if table else "warning",
            f"{len(pairs):,} of {n_test:,} test {things} ({percent(len(pairs) / n_test)}) are also training {things}, "
            f"value for value ({examples}): on them accuracy measures memory.",
            f"Remove the {n_twins:,} twins from the training part, or the {len(pairs):,} from the test part."
            + _CHANCE * table,
        )
    ]


def _contradiction(
    pairs: IntArray, y: IntArray, n_rows: int, *, table: bool, classes: Sequence[Any] | None
) -> list[Finding]:
    """`pairs` (m, 2): the first row of a group of equal ones, and a row of the group with another label."""
    if not len(pairs):
        return []
    things = "rows" if table else "images"
    groups, one_each = np.unique(pairs[:, 0], return_index=True)
    examples = ", ".join(
        f"train {i} is {class_name(classes, y[i])} and its copy {j} {class_name(classes, y[j])}"
        for i, j in pairs[one_each][:N_EXAMPLES]
    )
    return [
        Finding(
            "contradicting-labels",
            "note" if table else "warning",
            f"{n_rows:,} training {things}, in {len(groups):,} group(s) of equal ones, carry different labels "
            f"({examples}): whatever the network answers, it is wrong for some of them.",
            "Decide on one label for each group of copies, and keep one copy." + _CHANCE * table,
        )
    ]
