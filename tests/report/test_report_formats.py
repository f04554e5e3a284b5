"""Markdown and CSV: one golden file each, and names that stay text in every medium."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from report_pages import Page
from report_stores import HOSTILE, Filler

from assets import copy_of
from esupcon._console import csv_text, markdown_text, printable
from esupcon.cli.stopping import PARTIAL
from esupcon.experiments.store import Store
from esupcon.report import build
from esupcon.report.content import read
from esupcon.report.format import html_text, listed, number, signed
from esupcon.report.write import CSV_FIELDS, FORMATS, json_block, render

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", ["report.md", "report.csv", "report.html"])
def test_report_equals_the_golden_file(store: Store, fill: Filler, tmp_path: Path, name: str) -> None:
    """Delete a golden file to write it again, then read what changed."""
    finding = {"code": "imbalance", "severity": "warning", "message": "The class cat has 7 samples.", "remedy": "Look."}
    papers = {"ce": 95.39, "esupcon": 95.9}
    rows = fill(
        {"ce": [73.7, 74.1, 74.5], "esupcon": [76.7, 77.0, 77.6], "spce": [60.0, None, None], "spce_m": [None]},
        papers=papers,
        reduced="2,625 samples",
        plan={"title": "Fully labelled"},
        left={"findings": [finding]},
    )
    plan = {"title": "Fully labelled", "notes": ["A note."]}
    fill({"ce": [50.0], "esupcon": [49.96]}, papers=papers, setting="N=2K", dataset="digits", plan=plan)
    cost = {"title": "Cost", "measure": "cost", "paper": ""}
    fill({"ce": [50.0], "esupcon": [50.0]}, dataset="digits", table="complexity", plan=cost)
    store.note_failure(rows[-1].key, "the loss is not finite")
    store.run_folder("damaged").mkdir()
    text = build(store.root, tmp_path / name, command="esupcon report STORE").read_text(encoding="utf-8")
    if name == "report.html":  # only what is read, a line for each element
        name, text = "report.txt", "\n".join(" ".join(words.split()) for words in Page(text).words if words.strip())
    text = text.replace(markdown_text(store.root), "STORE").replace(str(store.root), "STORE")
    path = GOLDEN / name
    if not path.exists():
        path.write_text(text, encoding="utf-8")
        pytest.fail(f"{path} was written; read it")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("format", FORMATS)
def test_hostile_names_are_text_without_control_characters(hostile_store: Path, format: str) -> None:
    text = render(read(hostile_store), format).decode()
    text = text if format != "html" else text[: text.index('<script type="application/json"')]
    assert not {"\x00", "\u202e", "\u2028"} & set(text)
    assert format == "csv" or HOSTILE not in text


# --- Markdown --------------------------------------------------------------------------------------------------------


def rendered(text: str) -> str:
    return MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(text)


def test_every_row_of_a_markdown_table_has_as_many_cells(hostile_store: Path) -> None:
    page = rendered(render(read(hostile_store), "markdown").decode())
    for table in page.split("<table>")[1:]:
        rows = table[: table.index("</table>")].split("<tr>")[1:]
        assert len(rows) > 3 and len({line.count("</th>") + line.count("</td>") for line in rows}) == 1
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page and "<a " not in page and "<script" not in page


@pytest.mark.parametrize(
    ("text", "forbidden"),
    [
        *(("[x](http://a.b)", "x]("), ("![x](y)", "!["), ("<https://a.b>", "<h"), ("https://example.org", "https:")),
        *(("see www.example.org", "www.e"), ("@octocat", "@o"), ("a@b.org", "@b"), ("fixes #12", "#1")),
        *(("octo/repo#1", "#1"), ("GH-12", "GH-"), ("mailto:a@b", "mailto:"), ("a | b", " | "), ("<b>", "<b")),
    ],
)
def test_markdown_text_has_no_links_or_mentions(text: str, forbidden: str) -> None:
    written = markdown_text(text)
    assert forbidden not in written
    shown = rendered(f"## {written}").replace("<!-- -->", "")
    for mark, entity in (("<", "&lt;"), (">", "&gt;")):
        text = text.replace(mark, entity)
    assert shown == f"<h2>{text}</h2>\n", "it is shown unchanged"


@given(st.text(max_size=40))
@example("`a` | *b* <i> [x](y) \\")
@example("- a")
@example("12. a")
@example("---")
def test_markdown_text_is_shown_as_it_is(text: str) -> None:
    shown = rendered(markdown_text(text)).replace("<!-- -->", "")
    plain = printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
    assert shown in (f"<p>{plain}</p>\n", "")


# --- CSV -------------------------------------------------------------------------------------------------------------


def test_csv_has_a_line_for_every_cell_and_no_formula(hostile_store: Path) -> None:
    content = read(hostile_store)
    lines = list(csv.reader(io.StringIO(render(content, "csv").decode())))
    assert len(lines) == 1 + sum(len(t.panels) * len(t.methods) * len(t.columns) for t in content.tables)
    names = CSV_FIELDS.index("n")
    assert any(line[4].startswith("'=data/") for line in lines) and any(line[7].startswith("'-own") for line in lines)
    for line in lines[1:]:
        assert len(line) == len(CSV_FIELDS) and not any(cell.startswith(("=", "+", "-", "@")) for cell in line[:names])
        assert all(cell == "" or float(cell) is not None for cell in line[names:])


@given(st.text(alphabet=st.sampled_from("=+-@x1;,\t|: \"'\n()＝"), max_size=20))
@example("x;=1+1")
@example('x;"=1+1"')
@example("\t=1")
@example(" @x")
def test_no_cell_is_a_formula_whichever_separator_is_used(text: str) -> None:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(["first", csv_text(text), "last"])
    for separator in ",;|\t":
        for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_NONE):
            for cells in csv.reader(io.StringIO(line.getvalue()), delimiter=separator, quoting=quoting):
                for cell in cells:
                    assert not cell.strip(' "').startswith(("=", "+", "-", "@", "＝")), (separator, cell)


# --- Names, numbers, formats -----------------------------------------------------------------------------------------


def test_json_in_a_script_element_can_hold_anything() -> None:
    value = {"a": "</script><!-- & \u2028 \ud800 ]]>"}
    text = json_block(value)
    assert text.isascii() and not set(text) & set("<>&")
    with pytest.raises(ValueError, match="JSON"):
        json_block(float("nan"))


def test_numbers_and_names() -> None:
    assert [signed(v, 1) for v in (1.24, -0.34, 0.04, -0.04, 1234.5)] == ["+1.2", "−0.3", "±0.0", "±0.0", "+1,234.5"]
    assert [number(v, 1) for v in (-0.04, -2.0, 1234.56, 0.06)] == ["0.0", "−2.0", "1,234.6", "0.1"]
    assert listed(list("abcd"), 2) == "a, b, and 2 more" and listed(["a"]) == "a"
    assert html_text("<b>a & b</b>\n") == "&lt;b&gt;a &amp; b&lt;/b&gt;"
    assert html_text("<" * 100, 5) == "&lt;" * 4 + "…", "cut before it is escaped, so that no entity is cut in two"


# --- The command -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "start"),
    [
        *(("r.html", (), "<!doctype html>"), ("r.md", (), "# ")),
        ("r.txt", ("--format", "markdown"), "# esupcon report"),
    ],
)
def test_file_has_the_format_of_its_name_or_option(
    esupcon, whole_store: Path, tmp_path: Path, name: str, options: tuple[str, ...], start: str
) -> None:
    out = tmp_path / name
    printed = esupcon("report", whole_store, "--table", "imbalanced", "--out", out, *options)
    assert out.read_text().startswith(start)
    assert f"The report is in {out}." in printed.err and printed.out == ""


def test_without_out_the_report_goes_to_standard_output(esupcon, whole_store: Path) -> None:
    printed = esupcon("report", whole_store, "--format", "csv")
    assert printed.out.startswith("table,profile,measure") and printed.err == ""


def test_damaged_run_is_named_on_standard_error(esupcon, whole_store: Path, tmp_path: Path) -> None:
    copy = copy_of(whole_store, tmp_path / "store")
    broken = min((copy / "runs").iterdir())
    (broken / "result.json").write_text("{")
    printed = esupcon("report", copy, "--out", tmp_path / "r.md", code=PARTIAL)
    assert f"esupcon: run {broken.name} is left out" in printed.err
    assert broken.name in (tmp_path / "r.md").read_text()
