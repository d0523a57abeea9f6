"""transformers' GenerationConfig in hybridge's words, and what of it is refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, MaxTimeCriteria, StoppingCriteriaList, StopStringCriteria

from hybridge.cache.errors import UsageError
from hybridge.export.pinned.transformers import ORIGIN, generation_defaults
from hybridge.runtime.core.sampling import Sampling

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
