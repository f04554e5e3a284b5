"""Tables and profiles as data, and the runs that they describe. Nothing here reads data or imports torch.

The settings of a run come from several places; the later one wins: the table, the profile, the column, the contestant,
the contestant in this column, the point of the table's grid, and what the caller overrides (`--set`). What none of them
sets has the value of `SETTINGS`, or that of `esupcon.recipes` if the table says `recipe = true`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import sys
import tomllib
import types
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from esupcon._console import printable
from esupcon._io import first_error
from esupcon.data import DataOptions
from esupcon.methods import METHODS, PAPER_METHODS
from esupcon.spec import RunSpec, TrainSpec

#: Every training setting of the paper's tables. They do not follow the defaults of TrainSpec, which may improve.
SETTINGS: dict[str, Any] = {
    **{"encoder": "auto", "epochs": 100, "steps": None, "batch_size": 256, "micro_batch": None},
    **{"lr": None, "optimizer": "sgd", "momentum": 0.9, "weight_decay": 5e-4, "warmup": 0.1},
    **{"temperature": 0.1, "prototype_weight": 1.0, "prototype_lr": 1.0, "spce_average": "class"},
    **{"projection_dim": 128, "augmentation": "auto", "precision": "auto", "threads": 1, "compile": False},
    **{"class_weight": None, "patience": None, "encoder_lr": 1.0, "schedule": "cosine", "label_smoothing": 0.0},
    **{"prototype_temperature": None, "prototype_share": None, "prototype_average": "class", "neck": "none"},
    **{"contrast_weight": 1.0, "logit_adjustment": 0.0, "ce_power": 0.0, "mixup": 0.0},
    **{"label_noise": None, "images_per_class": None},
    **{"train_blocks": None, "cached_views": 4, "test_time_flip": False, "pretrained": True},
}
MAX_RUNS = 20_000
_SCENARIO = ("n_train", "imbalance_rate", "noise_rate", "noise_kind")
_RUN_SETTINGS = {*_SCENARIO, "validation_fraction", "priors"}
_DATA_SETTINGS = {name for name, field in DataOptions.model_fields.items() if not field.exclude}
_KNOWN = TrainSpec.model_fields.keys() | _RUN_SETTINGS | _DATA_SETTINGS
# What the plan decides for each run, and the option of `esupcon reproduce` that narrows it.
_DECIDED = {"method": "--method", "seed": "--seeds", "source": "--dataset", "dataset": "--dataset"}

Model = TypeVar("Model", bound=BaseModel)


def _file_name(value: str) -> str:
    if not re.fullmatch(r"\w[\w .+-]{0,63}", value):
        raise ValueError(f"must be 1 to 64 letters, digits or ' .+-_', since files are named after it; got {value!r}")
    return value


Words = Annotated[tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)]
Name = Annotated[str, AfterValidator(_file_name)]
Settings = dict[str, Any]
Seeds = Annotated[int | None, Field(ge=1, le=MAX_RUNS)]
Spec = Annotated[RunSpec, BeforeValidator(lambda value: RunSpec.read(value) if isinstance(value, dict) else value)]


class Record(BaseModel):
    """An immutable record of known fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


# --- Tables and profiles ---------------------------------------------------------------------------------------------


class Column(Record):
    """One setting of one data set. `setting` is its title in the table; by default it lists the scenario."""

    dataset: str = Field(min_length=1)
    setting: str = ""
    n_train: int | None = None
    imbalance_rate: float | None = None
    noise_rate: float | None = None
    noise_kind: str | None = None
    train: Settings = {}
    methods: Words = Field((), description="methods and contestants of this column; default: those of the table")
    contestants: dict[str, Settings] = Field({}, description="settings of single methods or contestants in this column")
    seeds: Seeds = None
    second: str | None = Field(None, description="second data set, for `esupcon.experiments.measures`")
    paper_accuracy: dict[str, float] = Field({}, description="per cent, by method")
    paper_ece: dict[str, float] = Field({}, description="a share, by method")

    @property
    def place(self) -> tuple[str, str]:
        """The data set and the setting, which identify a column."""
        return self.dataset, self.setting

    @property
    def scenario(self) -> Settings:
        """The fields of the scenario that this column sets."""
        return {name: value for name in _SCENARIO if (value := getattr(self, name)) is not None}

    @model_validator(mode="after")
    def _default_setting(self) -> Column:
        if not self.setting:
            object.__setattr__(self, "setting", _listing(self.scenario) or "full")
        return self


class Contestant(Record):
    """A method with settings of its own, which a table compares under a name of its own."""

    method: str
    train: Settings = {}
    seeds: Seeds = None  # instead of those of the column


class Table(Record):
    """A table of results: its columns, its methods, and what the paper printed in it.

    `contestants` are variants of methods; `methods` and `baseline` may name them. `recipe`: settings that are not named
    are those of `esupcon.recipes`. `grid` lists values of training settings: every column is run at every combination
    of them. `modules` are Python files beside the table that register methods, losses and data sets.
    """

    name: Name
    title: str
    paper: str = ""
    measure: Literal["accuracy", "held_out", "ece", "cost", "study"] = "accuracy"
    baseline: str = "ce"
    methods: Words = tuple(method.key for method in PAPER_METHODS)
    contestants: dict[str, Contestant] = {}
    recipe: bool = False
    modules: Words = ()
    notes: Words = ()
    train: Settings = {}
    grid: dict[str, Annotated[list[Any], Field(min_length=1)]] = {}
    columns: tuple[Column, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_columns(self) -> Table:
        (place, n), *_ = Counter(column.place for column in self.columns).most_common()
        if n > 1:
            raise ValueError(f"two columns are called {' '.join(place)}; give each its own setting")
        return self


class TableChange(Record):
    """What a profile changes in one table.

    An entry of `columns` that names a column of the table (data set and setting) replaces the fields that it gives;
    any other entry is a new column. Without `columns` all columns of the table are run.
    """

    columns: tuple[dict[str, Any], ...] = ()
    seeds: Seeds = None
    train: Settings = {}
    grid: dict[str, list[Any]] = {}


class Profile(Record):
    """The scale on which tables are run: settings for all runs (`train`), for a method, and for a table."""

    name: Name
    title: str
    seeds: int = Field(1, ge=1, le=MAX_RUNS)
    validation_fraction: float = Field(0.0, ge=0, lt=1)
    train: Settings = {}
    method: dict[str, Settings] = {}
    table: dict[str, TableChange] = {}


def shipped(folder: Literal["tables", "profiles"]) -> tuple[str, ...]:
    """Return the names of the tables or profiles that come with the package."""
    files = resources.files("esupcon.experiments").joinpath(folder).iterdir()
    return tuple(sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml")))


def read_toml(kind: type[Model], name: str) -> Model:
    """Return a shipped table or profile (`kind`) by its name, or that of a file by its path."""
    folder: Literal["tables", "profiles"] = "profiles" if kind is Profile else "tables"
    path, word, known = Path(name), folder.removesuffix("s"), shipped(folder)
    file = resources.files("esupcon.experiments").joinpath(folder, f"{name}.toml") if name in known else path
    if not file.is_file():
        raise FileNotFoundError(f"{name!r} is neither a shipped {word} ({', '.join(known)}) nor a file. Check it.")
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be TOML; it is not: {printable(error)}. Fix the file.") from None
    return _validated(kind, {"name": path.stem, **content}, f"{word} {name}")


def _validated(kind: type[Model], content: Mapping[str, Any], what: str) -> Model:
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise ValueError(f"{what}: {first_error(error)}. Fix the file.") from None


# --- Plugins: Python files that a table names ------------------------------------------------------------------------


class Plugin(Record):
    """A Python file that registers methods, losses or data sets. Its text is sent to every worker with the run."""

    name: str
    path: str
    text: str

    @property
    def sha256(self) -> str:
        """The digest of the text, which is part of the key of each run: another text is another run."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def execute(self) -> None:
        """Run the code once in this process."""
        name = f"esupcon_plugin_{self.sha256[:12]}"
        if name in sys.modules:
            return
        module = sys.modules[name] = types.ModuleType(name)
        module.__file__ = self.path
        try:
            exec(compile(self.text, self.path, "exec"), module.__dict__)
        except Exception as error:
            del sys.modules[name]
            raise ValueError(f"{self.path}: {type(error).__name__}: {error}. Fix the module.") from error


def _read_plugin(table: Table, folder: Path, name: str) -> Plugin:
    file, what = folder / name, f"table {table.name} names the module {name}"
    if not file.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{what}, which lies outside its folder. Move it there.")
    if file.suffix != ".py" or not file.is_file():
        raise FileNotFoundError(f"{what}; {file} is not a Python file.")
    return Plugin(name=file.stem, path=str(file), text=file.read_text(encoding="utf-8"))


# --- Plans -----------------------------------------------------------------------------------------------------------


class Row(Record):
    """A run in its place: the cell of a table that it fills, and what the paper printed there.

    `method` is the name of the contestant, if it is one; `spec` has its method.
    """

    key: str = ""
    table: Name
    profile: Name
    dataset: str
    setting: str
    method: str
    seed: int = Field(ge=0, lt=2**63)
    spec: Spec
    second: str | None = Field(None, description="second data set, for `esupcon.experiments.measures`")
    reduced: str | None = Field(None, description="how the profile makes the paper's setting smaller")
    paper_accuracy: float | None = Field(None, description="per cent")
    paper_ece: float | None = Field(None, description="a share")

    @model_validator(mode="after")
    def _check_key(self) -> Row:
        if self.key not in ("", self.spec.key):
            raise ValueError(f"the run {self.key} has the settings of {self.spec.key}")
        object.__setattr__(self, "key", self.spec.key)
        return self

    @property
    def name(self) -> str:
        """The run in words, for messages."""
        return f"{self.method} on {self.dataset}, {self.setting}, seed {self.seed}"

    def with_spec(self, spec: RunSpec) -> Row:
        """Return the same cell with another specification."""
        return self.model_copy(update={"spec": spec, "key": spec.key})


class Plan(Record):
    """Every run of a table under a profile. The store keeps it as one JSON file."""

    table: Name
    profile: Name
    title: str
    notes: tuple[str, ...] = ()
    paper: str = ""
    measure: str = "accuracy"
    baseline: str = "ce"
    command: str = ""
    asked: str = Field(default="", description="when it was planned, as UTC in ISO 8601")
    rows: tuple[Row, ...] = Field(min_length=1, max_length=MAX_RUNS)
    plugins: tuple[Plugin, ...] = Field((), exclude=True)


def make_plan(
    table: str,
    profile: str | Profile | None = None,
    *,
    datasets: Collection[str] = (),
    settings: Collection[str] = (),
    methods: Collection[str] = (),
    seeds: Sequence[int] = (),
    overrides: Mapping[str, Any] | None = None,
    sources: Mapping[str, str] | None = None,
    allow_code: bool = False,
    dry_run: bool = False,
) -> Plan:
    """Return every run of a table under a profile, or only those of the given data sets, settings, methods and seeds.

    The default profile is `cpu`, or none for a table with recipes. `overrides` replace settings of every run. `sources`
    says where data sets of the table are on this machine. The modules of a table are executed if `allow_code` is true,
    and never if `dry_run` is.
    """
    about, sources, overrides = read_toml(Table, table), sources or {}, overrides or {}
    if profile is None:
        profile = Profile.model_validate({"name": "recipe", "title": "Recommended settings"}) if about.recipe else "cpu"
    scale = read_toml(Profile, profile) if isinstance(profile, str) else profile
    what = f"table {about.name}, profile {scale.name}"
    plugins = tuple(_read_plugin(about, Path(table).parent, name) for name in about.modules)
    if plugins and not (allow_code or dry_run):
        names = ", ".join(plugin.path for plugin in plugins)
        raise ValueError(f"table {about.name} runs Python code: {names}. Read it, then pass --allow-code.")
    if plugins and dry_run and about.recipe:
        raise ValueError(
            f"table {about.name} has recipe = true and modules, which --dry-run never executes; its runs need them. "
            "Omit --dry-run, or remove the modules."
        )
    for plugin in () if dry_run else plugins:
        plugin.execute()
    change = scale.table.get(about.name, TableChange())
    printed = {column.place: column for column in about.columns}
    columns = _changed_columns(about, printed, change)
    _check_known(sources, [name for one in columns for name in (one.dataset, one.second) if name], "source")
    _check_known(datasets, [one.dataset for one in columns], "data set")
    _check_known(settings, [one.setting for one in columns], "setting")
    columns = [
        one
        for one in columns
        if one.dataset in (datasets or [one.dataset]) and one.setting in (settings or [one.setting])
    ]
    if not columns:
        raise ValueError("no column has both that data set and that setting. --dry-run lists the columns.")
    if not (plugins and dry_run):  # a module that is not executed may register methods
        in_columns = [name for one in columns for name in (*one.methods, *one.contestants)]
        known = [*METHODS, *about.contestants]
        _check_known([one.method for one in about.contestants.values()], METHODS, f"table {about.name}: method")
        _check_known([*about.methods, *in_columns], known, f"table {about.name}: method")
        _check_known(methods, known, "method")
    grid = change.grid or about.grid
    _check_overrides(overrides, grid, columns)
    rows = list[Row]()
    for column, *point_values in itertools.product(columns, *grid.values()):
        point = dict(zip(grid, point_values, strict=True))
        original = printed.get(column.place)
        words = [column.setting if not point or column.setting != "full" else "", _listing(point)]
        # In the table's order; a method that the table leaves out may be wanted, too.
        wanted = dict.fromkeys(column.methods or [*about.methods, *methods])
        for name in (name for name in wanted if not methods or name in methods):
            one = about.contestants.get(name) or Contestant(method=name)
            for seed in seeds or range(one.seeds or column.seeds or change.seeds or scale.seeds):
                values = {
                    **({"threads": 1} if about.recipe else SETTINGS),
                    **{"validation_fraction": scale.validation_fraction, **about.train},
                    **{**scale.train, **scale.method.get(one.method, {}), **change.train},
                    **{**column.scenario, **column.train, **one.train, **column.contestants.get(name, {})},
                    **{**point, **overrides, "method": one.method, "seed": seed},
                }
                spec = _spec(sources.get(column.dataset, column.dataset), values, plugins, what)
                is_reduced = original is not None and spec.n_train not in (None, original.n_train)
                row = {
                    **{"table": about.name, "profile": scale.name, "method": name, "seed": seed, "spec": spec},
                    **{"dataset": column.dataset, "setting": ", ".join(word for word in words if word)},
                    "second": column.second and sources.get(column.second, column.second),
                    "reduced": f"{spec.n_train:,} samples" if is_reduced else None,
                    **{"paper_accuracy": column.paper_accuracy.get(name), "paper_ece": column.paper_ece.get(name)},
                }
                rows.append(_validated(Row, row, what))
                if len(rows) > MAX_RUNS:
                    raise ValueError(f"{what} has more than {MAX_RUNS:,} runs. Choose a part of it.")
    if not rows:
        raise ValueError(f"no chosen column has {', '.join(methods)}. --dry-run lists the runs.")
    texts = about.model_dump(include={"title", "paper", "measure", "baseline", "notes"})
    return Plan(table=about.name, profile=scale.name, rows=tuple(rows), plugins=plugins, **texts)


def _changed_columns(about: Table, printed: Mapping[tuple[str, str], Column], change: TableChange) -> list[Column]:
    """Return the columns of a table as a profile changes them."""
    columns = []
    for entry in change.columns:
        original = printed.get((entry.get("dataset", ""), entry.get("setting", "full")))
        content = {**(original.model_dump() if original else {}), **entry}
        columns.append(_validated(Column, content, f"a column of {about.name} in the profile"))
    return columns or list(about.columns)


def _check_known(wanted: Collection[str], known: Collection[str], word: str) -> None:
    if unknown := [one for one in wanted if one not in known]:
        choices = ", ".join(dict.fromkeys(known))
        raise ValueError(f"{word} must be among {choices}; got {', '.join(map(printable, unknown))}.")


def _check_overrides(overrides: Mapping[str, Any], grid: Mapping[str, Any], columns: Sequence[Column]) -> None:
    """Refuse a setting that would be ignored, or that would make runs differ from the title of their cell."""
    for name in overrides:
        if name in _DECIDED:
            reason = f"the plan decides it for each run. Use {_DECIDED[name]}."
        elif name in grid:
            reason = f"the table is run at several values of it ({grid[name]})."
        elif name != "n_train" and len({column.scenario.get(name) for column in columns}) > 1:
            reason = "the columns of the table differ in it. Use --setting to choose one."
        else:
            continue
        raise ValueError(f"{name} cannot be set: {reason}")


def _listing(settings: Settings) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def _spec(source: str, settings: Settings, plugins: Sequence[Plugin], what: str) -> RunSpec:
    if unknown := settings.keys() - _KNOWN:
        choices = ", ".join(sorted(_KNOWN - _DECIDED.keys()))
        raise ValueError(f"{what}: unknown setting {min(unknown)!r}; choose from {choices}.")
    run: Settings = {"source": source, "data": {}, "train": {}, "plugins": {one.name: one.sha256 for one in plugins}}
    for name, value in settings.items():
        place = run if name in _RUN_SETTINGS else run["data" if name in _DATA_SETTINGS else "train"]
        place[name] = None if value == "null" else value  # TOML has no word for None
    try:
        return RunSpec.read(run)  # methods are checked before; those of a module that is not executed are unknown
    except ValidationError as error:
        raise ValueError(f"{what}: {first_error(error, show_input=True)}.") from None


# --- Words of the command line ---------------------------------------------------------------------------------------


def read_override(text: str) -> tuple[str, Any]:
    """Return the name and value of `name=value`; the value is read as JSON if possible, else as text."""
    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise ValueError(f"a setting is written name=value, as in epochs=10; got {text!r}.")
    try:
        return name.strip().replace("-", "_"), json.loads(value)
    except (ValueError, RecursionError):
        return name.strip().replace("-", "_"), value


def read_seeds(text: str) -> tuple[int, ...]:
    """Return the seeds of `3` (0, 1 and 2) or `4,7` (these)."""
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        numbers = []
    is_count = len(numbers) == 1 and "," not in text
    if not numbers or min(numbers) < int(is_count) or (is_count and numbers[0] > MAX_RUNS):
        raise ValueError(f"seeds must be a number of seeds (3) or a list (0,4,7); got {text!r}.")
    return tuple(range(numbers[0])) if is_count else tuple(numbers)
