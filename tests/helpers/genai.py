"""The package onnxruntime-genai by itself over an ONNX artifact."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnxruntime_genai


def greedy(folder: Path, count: int) -> Callable[[list[int]], list[int]]:
    """From a prompt's tokens to at most ``count`` new ones."""
    model = onnxruntime_genai.Model(str(folder))

    def generate(prompt: list[int]) -> list[int]:
        parameters = onnxruntime_genai.GeneratorParams(model)
        parameters.set_search_options(max_length=len(prompt) + count)
        generator = onnxruntime_genai.Generator(model, parameters)
        generator.append_tokens(prompt)
        while not generator.is_done():
            generator.generate_next_token()
        return [int(token) for token in generator.get_sequence(0)][len(prompt) :]

    return generate
