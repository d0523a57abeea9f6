"""``hybridge run --html``: a text by where its tokens came from, and what each round did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hybridge.export.pages.page import page
from hybridge.export.pages.timeline import timeline
from hybridge.runtime.core.statistics import Draft, Trace
from hybridge.runtime.text.answers import TokenDecoder
from hybridge.runtime.text.generate import TextStream

Piece = tuple[str, str]
"""A style and a text."""


def run_page(title: str, prompt: str, tokens: Sequence[int], trace: Trace, decoder: TokenDecoder, rows: Sequence[Piece]) -> str:
    """Return the page of a generation. tokens: the new ones; rows: names and values of its table."""
    drafts = [each.draft for each in trace.rounds if each.draft is not None]
    return page(
        "run.html.jinja",
        {
            "title": title,
            "pieces": [("prompt", prompt), *_pieces(tokens, drafts, decoder)],
            "has_forced": any(draft.forced for draft in drafts),
            "rows": rows,
            "timeline": timeline(trace.rounds),
        },
    )


def _pieces(tokens: Sequence[int], drafts: Sequence[Draft], decoder: TokenDecoder) -> Iterator[Piece]:
    """Yield the text in order; what was rejected stands before the token that took its place."""
    styles = ["own"] * len(tokens)
    rejected: dict[int, list[int]] = {}
    for draft in drafts:
        end = draft.first + draft.accepted
        styles[draft.first : end] = ["forced" if draft.forced else "accepted"] * len(styles[draft.first : end])
        rejected[end] = draft.tokens[draft.accepted :]
    stream = TextStream(decoder)
    for place, (token, style) in enumerate(zip(tokens, styles, strict=True)):
        if rejected.get(place):
            yield "rejected", decoder.decode(rejected[place]).replace("\n", "↵")  # a struck line break would not show
        stream.push(token)
        yield style, stream.read()
    yield "own", stream.finish()
