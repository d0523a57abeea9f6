"""Ask about pictures: python ask_pictures.py OUT QUESTION FILE…

OUT is the artifact of a model that takes pictures, such as LFM2.5-VL. Each picture is encoded once: the second question
about it reads its own words alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

from hybridge.runtime import GenerationStats
from hybridge.runtime.text.chat_template import load_template
from hybridge.runtime.text.conversation import Conversation
from hybridge.runtime.text.generate import GenerationSettings, open_text_model

SECOND = "Say it in other words."


def main(out: str, question: str, *files: str) -> list[str]:
    """Print and return the answers to a question about each picture, and to a second one about the same."""
    model = open_text_model(Path(out))
    settings = GenerationSettings(drafter=model.drafter, max_new_tokens=64)
    answers = []
    for file in files:
        picture = model.pictures.read(Path(file))
        conversation = Conversation(model.session, model.tokenizer, load_template(model.artifact), settings)
        for text, shown in ((question, [picture]), (SECOND, [])):
            stats = GenerationStats()
            answers.append(conversation.say(text, stats=stats, pictures=shown))
            print(f"{file}: {answers[-1]}\n[{stats.prompt_tokens} tokens read, {picture.encodings} parts encoded so far]")
        conversation.reset()
    return answers


if __name__ == "__main__":
    main(*sys.argv[1:])
