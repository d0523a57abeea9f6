"""The command lines of campaigns, which all name ``scripts/trust`` in their help."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import typer


def parser(name: str, description: str | None, **options: Any) -> argparse.ArgumentParser:
    """Return the parser of the campaign ``name``."""
    return argparse.ArgumentParser(prog=f"scripts/trust {name}", description=description, **options)


def run(name: str, main: Callable[..., Any]) -> None:
    """Run ``main`` with its annotated parameters as the options of the campaign ``name``."""
    app = typer.Typer(add_completion=False)
    app.command()(main)
    app(prog_name=f"scripts/trust {name}")
