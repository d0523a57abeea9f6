"""``hybridge demo``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hybridge.runtime.defaults import DEFAULT_PROGRAMS

EXAMPLES = ("hybridge demo", "hybridge demo -o somewhere/else")


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the artifact goes; replaced if it is one.")] = Path(
        "hybridge-demo"
    ),
    programs: Annotated[int, typer.Option(min=1, help="Random programs of 40 operations to validate with.")] = DEFAULT_PROGRAMS,
) -> None:
    """Export the embedded hybrid model and its drafters, validate it, and generate with and without speculation."""
    from hybridge.export.cli.demo import demonstrate

    demonstrate(output, programs)
