"""mkdocs calls this: pages that are made from sources join those of docs/, and links into the repository stay in the site."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from documenting import command_line, headers, python_api, schema
from documenting.markdown import fence

ROOT = Path(__file__).parents[2]
ELSEWHERE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "export/embedded/README.md": "embedded-model.md",
    **{f"examples/{name}/README.md": f"examples/{name}.md" for name in ("android", "python", "swift")},
}
"""Documents outside docs/, and where they are in the site."""
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")
LANGUAGES = {".h": "cpp", ".cpp": "cpp", ".toml": "toml", ".py": "python", ".txt": "cmake"}
LARGEST = 40_000
"""Characters of a source that is shown."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the documents outside docs/, the pages from sources, and a page for each source that a document links to."""
    documents = {path: (ROOT / path).read_text(encoding="utf-8") for path in ELSEWHERE}
    pages = {ELSEWHERE[path]: text for path, text in documents.items()} | {
        "reference/command-line.md": command_line.page(),
        "reference/python.md": python_api.page(ROOT),
        "reference/c.md": headers.c_page(ROOT),
        "reference/cpp.md": headers.cpp_page(ROOT),
        "reference/manifest.md": schema.page(),
    }
    own = {f"docs/{each.src_uri}": each.content_string for each in files.documentation_pages()}
    pages |= {_place(path): _source(path) for path in sorted(_linked_sources({**documents, **own}))}
    for uri, text in pages.items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to files of the repository into links to their pages."""
    path, here = _origin(page.file.src_uri), PurePosixPath(page.file.src_uri).parent

    def turned(match: re.Match[str]) -> str:
        target = _target(path, match[2])
        if target is None or not (ROOT / target).exists():
            return match[0]
        return f"{match[1]}{os.path.relpath(_place(target), here)}{match[3]}"

    return LINK.sub(turned, markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Remove the page that a server shows for wrong addresses: its links lead to a server's root, and no disk shows it."""
    (Path(config.site_dir) / "404.html").unlink()


def _linked_sources(documents: dict[str, str]) -> set[str]:
    """Return the files and folders outside docs/ that documents link to, and that are none themselves."""
    targets = {_target(path, match[2]) for path, text in documents.items() for match in LINK.finditer(text)}
    sources = {each for each in targets if each and not each.startswith("docs/")} - ELSEWHERE.keys()
    return {each for each in sources if (ROOT / each).exists()}


def _origin(uri: str) -> str:
    """Return the repository's path of a page; of one that is made from sources, a path beside docs/."""
    return next((path for path, place in ELSEWHERE.items() if place == uri), f"docs/{uri}")


def _place(path: str) -> str:
    """Return where a file or folder of the repository is in the site."""
    inside = path.removeprefix("docs/")
    return ELSEWHERE.get(path, inside if inside != path else f"source/{path}.md")


def _target(path: str, link: str) -> str | None:
    """Return the repository's path that a link in ``path`` leads to, None for an address."""
    if re.match(r"[a-z]+:", link):
        return None
    target = os.path.normpath(PurePosixPath(path).parent / link)
    return None if target.startswith("..") else target


def _source(path: str) -> str:
    """Return the page of a source: its text, or the texts of a folder's files."""
    where = ROOT / path
    if where.is_file():
        return f"# {path}\n\n{_shown(where)}"
    texts = (f"## {each.name}\n\n{_shown(each)}" for each in sorted(where.iterdir()) if each.is_file())
    return "\n".join([f"# {path}\n", *texts])


def _shown(file: Path) -> str:
    text = file.read_text(encoding="utf-8")
    return fence(text[:LARGEST], LANGUAGES.get(file.suffix, "text"))
