"""Mistakes of a new user: each gives one line that says what to do, exit code 2 or ValueError, and no traceback."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import esupcon as package
from assets import CORNERS_OPTIONS, copy_of, made_once
from esupcon import ContrastiveClassifier, data, heads, probability
from esupcon import functional as F
from tiny_images import write_folder

NO_MODEL = "config.json is missing. Pass the folder that a model was saved to."
NO_SOURCE = "Check the path, or choose from digits, cifar10"
WHOLE = "must be a whole number"

#: Words of the command line, and what the one line must say.
COMMANDS = {
    "trian corners.npz": "Did you mean 'train'?",
    "status --jason": "No such option: --jason (Possible options: --json)",
    # train: data
    "train": "Missing argument 'DATA'. See esupcon train --help.",
    "train dogits --out o": "Did you mean 'digits'?",
    "train nowhere/photos --out o": NO_SOURCE,
    "train empty --out o": "Sort the images, or pass a CSV of path,label.",
    "train photos/ne --out o": "Sort the images, or pass a CSV of path,label.",
    "train texts --out o": "Sort the images, or pass a CSV of path,label.",
    "train file --out o": "Unpack an archive first.",
    "train one_class --out o": "must have images of at least two classes",
    "train broken.csv --out o": "Replace or remove it.",
    "train columns.csv --out o": "Name them in its first line, or pass --image-column and --label-column.",
    "train objects.npz --out o": "save plain numbers and text",
    "train rows.npz --out o": "x_train must be (n, H, W), or (n, H, W, C) or (n, C, H, W) with 1 or 3 channels",
    "train photos more --out o": "Got unexpected extra argument(s) (more). See esupcon train --help.",
    # train: where
    "train photos --devices 2": "--out DIR is needed if several processes train together.",
    "train photos --minutes 0": "--minutes must be above 0 and finite; got 0.",
    "train photos --minutes nan": "--minutes must be above 0 and finite; got nan.",
    "train photos --minutes 1 --epochs 3": "--minutes chooses the epochs. Omit --epochs and --steps.",
    "train photos --no-epochs": "No such option: --no-epochs",
    "train nowhere/photos": NO_SOURCE,
    "train photos --out": "Option '--out' requires an argument.",
    "train photos --out file": "--out must be a folder; file is a file. Pass another name.",
    "train photos --out file/o": "--out must be a folder; file is a file. Pass another name.",
    "train photos --out o --accelerator cuda": "--accelerator cuda is not available here. Pass --accelerator cpu.",
    "train photos --out o --accelerator gpu": "--accelerator must be one of auto, cpu, cuda, mps; got 'gpu'.",
    "train photos --out o --devices 0": "--devices must be 1 or more; got 0.",
    "train photos --out o --devices two": f"--devices {WHOLE}",
    "train corners.npz --out run --epochs 5": "now 5. Choose another folder",
    # train: settings
    "train photos --out o --epoch 3": "No such option: --epoch (Possible options: --epochs",
    "train photos --out o --encoder resnet19": "unknown encoder 'resnet19'; the closest known is 'resnet18'.",
    "train photos --out o --encoder timm:x": "pip install 'esupcon[timm]'",
    "train photos --out o --epochs 0": "--epochs must be at least 1; got 0",
    "train photos --out o --epochs many": f"--epochs {WHOLE}",
    "train photos --out o --epochs 1.5": f"--epochs {WHOLE}",
    "train photos --out o --epochs 0 --lr -1": "--epochs must be at least 1; got 0; --lr must be above 0; got -1.0",
    "train photos --out o --method supkon": "--method must be one of ce, supcon_ce, ",
    "train photos --out o --batch-size 1": "--batch-size must be at least 2; got 1",
    "train photos --out o --lr nan": "--lr must be a finite number; got nan",
    "train photos --out o --temperature 0": "--temperature must be at least 0.000001; got 0.0",
    "train photos --out o --optimizer adam": "--optimizer must be 'sgd', 'adamw' or 'muon'; got 'adam'",
    "train photos --out o --augmentation magic": "--augmentation must be auto or one of simclr, ",
    "train photos --out o --precision 16": "--precision must be 'auto', '32', 'bf16' or '64'; got '16'",
    "train photos --out o --class-weight equal": "--class-weight must be 'balanced'; got 'equal'",
    "train photos --out o --seed -1": "--seed must be at least 0; got -1",
    "train photos --out o --seed 10000000000000000000": "--seed must be below 9223372036854775808; got 1000",
    "train photos --out o --micro-batch 10000000000": "--micro-batch must be below 2147483648; got 1000",
    "train photos --out o --label-noise 2": "--label-noise must be 'auto' or below 1; got '2'",
    "train photos --out o --priors half": (
        "--priors must be 'training' or 'balanced' or NAME=SHARE,NAME=SHARE,...; got 'half'"
    ),
    "train photos --out o --patience 0": "--patience must be at least 1; got 0",
    "train photos --out o --checkpoint-seconds -1": "--checkpoint-seconds must be at least 0",
    # train: reading, and harder settings
    "train photos --out o --image-size 0": "--image-size must be a side or (height, width), each from 1 to 4096; got 0",
    "train photos --out o --channels 2": "--channels must be 1 or 3; got 2",
    "train photos --out o --test-fraction 20": "--test-fraction must be below 1; got 20.0",
    "train photos --out o --validation-fraction 1": "--validation-fraction must be below 1; got 1.0",
    "train photos --out o --n-per-class 3": "--n-per-class 3 does not apply to photos: it is for caltech256. Omit it.",
    "train corners.npz --out o --test-fraction 0.3": "--test-fraction 0.3 does not apply to corners.npz: it has a test",
    "train corners.npz --out o --split-seed 7": "--split-seed 7 does not apply to corners.npz: it has a test part",
    "train photos --out o --n-train 1000": "--n-train is 1000, and there are 9 samples.",
    "train photos --out o --noise-rate 20": "--noise-rate must be at most 1; got 20.0",
    "train photos --out o --noise-kind pink": "--noise-kind must be 'shuffle', 'symmetric' or 'pair'; got 'pink'",
    "train photos --out o --imbalance-rate 0": "--imbalance-rate must be above 0; got 0.0",
    "train corners.npz --out o --layout HWCN": "--layout must be 'NHWC' or 'NCHW'; got 'HWCN'",
    "train corners.npz --out o --workers 0": "--workers must be at least 1; got 0",
    # evaluate and calibrate
    "evaluate run": "Missing argument 'DATA'. See esupcon evaluate --help.",
    "evaluate nowhere corners.npz": NO_MODEL,
    "evaluate corners.npz run": NO_MODEL,
    "evaluate run nowhere": NO_SOURCE,
    "evaluate run digits": "Rename or remove them: classes are matched by name.",
    "evaluate run corners.npz --part validation": "--part must be one of auto, test, train, all; got 'validation'.",
    "evaluate run corners.npz --plot r.bmp": "must end in .png, .svg or .pdf; got 'r.bmp'",
    "evaluate run corners.npz --test-fraction 0.3": "--test-fraction 0.3 does not apply to corners.npz: it has a test",
    "calibrate run corners.npz --split-seed 7": "--split-seed 7 does not apply to corners.npz: it has a test part",
    "calibrate run corners.npz --on tests": "--on must be one of auto, held-out, train, test, all; got 'tests'.",
    "calibrate run photos --on held-out": "so it has no held-out part of it. Use --on train.",
    "calibrate run one_class": "must have images of at least two classes",
    # predict and export
    "predict run": "Missing argument 'IMAGES...'. See esupcon predict --help.",
    "predict nowhere photos": NO_MODEL,
    "predict run photos --top-k 0": "--top-k must be at least 1",
    "predict run photos --top-k all": f"--top-k {WHOLE}",
    "predict run photos --format xml": "--format must be csv or jsonl; got 'xml'.",
    "predict run photos --workers 0": "--workers must be at least 1",
    "export run": "Missing option '--out'. See esupcon export --help.",
    "export run --out m.txt": "must end in .onnx; got 'm.txt'. Pass 'm.onnx'.",
    "export run --out nowhere/m.onnx": "or create the folder.",
    "export run --out m.onnx --format tflite": "--format must be onnx or torch; got 'tflite'.",
    "export run --out m.onnx --opset 3": "--opset must be 18 to 28; got 3. 18 suits most.",
    "export run --out m.pt2 --format torch --opset 18": "--opset applies to --format onnx only. Omit it.",
    # many runs
    "reproduce": "Missing argument 'TABLE...'. See esupcon reproduce --help.",
    "reproduce tabel": "'tabel' is neither a shipped table (calibration, complexity, demo, full",
    "reproduce file": "file must be TOML; it is not",
    "reproduce full --profile gpu": "'gpu' is neither a shipped profile (cpu, paper, smoke) nor a file.",
    "reproduce full --seeds none": "--seeds must be a number of seeds (3) or a list (0,4,7); got 'none'.",
    "reproduce full --set epochs": "name=value, as in epochs=10; got 'epochs'.",
    "reproduce full --set epochz=1": "unknown setting 'epochz'; choose from augmentation, ",
    "reproduce full --method cd": "method must be among ce, ",
    "reproduce full --profile smoke --workers 0 --store o": "workers must be at least 1; got 0.",
    "status nowhere": "nowhere is not a store of runs. Pass a folder of esupcon reproduce",
    "status empty": "empty is not a store of runs.",
    "report nowhere --format csv": "nowhere is not a store of runs. Pass a folder of esupcon reproduce",
    "report empty": "pass --out report.html, or --format markdown for standard output.",
    "report empty --format pdf": "--format must be one of html, markdown, csv; got 'pdf'.",
    "report empty --out r.pdf": "must end in .html, .md, .csv,",
    "bench --batch-size 5": "--batch-size must be at least 10.",
    "bench --encoder resnet11": "unknown encoder 'resnet11'; the closest known is",
}


@pytest.fixture(scope="module")
def desk(corners: Path, corners_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that the commands run in."""

    def fill(folder: Path) -> None:
        write_folder(folder / "photos")
        copy_of(corners_run, folder / "run")
        shutil.copy(corners, folder / "corners.npz")
        for name in ("empty", "texts/a", "texts/b", "one_class/a"):
            (folder / name).mkdir(parents=True)
        for name in ("file", "texts/a/x.txt", "texts/b/x.txt"):
            (folder / name).write_text("text")
        shutil.copy(folder / "photos" / "ne" / "0.png", folder / "one_class" / "a" / "0.png")
        (folder / "broken.csv").write_text("path,label\ngone.png,x\nlost.png,y\n")
        (folder / "columns.csv").write_text("a,b,c\nfile,x,1\n")
        y = np.arange(6) % 2
        np.savez(folder / "objects.npz", x_train=np.array([{}] * 6), y_train=y)
        np.savez(folder / "rows.npz", x_train=np.zeros((6, 8), np.uint8), y_train=y)

    return made_once(tmp_path_factory, "desk", fill)


@pytest.mark.parametrize("words", COMMANDS)
def test_a_mistake_on_the_command_line(esupcon, desk: Path, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    monkeypatch.chdir(desk)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    more = CORNERS_OPTIONS if "--out run " in words else ()
    printed = esupcon(*words.split()[:4], *more, *words.split()[4:], code=2)
    assert printed.out == ""
    *messages, line = printed.err.splitlines()
    assert line.startswith("esupcon: ")
    assert COMMANDS[words] in line
    assert not any("Traceback" in message or message.startswith("esupcon: ") for message in messages)
    assert not list(desk.glob("o/*"))
    assert not (desk / "runs").exists()


X = np.random.default_rng(0).normal(size=(30, 4))
Y = np.arange(30) % 3
IMAGES = np.zeros((9, 8, 8), np.uint8)
Z = torch.randn(6, 4)


@pytest.fixture(scope="module")
def table(table_model: Path) -> ContrastiveClassifier:
    return package.load(table_model)


def new(**settings: object) -> ContrastiveClassifier:
    return ContrastiveClassifier(**settings)


#: Calls, given a classifier of iris and one of small images, and what the one line must say.
CALLS = {
    "an unknown method": (lambda *_: new(method="supkon").fit(X, Y), "'supcon_ce'.*Got 'supkon'"),
    "an unknown encoder": (lambda *_: new(encoder="resnet19").fit(IMAGES, Y[:9]), "closest known is 'resnet18'"),
    "an encoder of images for a table": (lambda *_: new(encoder="resnet18").fit(X, Y), "Use 'auto', or 'identity'"),
    "no epochs": (lambda *_: new(epochs=0).fit(X, Y), r"'epochs' .* int in the range \[1, inf\)"),
    "a number as text": (lambda *_: new(epochs="10").fit(X, Y), r"'epochs' .* Got '10'"),
    "a negative temperature": (lambda *_: new(temperature=-1).fit(X, Y), "'temperature' .* range .* Got -1"),
    "a setting of another library": (lambda *_: new(learning_rate=0.1), "unexpected keyword argument 'learning_rate'"),
    "a device that is not there": (lambda *_: new(device="cuda").fit(X, Y), "Use accelerator 'auto', or 'cpu'"),
    "fewer labels than samples": (lambda *_: new().fit(X, Y[:20]), r"inconsistent numbers of samples: \[30, 20\]"),
    "one class": (lambda *_: new().fit(X, Y * 0), "at least 2 classes"),
    "text in a table": (lambda *_: new().fit([["a", "b"]] * 6, Y[:6]), "could not convert string to float: 'a'"),
    "five channels": (lambda *_: new().fit(np.zeros((9, 8, 8, 5), np.uint8), Y[:9]), "with 1 or 3 channels; got"),
    "no samples": (lambda *_: new().fit(X[:0], Y[:0]), "a minimum of 2 is required"),
    "one-hot labels": (lambda *_: new().fit(X, np.eye(3)[Y]), r"y should be a 1d array, got .* \(30, 3\)"),
    "measurements as labels": (lambda *_: new().fit(X, X[:, 0]), "Unknown label type: continuous"),
    "paths that are not there": (lambda *_: new().fit(["nowhere.png"] * 6, Y[:6]), "Leave them out of X and y"),
    "a missing label": (lambda *_: new().fit(X[:4], ["a", None, "b", "a"]), "Leave unlabelled samples out"),
    "predict before fit": (lambda *_: new().predict(X), "not fitted yet. Call 'fit'"),
    "too few columns": (lambda table, _: table.predict(X[:, :3]), "3 features, but .* expecting 4"),
    "one sample to calibrate": (lambda table, _: table.calibrate(X[:1], Y[:1]), "Pass more labelled samples"),
    "one class to calibrate": (lambda table, _: table.calibrate(X[::3], Y[::3]), "Pass more labelled samples"),
    "unknown labels": (lambda table, _: table.calibrate(X, Y + 5), "Add it with add_class"),
    "two priors for three classes": (
        lambda table, _: table.adapt_priors(priors=[0.5, 0.5]),
        "3 numbers, one per class",
    ),
    "an unknown score": (lambda table, _: table.ood_score(X, method="best"), "must be one of auto, class_mean"),
    "a model that is not there": (lambda *_: package.load("nowhere"), "Pass the folder that a model was saved to"),
    "a table for a model of images": (lambda _, run: run.predict(X), r"images must be \(n, H, W\)"),
    "one path": (lambda _, run: run.predict("photos/ne/0.png"), "Pass a list"),
    "colour for a model of grey images": (
        lambda _, run: run.predict(np.zeros((2, 8, 8, 3), np.uint8)),
        "Resize the array, or pass the paths",
    ),
    "data that are not there": (lambda *_: data.load("nowhere"), NO_SOURCE),
    "labels of one view": (lambda *_: F.supcon_loss(Z, torch.tensor([0, 1, 2])), r"pass labels\.repeat\(2\)"),
    "temperature zero": (lambda *_: heads.PrototypeHead(4, 3, temperature=0), "above 0; got 0"),
    "logits for probabilities": (lambda *_: probability.accuracy(X, Y), r"with softmax\(logits\)"),
    "names for labels": (lambda *_: probability.fit_temperature(X, ["a"] * 30), "Pass the column index"),
    "a vector of logits": (lambda *_: probability.fit_temperature(X[:, 0], Y), "Pass one sample as one row"),
}


@pytest.mark.parametrize("mistake", CALLS)
def test_a_mistake_in_python(
    mistake: str, table: ContrastiveClassifier, corners_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    call, expected = CALLS[mistake]
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=expected) as caught:
        call(table, package.load(corners_run))
    assert "\n" not in str(caught.value)
