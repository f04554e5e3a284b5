"""Every reader of files, as a function of their bytes: data, models and runs, grids and reports."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from harness import Read, Reader, in_file, of_arrays, quiet
from PIL import Image

import esupcon
from esupcon._io import OWNED, sealed, write_sealed_json
from esupcon.data import DataOptions
from esupcon.data.cache import cached
from esupcon.data.decode import DecodeSpec, decode_images, image_dimensions
from esupcon.data.named import read_tiny_imagenet
from esupcon.data.parquet import read_parquet
from esupcon.data.sources import Source, read_csv, read_npz
from esupcon.experiments.executors import Task
from esupcon.experiments.grid import resolve, status
from esupcon.experiments.plan import Plan, Row, make_plan
from esupcon.experiments.store import Store, export_study
from esupcon.experiments.worker import compute
from esupcon.probability import Predictions
from esupcon.report.content import read as read_content
from esupcon.report.figures import sections
from esupcon.report.write import FORMATS, json_block, render
from esupcon.spec import RunSpec, TrainSpec
from esupcon.training.result import RUN_FILES, Result, training_seconds
from esupcon.training.run import RunFolder

# --- Data ------------------------------------------------------------------------------------------------------------

OPTIONS = DataOptions()


def data_readers() -> Iterator[tuple[str, Reader]]:
    yield "image", Reader(_encoded_images, _decode)
    yield (
        "npz",
        Reader(_image_archives, in_file("d.npz", lambda file: read_npz(file, OPTIONS, quiet)), _essence_of_source),
    )
    yield (
        "predictions",
        Reader(
            _prediction_files,
            in_file("p.npz", Predictions.load),
            lambda found: of_arrays(found.logits, found.labels),
        ),
    )
    yield "csv", Reader(_tables, in_file("t.csv", lambda file: read_csv(file, OPTIONS, quiet)))
    yield "parquet", Reader(_parquet_files, in_file("t.parquet", _read_parquet))
    yield "tiny-imagenet", Reader(_annotations, _read_tiny)
    yield "cache-entry", Reader(_cache_entries, _read_cache_entry)


def _small_image(mode: str = "RGB") -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 11, 3)).astype(np.uint8)
    return Image.fromarray(pixels).convert(mode)


def _encoded_images() -> list[bytes]:
    kinds: list[tuple[str, str, dict[str, Any]]] = [
        ("JPEG", "RGB", {}),
        ("JPEG", "CMYK", {}),
        ("JPEG", "L", {"progressive": True}),
        ("PNG", "RGBA", {}),
        ("PNG", "P", {}),
        ("PNG", "1", {}),
        ("GIF", "P", {"save_all": True, "append_images": [_small_image("P")]}),
        ("BMP", "RGB", {}),
        ("WEBP", "RGB", {}),
        ("TIFF", "RGB", {"compression": "tiff_lzw"}),
        ("TIFF", "F", {}),
        ("PPM", "RGB", {}),
        ("JPEG2000", "RGB", {}),
        ("AVIF", "RGB", {}),
    ]
    found = []
    for kind, mode, options in kinds:
        buffer = io.BytesIO()
        try:
            _small_image(mode).save(buffer, kind, **options)
        except (OSError, KeyError):  # this build of Pillow does not have it
            continue
        found.append(buffer.getvalue())
    return found


def _decode(folder: Path, content: bytes) -> object:
    rows = np.zeros((1, 3, 8, 8), np.uint8)
    image_dimensions(content, 10**6)
    return decode_images([content], rows, DecodeSpec(8, 8, 3, max_pixels=10**6))


def _npz(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def _image_archives() -> list[bytes]:
    x, y = np.arange(6 * 4 * 4).reshape(6, 4, 4).astype(np.uint8), np.arange(6) % 2
    plain = io.BytesIO()
    np.savez(plain, x_train=x / 255, y_train=np.array(["a", "b"] * 3), x_test=x / 255, y_test=np.array(["a", "b"] * 3))
    return [_npz(x_train=x, y_train=y, classes=np.array(["one", "two"])), plain.getvalue()]


def _essence_of_source(found: Source) -> Any:
    assert isinstance(found.images, np.ndarray)
    return of_arrays(found.images, found.labels), found.classes, found.n_train


def _prediction_files() -> list[bytes]:
    return [_npz(logits=np.eye(4, dtype=np.float32), labels=np.arange(4)), _npz(logits=np.zeros((2, 3)), labels=[0, 1])]


def _tables() -> list[bytes]:
    return [
        b"path,label\na.png,cat\nb.png,dog\n",
        b'\xef\xbb\xbfimage;class;split\r\n"a b.png";"c;d";train\r\nx/y.png;"c;d";test\r\n',
        b"path\tlabel\na.png\tcat\nb.png\tdog\n",
    ]


def _parquet_files() -> list[bytes]:
    import pyarrow  # noqa: PLC0415 - an extra
    import pyarrow.parquet  # noqa: PLC0415

    images = [{"bytes": content, "path": "x"} for content in _encoded_images()[:2]] * 2
    found = []
    for labels in (["a", "b", "a", "b"], [0, 1, 0, 1]):
        buffer = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.table({"image": images, "label": labels}), buffer)
        found.append(buffer.getvalue())
    return found


def _read_parquet(file: Path) -> object:
    found = read_parquet(file, OPTIONS, quiet)
    return [found.digest(), list(found.images.sample(2))]  # type: ignore[union-attr]  # images of a file are no array


def _annotations() -> list[bytes]:
    return [b"val_0.JPEG\tn01\t0\t0\t62\t57\nval_1.JPEG\tn02\t3\t3\t59\t55\n"]


def _read_tiny(folder: Path, content: bytes) -> object:
    for wnid in ("n01", "n02"):
        (folder / "train" / wnid).mkdir(parents=True)
        (folder / "train" / wnid / "a.JPEG").write_bytes(b"x")
    (folder / "val").mkdir()
    (folder / "val" / "val_annotations.txt").write_bytes(content)
    (folder / "words.txt").write_bytes(content)
    return read_tiny_imagenet(folder, OPTIONS, quiet)


def _cache_entries() -> list[bytes]:
    record = {"unreadable": {}, "animated": 0}
    return [json.dumps({"shape": [2, 1, 2, 2], "record": record, "crc32": 1}).encode()]


def _read_cache_entry(folder: Path, content: bytes) -> object:
    def fill(rows: np.ndarray[Any, Any]) -> dict[str, Any]:
        rows[:] = 7
        return {"unreadable": {}, "animated": 0}

    (folder / "key.u8").write_bytes(bytes(8))
    (folder / "key.json").write_bytes(content)
    images, record = cached(folder, "key", (2, 1, 2, 2), fill, quiet)
    if not (images == 7).all():
        raise AssertionError("an entry that was never written was accepted")
    return record


# --- Models and runs -------------------------------------------------------------------------------------------------


def model_readers() -> Iterator[tuple[str, Reader]]:
    for kind, name in (("config", "config.json"), ("weights", "model.safetensors"), ("examples", EXAMPLES)):
        yield kind, Reader(_model_file(name), _read_model(name), _essence_of_model)
    yield "sealed-config", Reader(_model_file("config.json"), _read_sealed_config)
    yield "checkpoint", Reader(_checkpoints, _read_sealed_checkpoint)
    yield (
        "run",
        Reader(_run_files, in_file("run.json", _read_run_file)),
    )
    yield (
        "result",
        Reader(_results, in_file("result.json", lambda file: Result.read(file.parent)), _essence_of_result),
    )


EXAMPLES, SEAL = "examples.safetensors", "sha256_of_the_rest"


def _essence_of_model(found: esupcon.ContrastiveClassifier) -> Any:
    inner = found.classifier_
    weights = {name: value.numpy() for name, value in inner.network.state_dict().items()}
    kept = inner.examples
    arrays = (*weights.values(), found.classes_, kept and kept.embedding, kept and kept.codes)
    return tuple(weights), of_arrays(*arrays), repr((inner.calibration, inner.preprocessing, found.get_params()))


@cache
def _estimator() -> esupcon.ContrastiveClassifier:
    rng = np.random.default_rng(0)
    classifier = esupcon.ContrastiveClassifier(epochs=1, encoder="mlp-4x1", auto_calibrate=False, random_state=0)
    return classifier.fit(rng.normal(size=(12, 3)), np.arange(12) % 2)


@cache
def _saved_once() -> Path:
    """Saved anew it would bear another moment, and so another digest."""
    return Path(_estimator().save(Path(tempfile.mkdtemp(prefix="esupcon-fuzz-")) / "model"))


def _saved(folder: Path) -> Path:
    return Path(shutil.copytree(_saved_once(), folder / "model"))


def _model_file(name: str) -> Callable[[], list[bytes]]:
    @cache
    def seeds() -> list[bytes]:
        with tempfile.TemporaryDirectory() as folder:
            return [(_saved(Path(folder)) / name).read_bytes()]

    return seeds


def _read_model(name: str) -> Callable[[Path, bytes], object]:
    def read(folder: Path, content: bytes) -> object:
        model = _saved(folder)
        (model / name).write_bytes(content)
        return esupcon.load(model)

    return read


def _read_sealed_config(folder: Path, content: bytes) -> object:
    """Seal what a forger wrote: then only the validation of its fields protects the code."""
    model = _saved(folder)
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        values = None
    if isinstance(values, dict):
        write_sealed_json(model / "config.json", {name: one for name, one in values.items() if name != SEAL})
    else:
        (model / "config.json").write_bytes(content)
    return esupcon.load(model)


def _checkpoints() -> list[bytes]:
    state = {
        "network": {"weight": torch.zeros(2, 2)},
        "position": {"epoch": 1},
        "history": [{"loss": 0.5}],
        "none": None,
    }
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return [buffer.getvalue()]


def _read_sealed_checkpoint(folder: Path, content: bytes) -> object:
    (folder / f"checkpoint-1--{hashlib.sha256(content).hexdigest()[:16]}.pt").write_bytes(content)
    return RunFolder(folder, quiet).load(torch.device("cpu"))


def _seal(path: Path) -> None:
    """Seal a damaged file again, so that its content is looked at."""
    try:
        value = json.loads(path.read_text())
    except (ValueError, RecursionError):
        return
    if isinstance(value, dict):
        write_sealed_json(path, value)


def _read_run_file(path: Path) -> object:
    _seal(path)
    write_sealed_json(path.parent / OWNED, {"files": list(RUN_FILES)})
    return RunFolder(path.parent, quiet).read()


def _run_files() -> list[bytes]:
    spec = RunSpec(source="digits", train=TrainSpec())
    return [json.dumps({"key": spec.key, "spec": spec.model_dump(), "device": "cpu"}).encode()]


def _results() -> list[bytes]:
    spec = RunSpec.model_validate({"source": "digits", "content": "0" * 64, "train": TrainSpec()})
    scenario = {"settings": {"seed": 0}, "n_before": 9, "n_after": 9, "scarce_classes": None, "n_wrong_labels": 0}
    scenario |= {f"{name}_counts_{when}": {"0": 9} for name, when in (("class", "before"), ("class", "after"))}
    scenario |= {"label_counts_after": {"0": 9}, "effective_noise_rate": 0.0, "sha256": "0"}
    preparation = {"scenario": scenario, "validation_fraction": 0.1, "validation_seed": 0, "class_counts": [8]}
    preparation |= {"n_fit": 8, "n_held_out": 1, "n_test": 3}
    provenance = {"command": "", "source": "digits", "seconds": 1.0, "train_seconds": 1.0, "finished": ""}
    result = Result.model_validate(
        {
            **{"key": spec.key, "run": spec, "precision_reason": "", "encoder": "mlp", "augmentation": "digits"},
            **{
                "batch_size": 4,
                "preparation": preparation,
                "provenance": {**provenance, "device": "cpu", "versions": {}},
            },
            "data": {"name": "d", "fingerprint": "0", "classes": ["a"], "input_shape": [1, 8, 8], "n_skipped": 0},
        }
    )
    with tempfile.TemporaryDirectory() as place:
        result.write(Path(place))
        return [(Path(place) / "result.json").read_bytes()]


def _essence_of_result(found: Any) -> str:
    return str(found.model_dump_json())


# --- Grids and reports -----------------------------------------------------------------------------------------------

PLAN = "plan.json"


def grid_readers() -> Iterator[tuple[str, Reader]]:
    yield "table", Reader(lambda: _shipped("tables"), _read_table, kind="table")
    yield "profile", Reader(lambda: _shipped("profiles"), _read_own_profile, kind="profile")
    yield "plan", Reader(_stored(PLAN), _report_with(PLAN))
    # Its classes and its batch size are put together with what these hold.
    beside = ("timing.jsonl", "predictions.npz", "embedding.npz")
    yield "stored-result", Reader(_stored("result.json"), _report_with("result.json", beside=beside, seal=True))
    yield "history", Reader(_stored("history.jsonl"), _drawn_with("history.jsonl"))
    yield "timing", Reader(_stored("timing.jsonl"), _timed)
    yield "stored-predictions", Reader(_stored("predictions.npz"), _drawn_with("predictions.npz"), essence=str)
    yield "embedding", Reader(_stored("embedding.npz"), _drawn_with("embedding.npz"), essence=str)
    yield "study", Reader(_study_line, _read_study)
    yield "failure", Reader(lambda: [json.dumps({"error": "no", "when": "now"}).encode()], _report_with_failure)


def _shipped(kind: str) -> list[bytes]:
    folder = resources.files("esupcon.experiments").joinpath(kind)
    return [entry.read_bytes() for entry in folder.iterdir() if entry.name.endswith(".toml")]


def _read_table(folder: Path, content: bytes) -> object:
    (folder / "t.toml").write_bytes(content)
    return make_plan(str(folder / "t.toml"), "smoke")


def _read_own_profile(folder: Path, content: bytes) -> object:
    (folder / "p.toml").write_bytes(content)
    return make_plan("demo", str(folder / "p.toml"))


@cache
def _example() -> Path:
    """A store with one run, made once a process."""
    home = Path(tempfile.mkdtemp(prefix="esupcon-fuzz-"))
    rng, y = np.random.default_rng(0), np.arange(60) % 3
    x = rng.integers(0, 255, (60, 4, 4, 1)).astype(np.uint8)
    np.savez(home / "few.npz", x_train=x[:36], y_train=y[:36], x_test=x[36:], y_test=y[36:])
    train = TrainSpec(method="esupcon", encoder="mlp-8x1", epochs=2, batch_size=18, precision="32", threads=1)
    spec = RunSpec(source=str(home / "few.npz"), train=train)
    row = Row(table="small", profile="own", dataset="few", setting="full", method="esupcon", seed=0, spec=spec)
    (plan,) = resolve([Plan(table="small", profile="own", title="Small", rows=(row,))])
    store = Store(home / "store")
    store.create()
    task = Task(spec=plan.rows[0].spec, store=str(store.root))
    assert compute(task, lambda: False).kind == "finished"
    store.write_plan(plan)
    return store.root


@cache
def _place(store: Path, name: str) -> Path:
    """A file of the store's one run, or its one plan."""
    return next(store.glob("plans/*.json" if name == PLAN else f"runs/*/{name}"))


def _stored(name: str) -> Any:
    return lambda: [_place(_example(), name).read_bytes()]


def _copy_of_example(folder: Path, names: Sequence[str]) -> Path:
    """A store with these files of the example: no time goes into drawing others."""
    store = folder / "store"
    run = _place(_example(), "result.json").parent.name
    for kind in (f"runs/{run}", "failed", "plans"):
        (store / kind).mkdir(parents=True)
    for name in names:
        original = _place(_example(), name)
        copy = store / original.relative_to(_example())
        try:
            os.link(original, copy)
        except OSError:  # the two lie on different disks
            shutil.copyfile(original, copy)
    return store


def _report_with(name: str, *, beside: Sequence[str] = (), seal: bool = False) -> Read:
    """Status and report of a store in which one file is the given one; sealed, it is believed to be whole."""
    others = [one for one in (PLAN, "result.json", *beside) if one != name]

    def read(folder: Path, content: bytes) -> object:
        store = _copy_of_example(folder, others)
        path = store / _place(_example(), name).relative_to(_example())
        path.write_bytes(content)
        if seal and not _sealed(path, content):
            raise ValueError(f"{path} holds no object")
        return _status_and_report(store, content)

    return read


def _drawn_with(name: str) -> Read:
    """Read the figures of a run of which this file is the given one; what is damaged must be named as a problem."""

    def read(folder: Path, content: bytes) -> str:
        store = _copy_of_example(folder, (PLAN, "result.json"))
        path = store / _place(_example(), name).relative_to(_example())
        path.write_bytes(content)
        found = read_content(store, (), "fuzz")
        drawn = {
            one.key: [vars(card) for option in one.options for card in option.cards]
            for one in sections(found.drawn, found.methods)
        }
        text = json_block(drawn)
        for problem in found.problems:
            raise ValueError(problem)
        return text

    return read


def _timed(folder: Path, content: bytes) -> object:
    drawn = _drawn_with("timing.jsonl")(folder, content)
    seconds = training_seconds(next(folder.glob("store/runs/*")))
    if not 0 <= seconds < math.inf:
        raise AssertionError(f"a training of {seconds} seconds")
    return drawn, seconds


def _sealed(path: Path, content: bytes) -> bool:
    """A forger seals what they write: what it says is then all that stands between it and the code."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return False
    if not isinstance(value, dict):
        return False
    value.pop("sha256_of_the_rest", None)
    write_sealed_json(path, value)
    return True


@cache
def _study() -> tuple[bytes, bytes]:
    """Return the lines of the plan and of the run of the example."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "study.jsonl"
        export_study(Store(_example()), path)
        plan, run = path.read_bytes().splitlines()
        return plan, run


def _study_line() -> list[bytes]:
    return [_study()[1]]


def _read_study(folder: Path, content: bytes) -> object:
    """Read a study with one changed line, which its forger has sealed."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        value.pop("sha256_of_the_rest", None)
        content = json.dumps(sealed(value)).encode()
    path = folder / "study.jsonl"
    path.write_bytes(_study()[0] + b"\n" + content)
    found = read_content(path, (), "fuzz")
    for problem in found.problems:
        raise ValueError(problem)
    with mock.patch("plotly.offline.get_plotlyjs", return_value=""):
        return render(found, FORMATS[zlib.crc32(content) % len(FORMATS)])


def _report_with_failure(folder: Path, content: bytes) -> object:
    """The one run is not there; the last try of it has failed."""
    store = _copy_of_example(folder, [PLAN])
    run = next((store / "runs").iterdir())
    run.rmdir()
    (store / "failed" / f"{run.name}.txt").write_bytes(content)
    return _status_and_report(store, content)


def _status_and_report(store: Path, content: bytes) -> str:
    """The report in one of its formats, which the content decides: each gets its share of the cases."""
    _, problems = status(Store(store))
    for problem in problems:
        raise ValueError(problem)
    found = read_content(store, (), "fuzz")
    # The library of plots is five megabytes of every page, and no part of what is read here.
    with mock.patch("plotly.offline.get_plotlyjs", return_value=""):
        return render(found, FORMATS[zlib.crc32(content) % len(FORMATS)])


READERS: dict[str, Reader] = {**dict(data_readers()), **dict(model_readers()), **dict(grid_readers())}
