"""``hybridge kernels``, ``native``, ``bundle`` and ``lm-eval``: kernels, the library for apps, the evaluation harness."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from hybridge.errors import UsageError
from hybridge.runtime.cli.console import out, print_json
from hybridge.runtime.cli.options import JsonOption

NATIVE_EXAMPLES = ("hybridge native", "hybridge native --cmake-prefix")
BUNDLE_EXAMPLES = ("hybridge bundle app",)
LM_EVAL_EXAMPLES = ("hybridge lm-eval run --model hybridge --model_args artifact=OUT,lookup=True --tasks arc_easy,wikitext",)

kernels = typer.Typer(help="Compile hybridge's own kernels, or say where they are.", no_args_is_help=True)


@kernels.command()
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


@kernels.command()
def info(json: JsonOption = False) -> None:
    """Say where the kernels are, whether they are compiled, with what they would be, and for which instruction set they run."""
    from hybridge.runtime.kernels import compiling, library

    built = library.is_built()
    facts = {
        "library": str(library.path()),
        "built": built,
        "compiler": compiling.compiler(),
        "instruction_set": library.load() if built else None,
    }
    if json:
        print_json(facts)
        return
    missing = {"compiler": "none found; install g++ or clang++, or set CXX", "instruction_set": "chosen once they are built"}
    for name, value in facts.items():
        out.print(f"{name.replace('_', ' ')}: {missing[name] if value is None else value}", highlight=False)


def native(
    cmake_prefix: Annotated[bool, typer.Option("--cmake-prefix", help="Print only what CMAKE_PREFIX_PATH is to be.")] = False,
    pkg_config: Annotated[bool, typer.Option("--pkg-config", help="Print only what PKG_CONFIG_PATH is to be.")] = False,
    json: JsonOption = False,
) -> None:
    """Say where the C and C++ library for apps is, and how an app's CMake or pkg-config finds it."""
    from hybridge.runtime.binding import library

    facts = {
        "include": str(library.SOURCES),
        "cmake_prefix": library.cmake_prefix(),
        "pkg_config": str(library.SOURCES / "cmake"),
    }
    if json:
        print_json(facts)
    elif cmake_prefix or pkg_config:
        out.print(facts["cmake_prefix" if cmake_prefix else "pkg_config"], highlight=False, soft_wrap=True)
    else:
        out.print(f"headers: {facts['include']}/hybridge", highlight=False, soft_wrap=True)
        out.print('cmake -DCMAKE_PREFIX_PATH="$(hybridge native --cmake-prefix)" …', highlight=False)
        out.print("find_package(hybridge)  →  hybridge::hybridge", highlight=False)
        out.print('PKG_CONFIG_PATH="$(hybridge native --pkg-config)" pkg-config --cflags --libs hybridge', highlight=False)


def bundle(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write; it must be empty or not exist.")],
    json: JsonOption = False,
) -> None:
    """Write what an app in C or C++ ships: the libraries and their licences, with the headers that it is built with.

    Nothing in it points outside of it, or needs Python. CMake and pkg-config find hybridge in it, as in the installed package.
    """
    from hybridge.runtime.binding import bundle

    written = bundle.write(folder)
    size = sum(path.stat().st_size for path in written.rglob("*") if path.is_file())
    if json:
        print_json({"folder": str(written), "bytes": size})
    else:
        out.print(f"{written}: {size / 1e6:.1f} MB; ship lib and licences", highlight=False, soft_wrap=True)


def lm_eval(context: typer.Context) -> None:
    """Run EleutherAI's lm_eval, which then knows --model hybridge; what follows is its own, such as run --help or ls tasks.

    --model_args are artifact=OUT and, to draft: draft=OUT2, lookup=True or own=True; threads=N; max_gen_toks=N.
    """
    try:
        from lm_eval.__main__ import cli_evaluate
    except ImportError as error:
        raise UsageError(f"lm-eval needs {error.name}, which is not installed: pip install 'hybridge[eval]'.") from None
    import hybridge.runtime.integrations.lm_eval  # noqa: F401  registers the model

    sys.argv = ["hybridge lm-eval", *context.args]  # it reads the process's arguments
    cli_evaluate()
