"""Files of a run and its result. Needs no torch."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError

import esupcon
from esupcon._io import first_error, read_json_lines, read_sealed_json, write_sealed_json
from esupcon.doctor.finding import Finding
from esupcon.probability import CalibrationFigures, Figures
from esupcon.spec import RunSpec

RUN_FILE = "run.json"  # key, settings, precision and versions
RESULT_FILE = "result.json"  # written last: a folder that has it is finished
PREDICTIONS_FILE, HELD_OUT_FILE = "predictions.npz", "held_out.npz"  # logits and labels of test and held-out part
EMBEDDING_FILE = "embedding.npz"  # some test samples and the prototypes, to be drawn
HISTORY_FILE, TIMING_FILE = "history.jsonl", "timing.jsonl"  # one line per epoch
REPORT_FILE = "report.html"
CHECKPOINTS = "checkpoint-[0-9]*.pt"  # with the state of an unfinished run
MODEL_FOLDER, LOCK_FILE = "model", ".lock"
#: Everything that a run writes into its folder.
RUN_FILES = (
    *(RUN_FILE, RESULT_FILE, PREDICTIONS_FILE, HELD_OUT_FILE, EMBEDDING_FILE, HISTORY_FILE, TIMING_FILE),
    *(REPORT_FILE, CHECKPOINTS, LOCK_FILE),
    *(f"{MODEL_FOLDER}/{name}" for name in ("config.json", "model.safetensors", "examples.safetensors", "README.md")),
)
#: Seconds beyond which a recorded time is damaged.
MAX_SECONDS = 1e12
Count = Annotated[int, Field(ge=0, lt=2**63)]
Seconds = Annotated[float, Field(ge=0, lt=MAX_SECONDS)]
_PACKAGES = ("torch", "numpy", "scipy", "lightning-fabric", "safetensors", "pillow", "timm")


class Record(BaseModel):
    """A part of a result; only known fields, no NaN or infinity."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DataRecord(Record):
    """The data of a run, as they were read."""

    name: str
    fingerprint: str
    classes: tuple[str, ...]
    input_shape: tuple[Count, ...]
    n_skipped: Count


class ScenarioRecord(Record):
    """What a scenario drew: see `esupcon.data.scenarios.Scenario`."""

    settings: dict[str, int | float | str | None]
    n_before: Count
    n_after: Count
    class_counts_before: dict[str, Count]
    class_counts_after: dict[str, Count]
    label_counts_after: dict[str, Count]
    scarce_classes: tuple[Count, ...] | None
    n_wrong_labels: Count
    effective_noise_rate: float
    sha256: str


class Preparation(Record):
    """How the training part was divided. `class_counts` are the labels that were trained on, wrong ones included."""

    scenario: ScenarioRecord
    validation_fraction: float
    validation_seed: Count
    n_fit: Count
    n_held_out: Count
    n_test: Count
    class_counts: tuple[Count, ...]


class Metrics(Record):
    """Metrics by part; None if the data have no such part."""

    test: Figures | None = None
    held_out: Figures | None = None


class CalibrationResult(Record):
    """Temperature scaling by the protocol of the paper (on the test part), and fitted on held-out samples."""

    paper: CalibrationFigures | None = None
    held_out: CalibrationFigures | None = None


class Provenance(Record):
    """When, where, by what and in which time a result was computed: everything that may differ between equal runs."""

    command: str
    source: str
    seconds: Seconds
    train_seconds: Seconds
    reused_seconds: Seconds = 0.0  # of results of development versions, in which runs could share a first stage
    peak_memory_bytes: Count | None = None
    finished: str
    device: str
    commit: str | None = None
    versions: dict[str, str]


class Result(Record):
    """The result of a run, as it is stored in `result.json`. Equal runs differ in `provenance` only."""

    schema_version: Literal[2] = 2
    key: str
    run: Annotated[RunSpec, BeforeValidator(lambda run: RunSpec.read(run) if isinstance(run, dict) else run)]
    precision_reason: str
    encoder: str  # "auto" resolved
    augmentation: str  # "auto" resolved
    batch_size: Annotated[int, Field(ge=1, lt=2**63)]
    data: DataRecord
    preparation: Preparation
    metrics: Metrics = Metrics()
    calibration: CalibrationResult = CalibrationResult()
    extra: dict[str, float] = {}  # figures by name, of `esupcon.experiments.measures` for example
    findings: tuple[Finding, ...] = ()
    provenance: Provenance
    _folder: Path | None = PrivateAttr(None)
    _already_finished: bool = PrivateAttr(False)

    @property
    def folder(self) -> Path:
        """The folder that the result was read from or written to."""
        assert self._folder is not None, "the result is not stored"
        return self._folder

    @property
    def model(self) -> Path:
        """The folder of the trained classifier."""
        return self.folder / MODEL_FOLDER

    @property
    def already_finished(self) -> bool:
        """Whether the result was read from a finished run instead of computed."""
        return self._already_finished

    @classmethod
    def parse(cls, content: Any, where: object) -> Result:
        """Return a result from plain values; raise a ValueError that names `where` they come from."""
        try:
            result = cls.model_validate(content)
        except ValidationError as error:
            raise ValueError(f"{where} is not the result of a run of this version ({first_error(error)}).") from None
        except (UnicodeEncodeError, RecursionError) as error:
            raise ValueError(f"{where} is not the result of a run ({error}).") from None
        if result.run.key != result.key:
            raise ValueError(f"{where} has the key {result.key!r:.40} and the settings of {result.run.key}.")
        return result

    @classmethod
    def read(cls, folder: Path) -> Result:
        """Return the result of a finished run; raise an error in one line if there is none or it is damaged."""
        path = Path(folder) / RESULT_FILE
        if not path.is_file():
            raise FileNotFoundError(f"{folder} holds no finished run: there is no {RESULT_FILE}. Train it first.")
        result = cls.parse(read_sealed_json(path), path)
        result._folder, result._already_finished = Path(folder), True
        return result

    def write(self, folder: Path) -> None:
        """Write `result.json`. Write everything else before: a folder that has it is finished."""
        write_sealed_json(folder / RESULT_FILE, self.model_dump(mode="json"))
        self._folder = folder


def versions() -> dict[str, str]:
    """Return the versions of esupcon, Python and the libraries that a result depends on."""
    found = {"esupcon": esupcon.__version__, "python": platform.python_version(), "platform": platform.platform()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def training_seconds(folder: Path) -> float:
    """Return the seconds that all processes of a run spent on training steps.

    Every process appends its epochs to one file; one that was killed may leave half a line.
    """
    found = [line.get("seconds") for line in read_json_lines(folder / TIMING_FILE)]
    return round(sum(float(one) for one in found if isinstance(one, int | float) and 0 <= one < MAX_SECONDS), 3)
