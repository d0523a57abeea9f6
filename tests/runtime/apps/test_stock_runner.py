"""ExecuTorch's own TextLLMRunner over our ``forward``: the C++ of the Android and iOS libraries, as the wheel has it."""

from __future__ import annotations

import random
import re
import string
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from stock_runner import answers
from tokenizers import Tokenizer

from hybridge.export.profile.program import ProgramFile
from hybridge.runtime import Session
from hybridge.runtime.pinned import executorch

END = ord("}")
FIRST, SECOND, THIRD, LONG = "def main(", ") -> None:\n    for ", "    return ", "x = 1\n" * 17
SCENARIOS: dict[str, list[tuple[Any, ...]]] = {
    "several turns": [("generate", FIRST, 13), ("generate", SECOND, 11), ("prefill", THIRD), ("generate", "", 12)],
    "reset": [("generate", SECOND, 14), ("reset",), ("generate", FIRST, 15)],
    "a full context": [("generate", LONG[:60], -1), ("generate", SECOND, 5), ("reset",), ("generate", FIRST, 15)],
    "too long a prompt": [("generate", FIRST, 13), ("generate", LONG, 5), ("generate", SECOND, 11)],
    "too long a prefill": [
        ("prefill", LONG),
        ("generate", "", 5),
        ("generate", FIRST, 15),
        ("reset",),
        ("generate", FIRST, 15),
    ],
}


MULTIMODAL = """
import sys
from executorch.extension.llm.custom_ops import custom_ops
from executorch.extension.llm.runner import GenerationConfig, MultimodalRunner, make_text_input

runner = MultimodalRunner(*sys.argv[1:])
runner.generate_text([make_text_input("def main(")], GenerationConfig(max_new_tokens=5, temperature=0.0))
"""


def prompts(count: int) -> list[str]:
    """Texts of 1 to 30 printable characters."""
    chance = random.Random(7)
    return ["".join(chance.choices(string.printable, k=chance.randint(1, 30))) for _ in range(count)]


class Ours:
    """The same steps by the Session."""

    def __init__(self, folder: Path) -> None:
        self.session, self.tokenizer = Session.load(folder), Tokenizer.from_file(str(folder / "tokenizer.json"))

    def text(self, prompt: str, new: int) -> str:
        """What comes after ``prompt``, from where the session is."""
        tokens = self.session.generate(self.tokenizer.encode(prompt).ids, max_new_tokens=new, eos_ids=[END])
        return self.tokenizer.decode(list(tokens), skip_special_tokens=False)

    def fresh(self, prompt: str, new: int) -> str:
        self.session.reset()
        return self.text(prompt, new)


@pytest.fixture(scope="module")
def our_texts(artifact: Path) -> Ours:
    return Ours(artifact)


@pytest.fixture(scope="module")
def runner_texts(artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What the runner answered to each step."""
    folder = tmp_path_factory.mktemp("runner")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the pinned library says of itself
        file = ProgramFile(artifact / "model.pte")
        file.plans["get_eos_ids"].values[0].val.int_val = END  # this random model has none of its own
        file.write(folder / "model.pte", [])
    twenty = [step for text in prompts(20) for step in (("reset",), ("generate", text, 60))]
    return answers(folder / "model.pte", artifact / "tokenizer.json", SCENARIOS | {"20 prompts": twenty})


def test_greedy_text_of_20_prompts_is_the_sessions(runner_texts: dict[str, list[Any]], our_texts: Ours) -> None:
    texts = runner_texts["20 prompts"][1::2]
    assert texts == [our_texts.fresh(prompt, 60) for prompt in prompts(20)]
    assert 2 <= sum(text.endswith("}") for text in texts) <= 18, "some reach the end of sequence, and some do not"


def test_turns_go_on_from_the_state(runner_texts: dict[str, list[Any]], our_texts: Ours) -> None:
    first, second, nothing, third = runner_texts["several turns"]
    assert (first, second) == (our_texts.fresh(FIRST, 13), our_texts.text(SECOND, 11))
    assert (nothing, third) == ("", our_texts.text(THIRD, 12))


def test_reset_starts_afresh(runner_texts: dict[str, list[Any]], our_texts: Ours) -> None:
    assert runner_texts["reset"][2] == our_texts.fresh(FIRST, 15)


@pytest.mark.slow
def test_a_full_context_ends_the_text_and_refuses_more(runner_texts: dict[str, list[Any]], our_texts: Ours) -> None:
    """The runner counts the room in positions, so its text is one token shorter than what fits."""
    text, refused, _, again = runner_texts["a full context"]
    assert text == our_texts.fresh(LONG[:60], 96 - 60)
    assert "error" in refused
    assert again == our_texts.fresh(FIRST, 15)


def test_a_prompt_longer_than_the_context_is_refused_and_the_state_stays(
    runner_texts: dict[str, list[Any]], our_texts: Ours
) -> None:
    first, refused, second = runner_texts["too long a prompt"]
    assert "error" in refused
    assert (first, second) == (our_texts.fresh(FIRST, 13), our_texts.text(SECOND, 11))


def test_a_prefill_beyond_the_context_lets_nothing_be_generated(runner_texts: dict[str, list[Any]], our_texts: Ours) -> None:
    """The runner checks no lengths there, and cannot see the NaN that we answer; but it counts."""
    _, empty, more, _, again = runner_texts["too long a prefill"]
    assert "error" in empty
    assert "error" in more
    assert again == our_texts.fresh(FIRST, 15)


@pytest.mark.thorough
def test_a_multimodal_runner_refuses_a_model_of_text(artifact: Path) -> None:
    """It reads tokens through a method of its own, which a model without pictures and sound does not have."""
    command = [sys.executable, "-c", MULTIMODAL, artifact / "model.pte", artifact / "tokenizer.json"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "No method named 'token_embedding' in program" in done.stderr
    assert "RuntimeError: Generation failed" in done.stderr


def test_these_are_all_the_runners_of_the_wheel() -> None:
    """A new one needs a test here. The file of types says which there are: importing them registers kernels."""
    classes = (executorch() / "extension/llm/runner/_llm_runner.pyi").read_text(encoding="utf-8")
    assert set(re.findall(r"^class (\w*Runner)\b", classes, re.MULTILINE)) == {"TextLLMRunner", "MultimodalRunner"}
