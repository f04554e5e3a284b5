"""Build the documentation as a static site that works offline, straight from a folder.

    python scripts/docs_site.py [--out site]

Copies the pages of docs/ and the generated references to a temporary folder and runs Sphinx there. A warning is an
error. Needs the extra `docs`.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
#: Pages outside docs/.
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "CHANGELOG.md": "project/changelog.md",
    "examples/README.md": "examples/index.md",
}
_FENCED = re.compile(r"(^(`{3,}|~{3,}).*?^\2[`~]*[ \t]*$)", flags=re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
_MARKER = re.compile(r"<!-- generated: ([a-z]+) -->")
_SECTION = re.compile(r"^## (.+)$", flags=re.MULTILINE)
_EXAMPLE = re.compile(r"(?<=\]\()\w+\.md(?=\))")
_CELL = re.compile(r"^# %%(.*)$", flags=re.MULTILINE)
_ENTRY = re.compile(r"^- \[[^\]]+\]\(([^)#]+)\)", flags=re.MULTILINE)


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Return the text with `change` applied to everything but code."""
    written = []
    for number, part in enumerate(_FENCED.split(text)):
        if number % 3 == 0:
            pieces = re.split(r"(`+[^`]+`+)", part)
            written.append("".join(piece if piece.startswith("`") else change(piece) for piece in pieces))
        elif number % 3 == 1:
            written.append(part)
    return "".join(written)


def site_place(path: str) -> str | None:
    """Return the place of a file of the repository among the sources of the site, or None."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    if re.fullmatch(r"examples/\w+\.py", path):
        return path.removesuffix(".py") + ".md"
    return path.removeprefix("docs/") if path.startswith("docs/") else None


def lay_out(folder: Path, generated: dict[str, str], extra: dict[str, str]) -> list[str]:
    """Write all sources into `folder` and return their names.

    `generated` fills the marked places of pages; `extra` are whole generated pages by name.
    """
    pages = {path.relative_to(ROOT).as_posix(): path for path in sorted((ROOT / "docs").rglob("*.md"))}
    pages |= {name: ROOT / name for name in OUTSIDE if name != "README.md"}
    pages |= {path.relative_to(ROOT).as_posix(): path for path in sorted((ROOT / "examples").glob("*.py"))}
    texts = {}
    for name, path in pages.items():
        place = site_place(name)
        assert place is not None
        text = path.read_text(encoding="utf-8")
        text = notebook_markdown(text, name) if path.suffix == ".py" else text
        text = outside_code(text, lambda part, name=name: _relinked(part, name, folder))
        texts[place] = _MARKER.sub(lambda marker: generated[marker[1]], text)
    texts["index.md"] += navigation(texts["index.md"])
    texts["examples/index.md"] += _toctree(_EXAMPLE.findall(texts["examples/index.md"]))
    for name, text in {**texts, **extra}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return [*texts, *extra]


def navigation(index: str) -> str:
    """Return the navigation: a group per section of the front page, an entry per first link of its lists."""
    _, *sections = _SECTION.split(index)
    groups = []
    for title, content in zip(sections[::2], sections[1::2], strict=True):
        entries = _ENTRY.findall(content)
        if entries:
            groups.append(_toctree(entries, f":caption: {title}"))
    return "".join(groups)


def notebook_markdown(script: str, name: str) -> str:
    """Return a script with cells that start with `# %%` as a page."""
    start, *cells = _CELL.split(script)
    if start.strip() or not cells or cells[0].strip() != "[markdown]":
        raise ValueError(f"{name} must begin with a cell of text, # %% [markdown], whose first line is its title.")
    parts = []
    for kind, content in zip(cells[::2], cells[1::2], strict=True):
        if kind.strip() == "[markdown]":
            lines = [re.sub(r"^# ?", "", line) for line in content.strip().splitlines()]
            parts.append("\n".join(lines))
        elif content.strip():
            parts.append(f"```python\n{content.strip()}\n```")
    title, *rest = parts
    about = f"`{name}` in the repository, to be run as a script or opened as a notebook."
    heading, _, text = title.partition("\n")
    return "\n\n".join([heading, about, text.strip(), *rest]) + "\n"


def _toctree(entries: list[str], *options: str) -> str:
    lines = [":::{toctree}", ":hidden:", *options, "", *(entry.removesuffix(".md") for entry in entries), ":::"]
    return "\n" + "\n".join(lines) + "\n"


def _relinked(text: str, page: str, folder: Path) -> str:
    here = site_place(page)
    assert here is not None

    def relink(found: re.Match[str]) -> str:
        target, sign, anchor = found[1].partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return found[1]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
        place = site_place(path)
        if place is None:  # not a page: copy the file
            place = f"files/{path}"
        if not place.endswith(".md"):
            _copy(ROOT / path, folder / place, page)
        return os.path.relpath(PurePosixPath(place), PurePosixPath(here).parent) + sign + anchor

    return _LINK.sub(relink, text)


def _copy(source: Path, target: Path, page: str) -> None:
    if not source.is_file():
        raise FileNotFoundError(f"{page} links to {source.relative_to(ROOT)}, which is not a file. Fix the link.")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


_NEEDED = ("sphinx", "myst_parser", "furo", "latex2mathml")


def missing() -> list[str]:
    return [name for name in _NEEDED if importlib.util.find_spec(name) is None]


def build(out: Path) -> int:
    """Write the site to `out` and return Sphinx's exit code; after an error an earlier site stays."""
    sys.path.insert(0, str(Path(__file__).parent))
    from docs_reference import PAGES, api_page, cli_reference, summary  # noqa: PLC0415 - imports torch

    modules = "".join(f"- [{name}](api/{name}.md): {summary(name)}\n" for name in PAGES)
    entries = "\n".join(f"api/{name}" for name in PAGES)
    toctree = f"\n:::{{toctree}}\n:hidden:\n\n{entries}\n:::\n"
    with tempfile.TemporaryDirectory() as temporary:
        sources, site = Path(temporary) / "sources", Path(temporary) / "site"
        lay_out(
            sources,
            generated={"commands": cli_reference(), "modules": modules + toctree},
            extra={f"reference/api/{name}.md": api_page(name) for name in PAGES},
        )
        words = ["-b", "html", "-W", "--keep-going", "-q", "-c", str(ROOT / "docs"), str(sources), str(site)]
        done = subprocess.run([sys.executable, "-P", "-m", "sphinx", *words], check=False)
        if done.returncode == 0:
            shutil.rmtree(site / ".doctrees")
            (site / ".buildinfo").unlink(missing_ok=True)
            if out.exists():
                shutil.rmtree(out)
            out.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(site, out)
    return done.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--out", type=Path, default=ROOT / "site")
    given = parser.parse_args()
    if missing():
        print(f"{', '.join(missing())} not installed: pip install -e '.[docs]'", file=sys.stderr)
        return 2
    if given.out.exists() and not (given.out / "searchindex.js").is_file():
        print(f"{given.out} exists and is not a site. Pass another --out.", file=sys.stderr)
        return 2
    code = build(given.out)
    if code == 0:
        print(f"Open {(given.out / 'index.html').resolve().as_uri()}")
    return code


if __name__ == "__main__":
    sys.exit(main())
