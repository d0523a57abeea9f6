"""Hooks of mkdocs: documents outside docs/ join the site, and links to files of the repository stay in it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer import Context
from typer.cli import get_docs_for_click
from typer.main import get_command

from hybridge.__main__ import tree
from hybridge.runtime import Manifest

ROOT = Path(__file__).parents[2]
ELSEWHERE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "export/embedded/README.md": "embedded-model.md",
    **{f"examples/{name}/README.md": f"examples/{name}.md" for name in ("android", "python", "swift")},
}
"""Documents outside docs/, and their places in the site."""
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")
LARGEST = 40_000
"""Characters of a source file that is shown."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the documents outside docs/, and a page for each source file or folder that a document links to."""
    documents = {path: (ROOT / path).read_text(encoding="utf-8") for path in ELSEWHERE}
    own = {f"docs/{each.src_uri}": each.content_string for each in files.documentation_pages()}
    linked = {_target(path, match[2]) for path, text in {**documents, **own}.items() for match in LINK.finditer(text)}
    sources = [each for each in linked if each and not each.startswith("docs/") and each not in ELSEWHERE]
    pages = {ELSEWHERE[path]: text for path, text in documents.items()}
    pages |= {_place(path): f"# {path}\n\n{_shown(ROOT / path)}" for path in sources}
    for uri, text in pages.items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to files of the repository into links to their pages, and fill in the commands and the manifest's schema."""
    uri = page.file.src_uri
    path = next((path for path, place in ELSEWHERE.items() if place == uri), f"docs/{uri}")

    def turned(match: re.Match[str]) -> str:
        target = _target(path, match[2])
        return f"{match[1]}{os.path.relpath(_place(target), PurePosixPath(uri).parent)}{match[3]}" if target else match[0]

    if uri == "reference/command-line.md":
        command = get_command(tree())
        markdown += get_docs_for_click(obj=command, ctx=Context(command), name="hybridge")
        markdown = (
            markdown.replace("[bold]Examples[/]\n", "**Examples**:\n\n").replace("  [dim]$[/] ", "    $ ").replace("\\[", "[")
        )
    if uri == "reference/manifest.md":
        markdown += f"\n```json\n{json.dumps(Manifest.model_json_schema(), indent=1)}\n```\n"
    return LINK.sub(turned, markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Remove the page that a server shows for wrong addresses: its links lead to a server's root."""
    (Path(config.site_dir) / "404.html").unlink()


def _place(path: str) -> str:
    """Return the place in the site of a file or folder of the repository."""
    return ELSEWHERE.get(path, path.removeprefix("docs/") if path.startswith("docs/") else f"source/{path}.md")


def _target(path: str, link: str) -> str | None:
    """Return the existing file of the repository that a link in ``path`` leads to, or None."""
    target = os.path.normpath(PurePosixPath(path).parent / link)
    return target if not re.match(r"[a-z]+:|\.\.", link if ":" in link else target) and (ROOT / target).exists() else None


def _shown(path: Path) -> str:
    """Return a source file as code, or the files of a folder one after the other."""
    if path.is_dir():
        return "\n".join(f"## {each.name}\n\n{_shown(each)}" for each in sorted(path.iterdir()) if each.is_file())
    return f"````{path.suffix.removeprefix('.') or 'text'}\n{path.read_text(encoding='utf-8')[:LARGEST]}\n````\n"
