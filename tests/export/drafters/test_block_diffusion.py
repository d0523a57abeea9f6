"""Block diffusion on hybrid targets, as a pipeline writes it by hand: draft a block, verify it, keep what is right.

What transformers' caches cannot do for recurrent layers, and what DFlash needs: the state after a rejection is that of a model
that has only ever read the accepted tokens.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drafter_programs import definition_of, hidden_states
from drafter_twins import Twin, dflash_config, random_tensors, save_drafter
from states import Arrays
from tiny import lively, loaded_model, tiny_config, tiny_model

from hybridge.export.drafters.plan import plan_drafter
from hybridge.export.program.eager import LoadedDrafter, eager_session
from hybridge.runtime import ExportOptions, Session

BLOCK = 6
PLAIN = ExportOptions(max_seq_len=64, prefill_chunk=7, verify_len=BLOCK)
OPTIONS = replace(PLAIN, draft_blocks=(BLOCK,))
FAMILIES = ["qwen3_5_text", "lfm2", "falcon_h1"]  # a delta rule, short convolutions, Mamba-2 beside attention
PROMPT = [5, 6, 7, 8, 9, 5, 6, 7]


@dataclass
class Pipeline:
    """A hybrid target with a DFlash drafter, both with random weights; the target's own greedy text is ``greedy``."""

    model: Any
    twin: Twin
    session: Session
    fresh: Session
    greedy: list[int]

    def run(self) -> Iterator[tuple[int, list[int]]]:
        """Generate; after each commit the number of accepted guesses, and the text that is committed.

        A random drafter is never right. So its guesses are made right up to a place that goes through the whole block.
        """
        self.session.reset()
        text = [*PROMPT, int(self.session.prefill(PROMPT).argmax())]
        hidden, right = self.session.hidden, 0
        while len(text) + BLOCK < len(self.greedy):
            guesses = self.session.draft(hidden, text[-len(hidden) :], limit=BLOCK - 1).tokens
            assert guesses == definition_of(self.twin, self.model)(text, BLOCK - 1), "the drafter's own state is right"
            guesses[:right] = self.greedy[len(text) :][:right]
            chosen = self.session.verify([text[-1], *guesses]).argmax(-1).tolist()
            accepted = next((i for i, guess in enumerate(guesses) if guess != chosen[i]), len(guesses))
            self.session.commit(1 + accepted)
            hidden = self.session.hidden[: 1 + accepted]
            text += [*guesses[:accepted], chosen[accepted]]
            yield accepted, text[:-1]
            right = (right + 1) % BLOCK

    def never_guessed(self, text: list[int]) -> Session:
        """A session that has read ``text``, and nothing else."""
        self.fresh.reset()
        self.fresh.prefill(text)
        return self.fresh


def states(session: Session) -> Arrays:
    """The target's recurrent states and convolution windows."""
    program = session.model.program
    assert program is not None
    found = {name: program.buffer(name).copy() for name in program.bounded}
    return {name: each for name, each in found.items() if each.dtype == np.float32}


def difference(one: Arrays, other: Arrays) -> float:
    return max(float(np.abs(one[name] - other[name]).max()) for name in one.keys() & other.keys())


@pytest.fixture(scope="module", params=FAMILIES)
def pipeline(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    model = lively(tiny_model(tiny_config(request.param)))
    config = model.config.get_text_config()
    drafter = dflash_config(config, ["full_attention"] * 2, [0, 1])
    tensors = random_tensors(drafter)
    plan, options = plan_drafter(config, OPTIONS, save_drafter(tmp_path_factory.mktemp("dflash"), drafter, tensors))
    assert plan is not None
    loaded = LoadedDrafter(plan, plan.load(loaded_model(Path(), copy.deepcopy(model))))
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    twin = Twin(drafter, tensors, embedding.weight.detach(), head.weight.detach())
    session, fresh = eager_session(model, options, loaded), eager_session(model, PLAIN)
    greedy = [*PROMPT, *fresh.generate(PROMPT, max_new_tokens=45, eos_ids=())]
    return Pipeline(model, twin, session, fresh, greedy)


def test_the_state_is_right_after_every_rejection(pipeline: Pipeline) -> None:
    seen = set()
    for accepted, text in pipeline.run():
        seen.add(accepted)
        assert pipeline.session.tokens == text
        assert difference(states(pipeline.session), states(pipeline.never_guessed(text))) < 1e-4
        last = pipeline.greedy[len(text)]
        uncached = pipeline.model(torch.tensor([[*text, last]]), use_cache=False).logits[0, -1]
        assert np.allclose(pipeline.session.verify([last])[0], uncached.detach(), atol=1e-3)
    assert seen >= set(range(BLOCK)), "guesses were rejected at every place of a block, and nowhere"


def test_the_text_is_the_targets_own(pipeline: Pipeline) -> None:
    *_, (_, text) = pipeline.run()
    assert text == pipeline.greedy[: len(text)]
    assert len(text) > 40


def test_a_state_that_keeps_a_rejected_token_would_be_noticed(pipeline: Pipeline) -> None:
    right = states(pipeline.never_guessed(PROMPT))
    rejected = (pipeline.greedy[len(PROMPT)] + 1) % 100
    pipeline.fresh.verify([rejected, 4])
    assert difference(states(pipeline.fresh), right) == 0, "a verify commits nothing"
    pipeline.fresh.commit(1)
    assert difference(states(pipeline.fresh), right) > 1e-2


def test_what_a_drafter_reads_is_what_the_target_saw(pipeline: Pipeline) -> None:
    pipeline.session.reset()
    pipeline.session.prefill(PROMPT)
    wanted = pipeline.twin.taps(hidden_states(pipeline.model, PROMPT))
    assert np.allclose(pipeline.session.hidden, wanted, atol=1e-4)
