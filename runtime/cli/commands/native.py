"""``hybridge native``"""

from __future__ import annotations

from typing import Annotated

import typer

from hybridge.runtime.cli.console import out, print_json
from hybridge.runtime.cli.options import JsonOption

EXAMPLES = ("hybridge native", "hybridge native --cmake-prefix")


def native(
    cmake_prefix: Annotated[bool, typer.Option("--cmake-prefix", help="Print only what CMAKE_PREFIX_PATH is to be.")] = False,
    json: JsonOption = False,
) -> None:
    """Say where the C and C++ library for apps is, and how an app's CMake finds it."""
    from hybridge.runtime.core import library

    facts = {"include": str(library.SOURCES), "cmake_prefix": library.cmake_prefix()}
    if json:
        print_json(facts)
    elif cmake_prefix:
        out.print(facts["cmake_prefix"], highlight=False, soft_wrap=True)
    else:
        out.print(f"headers: {facts['include']}/hybridge", highlight=False, soft_wrap=True)
        out.print('cmake -DCMAKE_PREFIX_PATH="$(hybridge native --cmake-prefix)" …', highlight=False)
        targets = "hybridge::session, hybridge::kernels, hybridge::c, hybridge::shared"
        out.print(f"find_package(hybridge)  →  {targets}", highlight=False)
