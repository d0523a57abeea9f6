"""``hybridge kernels``"""

from __future__ import annotations

from typing import Annotated

import typer

from hybridge.runtime.cli.console import out, print_json
from hybridge.runtime.cli.options import JsonOption

app = typer.Typer(help="Compile hybridge's own kernels, or say where they are.", no_args_is_help=True)


@app.command()
def build(
    force: Annotated[bool, typer.Option("--force", help="Compile again what is there already.")] = False,
    json: JsonOption = False,
) -> None:
    """Compile the kernels now, so that the first program that needs them need not wait."""
    from hybridge.runtime.kernels import library

    path = library.build(again=force)
    if json:
        print_json({"library": str(path)})
    else:
        out.print(str(path), highlight=False, soft_wrap=True)


@app.command()
def info(json: JsonOption = False) -> None:
    """Say where the kernels are, whether they are compiled, with what they would be, and for which instruction set they run."""
    from hybridge.runtime.kernels import library

    built = library.is_built()
    facts = {
        "library": str(library.path()),
        "built": built,
        "compiler": library.compiler(),
        "instruction_set": library.instruction_set() if built else None,
    }
    if json:
        print_json(facts)
        return
    missing = {"compiler": "none found; install g++ or clang++, or set CXX", "instruction_set": "chosen once they are built"}
    for name, value in facts.items():
        out.print(f"{name.replace('_', ' ')}: {missing[name] if value is None else value}", highlight=False)
