"""An artifact behind transformers' interface: ``model.generate(**tokenizer(...))``.

It needs transformers and no checkpoint; without transformers there is ``hybridge.runtime.Session``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import finalize

import torch
from torch import Tensor
from transformers import GenerationConfig, StoppingCriteriaList

from hybridge.cache.errors import TokenError, UsageError
from hybridge.export.pinned.transformers import Streamer
from hybridge.export.transformers_api.generation_options import (
    ends,
    new_tokens,
    read_generation_config,
    resolve,
    room,
    sampling,
    stopping,
)
from hybridge.runtime.artifacts.artifact import Artifact, open_artifact
from hybridge.runtime.core.checkpoint import PrefixCache, go_back, keep
from hybridge.runtime.core.checkpoint_folder import CheckpointFolder
from hybridge.runtime.core.drafters import Drafter
from hybridge.runtime.core.session import Session
from hybridge.runtime.core.statistics import GenerationStats
from hybridge.runtime.structured.grammars import Grammar, Grammars


class CausalLM:
    """A language model as transformers' scripts know them, over a Session; one sequence at a time.

    generation_config: what holds where a call says nothing, from the artifact's generation_config.json. drafter: proposes,
    which changes the time and not the text; may be set at any time. stats: of the last generation. session: for what
    transformers has no word for. checkpoints: of the texts that were read; ``checkpoints.budget`` is in bytes.
    """

    device = torch.device("cpu")

    def __init__(
        self,
        session: Session,
        generation_config: GenerationConfig,
        drafter: Drafter | None = None,
        artifact: Artifact | None = None,
    ) -> None:
        self.session, self.generation_config, self.drafter = session, generation_config, drafter
        self._artifact = artifact
        self.stats = GenerationStats()
        self.checkpoints = PrefixCache(session.model)

    @classmethod
    def from_pretrained(
        cls, folder: str | Path, *, drafter: Drafter | None = None, cache_dir: str | Path | None = None
    ) -> CausalLM:
        """Open an artifact. Raises ArtifactError, saying what is wrong with the folder, and OutputError for ``cache_dir``.

        cache_dir: a folder in which checkpoints stay for the next time, of ``checkpoints.budget`` bytes for each artifact.
        """
        opened = open_artifact(folder)
        config = read_generation_config(Path(folder), opened.manifest.eos_ids)
        model = cls(Session.of(opened), config, drafter, opened)
        if cache_dir is not None:
            disk = CheckpointFolder(Path(cache_dir), model.session, model.checkpoints.budget)
            disk.keep(model.checkpoints)
            finalize(model, disk.close)  # also where the process ends
        return model

    @cached_property
    def grammars(self) -> Grammars:
        """Return what makes grammars of JSON schemas and expressions, for ``generate(..., grammar=...)``.

        Raises UsageError without llguidance, without a tokenizer, and where nothing ends a text.
        """
        if self._artifact is None:
            raise UsageError("grammars need the artifact's tokenizer: open the artifact with hybridge.load.")
        return Grammars.of(self._artifact, ends(self.generation_config))

    def generate(
        self,
        inputs: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        *,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
        streamer: Streamer | None = None,
        tokenizer: Any = None,
        grammar: Grammar | None = None,
        **overrides: Any,
    ) -> Tensor:
        """Return prompt and new tokens, int64 [1, T + N], of a prompt [1, T] that is given as ``inputs`` or ``input_ids``.

        overrides are names of GenerationConfig. Of a prompt that begins like an earlier text, only what is new is read. Ends
        early where the context is full. Stopping criteria get no scores. grammar: what the new tokens follow, of ``grammars``.
        Raises UsageError for options that are not supported, TokenError for several sequences, padding or no tokens,
        CapacityError for a prompt that does not fit, GrammarError where a grammar cannot be followed to its end.
        """
        prompt = one_sequence(inputs if input_ids is None else input_ids, attention_mask)
        config = resolve(generation_config, self.generation_config, overrides)
        criteria, ids = stopping(config, stopping_criteria, tokenizer), prompt.copy()
        most, drawn = new_tokens(config, len(prompt)), sampling(config)
        tokens = self.session.generate(
            self._unread(prompt),
            max_new_tokens=most,
            drafter=self.drafter,
            sampling=drawn,
            eos_ids=ends(config),
            until=lambda token: bool(criteria) and bool(criteria(torch.tensor([[*ids, token]]), None).all()),
            constraint=grammar.follow() if grammar is not None else None,
            stats=self._new_stats(),
        )
        for token in streamed(tokens, prompt, streamer):
            ids.append(token)
        return torch.tensor([ids])

    def text_generation(self, tokenizer: Any, prompt: str, echo: bool = True, max_seq_len: int | None = None) -> str:
        """Return the greedy continuation of ``prompt``, with it where ``echo``, of at most ``max_seq_len`` tokens in all.

        The interface of optimum's ExecuTorchModelForCausalLM. Raises UsageError where the prompt leaves no room.
        """
        ids = list(tokenizer.encode(prompt))
        limit = min(max_seq_len or self.session.max_seq_len, self.session.max_seq_len)
        most = room(len(ids), limit, "max_seq_len")
        new = self.session.generate(self._unread(ids), max_new_tokens=most, drafter=self.drafter, stats=self._new_stats())
        return str(tokenizer.decode([*(ids if echo else []), *new], skip_special_tokens=True))

    def _unread(self, prompt: list[int]) -> list[int]:
        """Return what the session has not read of ``prompt``, which it goes back for if it holds any other text."""
        if self.session.length:
            keep(self.session, self.checkpoints)
        go_back(self.session, prompt[:-1], self.checkpoints)
        return prompt[self.session.length :]

    def _new_stats(self) -> GenerationStats:
        self.stats = GenerationStats()
        return self.stats


def one_sequence(ids: Tensor | None, mask: Tensor | None) -> list[int]:
    """Return the tokens of ids [1, T]. Raises TokenError for other shapes, no tokens, and a mask that hides any."""
    if ids is None or ids.ndim != 2 or ids.shape[0] != 1 or not ids.numel():
        shape = "none" if ids is None else list(ids.shape)
        raise TokenError(
            f"input_ids must be one sequence [1, T] of at least one token, got {shape}; generate one after the other."
        )
    if mask is not None and (mask.shape != ids.shape or not mask.bool().all()):
        raise TokenError(
            "attention_mask hides tokens: padding is not supported; give one sequence without it, and no mask or ones."
        )
    return [int(token) for token in ids[0]]


def streamed(tokens: Iterator[int], prompt: list[int], streamer: Streamer | None) -> Iterator[int]:
    """Yield ``tokens``, each shown to the streamer, the prompt first, in transformers' shapes: [1, T], then [1]."""
    if streamer is None:
        yield from tokens
        return
    with closing(tokens):  # type: ignore[type-var]  # a generator
        streamer.put(torch.tensor([prompt]))
        for token in tokens:
            streamer.put(torch.tensor([token]))
            yield token
        streamer.end()
