"""The methods as data: what can be shared between them, and custom methods."""

from __future__ import annotations

from dataclasses import replace

import pytest

from esupcon.methods import METHODS, Method, Stage, Term, get_method, register


@pytest.fixture
def custom(monkeypatch: pytest.MonkeyPatch) -> Method:
    monkeypatch.setattr("esupcon.methods.METHODS", dict(METHODS))
    stage = Stage((Term("supcon", on="embedding", reads_head=False),), trains=("encoder",))
    return Method("custom", title="Custom", summary="", head="prototype", stages=(stage,), class_means_head=True)


def test_methods_share_what_their_first_stage_trains_without_a_head() -> None:
    sharing = [
        {key for key, method in METHODS.items() if method.shared_stage == METHODS[one].shared_stage}
        for one in ("supcon_ce", "spce_m")
    ]
    assert sharing == [{"supcon_ce", "supcon_ce_n", "supcon_tt"}, {"spce", "spce_m"}]
    assert {key for key, method in METHODS.items() if method.shared_stage is None} == {
        *("ce", "esupcon", "supcon_cosine_ce")
    }


def test_projector_exists_where_it_is_used() -> None:
    assert [key for key, method in METHODS.items() if method.projector] == ["supcon_ce", "supcon_ce_n", "supcon_tt"]


def test_stage_whose_encoder_learns_from_the_head_has_no_smaller_core() -> None:
    stage = METHODS["spce"].stages[0]
    assert stage.core.trains == ("encoder",)
    assert [term.loss for term in stage.core.terms] == ["spce"]
    attached = replace(stage, terms=tuple(replace(term, detach=False) for term in stage.terms))
    assert attached.core == attached


def test_registered_method_is_found_by_its_key(custom: Method) -> None:
    assert register(custom) is custom
    assert register(replace(custom)) == custom  # the same again
    assert get_method("custom") is get_method(custom) is custom


def test_mistakes_with_methods(custom: Method) -> None:
    with pytest.raises(ValueError, match="another method 'ce' already"):
        register(replace(custom, key="ce"))
    with pytest.raises(ValueError, match="a word of letters, digits and _; got 'my method'"):
        register(replace(custom, key="my method"))
    with pytest.raises(ValueError, match=r"one of ce, .*esupcon.*; got 'supcon'"):
        get_method("supcon")
    with pytest.raises(ValueError, match="at least one term"):
        Stage((), trains=("encoder",))
