"""Builds the documentation as a static site that opens from a folder, offline.

    python scripts/docs_build.py [--out site]

The pages of docs/ and the references, which are made from the code, are laid out in a temporary folder and given to
Sphinx. A warning is an error. Needs the extra `docs`.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from docs_pages import ROOT, lay_out

_NEEDED = ("sphinx", "myst_parser", "furo", "latex2mathml")


def missing() -> list[str]:
    return [name for name in _NEEDED if importlib.util.find_spec(name) is None]


def build(out: Path) -> int:
    """Writes the site at `out` and returns Sphinx's exit code; after an error what was there stays."""
    # Imported late: they import the whole package, and with it torch.
    from docs_api import PAGES, module_summary, page_markdown  # noqa: PLC0415
    from docs_cli import cli_reference  # noqa: PLC0415

    modules = "".join(f"- [{page.name}](api/{page.name}.md): {module_summary(page)}\n" for page in PAGES)
    entries = "\n".join(f"api/{page.name}" for page in PAGES)
    toctree = f"\n:::{{toctree}}\n:hidden:\n\n{entries}\n:::\n"
    with tempfile.TemporaryDirectory() as temporary:
        sources, site = Path(temporary) / "sources", Path(temporary) / "site"
        lay_out(
            sources,
            generated={"commands": cli_reference(), "modules": modules + toctree},
            extra={f"reference/api/{page.name}.md": page_markdown(page) for page in PAGES},
        )
        words = ["-b", "html", "-W", "--keep-going", "-q", "-c", str(ROOT / "docs"), str(sources), str(site)]
        done = subprocess.run([sys.executable, "-m", "sphinx", *words], check=False)
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
        print(f"{given.out} is there and is no site; it is left alone. Pass another --out.", file=sys.stderr)
        return 2
    code = build(given.out)
    if code == 0:
        print(f"Open {(given.out / 'index.html').resolve().as_uri()}")
    return code


if __name__ == "__main__":
    sys.exit(main())
