"""Register an artifact as a model of EleutherAI's lm-evaluation-harness (``lm_eval``, 0.4.13)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from rich.console import Console
from rich.progress import track

from hybridge.errors import CapacityError, UsageError
from hybridge.runtime.binding.sampling import Sampling
from hybridge.runtime.binding.session import Logits
from hybridge.runtime.text.chat_template import load_template
from hybridge.runtime.text.generate import generate_text, open_text_model

Scored = tuple[tuple[str, str], list[int], list[int]]
"""Context and continuation as text, and the tokens of each."""
Score = tuple[float, bool]
"""The log likelihood of a continuation, and True if greedy decoding writes it."""


@register_model("hybridge")
class HybridgeLM(TemplateLM):  # type: ignore[misc]  # untyped upstream
    """``--model hybridge --model_args artifact=OUT``: likelihoods and texts of an artifact, one sequence at a time.

    Greedy texts are the same with every drafter and without.
    """

    def __init__(
        self,
        artifact: str,
        draft: str | None = None,
        lookup: bool = False,
        own: bool = False,
        max_gen_toks: int = 256,
        threads: int | None = None,
        batch_size: object = 1,
        max_batch_size: object = None,
        device: object = None,
    ) -> None:
        """Open an artifact.

        Args:
            artifact: its folder.
            draft: the artifact of a draft model.
            lookup: draft by prompt lookup.
            own: draft with the artifact's own drafter.
            max_gen_toks: new tokens if a task does not say how many.
            threads: of the kernels.
            batch_size: passed by the harness to every model; changes nothing, as max_batch_size and device.
            max_batch_size: see batch_size.
            device: see batch_size.
        """
        super().__init__()
        plain = not (draft or lookup or own)
        drafts = Path(draft) if draft else None
        self.model = open_text_model(Path(artifact), draft=drafts, lookup=lookup, own=own, plain=plain, threads=threads)
        self.session, self.manifest = self.model.session, self.model.artifact.manifest
        self.max_gen_toks, self.max_length = max_gen_toks, self.session.max_seq_len

    @property
    def eot_token_id(self) -> int:
        """Return the token that ends a text, or else begins one. Raises UsageError without either."""
        for token in (*self.manifest.eos_ids, self.manifest.bos_id):
            if token is not None:
                return int(token)
        raise UsageError("no token of this artifact begins or ends a text, which the harness needs to score texts by.")

    @property
    def prefix_token_id(self) -> int:
        """Return the token in front of a text without context."""
        return self.eot_token_id if self.manifest.bos_id is None else int(self.manifest.bos_id)

    @property
    def tokenizer_name(self) -> str:
        """Return the key of the tokenizer and its template in the harness's caches."""
        return self.manifest.files["tokenizer.json"].sha256

    def chat_template(self, chat_template: bool | str = False) -> str:
        """Return the name of the template for the harness's records: it is the artifact's own."""
        return self.tokenizer_name if chat_template else ""

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Return the text of a conversation up to the assistant's turn. Raises UsageError without a template."""
        return load_template(self.model.artifact).render([dict(message) for message in chat_history]).text

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Return the tokens of a text, by default with those that the tokenizer adds to every text.

        A text that begins with bos, as a chat template writes it, gets no second one.
        """
        tokenizer, start = self.model.tokenizer, self.model.tokenizer.before_texts
        plain = tokenizer.encode(string, around=False).ids
        written = add_special_tokens is None and bool(start) and plain[: len(start)] == start
        return plain if add_special_tokens is False or written else tokenizer.encode(string).ids

    def _loglikelihood_tokens(self, requests: list[Scored], disable_tqdm: bool = False, **_: Any) -> list[Score]:
        """Score continuations. A context is read once for all of its continuations."""
        order = sorted(range(len(requests)), key=lambda i: requests[i][1])
        found: dict[int, Score] = {}
        groups = [(context, list(group)) for context, group in groupby(order, key=lambda i: requests[i][1])]
        for context, group in _shown(groups, "Scoring", hidden=disable_tqdm):
            for i, answer in self._scored(context, [(i, requests[i][2]) for i in group]):
                found[i] = answer
                self.cache_hook.add_partial("loglikelihood", requests[i][0], answer)
        return [found[i] for i in range(len(requests))]

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Return the log likelihood of each whole text, in windows if it is longer than the artifact's context."""
        totals = []
        for (text,) in _shown([request.args for request in requests], "Scoring whole texts", hidden=disable_tqdm):
            windows = get_rolling_token_windows(
                token_list=self.tok_encode(text, add_special_tokens=False),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            pairs = [(("", text), *make_disjoint_window(pair)) for pair in windows]
            totals.append(sum(score for score, _ in self._loglikelihood_tokens(pairs, disable_tqdm=True)))
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), totals[-1])
        return totals

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Return the text that the model writes after each context, up to a stop string or the end of the text."""
        texts = []
        for context, choices in _shown([request.args for request in requests], "Generating", hidden=disable_tqdm):
            texts.append(self._written(context, dict(choices)))
            self.cache_hook.add_partial("generate_until", (context, choices), texts[-1])
        return texts

    def _scored(self, context: list[int], continuations: Iterable[tuple[int, list[int]]]) -> Iterator[tuple[int, Score]]:
        """Yield the score of each numbered continuation. The context is read once if there is a snapshot slot."""
        first: Logits | None = None
        kept = 0
        for i, continuation in continuations:
            room = self.max_length + 1 - len(continuation)
            if room < 1:
                raise CapacityError(f"a continuation has {len(continuation)} tokens; the artifact holds {self.max_length}.")
            if first is None or kept != min(room, len(context)) or not self.session.snapshot_slots:
                kept = min(room, len(context))
                self.session.reset()
                first = self.session.prefill(context[-kept:])
                if self.session.snapshot_slots:
                    self.session.snapshot(0)
            else:
                self.session.restore(0)
            yield i, self._score(first, continuation)

    def _score(self, first: Logits, continuation: Sequence[int]) -> Score:
        """Return the score of a continuation of the committed context, whose last logits are ``first``."""
        rows, size = [first[None]], self.session.verify_len
        for start in range(0, len(continuation) - 1, size):
            block = continuation[start : min(start + size, len(continuation) - 1)]
            rows.append(self.session.verify(block))
            self.session.commit(len(block))
        logits, tokens = torch.from_numpy(np.concatenate(rows)), torch.tensor(continuation)
        scores = logits.double().log_softmax(-1).gather(-1, tokens[:, None])
        return float(scores.sum()), bool((logits.argmax(-1) == tokens).all())

    def _written(self, context: str, choices: dict[str, Any]) -> str:
        stops = choices.get("until") or []
        most = min(int(choices.get("max_gen_toks", self.max_gen_toks)), self.max_length - 1)
        ids = self.tok_encode(context)[-(self.max_length - most) :]
        self.session.reset()
        pieces = generate_text(
            self.session, ids, self.model.tokenizer, max_new_tokens=most, drafter=self.model.drafter,
            sampling=_sampling(choices), stop=[stops] if isinstance(stops, str) else [stop for stop in stops if stop],
        )  # fmt: skip
        return "".join(piece.text for piece in pieces)


def _shown(items: Sequence[Any], what: str, *, hidden: bool) -> Iterable[Any]:
    """Return the items, with a progress bar on stderr."""
    return track(items, what, console=Console(stderr=True), transient=True, disable=hidden)


def _sampling(choices: dict[str, Any]) -> Sampling:
    """Return the sampling of a task, greedy unless it asks for samples."""
    if not choices.get("do_sample"):
        return Sampling(temperature=0.0)
    return Sampling(
        temperature=float(choices.get("temperature", 1.0)),
        top_k=int(choices.get("top_k", 0)),
        top_p=float(choices.get("top_p", 1.0)),
        seed=0,
    )
