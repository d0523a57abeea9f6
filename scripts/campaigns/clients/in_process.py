"""Clients that run in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnxruntime_genai
import torch

import hybridge
from campaigns.clients.conversations import Client, Functions, Row
from hybridge.cache import HybridCache
from hybridge.export.source.checkpoint import load_checkpoint
from hybridge.runtime import PromptLookup, Session

WHAT = {"llm": "ExecuTorch, `--kernels llm`", "hybridge": "ExecuTorch, `--kernels hybridge`", "onnx": "onnxruntime"}
"""Artifacts by the name of their folder."""


def rows(folder: Path, checkpoint: Path) -> Iterator[Row]:
    """Yield a row for each client of the artifacts in ``folder``, which were exported from ``checkpoint``."""
    for kind, what in WHAT.items():
        artifact = folder / kind
        yield Row(f"`Session`, {what}", lambda _, at=artifact: of_session(at, speculative=False))
        yield Row(f"`Session`, {what}, prompt lookup", lambda _, at=artifact: of_session(at, speculative=True))
    yield Row("`hybridge.load(…).generate`", lambda _: of_loaded(folder / "hybridge"), turns=None)
    yield Row("transformers' `generate` with `HybridCache`", lambda _: of_transformers(checkpoint))
    yield Row("onnxruntime-genai", lambda _: Genai(folder / "onnx"))


def of_session(artifact: Path, *, speculative: bool) -> Client:
    """Return the core in Python, with as many draft tokens from the text as there are, or with none."""
    session = Session.load(artifact)
    how = {"drafter": PromptLookup(), "block_length": session.verify_len} if speculative else {}
    return Functions(lambda ids, count: list(session.generate(ids, max_new_tokens=count, **how)), session.reset)


def of_loaded(artifact: Path) -> Client:
    """Return transformers' interface over an artifact; it is given the whole text each time."""
    model = hybridge.load(artifact)
    return Functions(
        lambda ids, count: model.generate(torch.tensor([ids]), max_new_tokens=count)[0, len(ids) :].tolist(), lambda: None
    )


def of_transformers(checkpoint: Path) -> Client:
    """Return the unmodified model with our cache, which has all but the last token of the text that a turn gives again."""
    model = load_checkpoint(checkpoint).model
    cache = HybridCache.from_config(model.config, max_seq_len=2048)
    text: list[int] = []

    @torch.no_grad()
    def generate(tokens: list[int], count: int) -> list[int]:
        start = text + tokens
        ids = model.generate(torch.tensor([start]), past_key_values=cache, max_new_tokens=count, do_sample=False)
        text[:] = ids[0].tolist()[:-1]
        return ids[0, len(start) :].tolist()

    def reset() -> None:
        text.clear()
        cache.reset()

    return Functions(generate, reset)


class Genai:
    """The package onnxruntime-genai by itself over an ONNX artifact."""

    def __init__(self, artifact: Path) -> None:
        self.model = onnxruntime_genai.Model(str(artifact))
        self.reset()

    def reset(self) -> None:
        """Begin with a new generator: it cannot rewind a recurrent state."""
        parameters = onnxruntime_genai.GeneratorParams(self.model)
        parameters.set_search_options(max_length=2048)
        self.generator = onnxruntime_genai.Generator(self.model, parameters)

    def generate(self, tokens: list[int], count: int) -> list[int]:
        """Append the tokens and take as many steps."""
        self.generator.append_tokens(tokens)
        before = self.generator.token_count()
        while self.generator.token_count() - before < count and not self.generator.is_done():
            self.generator.generate_next_token()
        return [int(token) for token in self.generator.get_sequence(0)][before:]
