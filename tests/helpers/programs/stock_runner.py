"""ExecuTorch's own runners in a process of their own, which has to outlive all that is asked of them.

A step is ("generate", text, new tokens), ("prefill", text) or ("reset",); its answer is the new text, or {"error": ...}.
MultimodalRunner takes a list of parts in the place of a text: ids as a list, or the name of a .npy file of a picture, uint8
[height, width, 3].
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

Scenario = Sequence[tuple[Any, ...]]
TEXT, MULTIMODAL = "TextLLMRunner", "MultimodalRunner"


def answers(model: Path, tokenizer: Path, scenarios: Mapping[str, Scenario], runner: str = TEXT) -> dict[str, list[Any]]:
    """Return what a new runner for each scenario answers to its steps."""
    with TemporaryDirectory() as name:
        asked, answered = Path(name) / "asked.json", Path(name) / "answered.json"
        asked.write_text(json.dumps(scenarios))
        command = [sys.executable, __file__, model, tokenizer, asked, answered, runner]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
        return dict(json.loads(answered.read_text()))


def save_words(path: Path, tokens: int) -> None:
    """Write a tokenizer.json whose token i is the word w i, so that a text tells its ids."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    vocabulary = {f"w{token}": token for token in range(tokens)}
    parts = {"added_tokens": [], "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level}
    path.write_text(json.dumps({"version": "1.0", **parts, "model": {"type": "BPE", "vocab": vocabulary, "merges": []}}))


def ids_of_words(text: str) -> list[int]:
    """The ids of a text by the tokenizer of ``save_words``."""
    return [int(word) for word in text.split("w")[1:]]


def _main(model: str, tokenizer: str, asked: str, answered: str, kind: str) -> None:
    import numpy as np
    import torch
    from executorch.extension.llm import runner as runners
    from executorch.extension.llm.runner import GenerationConfig, make_image_input
    from executorch.extension.llm.runner._llm_runner import make_token_input

    from hybridge.export.pinned import stock_operators  # noqa: F401  registers --kernels llm
    from hybridge.runtime.kernels import library

    if library.is_built():
        library.load()

    def part(given: Any) -> Any:
        if isinstance(given, list):
            return make_token_input(given)
        return make_image_input(torch.from_numpy(np.load(given)).permute(2, 0, 1).contiguous())

    def answer(runner: Any, verb: str, given: Any = "", new: int = -1) -> Any:
        config, pieces = GenerationConfig(echo=False, max_new_tokens=new, temperature=0.0), []
        prompt = [part(each) for each in given] if kind == MULTIMODAL else given
        prefilled = (prompt,) if kind == MULTIMODAL else (prompt, config)
        calls = {
            "reset": runner.reset,
            "prefill": lambda: runner.prefill(*prefilled),
            "generate": lambda: runner.generate(prompt, config, token_callback=pieces.append),
        }
        try:
            calls[verb]()
        except RuntimeError as error:
            return {"error": str(error)}
        return "".join(pieces)

    def scenario(steps: Scenario) -> list[Any]:
        runner = getattr(runners, kind)(model, tokenizer)
        return [answer(runner, *step) for step in steps]

    scenarios = json.loads(Path(asked).read_text())
    Path(answered).write_text(json.dumps({name: scenario(steps) for name, steps in scenarios.items()}))


if __name__ == "__main__":
    _main(*sys.argv[1:])
