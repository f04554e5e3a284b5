"""The command. Words become calls here, and what the calls give becomes tables or JSON; nothing is computed.

What is slow to import (torch, most of all) is imported by the commands that need it, so that help is quick.
"""

from esupcon.cli.app import app, main

__all__ = ["app", "main"]
