"""Open each page of the built site in a browser without a window, from the disk, and search in it."""

from __future__ import annotations

import sys
from pathlib import Path

from browser import BROWSER, Browser, browser

SEARCH = """(() => {
  const field = document.querySelector('[data-md-component=search-query]')
  field.focus(); field.value = 'rollback'; field.dispatchEvent(new Event('keyup', {bubbles: true}))
  field.dispatchEvent(new Event('input', {bubbles: true}))
  return true
})()"""
FOUND = "document.querySelectorAll('.md-search-result__item').length"


def main() -> int:
    """Print what is wrong; exit code 1 if anything is, 2 without a site or a browser."""
    folder = Path(sys.argv[1]).resolve()
    pages = sorted(folder.rglob("*.html"))
    if BROWSER is None or not pages:
        print("--check needs a site and chromium", file=sys.stderr)
        return 2
    with browser() as window:
        faults = [fault for page in pages for fault in _faults(window, page)] + _search(window, folder / "index.html")
    fine = (
        f"{len(pages)} pages from the disk: no outside request, nothing in the console, no picture missing, a search that finds"
    )
    print("\n".join(faults) or fine)
    return bool(faults)


def _faults(window: Browser, page: Path) -> list[str]:
    window.tell("Page.navigate", url=page.as_uri())
    window.wait_for(f"document.readyState === 'complete' && location.pathname === {str(page)!r}")
    outside = {url for url in window.requests if not url.startswith(("file:", "data:", "blob:", "about:"))}
    missing = window.run("[...document.images].filter(each => !each.naturalWidth).map(each => each.src).join(' ')")
    faults = [*outside, *window.complaints, *([f"no picture {missing}"] if missing else [])]
    window.requests.clear()
    window.complaints.clear()
    return [f"{page.name}: {fault}" for fault in faults]


def _search(window: Browser, page: Path) -> list[str]:
    window.open(page.as_uri())
    window.run(SEARCH)
    try:
        window.wait_for(FOUND, seconds=10)
    except AssertionError as error:
        return [f"the search finds nothing: {error}"]
    return window.complaints


if __name__ == "__main__":
    sys.exit(main())
