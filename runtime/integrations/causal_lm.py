"""Offer an artifact behind transformers' interface: ``model.generate(**tokenizer(...))``, ``model(ids)`` and pipelines.

It needs transformers and no checkpoint; without transformers there is ``hybridge.runtime.Session``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self
from weakref import finalize

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig, MaxTimeCriteria, PreTrainedConfig, StoppingCriteriaList, StopStringCriteria
from transformers.modeling_outputs import CausalLMOutput

from hybridge.arguments import checked
from hybridge.errors import CapacityError, TokenError, UsageError
from hybridge.runtime.artifact.folder import Artifact, open_artifact
from hybridge.runtime.binding.checkpoint import PrefixCache
from hybridge.runtime.binding.checkpoint_folder import CheckpointFolder
from hybridge.runtime.binding.drafters import AutoDrafter, Drafter
from hybridge.runtime.binding.sampling import Sampling, token_ids
from hybridge.runtime.binding.session import Session
from hybridge.runtime.binding.statistics import GenerationStats
from hybridge.runtime.integrations.pinned import ORIGIN, BaseStreamer, generation_defaults, list_for_pipelines
from hybridge.runtime.text.generate import TextPiece, generate_text
from hybridge.runtime.text.grammars import Grammar, Grammars


class CausalLM:
    """A language model with the methods that transformers' scripts call, over a Session; one sequence at a time.

    Attributes:
        config: the sizes, for scripts that ask for them; it has no model type.
        generation_config: default values of ``generate``, from the artifact's generation_config.json.
        drafter: proposes draft tokens, which makes a generation faster; may be set at any time.
        stats: counts of the last generation.
        session: the session, for what transformers does not offer.
        checkpoints: those of the texts that were read; ``checkpoints.budget`` is in bytes.
    """

    device, dtype = torch.device("cpu"), torch.float32
    input_modalities, output_modalities = ("text",), ("text",)

    def __init__(
        self,
        session: Session,
        generation_config: GenerationConfig,
        drafter: Drafter | None = None,
        artifact: Artifact | None = None,
    ) -> None:
        self.session, self.generation_config, self.drafter = session, generation_config, drafter
        self._artifact = artifact
        self.config = PreTrainedConfig(vocab_size=session.vocab_size, max_position_embeddings=session.max_seq_len)
        self.stats = GenerationStats()
        self.checkpoints = PrefixCache(session.model)

    @classmethod
    @checked
    def from_pretrained(
        cls,
        folder: str | Path,
        *,
        drafter: Drafter | Literal["auto"] | None = "auto",
        cache_dir: str | Path | None = None,
        context: int | None = None,
    ) -> CausalLM:
        """Open an artifact.

        Args:
            folder: the artifact.
            drafter: proposes draft tokens; "auto" is an ``AutoDrafter``, and None decodes plainly.
            cache_dir: a folder that keeps checkpoints for the next time, ``checkpoints.budget`` bytes for each artifact.
            context: most tokens of a text, fewer than the artifact holds; as many as it holds if left out.

        Raises:
            ArtifactError: the folder is no artifact, or a damaged one.
            OutputError: ``cache_dir`` cannot be written.
            UsageError: the artifact does not hold a context of as many tokens.
        """
        opened = open_artifact(folder)
        config = read_generation_config(Path(folder), opened.manifest.eos_ids)
        session = Session.of(opened, context)
        if drafter == "auto":
            drafter = AutoDrafter(session) if session.verify_len > 1 else None
        model = cls(session, config, drafter, opened)
        if cache_dir is not None:
            disk = CheckpointFolder(Path(cache_dir), model.session, model.checkpoints.budget)
            disk.keep(model.checkpoints)
            finalize(model, disk.close)  # also where the process ends
        return model

    @cached_property
    def grammars(self) -> Grammars:
        """Return a maker of grammars from JSON schemas and expressions, for ``generate(..., grammar=...)``.

        Raises:
            UsageError: there is no tokenizer, or no token ends a text.
        """
        if self._artifact is None:
            raise UsageError("grammars need the artifact's tokenizer: open the artifact with hybridge.load.")
        return Grammars.of(self._artifact, ends(self.generation_config))

    def __call__(self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, **options: Any) -> CausalLMOutput:
        """Return the logits [1, T, V] after each token, as an uncached forward does.

        Args:
            input_ids: the tokens [1, T].
            attention_mask: ones [1, T]; padding is not supported.
            options: ``use_cache`` and ``return_dict`` change nothing; any other is refused.

        Raises:
            UsageError: an option is not supported.
            TokenError: there are several sequences, padding, or no tokens.
            CapacityError: the tokens do not fit.
        """
        tokens, session = one_sequence(input_ids, attention_mask), self.session
        if refused := [
            name for name, value in options.items() if value is not None and name not in ("use_cache", "return_dict")
        ]:
            raise UsageError(
                f"a call cannot do {', '.join(refused)}: it takes input_ids [1, T] and attention_mask, and returns logits. "
                "Session has a state, generate() continues a text."
            )
        self._keep_text()
        if len(tokens) > session.max_seq_len:
            raise CapacityError(f"{len(tokens)} tokens do not fit into max_seq_len = {session.max_seq_len}.")
        session.reset()
        blocks = []
        for start in range(0, len(tokens), session.verify_len):
            blocks.append(session.verify(tokens[start : start + session.verify_len]))
            session.commit(len(blocks[-1]))
        return CausalLMOutput(logits=torch.from_numpy(np.concatenate(blocks))[None])

    def can_generate(self) -> bool:
        """Return True, for pipelines."""
        return True

    def eval(self) -> Self:
        """Return the model: it is never in training."""
        return self

    def to(self, device: object) -> Self:
        """Return the model, which is on the CPU. Raises UsageError for another device or a dtype."""
        if isinstance(device, torch.dtype) or torch.device(device) != self.device:  # type: ignore[call-overload]
            raise UsageError(f"an artifact runs on the CPU in float32, not on {device}; leave it there: device='cpu'.")
        return self

    def generate(
        self,
        inputs: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        *,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
        streamer: BaseStreamer | None = None,
        tokenizer: Any = None,
        grammar: Grammar | None = None,
        **overrides: Any,
    ) -> Tensor:
        """Return prompt and new tokens, int64 [1, T + N].

        A prompt that begins like an earlier text is read from there on. The text ends early if the context is full.

        Args:
            inputs: the prompt [1, T], or ``input_ids``.
            generation_config: replaces the model's own.
            input_ids: the prompt [1, T].
            attention_mask: ones [1, T]; padding is not supported.
            stopping_criteria: end the text; they get no scores.
            streamer: gets the prompt, then each new token.
            tokenizer: needed for ``stop_strings``.
            grammar: constrains the new tokens; of ``grammars``.
            overrides: names of GenerationConfig.

        Raises:
            UsageError: an option is not supported.
            TokenError: there are several sequences, padding, or no tokens.
            CapacityError: the prompt does not fit.
            GrammarError: the grammar cannot be followed to its end.
        """
        prompt = one_sequence(inputs if input_ids is None else input_ids, attention_mask)
        config = resolve(generation_config, self.generation_config, overrides)
        criteria, ids = stopping(config, stopping_criteria, tokenizer), prompt.copy()
        most, drawn = new_tokens(config, len(prompt)), sampling(config)
        pieces = generate_text(
            self.session, self._unread(prompt), max_new_tokens=most, drafter=self.drafter, sampling=drawn, eos_ids=ends(config),
            until=lambda token: bool(criteria) and bool(criteria(torch.tensor([[*ids, token]]), None).all()),
            constraint=grammar.follow() if grammar is not None else None, stats=self._new_stats(),
        )  # fmt: skip
        for token in streamed(pieces, prompt, streamer):
            ids.append(token)
        return torch.tensor([ids])

    @checked
    def text_generation(self, tokenizer: Any, prompt: str, echo: bool = True, max_seq_len: int | None = None) -> str:
        """Return the greedy continuation of ``prompt``, as optimum's ExecuTorchModelForCausalLM does.

        Args:
            tokenizer: encodes and decodes.
            prompt: a text.
            echo: return the prompt, too.
            max_seq_len: most tokens in all.

        Raises:
            UsageError: the prompt leaves no room.
        """
        ids = list(tokenizer.encode(prompt))
        limit = min(max_seq_len or self.session.max_seq_len, self.session.max_seq_len)
        most = room(len(ids), limit, "max_seq_len")
        pieces = generate_text(
            self.session, self._unread(ids), max_new_tokens=most, drafter=self.drafter, stats=self._new_stats()
        )
        new = [token for piece in pieces for token in piece.tokens]
        return str(tokenizer.decode([*(ids if echo else []), *new], skip_special_tokens=True))

    def _unread(self, prompt: list[int]) -> list[int]:
        """Return the part of ``prompt`` that the session has not read, after going back to where their texts differ."""
        self._keep_text()
        self.session.resume_prefix(prompt[:-1], self.checkpoints)
        return prompt[self.session.length :]

    def _keep_text(self) -> None:
        """Keep a checkpoint of the session's text, which is about to be replaced."""
        self.session.keep_checkpoint(self.checkpoints)

    def _new_stats(self) -> GenerationStats:
        self.stats = GenerationStats()
        return self.stats


list_for_pipelines(CausalLM.__name__)


def one_sequence(ids: Tensor | None, mask: Tensor | None) -> list[int]:
    """Return the tokens of ids [1, T]. Raises TokenError for other shapes and types, no tokens, and a mask that hides any."""
    if not isinstance(ids, Tensor) or ids.ndim != 2 or ids.shape[0] != 1 or not ids.numel():
        shape = list(ids.shape) if isinstance(ids, Tensor) else type(ids).__name__
        raise TokenError(
            f"input_ids must be one sequence [1, T] of at least one token, a tensor, got {shape}; generate one after the other."
        )
    if mask is not None and not (isinstance(mask, Tensor) and mask.shape == ids.shape and mask.bool().all()):
        raise TokenError(
            "attention_mask hides tokens: padding is not supported; give one sequence without it, and no mask or ones."
        )
    return token_ids(ids[0])


def streamed(pieces: Iterator[TextPiece], prompt: list[int], streamer: BaseStreamer | None) -> Iterator[int]:
    """Yield the tokens of pieces. The streamer gets the prompt [1, T] before the first, then each token [1], then the end."""
    is_first = True
    with closing(pieces):  # type: ignore[type-var]  # a generator
        for token in (token for piece in pieces for token in piece.tokens):
            if streamer is not None:
                if is_first:
                    streamer.put(torch.tensor([prompt]))
                streamer.put(torch.tensor([token]))
            is_first = False
            yield token
    if streamer is not None:
        streamer.end()


# transformers' GenerationConfig in hybridge's words


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
"""Options that change no text here: one sequence is never padded, the state is in the program, the drafter proposes."""

DEFAULTS = generation_defaults()


def read_generation_config(folder: Path, eos_ids: list[int]) -> GenerationConfig:
    """Return the folder's ``generation_config.json``, or an empty one, with ``eos_ids`` if there are any."""
    has_one = (folder / "generation_config.json").is_file()
    config = GenerationConfig.from_pretrained(folder) if has_one else GenerationConfig()
    if eos_ids:
        config.eos_token_id = eos_ids
    return config


def resolve(given: GenerationConfig | None, own: GenerationConfig, overrides: dict[str, Any]) -> GenerationConfig:
    """Return the config of a generation: ``overrides``, then ``given``, the model's ``own``, and transformers' defaults.

    Raises:
        UsageError: an option is unknown, or would change the text and is not in ``USED``.
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
    """Return the config's sampling, greedy without ``do_sample``, seeded by torch's generator for ``set_seed`` to decide.

    Raises:
        UsageError: the values make no distribution.
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
    """Return the most new tokens after ``prompt`` tokens: ``max_new_tokens``, the rest of ``max_length``, or else 20.

    Raises:
        UsageError: ``max_length`` leaves none.
    """
    if config.max_new_tokens is not None:
        return int(config.max_new_tokens)
    if config.max_length is None:
        return int(DEFAULTS["max_length"])
    return room(prompt, config.max_length, "max_length")


def room(prompt: int, limit: int, name: str) -> int:
    """Return the number of tokens that ``limit`` leaves. Raises UsageError if the prompt leaves none."""
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
    """Return the tokens that end a text."""
    eos = config.eos_token_id
    return [] if eos is None else list(eos) if isinstance(eos, list) else [eos]


def _value(config: GenerationConfig, name: str) -> Any:
    """Return the config's value, or else transformers' default."""
    value = getattr(config, name)
    return DEFAULTS[name] if value is None else value
