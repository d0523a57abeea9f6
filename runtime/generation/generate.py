"""Generation, plain and speculative, over one engine: propose, verify, accept, commit.

Greedy output is the same with any drafter and without one. With a temperature the distribution is the target's own
(``hybridge.runtime.generation.sampling``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from time import perf_counter

from torch import Tensor

from hybridge.cache.errors import TokenError, UsageError
from hybridge.runtime.core.sampling import Sampling
from hybridge.runtime.core.token_ids import Tokens, token_ids
from hybridge.runtime.generation.constraint import Constraint
from hybridge.runtime.generation.drafter import Context, Drafter
from hybridge.runtime.generation.pace import Pace
from hybridge.runtime.generation.sampling import Proposal, Sampler, Watch
from hybridge.runtime.generation.stats import GenerationStats, Origin
from hybridge.runtime.generation.target_session import TargetSession

Until = Callable[[int], bool]
"""Called with each new token; True makes it the last."""


def generate(
    session: TargetSession,
    tokens: Tokens,
    *,
    max_new_tokens: int,
    drafter: Drafter | None,
    sampling: Sampling,
    block_length: int | None,
    eos_ids: Collection[int] | None,
    until: Until | None,
    watch: Watch | None,
    constraint: Constraint | None,
    hidden: Tensor | None,
    stats: GenerationStats,
) -> Iterator[int]:
    """Yield up to ``max_new_tokens`` tokens that continue ``tokens``; an end-of-sequence token is the last one.

    Starts from the session's state and stops early where the context is full. Leave the session alone while the generator
    waits; once it is closed or done, the session's text ends just before the last token that it has yielded, wherever that was.
    Raises UsageError, TokenError and CapacityError before the first token. NumericalError may come at any: the session's text
    then says whether the last token that was yielded is committed. hidden [n, F]: tapped hidden states of the session's last n
    tokens, for a drafter that has not seen them. constraint: a fresh one, which decides what each token may be; the tokens that
    it forces are draft tokens, with a drafter and without.
    """
    if max_new_tokens < 1:
        raise UsageError(f"max_new_tokens is {max_new_tokens}, but must be at least 1.")
    if drafter is not None and session.verify_len < 2:
        raise UsageError(
            "this artifact verifies one token at a time, which leaves no room for draft tokens; "
            "export with --verify-len 2 or more, or generate without a drafter."
        )
    prompt = token_ids(tokens)
    if not prompt:
        raise TokenError("the prompt is empty; give at least one token.")
    if block_length is not None and not 2 <= block_length <= session.verify_len:
        raise UsageError(f"block_length is {block_length}, but must lie between 2 and the artifact's {session.verify_len}.")
    free = None if block_length is not None else drafter
    pace = session.pace(free) if free is not None else Pace(session.verify_lens, block_length)
    engine = Engine(session, drafter, Sampler(sampling, watch, constraint), pace, stats)
    if hidden is not None and drafter is not None and drafter.needs_hidden:
        engine.context.add_hidden(hidden)
    first = engine.read(prompt)
    ends = frozenset(session.manifest.eos_ids if eos_ids is None else eos_ids)
    return engine.run(first, max_new_tokens, lambda token: token in ends or (until is not None and until(token)))


@dataclass(frozen=True)
class Round:
    """Tokens that came of one round, how many draft tokens were verified for them, and the seconds until they were there.

    drafting: of these seconds, those of a proposal that could have been left out. forced: the draft tokens were a grammar's,
    which says nothing of the drafter.
    """

    new: list[int]
    proposed: int = 0
    forced: bool = False
    seconds: float = 0.0
    drafting: float = 0.0

    def origin(self, number: int) -> Origin:
        """Return where the token of that number comes from: a block's last one is the model's own."""
        if not self.proposed or number == len(self.new):
            return "own"
        return "forced" if self.forced else "draft"


class Engine:
    """One generation over a session."""

    def __init__(
        self, session: TargetSession, drafter: Drafter | None, sampler: Sampler, pace: Pace, stats: GenerationStats
    ) -> None:
        self.session, self.drafter, self.sampler, self.pace, self.stats = session, drafter, sampler, pace, stats
        self.context = Context([], sampler)
        self._unread = True
        self._drafting = 0.0

    def read(self, prompt: list[int]) -> int:
        """Prefill; returns the first new token."""
        with self.stats.timed("prefill"):
            logits = self.session.prefill(prompt)
        self.stats.prompt_tokens += len(prompt)
        self.context.tokens = self.session.tokens
        self._add_hidden(len(prompt))
        return self.sampler.choose(logits, self.context.tokens)

    def run(self, first: int, most: int, is_last: Until) -> Iterator[int]:
        """Yield ``first`` and what follows it, ``most`` tokens in all."""
        done = Round([first])
        while True:
            given = 0
            try:
                for token in done.new:
                    given += 1
                    self.stats.origin = done.origin(given)
                    self.context.tokens.append(token)
                    self.stats.new_tokens += 1
                    last = is_last(token) or self.stats.new_tokens == most
                    yield token
                    if last:
                        return
            finally:
                self._close(done, given)
            if self.session.room == 0:
                return
            done = self._round(min(most - self.stats.new_tokens, self.session.room))

    def _round(self, most: int) -> Round:
        """Propose and verify a block of at most ``most`` tokens, or decode one."""
        if self._unread:
            self._read_prompt()
        began, self._drafting = perf_counter(), 0.0
        forced = self._forced(most)
        proposal = Proposal(forced) if forced else self._worthwhile(most)
        new = self._verify(proposal) if proposal.tokens else self._decode()
        return Round(new, len(proposal.tokens), bool(forced), perf_counter() - began, self._drafting)

    def _worthwhile(self, most: int) -> Proposal:
        """Propose for a block of at most ``most`` tokens, as many as pay."""
        if self.drafter is None:
            return Proposal([])
        if not self.drafter.is_free:
            length = self.pace.choose(most)
            self._propose_in_shadow(decoding=length == 1)
            return self._cut(self._asked(length - 1))
        proposal = self._propose(min(most, self.session.verify_len) - 1)
        if not proposal.tokens:
            return proposal
        length = self.pace.choose(len(proposal.tokens) + 1, proposal.chance)
        return replace(proposal, tokens=proposal.tokens[: length - 1])

    def _forced(self, most: int) -> list[int]:
        """Return tokens that a grammar leaves no choice for, as many as are verified sooner than decoded."""
        constraint = self.sampler.constraint
        if constraint is None:
            return []
        tokens = constraint.forced()[: min(most, self.session.verify_len) - 1]
        return tokens[: self.pace.sure(len(tokens))]

    def _fitting(self, proposal: Proposal) -> Proposal:
        """Cut off what a grammar refuses, but for the first such token that was drawn: to reject it is part of the rule."""
        constraint = self.sampler.constraint
        if constraint is None or not proposal.tokens:
            return proposal
        count = constraint.fitting(proposal.tokens) + (proposal.probabilities is not None)
        return replace(proposal, tokens=proposal.tokens[:count])

    def _asked(self, limit: int) -> Proposal:
        """Propose, and note how long it took."""
        began = perf_counter()
        proposal = self._propose(limit)
        self._drafting = perf_counter() - began if proposal.tokens else 0.0
        return proposal

    def _cut(self, proposal: Proposal) -> Proposal:
        """Keep of a proposal what is likely enough to be verified, where the drafter says how likely each token is."""
        if not proposal.chances or not proposal.tokens:
            return proposal
        return replace(proposal, tokens=proposal.tokens[: self.pace.cut(proposal.chances)])

    def _propose(self, limit: int) -> Proposal:
        if self.drafter is None or limit < 1:
            return Proposal([])
        with self.stats.timed("draft"):
            return self._fitting(self.drafter.propose(self.context, limit))

    def _verify(self, proposal: Proposal) -> list[int]:
        """Return the tokens that follow the text, of which all but the last were proposed; they wait for a commit."""
        self.stats.note_draft(proposal.tokens)
        with self.stats.timed("verify"):
            logits = self.session.verify([self.context.tokens[-1], *proposal.tokens])
        return self.sampler.accept(logits, proposal, self.context.tokens)

    def _decode(self) -> list[int]:
        with self.stats.timed("decode"):
            logits = self.session.decode(self.context.tokens[-1])
        token = self.sampler.choose(logits, self.context.tokens)
        self.pace.compare(token)
        self._add_hidden(1)
        self.stats.decodes += 1
        return [token]

    def _propose_in_shadow(self, decoding: bool) -> None:
        """Propose only to compare with what comes: it tells whether speculation would pay again."""
        if decoding and self.pace.wants_shadow():
            began = perf_counter()
            self.pace.shadow(self._propose(self.pace.shadow_length).tokens, perf_counter() - began)

    def _read_prompt(self) -> None:
        """Let the drafter read the prompt, which is a prefill too; its first proposal is compared."""
        self._unread = False
        if self.drafter is not None:
            with self.stats.timed("prefill"):
                self.pace.shadow(self.drafter.propose(self.context, self.pace.shadow_length).tokens, 0.0)

    def _close(self, done: Round, given: int) -> None:
        """Commit what was given out of a round and account for it; the last token given waits for the next round."""
        began = perf_counter()
        if done.proposed:
            with self.stats.timed("commit"):
                self.session.commit(given)
            self._add_hidden(given)
            self.stats.count_block(self.stats.new_tokens - given, len(done.new) - 1, done.proposed, done.forced)
        if done.seconds:
            seconds = done.seconds + perf_counter() - began
            self.stats.new_seconds += seconds
            proposed, accepted = (0, 0) if done.forced else (done.proposed, len(done.new) - 1)
            self.pace.round_done(1 + done.proposed, proposed, accepted, seconds, done.drafting)

    def _add_hidden(self, count: int) -> None:
        """Let the context have the hidden states of the last call's first ``count`` tokens, now committed."""
        if self.drafter is not None and self.drafter.needs_hidden:
            self.context.add_hidden(self.session.hidden[:count])
