"""A finding is one line, is stored as JSON, and has a template for every code."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from esupcon.doctor import CODES, SEVERITIES, Finding

findings = st.builds(
    Finding,
    code=st.sampled_from(CODES),
    severity=st.sampled_from(SEVERITIES),
    message=st.text(max_size=40),
    remedy=st.text(max_size=40),
)


@given(findings)
def test_finding_survives_json_and_prints_as_one_line(finding: Finding) -> None:
    assert Finding.model_validate_json(finding.model_dump_json()) == finding
    line = str(finding)
    assert len(line.splitlines()) == 1
    assert line.startswith(f"{finding.severity} [{finding.code}]:")


def test_other_dictionaries_are_refused() -> None:
    good = {"code": "leak", "severity": "note", "message": "seen", "remedy": "do"}
    for bad in ({}, {"code": "leak"}, {**good, "code": 3}, {**good, "severity": "bad"}, {**good, "more": 1}):
        with pytest.raises(ValidationError):
            Finding.model_validate(bad)
