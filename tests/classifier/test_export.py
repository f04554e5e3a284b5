"""Exported files give what the classifier gives: in this process, and in one without torch."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits, load_sample_images, load_wine
from small_classifiers import make_classifier
from torch import Tensor, nn

import esupcon
from esupcon.classifier import export as export_module
from esupcon.classifier.classifier import Classifier
from esupcon.classifier.export import TOLERANCE, Deployed, Exported, export_onnx, export_torch
from esupcon.classifier.preprocessing import TablePreprocessing, fit_preprocessing
from esupcon.heads import PrototypeHead, class_means
from esupcon.models import FastEncoder
from esupcon.probability import Calibration

INSTALL = 'install the extra: pip install "esupcon[onnx]"'
DIGITS, DIGIT_LABELS = load_digits(return_X_y=True)
DIGIT_IMAGES = np.round(DIGITS.reshape(-1, 1, 8, 8) * (255 / 16)).astype(np.uint8)
WINE = load_wine().data


@pytest.fixture(scope="module")
def runtime() -> Any:
    for name in ("onnx", "onnxscript"):
        pytest.importorskip(name, reason=INSTALL)
    return pytest.importorskip("onnxruntime", reason=INSTALL)


def classifier_of(
    encoder: str | nn.Module, x: np.ndarray, classes: list[Any], *, labels: np.ndarray | None = None, **settings: Any
) -> Classifier:
    """Return random weights with a head that separates `x`: by class means, or by centred logits."""
    torch.manual_seed(1)
    made = make_classifier(encoder, x.shape[1:], classes=classes, **settings)
    network = made.network
    made.preprocessing = TablePreprocessing.fit(x)[0] if x.ndim == 2 else fit_preprocessing(x)
    if isinstance(network.encoder, FastEncoder):
        network.encoder.whitening.fit(made.preprocessing.tensor(x))
    with torch.no_grad():
        if isinstance(network.head, PrototypeHead):
            means = class_means(torch.from_numpy(made.transform(x)), torch.from_numpy(labels), len(classes))
            network.head.weight.copy_(means - means.mean(0))
        else:
            network.head.bias -= torch.from_numpy(made.logits(x).mean(0))
    return made


def photographs(side: int, n: int) -> np.ndarray:
    """Pieces of real photographs, (n, 3, side, side), that the check inside export does not use."""
    rng = np.random.default_rng(3)
    found = []
    for index in range(n):
        image = load_sample_images().images[index % 2]
        top, left = (int(rng.integers(0, length - side)) for length in image.shape[:2])
        found.append(image[top : top + side, left : left + side].transpose(2, 0, 1))
    return np.ascontiguousarray(np.stack(found))


class Case(NamedTuple):
    classifier: Classifier
    x: np.ndarray
    input_name: str = "images"


CASES = ("digits", "fast", "photos", "96x96", "table")


@cache
def case_of(name: str) -> Case:
    sharp, flat = (Calibration(temperature=temperature, how="given", n=9) for temperature in (0.4, 2.5))
    names, four = ["é", "=1+1", '"', "\n"], np.arange(12) % 4
    match name:
        case "digits":
            x, labels = DIGIT_IMAGES[:500], DIGIT_LABELS[:500]
            return Case(
                classifier_of("resnet10-w8", x, [*range(10)], calibration=sharp, labels=labels), DIGIT_IMAGES[500:560]
            )
        case "fast":
            x, classes = photographs(32, 40), [f"class {k}" for k in range(10)]
            return Case(
                classifier_of("fast", x, classes, head="linear", neck="norm", mirror=True, calibration=sharp), x
            )
        case "photos":
            x, parts = photographs(96, 12)[:, :, :64], {"pretrained": True, "neck": "linear", "mirror": True}
            return Case(classifier_of("efficientnet-lite0", x, names, calibration=flat, labels=four, **parts), x)
        case "96x96":
            x = photographs(96, 12)
            return Case(classifier_of("resnet18-w8", x, names, labels=four), x)
    x = WINE.astype(np.float32)
    return Case(classifier_of("mlp-32x2", x, [False, True, 7], head="linear", calibration=flat), x, "rows")


#: Largest difference between file and classifier: both round in float32, in another order.
ROUNDING = 1e-5


@pytest.fixture(scope="module")
def onnx_file(runtime: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Exported]:
    """Return a function that exports a case, once."""
    folder = tmp_path_factory.mktemp("onnx")
    return cache(lambda name: export_onnx(case_of(name).classifier, folder / f"{name}.onnx"))


def check_paths(file: Path) -> None:
    """Raise if a file holds a path of this machine."""
    for place in (Path(esupcon.__file__).parent, Path(torch.__file__).parent, Path.home()):
        assert os.fsencode(place) not in file.read_bytes()


def same(classifier: Classifier, x: np.ndarray, probabilities: np.ndarray, embedding: np.ndarray) -> None:
    assert probabilities.dtype == embedding.dtype == np.float32
    np.testing.assert_allclose(probabilities, classifier.predict_proba(x), rtol=0, atol=ROUNDING)
    expected = classifier.transform(x)
    np.testing.assert_allclose(embedding, expected, rtol=0, atol=ROUNDING * max(1, np.abs(expected).max()))


@pytest.mark.parametrize("name", CASES)
def test_onnx_equals_the_classifier(runtime: Any, onnx_file: Callable[[str], Exported], name: str) -> None:
    case, exported = case_of(name), onnx_file(name)
    check_paths(exported.path)
    assert exported.n_bytes == exported.path.stat().st_size
    assert exported.difference is not None
    assert exported.difference <= ROUNDING
    assert exported.n_checked >= 16
    session = runtime.InferenceSession(exported.path, providers=["CPUExecutionProvider"])
    (given_input,) = session.get_inputs()
    assert given_input.name == case.input_name
    assert given_input.shape == ["batch", *case.x.shape[1:]]
    assert given_input.type == ("tensor(float)" if case.x.ndim == 2 else "tensor(uint8)")
    classes, dim = case.classifier.n_classes, case.classifier.network.encoder.dim
    shapes = {one.name: one.shape for one in session.get_outputs()}
    assert shapes == {"probabilities": ["batch", classes], "embedding": ["batch", dim]}
    for size in (1, 2, 7, len(case.x)):
        same(case.classifier, case.x[:size], *session.run(None, {case.input_name: case.x[:size]}))


def test_onnx_runs_without_torch(onnx_file: Callable[[str], Exported], tmp_path: Path) -> None:
    """A fresh process with onnxruntime and NumPy alone gives the classes themselves."""
    program = """
import json, sys
import numpy as np
import onnxruntime

found = {}
for name in sys.argv[2:]:
    session = onnxruntime.InferenceSession(f"{sys.argv[1]}/{name}.onnx", providers=["CPUExecutionProvider"])
    metadata = session.get_modelmeta().custom_metadata_map
    classes = json.loads(metadata["classes"])
    x = np.load(f"{name}.npy")
    probabilities, _ = session.run(["probabilities", "embedding"], {session.get_inputs()[0].name: x})
    found[name] = {"labels": [classes[k] for k in probabilities.argmax(1)], "metadata": metadata}
assert not {"torch", "esupcon"} & set(sys.modules)
print(json.dumps(found))
"""
    for name in CASES:
        np.save(tmp_path / f"{name}.npy", case_of(name).x)
        folder = onnx_file(name).path.parent
    words = [sys.executable, "-c", program, str(folder), *CASES]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=True)
    found = json.loads(done.stdout)
    for name, case in ((one, case_of(one)) for one in CASES):
        labels = case.classifier.predict(case.x).tolist()
        assert len(set(labels)) > 1, "a test that cannot tell classes apart"
        assert found[name]["labels"] == labels
        assert [type(label) for label in found[name]["labels"]] == [type(label) for label in labels]
        metadata, made = found[name]["metadata"], case.classifier
        assert metadata["esupcon_version"] == esupcon.__version__
        assert json.loads(metadata["classes"]) == made.classes_.tolist()
        assert json.loads(metadata["preprocessing"]) == made.preprocessing.model_dump(mode="json")
        assert json.loads(metadata["calibration"]) == made.calibration.model_dump(mode="json")
        assert (metadata["encoder"], metadata["method"]) == (made.about.encoder, "esupcon")
    accuracy = np.mean(np.array(found["digits"]["labels"]) == DIGIT_LABELS[500:560])
    assert accuracy > 0.2  # by chance 0.1; the encoder is untrained


@pytest.mark.parametrize("name", CASES)
def test_torch_file_equals_the_classifier(name: str, tmp_path: Path) -> None:
    case = case_of(name)
    before = {key: value.clone() for key, value in case.classifier.network.state_dict().items()}
    exported = export_torch(case.classifier, tmp_path / "model.pt2", samples=case.x)
    assert exported.n_checked > len(case.x)
    check_paths(exported.path)
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt2"]
    for key, value in case.classifier.network.state_dict().items():
        assert torch.equal(value, before[key])
    extra = {"esupcon.json": ""}
    module = torch.export.load(exported.path, extra_files=extra).module()
    assert json.loads(json.loads(extra["esupcon.json"])["classes"]) == case.classifier.classes_.tolist()
    for size in (1, 2, 7, len(case.x)):
        with torch.inference_mode():
            found = module(torch.from_numpy(case.x[:size]))
        same(case.classifier, case.x[:size], found["probabilities"].numpy(), found["embedding"].numpy())


def test_another_opset_and_other_precision(runtime: Any, tmp_path: Path) -> None:
    """A classifier in float64 is exported in float32 and stays in float64."""
    import onnx

    made = case_of("table").classifier
    path = export_onnx(made, tmp_path / "model.onnx", opset=20).path
    assert {one.domain: one.version for one in onnx.load(path).opset_import}[""] == 20
    onnx.checker.check_model(onnx.load(path), full_check=True)
    assert {p.dtype for p in made.network.parameters()} == {torch.float64}


def test_the_command_in_a_fresh_process(onnx_file: Callable[[str], Exported], tmp_path: Path) -> None:
    """From the folder of a run. The exporter prints nothing, and the file has the same bytes again."""
    case = case_of("table")
    case.classifier.save(tmp_path / "run" / "model")
    words = [sys.executable, "-W", "default", "-m", "esupcon", "export", "run", "--out", "a.onnx"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stderr == ""
    assert re.fullmatch(
        r"a\.onnx: [\d,]+ bytes, 3 classes\nlargest difference from the model: \S+ on 16 inputs\n", done.stdout
    )
    assert (tmp_path / "a.onnx").read_bytes() == onnx_file("table").path.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.onnx", "run"]


def without(monkeypatch: pytest.MonkeyPatch, absent: str) -> None:
    monkeypatch.setattr(export_module.importlib.util, "find_spec", lambda name: None if name == absent else object())


@pytest.mark.parametrize("absent", ["onnx", "onnxscript"])
def test_without_the_extra(absent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, absent)
    with pytest.raises(ModuleNotFoundError, match=rf'needs {absent}\. Install with: pip install "esupcon\[onnx\]"'):
        export_onnx(case_of("table").classifier, tmp_path / "x.onnx")


def test_without_the_runtime_the_file_is_unchecked_and_the_result_tells_so(
    onnx_file: Callable[[str], Exported], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = onnx_file("table").path.read_bytes()
    monkeypatch.setattr(export_module, "_onnx_bytes", lambda *_: content)
    without(monkeypatch, "onnxruntime")
    exported = export_onnx(case_of("table").classifier, tmp_path / "x.onnx")
    assert (exported.difference, exported.n_checked) == (None, 0)
    assert exported.path.read_bytes() == content


def test_a_file_that_differs_is_not_written(
    onnx_file: Callable[[str], Exported], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph of another calibration in place of the right one; what was there before stays."""
    case = case_of("table")
    content = onnx_file("table").path.read_bytes()
    monkeypatch.setattr(export_module, "_onnx_bytes", lambda *_: content)
    other = copy.copy(case.classifier)
    other.calibration = Calibration(temperature=2.49, how="given", n=9)
    target = tmp_path / "x.onnx"
    target.write_bytes(b"before")
    with pytest.raises(ValueError, match=r"differs from the classifier by .* in probabilities.*No file was written"):
        export_onnx(other, target)
    assert target.read_bytes() == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["x.onnx"]
    assert export_onnx(case.classifier, target).path.read_bytes() == content


def test_class_weights_and_priors_are_part_of_the_file(runtime: Any, tmp_path: Path) -> None:
    case = case_of("table")
    made = copy.copy(case.classifier)
    changes = {"class_weight": (3.0, 1.0, 1.0), "target_priors": (0.0, 0.3, 0.7)}
    made.calibration = Calibration(temperature=2.5, how="given", n=9, class_counts=(5, 9, 2), **changes)
    assert not np.allclose(made.predict_proba(case.x), case.classifier.predict_proba(case.x))
    module = torch.export.load(export_torch(made, tmp_path / "x.pt2").path).module()
    session = runtime.InferenceSession(export_onnx(made, tmp_path / "x.onnx").path, providers=["CPUExecutionProvider"])
    found = (module(torch.from_numpy(case.x))["probabilities"], session.run(["probabilities"], {"rows": case.x})[0])
    for probabilities in found:
        np.testing.assert_allclose(probabilities, made.predict_proba(case.x), atol=TOLERANCE)


class Encoder(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.linear(x)
        if self.how == "branches" and z.sum() > 0:
            return -z
        if self.how == "draws":
            return nn.functional.dropout(z, 0.5, training=True)
        if self.how == "counts" and len(z) == 2:
            return z + 1
        return z


@pytest.mark.parametrize(
    ("how", "complaint"), [("branches", "cannot be traced"), ("counts", "cannot be traced"), ("draws", "differs from")]
)
def test_encoders_that_cannot_be_exported_are_refused(how: str, complaint: str, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    made = classifier_of(Encoder(how), rows, ["a", "b"], head="linear")
    with pytest.raises(ValueError, match=complaint) as caught:
        export_torch(made, tmp_path / "x.pt2")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_samples_are_checked_as_they_are(tmp_path: Path) -> None:
    """Rows whose digits float32 does not hold are found out; samples of another shape are refused."""
    rng = np.random.default_rng(0)
    rows = 1e9 + rng.normal(size=(50, 3))
    made = classifier_of("mlp-8x1", rows, ["a", "b"], labels=np.arange(50) % 2)
    export_torch(made, tmp_path / "x.pt2")
    with pytest.raises(ValueError, match="differs from the classifier"):
        export_torch(made, tmp_path / "y.pt2", samples=rows)
    with pytest.raises(ValueError, match=r"X must be a table \(n, 3\)"):
        export_torch(made, tmp_path / "y.pt2", samples=rows[:, :2])
    assert [path.name for path in tmp_path.iterdir()] == ["x.pt2"]


@given(
    rows=st.lists(st.lists(st.floats(-1.0, 1.0, width=32), min_size=3, max_size=3), min_size=1, max_size=6),
    exponent=st.integers(-30, 30),
    temperature=st.sampled_from([0.05, 0.1, 1.0]),
    calibration=st.sampled_from([1.0, 0.5, 3.0]),
    head=st.sampled_from(["linear", "prototype"]),
)
def test_the_graph_is_the_classifier_for_rows_of_any_length(
    rows: list[list[float]], exponent: int, temperature: float, calibration: float, head: str
) -> None:
    torch.manual_seed(0)
    x = np.array(rows, np.float32) * np.float32(10.0**exponent)
    settings = {"head": head, "temperature": temperature, "calibration": Calibration(temperature=calibration)}
    made = make_classifier("identity", (3,), classes=list("abcd"), **settings)
    made.network.float()
    made.preprocessing = TablePreprocessing(mean=(0.0,) * 3, variance=(1.0,) * 3)
    with torch.inference_mode():
        found = Deployed(made).eval()(torch.from_numpy(x))
    np.testing.assert_allclose(found["probabilities"], made.predict_proba(x), rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(found["embedding"], made.transform(x))
