"""ExecuTorch's TextLLMRunner in a process of its own, which has to outlive all that is asked of it.

A step is ("generate", text, new tokens), ("prefill", text) or ("reset",); its answer is the new text, or {"error": ...}.
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


def answers(model: Path, tokenizer: Path, scenarios: Mapping[str, Scenario]) -> dict[str, list[Any]]:
    """What a new runner for each scenario answers to its steps."""
    with TemporaryDirectory() as name:
        asked, answered = Path(name) / "asked.json", Path(name) / "answered.json"
        asked.write_text(json.dumps(scenarios))
        command = [sys.executable, __file__, model, tokenizer, asked, answered]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
        return dict(json.loads(answered.read_text()))


def _main(model: str, tokenizer: str, asked: str, answered: str) -> None:
    from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401  registers --kernels llm
    from executorch.extension.llm.runner import GenerationConfig, TextLLMRunner

    from hybridge.runtime.kernels import library

    if library.is_built():
        library.load()

    def answer(runner: TextLLMRunner, verb: str, text: str = "", new: int = -1) -> Any:
        config, pieces = GenerationConfig(echo=False, max_new_tokens=new, temperature=0.0), []
        calls = {
            "reset": runner.reset,
            "prefill": lambda: runner.prefill(text, config),
            "generate": lambda: runner.generate(text, config, token_callback=pieces.append),
        }
        try:
            calls[verb]()
        except RuntimeError as error:
            return {"error": str(error)}
        return "".join(pieces)

    def scenario(steps: Scenario) -> list[Any]:
        runner = TextLLMRunner(model, tokenizer)
        return [answer(runner, *step) for step in steps]

    scenarios = json.loads(Path(asked).read_text())
    Path(answered).write_text(json.dumps({name: scenario(steps) for name, steps in scenarios.items()}))


if __name__ == "__main__":
    _main(*sys.argv[1:])
