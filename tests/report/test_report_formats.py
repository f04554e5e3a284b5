"""Markdown, CSV and LaTeX: the same numbers, and names that stay names."""

from __future__ import annotations

import csv
import io
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from report_stores import HOSTILE, Filler

from esupcon.experiments.store import Store
from esupcon.report.build import encoded, format_of, render, write_report
from esupcon.report.content import read_content
from esupcon.report.csv import FIELDS, as_csv, defused
from esupcon.report.latex import as_latex
from esupcon.report.latex import plain as latex_text
from esupcon.report.markdown import as_markdown
from esupcon.report.markdown import plain as markdown_text


def test_markdown_says_what_the_page_says(store: Store, fill: Filler) -> None:
    fill(
        {"ce": [73.7, 74.1, 74.5], "esupcon": [76.7, 77.0, 77.6], "spce": [None]},
        papers={"ce": 95.39, "esupcon": 95.9},
        reduced="2,625 samples",
    )
    text = as_markdown(read_content(store.root))
    assert "| Method | CIFAR-10<br>full<br>2,625 samples | Avg. gain |" in text
    assert "| CE | 74.1 ± 0.4 (n=3)<br>paper 95.39 | – |" in text
    assert "| ESupCon | **77.1 ± 0.5** (n=3) ●<br>▲ +3.0\\*<br>paper 95.9 (+0.51) | +3.0<br>paper +0.51 |" in text
    assert "| SPCE | open | open |" in text and "SPCE on CIFAR-10, full, seed 0: not run yet" in text


def test_every_row_of_a_markdown_table_has_as_many_cells(hostile_store: Path) -> None:
    text = as_markdown(read_content(hostile_store))
    widths: list[int] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            widths.append(line.replace("\\|", "").count("|"))
        else:
            assert len(set(widths)) <= 1, widths
            widths = []
    assert HOSTILE not in text and "&lt;script&gt;alert(1)&lt;/script&gt;" in text


@given(st.text(max_size=40))
@example("`a` | *b* <i> [x](y) \\")
def test_markdown_text_has_no_bare_markup(text: str) -> None:
    written = markdown_text(text)
    bare = written.replace("\\\\", "")
    for mark in "|*`[]_":
        assert bare.count(mark) == bare.count(f"\\{mark}")
    assert "<" not in written and "\n" not in written


def test_csv_holds_every_cell_unrounded(store: Store, fill: Filler) -> None:
    fill({"ce": [70.0, 72.0, 74.0], "esupcon": [71.0, 75.0, 76.0], "spce": [None]}, papers={"ce": 95.39})
    lines = list(csv.DictReader(io.StringIO(as_csv(read_content(store.root)))))
    assert len(lines) == 3 and tuple(lines[0]) == FIELDS
    by_method = {line["method"]: line for line in lines}
    assert by_method["esupcon"]["mean"] == "74" and by_method["esupcon"]["gain"] == "2"
    assert float(by_method["esupcon"]["p"]) == pytest.approx(0.0741799, abs=1e-6)
    assert by_method["esupcon"]["is_best"] == "1" and by_method["ce"]["paper"] == "95.39"
    assert (by_method["spce"]["n"], by_method["spce"]["n_planned"], by_method["spce"]["mean"]) == ("0", "1", "")


def test_csv_has_a_line_for_every_cell_and_no_formula(hostile_store: Path) -> None:
    content = read_content(hostile_store)
    lines = list(csv.reader(io.StringIO(as_csv(content))))
    cells = sum(len(t.panels) * len(t.methods) * len(t.columns) for t in content.tables)
    assert len(lines) == 1 + cells
    names = FIELDS.index("n")
    assert any(line[4].startswith("'=data/") for line in lines) and any(line[7].startswith("'-own") for line in lines)
    for line in lines[1:]:
        assert len(line) == len(FIELDS) and not any(cell.startswith(("=", "+", "-", "@")) for cell in line[:names])
        assert all(cell == "" or float(cell) is not None for cell in line[names:])


@given(st.text(max_size=20))
@example("\t=1")
@example(" @x")
def test_a_defused_name_never_begins_a_formula(text: str) -> None:
    assert not defused(text).startswith(("=", "+", "-", "@", "\t", "\r", "\n"))


@given(st.text(max_size=40))
@example('\\input{/etc/passwd} 100% $x^2$ a_b #1 {~} & <b> "q" `x\' -- ---')
def test_latex_text_is_ascii_or_latin_and_commands_are_inert(text: str) -> None:
    written = latex_text(text)
    assert all(ord(c) < 0x100 for c in written)
    assert "\\input" not in written and "--" not in written
    assert written.count("{") - written.count("\\{") == written.count("}") - written.count("\\}")


def compiled(tex: Path) -> str:
    if shutil.which("pdflatex") is None:
        pytest.skip("pdflatex is not installed: apt-get install texlive-latex-base texlive-latex-recommended")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-no-shell-escape", tex.name]
    done = subprocess.run(command, cwd=tex.parent, capture_output=True, timeout=60, check=False)
    log = done.stdout.decode(errors="replace")
    assert done.returncode == 0, log[-2000:]
    assert tex.with_suffix(".pdf").stat().st_size > 1000
    return log


@pytest.mark.parametrize("which", ["whole", "hostile"])
def test_latex_compiles_as_it_is(which: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    root = request.getfixturevalue(f"{which}_store")
    tex = write_report(root, tmp_path / "report.tex", format="latex")
    log = compiled(tex)
    assert "Overfull" not in log, "a table that is too wide is made smaller"


def test_latex_has_the_numbers_and_booktabs(store: Store, fill: Filler) -> None:
    fill({"ce": [73.7, 74.1, 74.5], "esupcon": [76.7, 77.0, 77.6]}, papers={"ce": 95.39, "esupcon": 95.9})
    text = as_latex(read_content(store.root))
    for words in (
        r"\toprule",
        r"74.1 $\pm$ 0.4 {\scriptsize (n=3)}",
        r"\textbf{77.1 $\pm$ 0.5}",
        r"\better{$\blacktriangle$ +3.0*}",
        r"\paper{95.9 (+0.51)}",
    ):
        assert words in text, words


def test_the_format_follows_from_the_name() -> None:
    names = ("a.html", "a.MD", "a.csv", "a.tex")
    assert [format_of(Path(name)) for name in names] == ["html", "markdown", "csv", "latex"]
    with pytest.raises(ValueError, match=r"--out must end in \.html.*got 'a\.pdf'"):
        format_of(Path("a.pdf"))


def test_an_unknown_format_is_refused(whole_store: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="format must be one of html, markdown, csv, latex; got 'pdf'"):
        write_report(whole_store, tmp_path / "r", format="pdf")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("format", ["markdown", "csv", "latex"])
def test_hostile_names_can_be_encoded(hostile_store: Path, format: str) -> None:
    text = encoded(render(read_content(hostile_store), format)).decode()  # type: ignore[arg-type]
    assert "\x00" not in text and "\u202e" not in text
