"""Export a checkpoint and talk with it: python export_and_chat.py CHECKPOINT OUT"""

from __future__ import annotations

import sys
from pathlib import Path

import hybridge
from hybridge.errors import HybridgeError
from hybridge.runtime import GenerationStats, PromptLookup, Session, open_artifact
from hybridge.runtime.binding.tokenizer import Tokenizer
from hybridge.runtime.text.chat_template import load_template
from hybridge.runtime.text.conversation import Conversation
from hybridge.runtime.text.generate import GenerationSettings


def main(checkpoint: str, out: str) -> None:
    """Export once, then answer each line of stdin."""
    if not Path(out).exists():
        hybridge.export_model(checkpoint, out, hybridge.ExportOptions(max_seq_len=1024, verify_len=8))
    artifact = open_artifact(Path(out))
    conversation = Conversation(
        Session.of(artifact),
        Tokenizer.of(artifact),
        load_template(artifact),
        GenerationSettings(drafter=PromptLookup(), max_new_tokens=64),
    )
    for line in map(str.strip, sys.stdin):
        try:
            if line == "/undo":
                conversation.undo()  # the state goes back, too: nothing is read again
            elif line:
                answer(conversation, line)
        except HybridgeError as error:
            print(f"Error: {error}", file=sys.stderr)


def answer(conversation: Conversation, message: str) -> None:
    """Print an answer as it comes, and what it took."""
    stats = GenerationStats()
    conversation.say(message, lambda content, reasoning: print(content, end="", flush=True), stats)
    print(f"\n[{stats.prompt_tokens} tokens read, {stats.new_tokens} written, {stats.accepted} of them drafted]")


if __name__ == "__main__":
    main(*sys.argv[1:3])
