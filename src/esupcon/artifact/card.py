"""`README.md`: what a model is, in plain words, for whoever finds the folder."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pydantic import JsonValue

from esupcon.artifact.config import CUSTOM, ArtifactConfig, ImagePreprocessing
from esupcon.methods import METHODS

__all__ = ["escaped", "model_card"]

#: Lines of a table; the config has the rest.
MOST_LINES = 100
# What means something inside a line of Markdown or HTML: all punctuation but a few; the dot of a web address; an
# underscore at the edge of a word, where emphasis may begin or end.
_MEANINGFUL = re.compile(r"""[^\w\s\-,'/()%=+;?!".]|(?<=www)\.|(?<![^\W_])_|_(?![^\W_])""", re.ASCII | re.IGNORECASE)


def escaped(text: str) -> str:
    """Text that Markdown and HTML show as it is: no markup, link or table cell, and nothing invisible."""
    visible = "".join(character if character.isprintable() else _named(character) for character in text)
    return _MEANINGFUL.sub(lambda found: f"&#{ord(found[0])};" if found[0].isascii() else found[0], visible)


def _named(character: str) -> str:
    """Line ends, control characters and changes of writing direction by their number, as Python writes them."""
    return character.encode("unicode_escape").decode()


def model_card(config: ArtifactConfig) -> str:
    image = isinstance(config.preprocessing, ImagePreprocessing)
    parts = [
        _front_matter(image),
        f"# A classifier of {config.n_classes} classes",
        _what_it_is(config),
        "## How to use it",
        _usage(config),
        "## Classes",
        _classes(config),
        "## How it was trained",
        _training(config),
        "## How good it is",
        _table(("measure", "value"), _flat(config.metrics)) or "Nothing was measured when it was saved.",
        "## Probabilities",
        _calibration(config),
        "## Files",
        "`model.safetensors` holds the weights, `config.json` everything else. The first carries a digest of both, so "
        "that neither is changed or swapped unnoticed. Loading them executes nothing. Nothing reads this card but "
        "people.",
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(image: bool) -> str:
    task = "image-classification" if image else "tabular-classification"
    return f"---\nlibrary_name: esupcon\npipeline_tag: {task}\ntags:\n- contrastive-learning\n---"


def _what_it_is(config: ArtifactConfig) -> str:
    head = {
        "prototype": "compares the embedding with one prototype for each class, by the cosine of their angle "
        f"divided by a temperature of {config.temperature}",
        "linear": "is a linear map of the embedding",
    }[config.head]
    encoder = "an encoder of its author's own" if config.encoder == CUSTOM else f"the encoder {escaped(config.encoder)}"
    return f"It takes {_inputs(config)}. An embedding is computed by {encoder}; the classifier on it {head}."


def _inputs(config: ArtifactConfig) -> str:
    given = config.preprocessing
    if isinstance(given, ImagePreprocessing):
        colour = "colour" if given.channels == 3 else "greyscale"
        height, width = given.image_size
        return f"{colour} images of {height} x {width} pixels (height x width), with values of 0 to 255"
    return f"rows of {len(given.mean)} numbers"


def _usage(config: ArtifactConfig) -> str:
    custom = ", encoder=module" if config.encoder == CUSTOM else ""
    needed = "`module` is the encoder it was trained with, as a PyTorch module.\n\n" if custom else ""
    if isinstance(config.preprocessing, ImagePreprocessing):
        shape = f"uint8 array of shape (n, {', '.join(map(str, config.input_shape))})"
    else:
        shape = f"table of shape (n, {config.input_shape[0]})"
    return (
        f"{needed}```python\nimport esupcon\n\n"
        f'classifier = esupcon.load("this/folder"{custom})\n'
        f"classifier.predict(X)        # X: {shape}\n"
        "classifier.predict_proba(X)  # one column for each of classifier.classes_\n"
        "classifier.transform(X)      # embeddings\n```"
    )


def _classes(config: ArtifactConfig) -> str:
    rows = [(str(column), label) for column, label in enumerate(config.classes)]
    return _table(("column", "class"), rows)


def _training(config: ArtifactConfig) -> str:
    known = METHODS.get(config.method)
    method = f"{known.title}. {known.summary}" if known else config.method
    versions = ", ".join(f"{escaped(name)} {escaped(version)}" for name, version in config.versions.items())
    lines = [
        f"Method: {escaped(method)}",
        _table(("setting", "value"), _flat(config.training)),
        f"Saved {config.created} with {versions}.",
    ]
    if config.data_fingerprint:
        lines.append(f"Fingerprint of the training data: {escaped(config.data_fingerprint)}")
    return "\n\n".join(filter(None, lines))


def _calibration(config: ArtifactConfig) -> str:
    if config.calibration_temperature is None:
        return (
            "Not calibrated: probabilities are the softmax of the logits as they were trained. Calibrate on "
            "held-out data before relying on them."
        )
    return f"Calibrated: logits are divided by {config.calibration_temperature:.4g} before the softmax."


def _flat(values: dict[str, JsonValue], prefix: str = "") -> list[tuple[str, JsonValue]]:
    """Nested settings as one list: `optimiser.lr` for {"optimiser": {"lr": ...}}."""
    rows: list[tuple[str, JsonValue]] = []
    for key, value in values.items():
        rows += _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [(f"{prefix}{key}", value)]
    return rows


def _table(head: tuple[str, str], rows: Iterable[tuple[str, JsonValue]]) -> str:
    lines = [f"| {escaped(name)} | {_cell(value)} |" for name, value in rows]
    if not lines:
        return ""
    more = f"\n\n{len(lines) - MOST_LINES} more are in `config.json`." if len(lines) > MOST_LINES else ""
    return "\n".join([f"| {head[0]} | {head[1]} |", "| --- | --- |", *lines[:MOST_LINES]]) + more


def _cell(value: JsonValue) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list) and len(value) > 20:
        return f"{len(value)} values"
    return escaped(str(value))
