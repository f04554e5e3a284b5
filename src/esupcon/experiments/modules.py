"""Own methods and data sets: Python modules that a table names, and that register what they bring when they run.

Their text travels with the runs, to other processes and other machines, and its hash is part of each key: another text
is another run. A table that names modules runs their code, so it is to be trusted like any program.
"""

from __future__ import annotations

import hashlib
import sys
import types
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Module:
    name: str
    path: str
    text: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    def as_dict(self) -> dict[str, str]:
        return {"name": self.name, "path": self.path, "text": self.text}


def read_modules(names: Iterable[str], table: Path | None) -> tuple[Module, ...]:
    """The modules a table names, by paths from the folder the table lies in."""
    home = table.parent if table is not None else Path()
    found = []
    for name in names:
        path = home / name
        if path.suffix != ".py" or not path.is_file():
            raise FileNotFoundError(f"the table names the module {name}; {path} is no Python file. Check the path.")
        found.append(Module(path.stem, str(path), path.read_text(encoding="utf-8")))
    return tuple(found)


def run_modules(modules: Iterable[Module]) -> None:
    """Runs each module once in this process; the same text again does nothing."""
    for module in modules:
        name = f"esupcon_table_module_{module.sha256[:12]}"
        if name in sys.modules:
            continue
        made = types.ModuleType(name)
        made.__file__ = module.path
        sys.modules[name] = made
        try:
            exec(compile(module.text, module.path, "exec"), made.__dict__)
        except Exception as error:
            del sys.modules[name]
            raise ValueError(f"{module.path}: {type(error).__name__}: {error}. Mend the module.") from error
