"""The main job, as a new user runs it: the embedded model, exported, validated, generating; and in ExecuTorch's own runner."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from hybridge.runtime import Session

SCRIPT = Path(sys.executable).parent / "hybridge"
PROMPTS = ["class Point:\n    def __init__(self", "def main(", "The first argument is the name of"]

STOCK_RUNNER = """
import json, sys
from executorch.extension.llm.custom_ops import custom_ops
from executorch.extension.llm.runner import GenerationConfig, TextLLMRunner

folder, prompts = sys.argv[1], sys.argv[2:]
texts = []
for prompt in prompts:
    runner, pieces = TextLLMRunner(folder + "/model.pte", folder + "/tokenizer.json"), []
    config = GenerationConfig(echo=False, max_new_tokens=60, temperature=0.0, num_bos=0, num_eos=0)
    runner.generate(prompt, config, token_callback=pieces.append)
    texts.append("".join(pieces))
open(sys.argv[1] + "/../stock.json", "w").write(json.dumps(texts))
"""


def hybridge(*arguments: object) -> str:
    done = subprocess.run([SCRIPT, *map(str, arguments)], check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("demo") / "artifact"
    return folder, hybridge("demo", "-o", folder, "--programs", 8)


def test_the_demo_reaches_its_figures(demo: tuple[Path, str]) -> None:
    _, shown = demo
    assert "passed" in shown
    assert "the same tokens: True" in shown
    assert "✓" in shown
    assert "✗" not in shown


@pytest.mark.parametrize("prompt", PROMPTS)
def test_text_is_the_same_with_and_without_guessing(demo: tuple[Path, str], prompt: str) -> None:
    folder, _ = demo
    runs = [
        json.loads(hybridge("run", folder, "--prompt", prompt, "--json", "--max-new-tokens", 80, option))
        for option in ("--prompt-lookup", "--no-speculation")
    ]
    assert runs[0]["text"] == runs[1]["text"]
    assert runs[1]["verifies"] == 0


def test_the_stock_runner_generates_the_same_tokens(demo: tuple[Path, str]) -> None:
    folder, _ = demo
    subprocess.run([sys.executable, "-c", STOCK_RUNNER, folder, *PROMPTS], check=True, capture_output=True, timeout=300)
    texts = json.loads((folder.parent / "stock.json").read_text())
    session, tokenizer = Session.load(folder), Tokenizer.from_file(str(folder / "tokenizer.json"))
    for prompt, text in zip(PROMPTS, texts, strict=True):
        session.reset()
        tokens = list(session.generate(tokenizer.encode(prompt).ids, max_new_tokens=60))
        assert text == tokenizer.decode(tokens, skip_special_tokens=False)
