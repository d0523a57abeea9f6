"""An artifact behind transformers' interface: ``model.generate(**tokenizer(...))``.

It needs transformers and no checkpoint; without transformers there is ``hybridge.runtime.Session``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import finalize

import torch
from torch import Tensor
from transformers import GenerationConfig, MaxTimeCriteria, StoppingCriteriaList, StopStringCriteria

from hybridge.cache.errors import TokenError, UsageError
from hybridge.runtime.artifacts.artifact import Artifact, open_artifact
from hybridge.runtime.core.checkpoint import PrefixCache, go_back, keep
from hybridge.runtime.core.checkpoint_folder import CheckpointFolder
from hybridge.runtime.core.drafters import Drafter
from hybridge.runtime.core.sampling import Sampling
from hybridge.runtime.core.session import Session
from hybridge.runtime.core.statistics import GenerationStats
from hybridge.runtime.integrations.pinned import ORIGIN, Streamer, generation_defaults
from hybridge.runtime.text.grammars import Grammar, Grammars


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


# transformers' GenerationConfig in hybridge's words, and what of it is refused.


USED = (
    "max_new_tokens", "max_length", "max_time", "stop_strings", "eos_token_id",
    "do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty",
)  # fmt: skip

NO_MATTER = frozenset(
    {
        *ORIGIN,
        *("bos_token_id", "pad_token_id"),
        *("use_cache", "cache_implementation", "cache_config", "max_cache_len", "compile_config", "disable_compile"),
        *("prompt_lookup_num_tokens", "max_matching_ngram_size", "num_assistant_tokens", "num_assistant_tokens_schedule"),
    }
)
"""Changes no text here: one sequence is never padded, the state is in the program, and draft tokens are a drafter's."""

DEFAULTS = generation_defaults()


def read_generation_config(folder: Path, eos_ids: list[int]) -> GenerationConfig:
    """The folder's ``generation_config.json``, or one that says nothing; ``eos_ids``, if any, are what ends a text."""
    has_one = (folder / "generation_config.json").is_file()
    config = GenerationConfig.from_pretrained(folder) if has_one else GenerationConfig()
    if eos_ids:
        config.eos_token_id = eos_ids
    return config


def resolve(given: GenerationConfig | None, own: GenerationConfig, overrides: dict[str, Any]) -> GenerationConfig:
    """Return ``overrides``, else what is ``given``, else the model's ``own``, else transformers' defaults.

    Raises UsageError for what this generation cannot do: names that GenerationConfig has not, and every option that would
    change the text and is not in ``USED``.
    """
    config = copy.deepcopy(given) if given else GenerationConfig()
    config.update(**own.to_dict(), defaults_only=True)
    unknown = config.update(**{name: value for name, value in overrides.items() if value is not None})
    refused = [name for name in DEFAULTS if name not in NO_MATTER.union(USED) and _is_set(config, name)]
    if wrong := [*unknown, *refused]:
        raise UsageError(
            f"generate() cannot do {', '.join(wrong)}; it takes input_ids, attention_mask, streamer, stopping_criteria, "
            f"tokenizer, and of GenerationConfig {', '.join(USED)}. Leave the others at transformers' defaults."
        )
    return config


def _is_set(config: GenerationConfig, name: str) -> bool:
    value = getattr(config, name)
    return bool(value) and value != DEFAULTS[name]


def sampling(config: GenerationConfig) -> Sampling:
    """Return greedy without ``do_sample``. The seed comes from torch's generator, so that ``set_seed`` decides.

    Raises UsageError for values that make no distribution.
    """
    penalty = _value(config, "repetition_penalty")
    if not config.do_sample:
        return Sampling(repetition_penalty=penalty)
    return Sampling(
        temperature=_value(config, "temperature"),
        top_k=_value(config, "top_k"),
        top_p=_value(config, "top_p"),
        min_p=config.min_p or 0.0,
        repetition_penalty=penalty,
        seed=int(torch.randint(1 << 62, ())),
    )


def new_tokens(config: GenerationConfig, prompt: int) -> int:
    """Return how many tokens may follow ``prompt``: ``max_new_tokens``, else what ``max_length`` leaves, else 20.

    Raises UsageError where that is none.
    """
    if config.max_new_tokens is not None:
        return int(config.max_new_tokens)
    if config.max_length is None:
        return int(DEFAULTS["max_length"])
    return room(prompt, config.max_length, "max_length")


def room(prompt: int, limit: int, name: str) -> int:
    """Return how many tokens ``limit`` in all leaves. Raises UsageError if the prompt leaves none."""
    if prompt >= limit:
        raise UsageError(f"the prompt has {prompt} tokens, which leaves none of {name} = {limit}; give a larger one.")
    return limit - prompt


def stopping(config: GenerationConfig, criteria: StoppingCriteriaList | None, tokenizer: Any) -> StoppingCriteriaList:
    """Return ``criteria`` with ``max_time``'s and ``stop_strings``'. Raises UsageError for stop strings without a tokenizer."""
    every = StoppingCriteriaList(criteria or [])
    if config.max_time is not None:
        every.append(MaxTimeCriteria(max_time=config.max_time))
    if config.stop_strings is not None:
        if tokenizer is None:
            raise UsageError("stop_strings need the tokenizer: generate(..., stop_strings=[...], tokenizer=tokenizer).")
        every.append(StopStringCriteria(tokenizer=tokenizer, stop_strings=config.stop_strings))
    return every


def ends(config: GenerationConfig) -> list[int]:
    """Return the tokens that end a text; none where the config has none."""
    eos = config.eos_token_id
    return [] if eos is None else list(eos) if isinstance(eos, list) else [eos]


def _value(config: GenerationConfig, name: str) -> Any:
    """Return the config's value, else transformers' default."""
    value = getattr(config, name)
    return DEFAULTS[name] if value is None else value
