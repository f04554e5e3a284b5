"""A finding is one line, survives JSON, and refuses what it is not."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esupcon.doctor import CODES, SEVERITIES, Finding
from esupcon.doctor.finding import class_names, percent

findings = st.builds(
    Finding, st.sampled_from(CODES), st.sampled_from(SEVERITIES), st.text(max_size=40), st.text(max_size=40)
)


@given(findings)
def test_it_survives_json_and_prints_as_one_line(finding: Finding) -> None:
    assert Finding.from_dict(json.loads(json.dumps(finding.as_dict()))) == finding
    line = str(finding)
    assert len(line.splitlines()) == 1
    assert line.startswith(f"{finding.severity} [{finding.code}]:")


def test_it_is_frozen_and_its_severity_is_checked() -> None:
    finding = Finding("leak", "note", "seen", "do")
    with pytest.raises(FrozenInstanceError):
        finding.message = "other"  # type: ignore[misc]
    with pytest.raises(ValueError, match="severity must be one of note, warning, error; got 'bad'"):
        Finding("leak", "bad", "seen", "do")  # type: ignore[arg-type]


@pytest.mark.parametrize("values", [{}, {"code": "leak"}, {**Finding("leak", "note", "a", "b").as_dict(), "code": 3}])
def test_other_dictionaries_are_refused_in_one_line(values: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="a finding holds the texts code, severity, message, remedy") as error:
        Finding.from_dict(values)
    assert "\n" not in str(error.value)


def test_a_code_of_a_later_version_can_still_be_read() -> None:
    later = {**Finding("leak", "note", "a", "b").as_dict(), "code": "not-yet-invented"}
    assert Finding.from_dict(later).as_dict() == later


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0 %"), (1, "100 %"), (0.123, "12 %"), (0.0345, "3.5 %"), (0.00056, "0.056 %"), (1e-6, "under 0.01 %")],
)
def test_percentages_have_two_digits(share: float, text: str) -> None:
    assert percent(share) == text


def test_many_classes_are_named_by_a_few() -> None:
    assert class_names(["a", "b", "c", "d", "e"], [0, 1, 3, 4]) == "'a', 'b', 'd' and 1 more"
    assert class_names(None, [2, 7]) == "class 2, class 7"
