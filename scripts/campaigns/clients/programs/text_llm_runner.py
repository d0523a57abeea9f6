"""ExecuTorch's TextLLMRunner as its wheel has it for Python. Numbers are bytes of text.

text_llm_runner.py MODEL.pte TOKENIZER [LIBRARY ...]    libraries bring operators that the wheel does not have
"""

from __future__ import annotations

import ctypes
import sys

from protocol import claim_stdout, serve


def main(model: str, tokenizer: str, *libraries: str) -> None:
    """Serve one runner."""
    answers = claim_stdout()
    from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401  registers the operators of --kernels llm
    from executorch.extension.llm.runner import GenerationConfig, TextLLMRunner

    for library in libraries:
        ctypes.CDLL(library)
    runner = TextLLMRunner(model, tokenizer)

    def generate(prompt: list[int], count: int) -> list[int]:
        pieces: list[str] = []
        config = GenerationConfig(echo=False, max_new_tokens=count, temperature=0.0)
        runner.generate(bytes(prompt).decode(), config, token_callback=pieces.append)
        return list("".join(pieces).encode())

    serve(generate, runner.reset, answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
