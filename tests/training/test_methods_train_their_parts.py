"""Each stage of each method moves exactly the parts it names; the others stay bit-identical, statistics included."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small_data import blobs, quick_spec

from esupcon.methods import METHODS, Method, Stage, Term, get_method, register
from esupcon.training import fit
from esupcon.training.loop import train_stage

EXPECTED = {
    "ce": [{"encoder", "head"}],
    "supcon_ce": [{"encoder", "projector"}, {"head"}],
    "supcon_ce_n": [{"encoder", "projector"}, {"head"}],
    "supcon_tt": [{"encoder", "projector", "head"}],
    "spce": [{"encoder", "head"}],
    "spce_m": [{"encoder"}],
    "esupcon": [{"encoder", "head"}],
    "supcon_cosine_ce": [{"encoder", "head"}],
}


def snapshot(network) -> dict[str, dict[str, torch.Tensor]]:
    return {
        part: {name: value.clone() for name, value in module.state_dict().items()}
        for part in ("encoder", "projector", "head")
        if (module := getattr(network, part)) is not None
    }


@pytest.mark.parametrize("key", METHODS)
def test_exactly_the_named_parts_move(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[set[str]] = []

    def observed(run, stage, *rest):
        before = snapshot(run.network)
        train_stage(run, stage, *rest)
        after = snapshot(run.network)
        moved.append(
            {part for part in before if any(not torch.equal(v, after[part][n]) for n, v in before[part].items())}
        )

    monkeypatch.setattr("esupcon.training.loop.train_stage", observed)
    fitted = fit(quick_spec(method=key, epochs=1), blobs())
    assert moved == EXPECTED[key]
    assert (fitted.network.projector is not None) == get_method(key).projector


def test_every_trained_parameter_moves() -> None:
    """Not only some of a part: every weight of the encoder, and every prototype, gets gradient."""
    torch.manual_seed(0)
    once = fit(quick_spec(method="esupcon", epochs=1, steps=1, warmup=0.0), blobs())
    twice = fit(quick_spec(method="esupcon", epochs=1, steps=2, warmup=0.0), blobs())
    for (name, first), second in zip(once.network.named_parameters(), twice.network.parameters(), strict=True):
        assert not torch.equal(first, second), name


def test_detached_tightness_does_not_steer_the_encoder() -> None:
    """SPCE trains the same encoder with and without its tightness term."""
    with_term, without = (fit(quick_spec(method=key, epochs=1), blobs()) for key in ("spce", "spce_m"))
    for a, b in zip(with_term.network.encoder.parameters(), without.network.encoder.parameters(), strict=True):
        assert torch.equal(a, b)


def test_separate_terms_are_esupcon_without_samples_in_the_prototype_term() -> None:
    settings = {"precision": "64", "temperature": 0.2, "prototype_temperature": 0.1, "logit_adjustment": 0.5}
    separate = fit(quick_spec(method="supcon_cosine_ce", prototype_share=0.3, **settings), blobs())
    shares = {"prototype_share": 0.3, "prototype_average": "sample", "contrast_weight": 0.0}
    joint = fit(quick_spec(**shares, **settings), blobs())
    for a, b in zip(separate.network.parameters(), joint.network.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    assert [line["loss"] for line in separate.history] == pytest.approx([line["loss"] for line in joint.history])


def test_class_means_head_holds_the_means_of_unit_embeddings() -> None:
    data = blobs()
    fitted = fit(quick_spec(method="spce_m"), data)
    z = torch.nn.functional.normalize(torch.from_numpy(fitted.classifier.transform(data.x)))
    for k in range(data.n_classes):
        torch.testing.assert_close(fitted.network.head.weight[k].detach(), z[data.y == k].mean(0))


# --- Methods as data -------------------------------------------------------------------------------------------------


@pytest.fixture
def custom(monkeypatch: pytest.MonkeyPatch) -> Method:
    monkeypatch.setattr("esupcon.methods.METHODS", dict(METHODS))
    stage = Stage((Term("supcon", on="embedding"),), trains=("encoder",))
    return Method("custom", title="Custom", summary="", head="prototype", stages=(stage,), class_means_head=True)


def test_projector_exists_where_it_is_used() -> None:
    assert [key for key, method in METHODS.items() if method.projector] == ["supcon_ce", "supcon_ce_n", "supcon_tt"]


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
