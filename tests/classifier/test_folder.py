"""A saved model comes back unchanged, a folder is written whole or not at all, and what is forged is refused."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from small_classifiers import make_classifier, same_state, some_rows
from torch import nn

from esupcon._io import file_digest, read_sealed_json, write_sealed_json
from esupcon.classifier import folder as folder_module
from esupcon.classifier.folder import TrainingData, load_classifier
from esupcon.methods import METHODS
from esupcon.probability import Calibration


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def hidden(parent: Path) -> list[str]:
    return sorted(path.name for path in parent.iterdir() if path.name.startswith("."))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return make_classifier().save(tmp_path / "model")


def forge(
    folder: Path,
    *,
    config: dict[str, Any] | None = None,
    file: str = "model.safetensors",
    **changes: torch.Tensor | None,
) -> None:
    """Change config or tensors of a saved model and seal it again, as a forger who knows the format would."""
    tensors = {**load_file(folder / file), **changes}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, folder / file)
    values = read_sealed_json(folder / "config.json")
    values["files"][file] = file_digest(folder / file)
    for path, value in (config or {}).items():
        *parents, last = path.split(".")
        place = values
        for name in parents:
            place = place[name]
        place[last] = value
    write_sealed_json(folder / "config.json", values)


# --- Round trip ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoder", "shape", "parts"),
    [
        ("resnet10-w4", (3, 8, 8), {"head": "linear", "projection_dim": 4}),
        ("resnet14-w2", (3, 66, 66), {}),
        ("fast", (3, 8, 8), {"head": "linear", "neck": "norm", "mirror": True}),
        ("efficientnet-lite0", (3, 64, 64), {"pretrained": True, "neck": "linear", "mirror": True}),
        ("mlp-8x2", (3,), {"projection_dim": 4}),
        ("mlp-8x1", (1, 4, 4), {"head": "linear"}),
        ("identity", (6,), {}),
    ],
)
def test_a_model_comes_back_unchanged(
    tmp_path: Path, encoder: str, shape: tuple[int, ...], parts: dict[str, Any]
) -> None:
    data = TrainingData(name="digits", fingerprint="0123456789abcdef", noise_rate=0.5, validation_fraction=0.1)
    before = make_classifier(
        encoder,
        shape,
        **parts,
        calibration=Calibration(temperature=1.7, how="held-out", n=20, class_counts=(3, 4, 5), class_weight=(1, 2, 1)),
        settings={"epochs": 10, "nested": {"lr": [[[[0.1]]]]}},
        metrics={"test": {"accuracy": 0.9}},
        data=data,
    )
    X = some_rows(shape)
    assert before.save(tmp_path / "model") == tmp_path / "model"
    after = load_classifier(tmp_path / "model")
    for part in ("preprocessing", "calibration", "about"):
        assert getattr(after, part) == getattr(before, part)
    assert same_state(after.network, before.network)
    assert all(parameter.requires_grad and not parameter.is_meta for parameter in after.network.parameters())
    assert (before.logits(X).std(axis=0) > 0).all()  # rows differ, so that equality below says something
    for method in ("logits", "predict_proba", "predict", "transform"):
        np.testing.assert_array_equal(getattr(after, method)(X), getattr(before, method)(X))


LABELS = (
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
)


@settings(max_examples=25)
@given(st.one_of([st.lists(kind, min_size=2, max_size=6, unique=True) for kind in LABELS]))
def test_classes_keep_value_type_and_order(tmp_path_factory: pytest.TempPathFactory, classes: list[Any]) -> None:
    folder = make_classifier("identity", (2,), classes=classes).save(tmp_path_factory.mktemp("classes") / "model")
    found = load_classifier(folder).classes_.tolist()
    assert found == classes
    assert list(map(type, found)) == list(map(type, classes))
    for a, b in zip(found, classes, strict=True):
        assert not isinstance(b, float) or math.copysign(1, a) == math.copysign(1, b)


def test_other_precisions_and_layouts_are_stored_as_float32(tmp_path: Path) -> None:
    classifier = make_classifier("resnet10-w4", (3, 8, 8))
    expected = {name: value.clone() for name, value in classifier.network.state_dict().items()}
    for name, form in (("wide", {"dtype": torch.float64}), ("last", {"memory_format": torch.channels_last})):
        classifier.network.to(**form).train()
        back = load_classifier(classifier.save(tmp_path / name)).network
        assert not any(part.training for part in back.modules())
        for key, value in back.state_dict().items():
            assert value.dtype == (torch.float32 if value.is_floating_point() else torch.int64)
            assert value.is_contiguous() and torch.equal(value, expected[key])


class Own(nn.Module):
    """A custom encoder: shared weights, a mask with infinities, a buffer that is not stored."""

    def __init__(self, width: int = 5) -> None:
        super().__init__()
        self.first = nn.Linear(3, width)
        self.second = nn.Linear(width, width)
        self.third = self.second
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
        self.register_buffer("scratch", torch.zeros(1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(self.second(self.first(x)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_custom_encoder_is_passed_again(tmp_path: Path, dtype: torch.dtype) -> None:
    before = make_classifier(Own(), (3,), projection_dim=4)
    before.save(tmp_path / "model")
    module = Own().to(dtype)
    after = load_classifier(tmp_path / "model", encoder=module)
    assert module.second is module.third
    assert torch.equal(module.second.weight, before.network.encoder.module.second.weight)  # type: ignore[union-attr]
    X = some_rows((3,))
    np.testing.assert_allclose(after.logits(X), before.logits(X), rtol=1e-5, atol=1e-5)


class OfALibrary(nn.Conv2d):
    """Like some architectures of timm: with a buffer that is not stored, and that zeros would spoil."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, 6, 3)
        self.register_buffer("scale", torch.full((6,), 3.0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).mean(dim=(2, 3)) * self.scale


def test_timm_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timm = ModuleType("timm")
    timm.is_model = lambda name: name == "small"  # type: ignore[attr-defined]
    timm.get_pretrained_cfg = lambda name: None  # type: ignore[attr-defined]
    timm.create_model = lambda name, **options: OfALibrary(options["in_chans"])  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", timm)
    before = make_classifier("timm:small", (3, 8, 8))
    after = load_classifier(before.save(tmp_path / "model"))
    np.testing.assert_array_equal(after.transform(some_rows((3, 8, 8))), before.transform(some_rows((3, 8, 8))))
    monkeypatch.setitem(sys.modules, "timm", None)
    refuse(tmp_path / "model", r"pip install 'esupcon\[timm\]'$")


def test_loaded_models_are_independent_of_files_and_random_state(saved: Path) -> None:
    before = torch.get_rng_state()
    classifier = load_classifier(saved)
    expected = classifier.logits(some_rows((3,)))
    classifier.save(saved.parent / "again")
    assert torch.equal(torch.get_rng_state(), before)
    weights = saved / "model.safetensors"
    with weights.open("r+b") as file:
        file.write(bytes(weights.stat().st_size))
    np.testing.assert_array_equal(classifier.logits(some_rows((3,))), expected)


# --- Replacing -------------------------------------------------------------------------------------------------------


def test_a_model_is_replaced_only_on_request(saved: Path) -> None:
    before, other = contents(saved), make_classifier("identity", (5,), classes=["x", "y"])
    with pytest.raises(FileExistsError, match=r"holds a model already.*overwrite=True"):
        other.save(saved)
    assert contents(saved) == before
    other.save(saved, overwrite=True)
    assert same_state(load_classifier(saved).network, other.network)
    assert hidden(saved.parent) == []
    (saved.parent / "empty").mkdir()
    other.save(saved.parent / "empty")


def test_a_file_beside_a_model_is_not_lost_and_a_damaged_model_can_be_replaced(saved: Path) -> None:
    (saved / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"not a model of esupcon \(notes.txt\)"):
        make_classifier().save(saved, overwrite=True)
    (saved / "notes.txt").unlink()
    (saved / "config.json").write_text("{")
    make_classifier().save(saved, overwrite=True)
    (saved / ".esupcon.json").unlink()  # as by `cp model/* elsewhere/`
    make_classifier().save(saved, overwrite=True)


@pytest.mark.parametrize("step", ["write_bytes", "write_sealed_json", "model_card", "_flush"])
def test_failure_at_any_step_leaves_what_was_there(saved: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    before = contents(saved)

    def fails(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder_module, step, fails)
    for target in (saved, saved.parent / "new"):
        with pytest.raises(OSError, match="No space left"):
            make_classifier().save(target, overwrite=True)
    assert contents(saved) == before
    assert [path.name for path in saved.parent.iterdir()] == ["model"]


def test_a_model_saved_by_another_process_meanwhile_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, card = make_classifier(), folder_module.model_card

    def slow(config: Any) -> str:
        monkeypatch.setattr(folder_module, "model_card", card)
        first.save(tmp_path / "model")
        return card(config)

    monkeypatch.setattr(folder_module, "model_card", slow)
    with pytest.raises(FileExistsError, match="holds a model already"):
        make_classifier("identity", (2,)).save(tmp_path / "model")
    assert same_state(load_classifier(tmp_path / "model").network, first.network)
    assert hidden(tmp_path) == []


def test_a_link_to_a_model_stays_a_link(saved: Path) -> None:
    link = saved.parent / "latest"
    link.symlink_to(saved, target_is_directory=True)
    assert make_classifier("identity", (2,)).save(link, overwrite=True) == saved
    assert link.is_symlink() and load_classifier(link).preprocessing.input_shape == (2,)


class Remembering(nn.Linear):
    def get_extra_state(self) -> object:
        return {"a": "python object"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: nn.init.constant_(c.network.encoder.module.bias, torch.nan), "module.bias holds NaN"),
        (lambda c: setattr(c.network.encoder, "module", Remembering(3, 4)), "must be tensors"),
        (lambda c: setattr(c, "about", None), "needs `about`"),
        (lambda c: setattr(c, "about", c.about.model_copy(update={"encoder": "identity"})), "head.weight"),
        (lambda c: setattr(c, "about", c.about.model_copy(update={"encoder": "mlp-4x1"})), "not what encoder"),
        (lambda c: setattr(c, "classes_", np.array([("a",), ("b",), None], object)), "must be text, numbers"),
    ],
)
def test_classifiers_that_could_not_be_loaded_are_not_saved(tmp_path: Path, change: Any, message: str) -> None:
    classifier = make_classifier(nn.Linear(3, 4), (3,))
    change(classifier)
    with pytest.raises((ValueError, TypeError), match=message):
        classifier.save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


# --- Refusals --------------------------------------------------------------------------------------------------------


def refuse(folder: Path, message: str, kind: type[Exception] = ValueError, **options: Any) -> None:
    with pytest.raises(kind, match=message) as caught:
        load_classifier(folder, **options)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


DATA = {"name": "digits", "fingerprint": "0123456789abcdef"}
IMAGE = {"kind": "image", "channels": 3, "image_size": [8, 8], "mean": [0, 0, 0], "std": [1, 1, 1]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 2}, "has schema 2; expected 3"),
        ({"classes": ["a", "b", "a"]}, "a class is duplicated"),
        ({"calibration.class_counts": [1, 2]}, "calibration.class_counts has 2 entries for 3 classes"),
        ({"calibration.target_priors": [0.5, 0.5, float("nan")]}, "calibration.target_priors"),
        ({"preprocessing": IMAGE | {"image_size": [10**9, 10**9]}}, "image_size.*less than or equal to 4096"),
        ({"preprocessing": IMAGE | {"std": [1, 1]}}, "one entry for each of the 3 channels"),
        ({"about.metrics": {"a": {"b": [0.1, float("nan")]}}}, "about.metrics"),
        ({"about.settings": {"x": [[[[[[0]]]]]]}}, "nested more than 8 deep"),
        *(
            ({"about.data": data}, r"config\.json is not valid: about\.data")
            for data in (
                *({**DATA, "options": {"data_dir": "/etc"}}, {**DATA, "cache_dir": "/tmp"}, [], "digits", {}),
                *({**DATA, "name": "/etc/passwd"}, {**DATA, "name": "..\\secret"}, {**DATA, "name": ["digits"]}),
                *({**DATA, "split_seed": -1}, {**DATA, "seed": None}, {**DATA, "noise_kind": "rm"}),
                *({**DATA, "test_fraction": 1e999}, {**DATA, "validation_fraction": 1.0}, {**DATA, "n_per_class": 0}),
            )
        ),
        ({"about.encoder": "resnet18"}, "takes images"),
        ({"about.encoder": "mlp-9x2"}, r"head.weight of shape \(3, 9\); found \(3, 8\)"),
        ({"about.encoder": "mlp-8x1"}, r"unexpected tensor encoder\.layers\.3\.bias"),
        ({"about.encoder": "mlp-65536x64"}, r"head\.weight of shape \(3, 65536\)"),
        ({"classes": list(range(200_000)), "calibration": {}}, r"head\.weight of shape \(200000, 8\)"),
        ({"projection_dim": 4}, r"projector\.0\.bias is missing"),
        ({"files": {}}, "the digest of model.safetensors is missing"),
        ({"files": {"model.safetensors": "0" * 64, "examples.safetensors": "0" * 64}}, "its digest differs"),
    ],
)
def test_forged_config_is_refused_in_one_line(saved: Path, change: dict[str, Any], message: str) -> None:
    forge(saved, config=change)
    refuse(saved, message)


def test_sealed_tensors_that_do_not_fit_are_refused(saved: Path) -> None:
    name = "encoder.layers.0.weight"
    forge(saved, **{name: torch.ones(8, 4)})
    refuse(saved, r"layers\.0\.weight should be \(\(8, 3\), .* and is \(\(8, 4\)")
    forge(saved, **{name: None})
    refuse(saved, r"layers\.0\.weight is missing")
    forge(saved, **{name: torch.ones(8, 3), "a\nb": torch.ones(1)})
    refuse(saved, r"unexpected tensor")
    forge(saved, **{"a\nb": None, name: torch.ones(8, 3, dtype=torch.int32)})
    refuse(saved, r"torch.float32\) and is .*torch.int32")
    for dtype in (torch.float16, torch.bfloat16, torch.float64):  # we write float32 only
        forge(saved, **{name: torch.ones(8, 3, dtype=dtype)})
        refuse(saved, rf"torch.float32\) and is .*{dtype}")
    for value in (float("nan"), float("inf")):
        forge(saved, **{name: torch.full((8, 3), value)})
        refuse(saved, r"layers\.0\.weight holds NaN or infinity")


def test_examples_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    classifier = make_classifier()
    X = some_rows((3,), 12)
    folder = classifier.remember(classifier.preprocessing.rows(X), np.arange(12) % 3).save(tmp_path / "model")
    file = folder / "examples.safetensors"
    good = load_file(file)
    bad: list[dict[str, Any]] = [
        {"codes": good["codes"] + 1},
        {"codes": good["codes"] - 1},
        {"codes": good["codes"].int()},
        {"rows": good["rows"] - 1},
        {"embedding": good["embedding"][:, 1:].contiguous()},
        {"embedding": good["embedding"] * torch.nan},
        {"means": good["means"][:, 1:].contiguous()},
        {"whitening": good["whitening"][1:]},
        {name: torch.zeros(0) for name in good},
        {"extra": torch.zeros(1)},
    ]
    for change in bad:
        forge(folder, file=file.name, **{**good, **change})
        refuse(folder, "does not hold the examples")
    file.write_bytes(b"damaged")
    refuse(folder, "examples.safetensors is not the file that was saved")


def test_custom_encoders_that_do_not_fit_are_refused(saved: Path, tmp_path: Path) -> None:
    folder = make_classifier(nn.Linear(3, 4), (3,)).save(tmp_path / "own")
    refuse(folder, r"encoder of your own.*load\(folder, encoder=module\)")
    refuse(saved, "names its encoder, 'mlp-8x2'", encoder=nn.Linear(3, 4))
    other = nn.Linear(3, 4, bias=False)
    before = other.weight.clone()
    refuse(folder, r"unexpected tensor encoder\.module\.bias", encoder=other)
    assert torch.equal(other.weight, before)
    refuse(folder, r"head\.weight of shape \(3, 5\)", encoder=nn.Linear(3, 5))
    refuse(folder, "must map a batch", encoder=nn.Linear(2, 4))


# --- The model card --------------------------------------------------------------------------------------------------


def card(tmp_path: Path, *arguments: Any, **settings: Any) -> str:
    """Return the text of a model card, without the marks that keep names from being markup."""
    folder = make_classifier(*arguments, **settings).save(tmp_path / "card", overwrite=True)
    return (folder / "README.md").read_text().replace("\\", "").replace("<!-- -->", "")


def test_card_shows_the_config(tmp_path: Path) -> None:
    text = card(
        tmp_path,
        "resnet10-w4",
        (3, 8, 6),
        settings={"epochs": 10, "optimiser": {"lr": 0.05}, "long": list(range(50))},
        metrics={"accuracy": 0.9123456789, "ece": {"before": 0.1}},
        calibration=Calibration(temperature=1.25, how="held-out", n=40),
        data=TrainingData(name="photos", fingerprint="abc12345"),
        created="2026-01-31T12:00:00+00:00",
        versions={"esupcon": "9.9"},
    )
    for part in (
        *("| 0 | cat |", "| 2 | eel |", "| epochs | 10 |", "| optimiser.lr | 0.05 |", "| long | 50 values |"),
        *("| accuracy | 0.912346 |", "| ece.before | 0.1 |", "colour images of 8 x 6 pixels", "resnet10-w4"),
        *("temperature of 0.2", METHODS["esupcon"].title, "(n, 3, 8, 6)", "divided by 1.25", "40 samples"),
        *("abc12345", "2026-01-31", "esupcon 9.9", "this/folder"),
    ):
        assert part in text, part


def test_cards_of_other_models(tmp_path: Path) -> None:
    text = card(tmp_path, "identity", (4,), head="linear")
    for part in ("rows of 4 numbers", "a linear map", "Nothing was measured", "Not calibrated", "(n, 4)"):
        assert part in text, part
    assert "encoder=module" in card(tmp_path, nn.Linear(4, 2), (4,))
    many = card(tmp_path, "identity", (4,), classes=list(range(150)))
    assert "50 more are in `config.json`" in many and "pipeline_tag: tabular-classification\n" in many
