"""`esupcon report` as a command: what it writes where, its errors, and that it never needs torch."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from esupcon.cli import one_line
from esupcon.cli.grids import report
from esupcon.cli.stopping import PARTIAL
from esupcon.report.write import FORMATS

app = typer.Typer()
app.command()(report)


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.parametrize(
    ("words", "start"),
    [
        *((("r.html",), "<!doctype html>"), (("r.md",), "# ")),
        (("r.txt", "--format", "markdown"), "# esupcon report"),
    ],
)
def test_file_has_the_format_of_its_name_or_option(
    whole_store: Path, tmp_path: Path, words: tuple[str, ...], start: str
) -> None:
    out = tmp_path / words[0]
    result = run(whole_store, "--table", "imbalanced", "--out", out, *words[1:])
    assert result.exit_code == 0 and out.read_text().startswith(start), result.output
    assert f"The report is in {out}." in result.stderr and result.stdout == ""


def test_without_out_the_report_goes_to_standard_output(whole_store: Path) -> None:
    result = run(whole_store, "--format", "csv")
    assert result.exit_code == 0 and result.stdout.startswith("table,profile,measure") and result.stderr == ""


def test_errors_are_one_line_and_leave_nothing(whole_store: Path, tmp_path: Path) -> None:
    (tmp_path / "empty" / "runs").mkdir(parents=True)
    for words, expected in (
        ((tmp_path / "nowhere", "--format", "csv"), "nowhere"),
        ((tmp_path / "empty", "--format", "csv"), "must hold finished runs or a plan"),
        ((whole_store,), "HTML needs a file"),
        ((whole_store, "--format", "pdf"), "must be one of html, markdown, csv; got 'pdf'"),
        ((whole_store, "--out", tmp_path / "r.pdf"), "must end in"),
        ((whole_store, "--format", "csv", "--table", "nothing"), "has no table nothing"),
        ((whole_store, "--out", tmp_path / "no" / "r.csv"), "existing folder"),
    ):
        error = run(*words).exception
        assert error is not None and one_line(error) and expected in str(error) and "\n" not in str(error), words
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_damaged_run_is_named_on_standard_error(whole_store: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(whole_store, tmp_path / "store"))
    broken = sorted((copy / "runs").iterdir())[0]
    (broken / "result.json").write_text("{")
    result = run(copy, "--out", tmp_path / "r.md")
    assert result.exit_code == PARTIAL
    assert f"esupcon: run {broken.name} is left out" in result.stderr
    assert broken.name in (tmp_path / "r.md").read_text()


def test_no_format_needs_torch(whole_store: Path, tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('torch', 'sklearn', 'matplotlib'):\n"
        "            raise ImportError(f'{name} must not be needed')\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "from pathlib import Path\n"
        "from esupcon.report.write import FORMATS, build\n"
        "for format in FORMATS:\n"
        "    build(sys.argv[1], Path(sys.argv[2]) / format, format=format)\n"
    )
    words = [sys.executable, "-P", "-c", program, str(whole_store), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == set(FORMATS)
