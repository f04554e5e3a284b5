"""A public name or a command that a page mentions as code leads to its place in the reference.

The pages say `ESupConLoss` or `esupcon train` and nothing else, so that they read the same where they are not a site.
"""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.nodes import make_refnode

_COMMAND = re.compile(r"esupcon [a-z]+\b")
# Pages compare it with the class of that name in other libraries: which one is meant, only the sentence tells.
_NOT_OURS_ALONE = {"SupConLoss"}
_COMMANDS_PAGE = "reference/cli"


def _targets(app: Sphinx) -> dict[str, tuple[str, str]]:
    """By full name; by the last part of it, where that is one object's alone and could be nothing else."""
    objects = app.env.domaindata["py"]["objects"]
    found = {full: (entry.docname, entry.node_id) for full, entry in objects.items() if not entry.aliased}
    last: dict[str, list[str]] = {}
    for full in found:
        last.setdefault(full.rpartition(".")[2], []).append(full)
    for short, owners in last.items():
        # A single word in lower case is a command, a column or a folder as often as a function.
        telling = ("_" in short or not short.islower()) and short not in _NOT_OURS_ALONE
        if telling and len(owners) == 1 and objects[owners[0]].objtype in {"class", "exception", "function"}:
            found[short] = found[owners[0]]
    programs = {program for program, _ in app.env.domaindata["std"]["progoptions"] if program}
    found |= {program.replace("-", " ", 1): (_COMMANDS_PAGE, program) for program in programs}
    for full in [name for name in found if name.count(".") > 1 and name.startswith("esupcon.")]:
        found.setdefault(full.removeprefix("esupcon."), found[full])
    found.pop("esupcon", None)  # a package, a command and a method
    return found


def link_code(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    targets = _targets(app)
    for literal in list(doctree.findall(nodes.literal)):
        inside = literal.parent
        while inside is not None and not isinstance(inside, nodes.reference | nodes.title):
            inside = inside.parent
        target = None if inside is not None else _target(targets, literal.astext())
        if target is None or (target[0] == docname and _within(literal, target[1])):
            continue
        link = make_refnode(app.builder, docname, target[0], target[1], literal.deepcopy())
        literal.parent.replace(literal, link)


def _target(targets: dict[str, tuple[str, str]], text: str) -> tuple[str, str] | None:
    command = _COMMAND.match(text)
    return targets.get(command[0] if command else text.removesuffix("()"))


def _within(node: Any, node_id: str) -> bool:
    """Whether a description speaks of itself."""
    while node is not None:
        if any(node_id in child["ids"] for child in node.children if isinstance(child, nodes.Element)):
            return True
        node = node.parent
    return False


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("doctree-resolved", link_code)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
