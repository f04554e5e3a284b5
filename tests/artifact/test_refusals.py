"""A folder that is not understood is refused in one line, whatever is wrong with it."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from network_state import same_state
from safetensors.torch import load_file, save_file
from torch import nn

from esupcon.artifact import ArtifactConfig, Classifier, load_artifact, save_artifact

Forge = Callable[..., None]


def refuse(folder: Path, message: str, kind: type[Exception] = ValueError, **options: Any) -> None:
    with pytest.raises(kind, match=message) as caught:
        load_artifact(folder, **options)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def test_no_folder(tmp_path: Path) -> None:
    refuse(tmp_path / "none", "no model at .*Pass the folder", FileNotFoundError)
    (tmp_path / "file").write_text("")
    refuse(tmp_path / "file", "no model at", FileNotFoundError)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_missing_files(saved: Path, name: str) -> None:
    (saved / name).unlink()
    refuse(saved, f"it has no {name}", FileNotFoundError)
    (saved / name).mkdir()
    refuse(saved, f"it has no {name}", FileNotFoundError)


def test_the_card_is_not_needed(saved: Path) -> None:
    (saved / "README.md").unlink()
    load_artifact(saved)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"\xff\xfe", "utf-8"),
        (b"[1]", "no schema_version"),
        (b"{}", "no schema_version"),
        (b'{"schema_version": true}', "no schema_version"),
        (b'{"schema_version": "1"}', "no schema_version"),
        (b'{"schema_version": 2, "unheard": "of"}', "its schema is 2 and this esupcon reads 1; upgrade with: pip"),
        (b'{"schema_version": 0}', "schema_version: Input should be 1"),
        (b'{"schema_version": 1}', r"encoder: Field required \(and \d more\)"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"schema_version": ' + b"9" * 5000 + b"}", "is not JSON"),
    ],
)
def test_config_that_is_none(saved: Path, text: bytes, message: str) -> None:
    (saved / "config.json").write_bytes(text)
    refuse(saved, message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"surprise": 1}, "surprise: Extra inputs are not permitted"),
        ({"classes": ["a"]}, "classes: .*at least 2"),
        ({"classes": ["a", "b", "a"]}, "the class 'a' is there twice"),
        ({"classes": [1, True, 2]}, "the class True is there twice"),
        ({"classes": ["a", None, "b"]}, r"classes\.1"),
        ({"classes": ["a", ["b"], "c"]}, r"classes\.1"),
        ({"classes": ["a", float("nan"), "c"]}, r"classes\.1"),
        ({"head": "cosine"}, "head: Input should be 'linear' or 'prototype'"),
        ({"temperature": 0}, "temperature: Input should be greater than 0"),
        ({"temperature": None}, "a prototype head needs its temperature"),
        ({"temperature": float("inf")}, "temperature: Input should be a finite number"),
        ({"calibration_temperature": -1}, "calibration_temperature: Input should be greater than 0"),
        ({"projection_dim": 0}, "projection_dim"),
        ({"projection_dim": 10**9}, "projection_dim"),
        ({"input_shape": [4]}, r"input_shape is \(4,\) and preprocessing gives \(3,\)"),
        ({"preprocessing": {"kind": "text"}}, "preprocessing"),
        ({"preprocessing": {"kind": "table", "mean": [0, 0, 0], "scale": [1, 1]}}, "scale has 2 entries, expected 3"),
        ({"preprocessing": {"kind": "table", "mean": [0, 0, 0], "scale": [1, 0, 1]}}, "greater than 0"),
        ({"preprocessing": {"kind": "table", "mean": [], "scale": []}}, "mean"),
        (
            {
                "input_shape": [3, 10**9, 10**9],
                "preprocessing": {
                    "kind": "image",
                    "channels": 3,
                    "image_size": [10**9, 10**9],
                    "mean": [0, 0, 0],
                    "std": [1, 1, 1],
                },
            },
            "image_size.*less than or equal to 4096",
        ),
        ({"metrics": {"a": {"b": [0.1, float("nan")]}}}, r"metrics: a\.b\[1\] is nan, which JSON cannot hold"),
        ({"created": "yesterday"}, "created"),
        ({"created": "2026-01-31T12:00:00+02:00"}, "not a time in UTC"),
        ({"encoder": ""}, "encoder"),
        ({"encoder": "resnet18"}, r"takes images"),
        ({"encoder": "resnot18"}, "unknown encoder 'resnot18'"),
        ({"encoder": "mlp-9x2"}, r"head.weight of shape \(3, 9\); the weights have \(3, 8\)"),
        ({"encoder": "mlp-8x3"}, r"does not fit the encoder 'mlp-8x3': encoder\.layers\.6\.bias is missing"),
        ({"encoder": "mlp-8x1"}, r"'encoder\.layers\.3\.bias' is too much"),
        ({"encoder": "identity"}, r"head\.weight of shape \(3, 3\)"),
        ({"classes": ["a", "b"]}, r"head\.weight of shape \(2, 8\)"),
        ({"head": "linear"}, r"head\.bias is missing"),
        ({"projection_dim": 4}, r"projector\.0\.bias is missing"),
    ],
)
def test_config_that_does_not_fit(saved: Path, forge: Forge, change: dict[str, Any], message: str) -> None:
    forge(saved, config=change)
    refuse(saved, message)


def test_config_nested_beyond_reason(saved: Path) -> None:
    values = json.loads((saved / "config.json").read_text())
    for depth in (50, 300, 900, 5000):
        text = json.dumps(values | {"training": {"x": 0}}).replace('"x": 0', '"x": ' + "[" * depth + "]" * depth)
        (saved / "config.json").write_text(text)
        refuse(saved, "cannot be (read|loaded)")


def test_config_that_is_too_large_is_not_read(saved: Path) -> None:
    with (saved / "config.json").open("r+b") as file:
        file.truncate(2**40)  # a hole: nothing is on the disk
    refuse(saved, "at most 67108864 bytes")


@pytest.mark.parametrize("encoder", ["mlp-65536x64", "mlp-65536x1"])
def test_an_encoder_beyond_the_memory_is_refused_unbuilt(saved: Path, forge: Forge, encoder: str) -> None:
    forge(saved, config={"encoder": encoder})
    refuse(saved, r"head\.weight of shape \(3, 65536\)")


def test_a_resnet_beyond_the_memory_is_refused_unbuilt(make: Any, forge: Forge, tmp_path: Path) -> None:
    folder = save_artifact(tmp_path / "model", *make("resnet10-w2", (1, 8, 8)))
    forge(folder, config={"encoder": "resnet50-w4096"})
    refuse(folder, r"head\.weight of shape \(3, 131072\)")
    # 17 billion values that the projector would have; the head is stored as it claims.
    forge(
        folder, config={"encoder": "resnet50-w4096", "projection_dim": 65_536}, **{"head.weight": torch.ones(3, 131072)}
    )
    refuse(folder, "does not fit the encoder 'resnet50-w4096'")


def test_more_classes_than_the_weights_have_are_refused_before_they_are_allocated(saved: Path, forge: Forge) -> None:
    forge(saved, config={"classes": list(range(200_000)), "encoder": "mlp-65536x1"})
    refuse(saved, r"head\.weight of shape \(200000, 65536\)")


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 9, 100, -1])
def test_truncated_weights(saved: Path, keep: int) -> None:
    file = saved / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    refuse(saved, r"model\.safetensors is damaged or not a safetensors file")


def test_something_after_the_weights(saved: Path) -> None:
    with (saved / "model.safetensors").open("ab") as file:
        file.write(b"\0")
    refuse(saved, "is damaged or not a safetensors file")


@pytest.mark.parametrize("length", [0, 2**20, 2**40, 2**63, 2**64 - 1])
def test_header_that_lies_about_its_own_length(saved: Path, length: int) -> None:
    file = saved / "model.safetensors"
    file.write_bytes(struct.pack("<Q", length) + file.read_bytes()[8:])
    refuse(saved, "is damaged or not a safetensors file")


@pytest.mark.parametrize(
    "lie",
    [
        {"shape": [2**40, 2**20]},
        {"shape": [2**62, 2**62]},
        {"shape": [-3, 8]},
        {"data_offsets": [0, 2**50]},
        {"data_offsets": [64, 0]},
        {"dtype": "F64"},
        {"dtype": "PICKLE"},
    ],
)
def test_header_that_lies_about_a_tensor(saved: Path, lie: dict[str, Any]) -> None:
    file = saved / "model.safetensors"
    raw = file.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    header["head.weight"] |= lie
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])
    refuse(saved, "is damaged or not a safetensors file")


def test_a_pickle_is_not_opened(saved: Path, tmp_path: Path) -> None:
    trace = tmp_path / "executed"

    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(trace),)

    payload = pickle.dumps(Payload())
    for name in ("model.safetensors", "config.json"):
        kept = (saved / name).read_bytes()
        (saved / name).write_bytes(payload)
        refuse(saved, "cannot be (read|loaded)")
        (saved / name).write_bytes(kept)
    torch.save({"weight": torch.ones(1)}, saved / "model.safetensors")
    refuse(saved, "is damaged or not a safetensors file")
    assert not trace.exists()


def test_tensors_that_do_not_fit(saved: Path, forge: Forge) -> None:
    name = "encoder.layers.0.weight"
    forge(saved, **{name: torch.ones(8, 4)})
    refuse(saved, r"layers\.0\.weight should have shape \(8, 3\) and has \(8, 4\)")
    forge(saved, **{name: None})
    refuse(saved, r"layers\.0\.weight is missing")
    forge(saved, **{name: torch.ones(8, 3), "a\nb": torch.ones(1)})
    refuse(saved, r"'a\\nb' is too much")
    forge(saved, **{"a\nb": None, name: torch.ones(8, 3, dtype=torch.float16)})
    refuse(saved, r"layers\.0\.weight in model\.safetensors must be torch.float32; it is torch.float16")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers(saved: Path, forge: Forge, value: float) -> None:
    forge(saved, **{"encoder.layers.0.bias": torch.tensor([0.0] * 7 + [value])})
    refuse(saved, r"encoder\.layers\.0\.bias holds NaN or infinite numbers")


def test_statistics_that_are_no_numbers(make: Any, forge: Forge, tmp_path: Path) -> None:
    folder = save_artifact(tmp_path / "model", *make("resnet10-w2", (1, 8, 8)))
    forge(folder, **{"encoder.stem.1.running_mean": torch.tensor([0.0, float("nan")])})
    refuse(folder, r"running_mean holds NaN")


def test_files_of_two_models(make: Any, tmp_path: Path) -> None:
    one, two = (save_artifact(tmp_path / name, *make(classes=["a", "b", name])) for name in ("one", "two"))
    shutil.copy(two / "config.json", one / "config.json")
    refuse(one, r"config\.json is not the one that model\.safetensors was saved with")


def test_swapped_tensors_are_noticed(saved: Path) -> None:
    """Names and shapes fit, and every number is there: only the digest tells."""
    from safetensors import safe_open

    file = saved / "model.safetensors"
    with safe_open(file, framework="pt") as opened:
        metadata = opened.metadata()
    tensors = load_file(file)
    a, b = "encoder.layers.0.bias", "encoder.layers.3.bias"
    tensors[a], tensors[b] = tensors[b], tensors[a]
    save_file(tensors, file, metadata=metadata)
    refuse(saved, "their digest differs")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (None, "does not carry the mark"),
        ({"format": "pt"}, "does not carry the mark"),
        ({"esupcon": "{"}, "does not carry the mark"),
        ({"esupcon": "[]"}, "does not carry the mark"),
        ({"esupcon": '{"format_version": 1}'}, "does not carry the mark"),
        (
            {"esupcon": '{"format_version": 2, "config_sha256": "", "tensors_sha256": ""}'},
            r"format of model\.safetensors is 2 and this esupcon reads 1; upgrade",
        ),
    ],
)
def test_weights_of_other_programs(saved: Path, metadata: dict[str, str] | None, message: str) -> None:
    file = saved / "model.safetensors"
    save_file(load_file(file), file, metadata=metadata)
    refuse(saved, message)


@pytest.fixture(scope="module")
def original(make: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Classifier]:
    network, config = make("mlp-2x1", (2,), classes=["a", "b"], projection_dim=2)
    folder = save_artifact(tmp_path_factory.mktemp("fuzz") / "model", network, config)
    return folder, load_artifact(folder)


@settings(max_examples=200)
@given(data=st.data())
@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_no_damaged_byte_goes_unnoticed(original: tuple[Path, Classifier], name: str, data: st.DataObject) -> None:
    """Refused in one line, or, where it was white space, the same model."""
    folder, classifier = original
    file = folder / name
    kept = file.read_bytes()
    damaged = bytearray(kept)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(kept) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(damaged)
    try:
        found = load_artifact(folder)
    except ValueError as error:
        assert "\n" not in str(error)
    else:
        assert found.config == classifier.config
        assert same_state(found.network, classifier.network)
    finally:
        file.write_bytes(kept)


def test_own_encoder_must_be_passed(make: Any, saved: Path, tmp_path: Path) -> None:
    network, config = make(nn.Linear(3, 4), (3,))
    folder = save_artifact(tmp_path / "own", network, config)
    refuse(folder, r"encoder of your own.*load\(folder, encoder=module\)")
    refuse(saved, "brings its encoder, 'mlp-8x2', with it", encoder=nn.Linear(3, 4))
    other = nn.Linear(3, 4, bias=False)
    before = other.weight.clone()
    refuse(folder, r"'encoder\.module\.bias' is too much", encoder=other)
    assert torch.equal(other.weight, before)
    refuse(folder, r"head\.weight of shape \(3, 5\)", encoder=nn.Linear(3, 5))
    refuse(folder, "must map a batch", encoder=nn.Linear(2, 4))
    load_artifact(folder, encoder=nn.Linear(3, 4))


def test_timm_missing_is_said_with_its_remedy(saved: Path, forge: Forge, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "timm", None)
    image = {"kind": "image", "channels": 3, "image_size": [8, 8], "mean": [0, 0, 0], "std": [1, 1, 1]}
    forge(saved, config={"encoder": "timm:resnet18", "input_shape": [3, 8, 8], "preprocessing": image})
    refuse(saved, r"pip install 'esupcon\[timm\]'$")


class Remembering(nn.Linear):
    def get_extra_state(self) -> object:
        return {"a": "python object"}

    def set_extra_state(self, state: object) -> None:
        raise AssertionError("never called")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda network: nn.init.constant_(network.encoder.module.bias, torch.nan), "module.bias holds NaN"),
        (
            lambda network: setattr(network.head, "temperature", 0.5),
            "config's temperature is 0.2; the network's is 0.5",
        ),
        (
            lambda network: setattr(network, "head", nn.Linear(4, 3)),
            "config's head is 'prototype'; the network's is 'Linear'",
        ),
        (lambda network: setattr(network, "projector", nn.Linear(4, 3)), "config's projection_dim is None"),
        (lambda network: setattr(network.encoder, "module", Remembering(3, 4)), "state must be tensors"),
        (
            lambda network: setattr(network.encoder, "module", nn.Linear(3, 4, dtype=torch.complex64)),
            "stored as real numbers; encoder.module.weight is torch.complex64",
        ),
    ],
)
def test_networks_that_could_not_be_loaded_are_not_saved(
    make: Any, tmp_path: Path, change: Callable[[Any], None], message: str
) -> None:
    network, config = make(nn.Linear(3, 4), (3,))
    change(network)
    with pytest.raises(ValueError, match=message):
        save_artifact(tmp_path / "model", network, config)
    assert list(tmp_path.iterdir()) == []


def test_config_of_another_network_is_not_saved(make: Any, tmp_path: Path) -> None:
    network, config = make("mlp-8x2", (3,), classes=["a", "b"])
    _, other = make("mlp-8x2", (3,))
    with pytest.raises(ValueError, match="config's number of classes is 3; the network's is 2"):
        save_artifact(tmp_path / "model", network, other)
    for encoder in ("mlp-8x3", "mlp-8x1"):
        wrong = ArtifactConfig.model_validate(config.model_dump() | {"encoder": encoder})
        with pytest.raises(ValueError, match=f"not what the config's encoder '{encoder}' builds"):
            save_artifact(tmp_path / "model", network, wrong)
