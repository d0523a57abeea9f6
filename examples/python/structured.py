"""Answers that fit a JSON schema, with speculation: python structured.py OUT"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import hybridge
from hybridge.runtime import GenerationStats, PromptLookup, open_artifact
from hybridge.runtime.binding.tokenizer import Tokenizer
from hybridge.runtime.text.grammars import Grammars

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "color": {"enum": ["red", "green", "blue"]},
        "sides": {"type": "integer", "minimum": 3, "maximum": 12},
    },
    "required": ["name", "color", "sides"],
    "additionalProperties": False,
}
QUESTIONS = ["A square: ", "A triangle: ", "Some other shape: "]


def main(out: str) -> list[dict[str, Any]]:
    """Ask for a shape three times; returns the answers."""
    session = hybridge.Session.load(out)
    tokenizer = Tokenizer.from_file(f"{out}/tokenizer.json")
    grammar = Grammars.of(open_artifact(Path(out))).json_schema(SCHEMA)  # read once, followed by every text
    answers = []
    for question in QUESTIONS:
        stats = GenerationStats()
        session.reset()
        tokens = session.generate(
            tokenizer.encode(question).ids,
            max_new_tokens=200,
            drafter=PromptLookup(),
            constraint=grammar.follow(),
            stats=stats,
        )
        answers.append(json.loads(tokenizer.decode(list(tokens))))
        print(f"{question}{answers[-1]}  [{stats.forced} of {stats.new_tokens} tokens left no choice]")
    return answers


if __name__ == "__main__":
    main(sys.argv[1])
