"""``hybridge inspect``"""

from __future__ import annotations

from hybridge.runtime.cli.console import check_writable_file, print_json
from hybridge.runtime.cli.options import ArtifactArgument, HtmlOption, JsonOption

EXAMPLES = ("hybridge inspect OUT", "hybridge inspect OUT --html plan.html", "hybridge inspect OUT --json")


def inspect(artifact: ArtifactArgument, html: HtmlOption = None, json: JsonOption = False) -> None:
    """Show an artifact's layers, state, methods, operators, backends and sizes, after checking its hashes."""
    if html is not None:
        from hybridge.runtime.html_report import check_matplotlib

        check_writable_file(html)
        check_matplotlib("--html")
    from hybridge.runtime.artifacts.artifact import open_artifact
    from hybridge.runtime.cli.inspect import kinds_of_bits, show, summary
    from hybridge.runtime.html_report import artifact_sections, write_page

    opened = open_artifact(artifact)
    manifest = opened.manifest
    if html is not None:
        sections = artifact_sections(manifest, list(summary(manifest)), kinds_of_bits(manifest))
        write_page(html, opened.folder.name, sections)
    if json:
        print_json(manifest.model_dump(mode="json"))
    elif html is None:
        show(opened)
