"""Write a page from a template of this folder; every text in it is escaped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

import hybridge
from hybridge.cache.errors import OutputError
from hybridge.runtime.files import replace_file

FOLDER = Path(__file__).parent / "templates"


def page(template: str, facts: Mapping[str, Any]) -> str:
    """Return the page that ``template`` makes of ``facts``. Manifests and tokens are hostile: all texts are escaped."""
    return _environment().get_template(template).render({"version": hybridge.__version__, **facts})


def write_page(path: Path, text: str) -> None:
    """Write a page to ``path``, whole or not at all. Raises OutputError."""
    try:
        replace_file(path, text.encode("utf-8", errors="replace"))  # a half of a surrogate pair is no character
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror or error}.") from None


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["count"] = lambda number: f"{number:,}"
    environment.filters["seconds"] = lambda number: f"{1e3 * number:.2f} ms" if number < 1 else f"{number:.2f} s"
    return environment
