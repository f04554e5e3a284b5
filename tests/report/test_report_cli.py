"""`esupcon report` as a command: what it writes where, what it complains of, and that it never needs torch."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from esupcon.cli import is_mistake
from esupcon.cli.grids import report
from esupcon.cli.stopping import PARTIAL
from esupcon.report.write import FORMATS

app = typer.Typer()
app.command()(report)


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def mistake(*words: object) -> str:
    result = run(*words)
    assert result.exception is not None and is_mistake(result.exception), result.output
    line = str(result.exception)
    assert "\n" not in line
    return line


@pytest.mark.parametrize(("name", "start"), [("r.html", "<!doctype html>"), ("r.md", "# "), ("r.tex", "\\document")])
def test_the_file_has_the_format_of_its_name(whole_store: Path, tmp_path: Path, name: str, start: str) -> None:
    result = run(whole_store, "--out", tmp_path / name, "--table", "imbalanced")
    assert result.exit_code == 0, result.output
    assert (tmp_path / name).read_text().startswith(start)
    assert f"The report is in {tmp_path / name}." in result.stderr and result.stdout == ""


def test_without_out_it_goes_to_standard_output(whole_store: Path) -> None:
    result = run(whole_store, "--format", "csv")
    assert result.exit_code == 0 and result.stdout.startswith("table,profile,measure") and result.stderr == ""


def test_a_given_format_wins_over_the_name(whole_store: Path, tmp_path: Path) -> None:
    assert run(whole_store, "--out", tmp_path / "r.txt", "--format", "markdown").exit_code == 0
    assert (tmp_path / "r.txt").read_text().startswith("# esupcon report")


def test_mistakes_are_said_in_one_line(whole_store: Path, tmp_path: Path) -> None:
    (tmp_path / "empty" / "runs").mkdir(parents=True)
    assert "there is no store" in mistake(tmp_path / "nowhere", "--format", "csv")
    assert "holds neither" in mistake(tmp_path / "empty", "--format", "csv")
    assert "HTML needs a file" in mistake(whole_store)
    assert "must be one of html, markdown, csv, latex; got 'pdf'" in mistake(whole_store, "--format", "pdf")
    assert "must end in" in mistake(whole_store, "--out", tmp_path / "r.pdf")
    assert "has no table nothing" in mistake(whole_store, "--format", "csv", "--table", "nothing")
    assert "existing folder" in mistake(whole_store, "--out", tmp_path / "no" / "r.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["empty"], "nothing is left behind"


def test_a_damaged_run_is_named_on_standard_error(whole_store: Path, tmp_path: Path) -> None:
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
        "import esupcon.cli.grids\n"
        "from esupcon.report.write import FORMATS, build\n"
        "for format in FORMATS:\n"
        "    build(sys.argv[1], Path(sys.argv[2]) / format, format=format)\n"
    )
    words = [sys.executable, "-c", program, str(whole_store), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == set(FORMATS)
