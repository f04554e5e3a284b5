"""The sources of the site: every page has its place, links follow it there, scripts of examples become pages."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts"))

from docs_site import lay_out, navigation, notebook_markdown, outside_code, site_place  # noqa: E402 - outside the package


def test_every_page_has_its_place_in_the_navigation() -> None:
    entries = re.findall(r"^(?!:)(\S+)$", navigation((ROOT / "docs" / "index.md").read_text()), flags=re.MULTILINE)
    pages = {path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert len(entries) == len(set(entries))
    assert pages - {"index"} <= set(entries), "list the new page in docs/index.md"
    examples = set(re.findall(r"(?<=\]\()\w+\.py(?=\))", (ROOT / "examples" / "README.md").read_text()))
    assert examples == {path.name for path in (ROOT / "examples").glob("*.py")}


def test_a_link_to_what_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("docs", "examples"):
        (tmp_path / name).mkdir()
    for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"):
        (tmp_path / name).write_text("# x\n")
    (tmp_path / "examples" / "README.md").write_text("# x\n\n| [one](one.py) | x |\n")
    (tmp_path / "examples" / "one.py").write_text("# %% [markdown]\n# # One\n# [a](../docs/index.md)\n")
    (tmp_path / "docs" / "index.md").write_text("# x\n\n## Read\n\n- [a](../SECURITY.md#x)\n- [b](../x.py)\n")
    (tmp_path / "x.py").write_text("1\n")
    monkeypatch.setattr("docs_site.ROOT", tmp_path)
    assert set(lay_out(tmp_path / "out", {}, {"extra.md": "y"})) >= {"index.md", "project/security.md", "extra.md"}
    index = (tmp_path / "out" / "index.md").read_text()
    assert "[a](project/security.md#x)" in index and "[b](files/x.py)" in index
    assert (tmp_path / "out" / "files" / "x.py").is_file()
    assert "[a](../index.md)" in (tmp_path / "out" / "examples" / "one.md").read_text()
    assert (
        "| [one](one.md) | x |\n\n:::{toctree}\n:hidden:\n\none\n:::"
        in (tmp_path / "out/examples/index.md").read_text()
    )
    (tmp_path / "x.py").unlink()
    with pytest.raises(FileNotFoundError, match=r"docs/index.md links to x.py, which is no file"):
        lay_out(tmp_path / "out", {}, {})


def test_code_is_left_alone() -> None:
    text = "a `b` c\n```\na\n```\n~~~text\na\n~~~\n[`a`](a)\n````md\n```\na\n```\n````\na"
    changed = outside_code(text, lambda part: part.replace("a", "A"))
    assert changed == "A `b` c\n```\na\n```\n~~~text\na\n~~~\n[`a`](A)\n````md\n```\na\n```\n````\nA"


def test_a_notebook_kept_as_a_script_becomes_a_page() -> None:
    script = (
        "# %% [markdown]\n# # Title\n#\n# Words.\n\n# %%\nx = 1  # %% no cell\n\n\n# %% [markdown]\n# More.\n\n# %%\n"
    )
    about = "`examples/x.py` in the repository, to be run as a script or opened as a notebook."
    page = f"# Title\n\n{about}\n\nWords.\n\n```python\nx = 1  # %% no cell\n```\n\nMore.\n"
    assert notebook_markdown(script, "examples/x.py") == page
    for other in ("x = 1\n", "# %%\nx = 1\n", '"""Words."""\n# %% [markdown]\n# # Title\n'):
        with pytest.raises(ValueError, match=r"^examples/x.py must begin with a cell of text"):
            notebook_markdown(other, "examples/x.py")


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("docs/losses.md", "losses.md"),
        ("docs/images/a.png", "images/a.png"),
        ("README.md", "index.md"),
        ("SECURITY.md", "project/security.md"),
        ("examples/README.md", "examples/index.md"),
        ("examples/a_b.py", "examples/a_b.md"),
        ("src/esupcon/losses.py", None),
    ],
)
def test_files_and_their_places(path: str, place: str | None) -> None:
    assert site_place(path) == place
