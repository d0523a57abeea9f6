"""Score the answers to a batch of questions: python evaluate_choices.py OUT QUESTIONS

QUESTIONS is a file with a JSON object on each line: {"question": …, "choices": […], "answer": the right one's number}.
The questions begin with the same examples, and choices with the same question: a cache of checkpoints finds the longest
beginning that was read before, for recurrent state too, and only what follows is read.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import hybridge
from hybridge.runtime.binding.checkpoint import PrefixCache
from hybridge.runtime.binding.prompt_prefill import bring_to
from hybridge.runtime.binding.tokenizer import Tokenizer

EXAMPLES = "# Each line is a Python expression and its type.\n1 + 1  # int\n'a' + 'b'  # str\n[1, 2]  # list\n"


class Scorer:
    """Scores texts with one session. read: tokens that it had to read; asked: tokens of all the texts."""

    def __init__(self, out: str) -> None:
        self.session = hybridge.Session.load(out)
        self.tokenizer = Tokenizer.from_file(f"{out}/tokenizer.json")
        self.cache = PrefixCache(self.session.model, 256 << 20)
        shared = self.tokenizer.encode(EXAMPLES).ids
        bring_to(self.session, shared, self.cache)  # leaves a checkpoint there, from which every question continues
        self.read = self.asked = len(shared)

    def score(self, beginning: str, end: str) -> float:
        """Return the mean log probability of the tokens of ``end`` after ``beginning``."""
        before = self.tokenizer.encode(beginning).ids
        tokens = self.tokenizer.encode(end, around=False).ids
        known = bring_to(self.session, before[:-1], self.cache)
        expects = [self.session.prefill(before[-1:]), *(self.session.decode(token) for token in tokens[:-1])]
        self.asked += len(before) + len(tokens)
        self.read += len(before) - known + len(tokens)
        return float(np.mean([log_probability(logits, token) for logits, token in zip(expects, tokens, strict=True)]))


def log_probability(logits: NDArray[np.float32], token: int) -> float:
    """Return the logarithm of a token's softmax."""
    largest = logits.max()
    return float(logits[token] - largest - np.log(np.exp(logits - largest).sum()))


def main(out: str, questions: str) -> float:
    """Print the choice that the model finds most likely for each question; returns the share of right ones."""
    scorer, right, lines = Scorer(out), 0, Path(questions).read_text(encoding="utf-8").splitlines()
    for line in lines:
        asked = json.loads(line)
        scores = [scorer.score(f"{EXAMPLES}{asked['question']}  # ", choice) for choice in asked["choices"]]
        best = scores.index(max(scores))
        right += best == asked["answer"]
        print(f"{asked['question']}  # {asked['choices'][best]}  {'right' if best == asked['answer'] else 'wrong'}")
    print(f"{right} of {len(lines)} right; {scorer.read} of {scorer.asked} tokens had to be read")
    return right / len(lines)


if __name__ == "__main__":
    main(*sys.argv[1:3])
