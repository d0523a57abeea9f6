"""scripts/trust serve-bench, over small artifacts: that every figure comes out, and that wrong answers are seen."""

from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
import pytest
from campaigns.serve_bench.measurements import TALKS, Crowd, gap, mask_of_a_row
from campaigns.serve_bench.server import made_up_tokenizer, words
from numpy.typing import NDArray
from store import demo_folder
from tokenizers import Tokenizer

from hybridge.runtime.binding.tokenizer import Tokenizer as CoreTokenizer
from hybridge.runtime.text.grammars import Grammars


def test_a_made_up_tokenizer_has_a_token_for_each_byte_and_for_nothing_else() -> None:
    tokenizer = Tokenizer.from_str(made_up_tokenizer(700, random.Random(2)))
    assert tokenizer.get_vocab_size() == 700
    text = words(50, 3) + "ü <|im_end|>"
    assert tokenizer.encode(text).ids[:-1] == list(text.removesuffix("<|im_end|>").encode())
    assert tokenizer.encode(text).ids[-1] == 699


def test_the_mask_of_a_row_is_measured() -> None:
    ((what, figure, target),) = mask_of_a_row(700)
    assert "700 logits" in what
    assert float(figure.removesuffix(" ms")) > 0
    assert target == "≤ 0.1 ms"


def test_where_two_texts_part_the_logits_tell_a_tie() -> None:
    pytest.importorskip("llguidance")
    grammar = Grammars(CoreTokenizer(made_up_tokenizer(700, random.Random(2)).encode()), 700, [699]).regex("(aa|ab|ac)")

    class Session:
        """Likes b nearly as much as c, and most of all what the grammar refuses."""

        def reset(self) -> None: ...

        def prefill(self, tokens: list[int]) -> NDArray[np.float32]:
            assert bytes(tokens) == b"?a", "the text up to where they part"
            logits = np.zeros(700, np.float32)
            logits[ord("z")], logits[ord("b")], logits[ord("c")] = 9.0, 4.0, 3.0
            return logits

    assert gap(Session(), grammar, [ord("?")], b"ab", b"ac") == 0.25  # type: ignore[arg-type]


class Wrong:
    """Answers everything in the same way, as if to one client alone."""

    def ask(self, messages: object, most: int) -> tuple[float, float, str, dict[str, int]]:
        return 0.0, 0.0, "right", {}

    def send(self, body: str) -> Wrong:
        return self

    def getresponse(self) -> Wrong:
        return self

    status = 200

    def close(self) -> None: ...

    def resident(self) -> int:
        return 5


def test_a_crowd_sees_what_is_wrong() -> None:
    crowd = Crowd(Wrong(), ["right"] * (len(TALKS) - 1) + ["left"], [10, 100])  # type: ignore[arg-type]
    crowd.client(0, 100)
    assert crowd.resident == {10: 5, 100: 5}
    assert {"right", "a malformed request was answered"} == set(crowd.wrong)
    assert len(crowd.wrong) < crowd.done < crowd.asked


@pytest.mark.slow
def test_a_small_run_has_every_figure() -> None:
    sizes = ["--tokens", 60, "--rounds", 1, "--streamed", 8, "--clients", 2, "--requests", 4]
    some = ["--only", "turns", "bytes", "restart", "json", "overhead", "crowd"]
    words = [sys.executable, "-m", "campaigns.serve_bench", demo_folder() / "hybridge-demo", *sizes, *some]
    done = subprocess.run(list(map(str, words)), check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 10
    assert rows[-1].startswith("| 2 clients")
