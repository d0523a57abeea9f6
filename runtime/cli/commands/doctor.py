"""``hybridge doctor``"""

from __future__ import annotations

import typer

from hybridge.runtime.cli.console import print_json
from hybridge.runtime.cli.options import JsonOption

EXAMPLES = ("hybridge doctor", "hybridge doctor --json")


def doctor(json: JsonOption = False) -> None:
    """Say what is installed, which kernels run on this processor, what is missing and how to get it; exit code 1 if it must."""
    from hybridge.runtime.cli.doctor import examine, show

    report = examine()
    if json:
        print_json(report.to_dict())
    else:
        show(report)
    if report.missing:
        raise typer.Exit(1)
