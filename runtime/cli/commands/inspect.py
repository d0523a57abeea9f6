"""``hybridge inspect``"""

from __future__ import annotations

from hybridge.runtime.cli.console import check_writable_file, print_json
from hybridge.runtime.cli.options import ArtifactArgument, HtmlOption, JsonOption

EXAMPLES = ("hybridge inspect OUT", "hybridge inspect OUT --html plan.html", "hybridge inspect OUT --json")


def inspect(artifact: ArtifactArgument, html: HtmlOption = None, json: JsonOption = False) -> None:
    """Show an artifact's layers, state, methods, operators, backends and sizes, after checking its hashes."""
    if html is not None:
        check_writable_file(html)
    from hybridge.export.pages.inspect import inspect_page
    from hybridge.export.pages.page import write_page
    from hybridge.runtime.artifacts.artifact import open_artifact
    from hybridge.runtime.cli.inspect import kinds_of_bits, show, summary

    opened = open_artifact(artifact)
    manifest = opened.manifest
    if html is not None:
        write_page(html, inspect_page(manifest, opened.folder.name, list(summary(manifest)), kinds_of_bits(manifest)))
    if json:
        print_json(manifest.model_dump(mode="json"))
    elif html is None:
        show(opened)
