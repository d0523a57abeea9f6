"""Block drafters against their published definition, over random programs with rollbacks, snapshots, restores and windows."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drafter_programs import compare_blocks, definition_of, drawn_token, hidden_states
from drafter_twins import Twin, dflash2_config, dflash_config, dspark_config, random_tensors, save_drafter
from numpy.typing import NDArray
from states import around_a_restore
from tiny import lively, loaded_model, tiny_config, tiny_model
from torch import Tensor

from hybridge.export.drafters.drafter import ArtifactDrafter
from hybridge.export.drafters.plan import plan_drafter
from hybridge.export.drafters.vocabulary import choose_rows
from hybridge.export.program.eager import EagerProgram, LoadedDrafter, eager_session
from hybridge.runtime import ExportOptions, Sampling, Session
from hybridge.runtime.binding.drafters import OwnDrafter
from hybridge.runtime.binding.session import DraftNoise

OPTIONS = ExportOptions(max_seq_len=45, prefill_chunk=7, verify_len=6, shorter_verify_lens=(3,), draft_blocks=(2, 4, 6))
FULL, SLIDING = "full_attention", "sliding_attention"
KINDS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "dflash": lambda target: dflash_config(target, [FULL, FULL], [0, 1]),
    "dflash windows": lambda target: dflash_config(target, [SLIDING, FULL, SLIDING], [1, 0]),
    "dflash2": lambda target: dflash2_config(target, [SLIDING, FULL], [0, 1]),
    "dflash2 causal": lambda target: dflash2_config(target, [FULL, SLIDING], [1], is_causal=True),
    "dspark": lambda target: dspark_config(target, [FULL, FULL], [0, 1]),
    "dspark windows": lambda target: dspark_config(target, [SLIDING, SLIDING], [0], enable_confidence_head=False),
}
FAMILIES = ["qwen3_5_text", "lfm2", "falcon_h1", "gemma3_text"]


class Subject:
    """A session with a drafter, and the model and the definition that it is held against."""

    def __init__(self, folder: Path, family: str, kind: str, vocabulary: int | None = None) -> None:
        self.model = lively(tiny_model(tiny_config(family)))
        config = self.model.config.get_text_config()
        drafter = KINDS[kind](config)
        tensors = random_tensors(drafter)
        embedding, head = self.model.get_input_embeddings(), self.model.get_output_embeddings()
        self.twin = Twin(drafter, tensors, embedding.weight.detach(), head.weight.detach())
        plan, self.options = plan_drafter(config, OPTIONS, save_drafter(folder, drafter, tensors), vocabulary)
        assert plan is not None
        target = loaded_model(folder, copy.deepcopy(self.model))
        self.rows = choose_rows(target, plan.vocabulary) if plan.vocabulary else None
        self.session = eager_session(self.model, self.options, LoadedDrafter(plan, plan.load(target), self.rows))

    def definition(self, tokens: list[int], count: int) -> tuple[list[int], Tensor, Tensor]:
        """Guesses after ``tokens``, of which the last is not committed."""
        return self.twin.guess(self.twin.taps(hidden_states(self.model, tokens[:-1])), tokens[-1], count)


PAIRS = [*((FAMILIES[0], kind) for kind in KINDS), *((family, "dflash2") for family in FAMILIES[1:])]


@pytest.fixture(scope="module", params=PAIRS)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return Subject(tmp_path_factory.mktemp("drafter"), *request.param)


FEW = [("qwen3_5_text", "dflash2"), ("qwen3_5_text", "dspark windows"), ("lfm2", "dflash2")]
of_few = pytest.mark.parametrize(
    "subject", [pytest.param(each, marks=[] if each in FEW else pytest.mark.thorough) for each in PAIRS], indirect=True
)
"""For tests of texts, which no draft token changes: with and without chances, and a target of another kind."""


def test_proposals_are_those_of_the_definition(subject: Subject) -> None:
    definition = definition_of(subject.twin, subject.model)
    assert sum(compare_blocks(subject.session, definition, seed, operations=25) for seed in range(2)) > 20


NOISE = [0, 12345, 2**31, 99, 2**32 - 1]


@pytest.mark.parametrize("kind", ["dflash", "dflash2", "dspark"])
def test_a_part_of_the_vocabulary_may_be_proposed(tmp_path: Path, kind: str) -> None:
    subject = Subject(tmp_path, FAMILIES[0], kind, vocabulary=70)
    assert subject.rows is not None
    ids = subject.rows.ids
    assert {*range(70)} < {*ids.tolist()} < {*range(subject.session.vocab_size)}
    subject.twin.allowed = torch.from_numpy(ids)
    assert compare_blocks(subject.session, definition_of(subject.twin, subject.model), seed=0, operations=25) > 10
    session = subject.session
    drafted = session.draft(read(session, [4, 5, 6]), [5, 6, 8], limit=5, draws=DraftNoise(NOISE, 1.0))
    assert {*drafted.tokens} <= {*ids.tolist()}
    _, scores, _ = subject.twin.guess(subject.twin.taps(hidden_states(subject.model, [4, 5, 6])), 8, 5, drawn=drafted.tokens)
    assert drafted.tokens == [drawn_token(row, 1.0, noise) for row, noise in zip(scores, NOISE, strict=True)]


def test_rows_before_a_restored_length_are_still_known(subject: Subject) -> None:
    """They were all copied anew, because nobody counted those of the drafter."""
    subject.session.reset()
    first, again = around_a_restore(subject.session)
    assert again.parts()[:-2] == first.parts()[:-1]


@of_few
def test_text_is_plain_decodings(subject: Subject) -> None:
    session, prompt = subject.session, [5, 6, 7, 8, 9, 5, 6, 7]
    texts = []
    for drafter, block in ((None, None), (OwnDrafter(session), 6), (OwnDrafter(session), 2), (OwnDrafter(session), None)):
        session.reset()
        texts.append(list(session.generate(prompt, max_new_tokens=37, drafter=drafter, block_length=block, eos_ids=())))
    assert texts[1:] == texts[:1] * 3
    assert len(texts[0]) == 37, "the context is full within a block"


def read(session: Session, tokens: list[int]) -> NDArray[np.float32]:
    """The hidden states of a text from the start."""
    session.reset()
    session.prefill(tokens)
    return session.hidden


def test_tokens_are_drawn_by_the_noise_of_their_positions(subject: Subject) -> None:
    session, heat = subject.session, 1.7
    drafted = session.draft(read(session, [4, 5, 6, 7]), [5, 6, 7, 8], limit=5, draws=DraftNoise(NOISE, heat))
    _, scores, _ = subject.twin.guess(subject.twin.taps(hidden_states(subject.model, [4, 5, 6, 7])), 8, 5, drawn=drafted.tokens)
    assert drafted.tokens == [drawn_token(row, heat, noise) for row, noise in zip(scores, NOISE, strict=True)]


@of_few
def test_a_seeds_text_is_the_same_with_it(subject: Subject) -> None:
    session, sampling, texts = subject.session, Sampling(temperature=1.0, seed=3), []
    for drafter in (None, OwnDrafter(session)):
        session.reset()
        texts.append(list(session.generate([4, 5, 6, 7], max_new_tokens=30, drafter=drafter, sampling=sampling, eos_ids=())))
    assert texts[0] == texts[1]


def test_chances_are_the_drafters_own(subject: Subject) -> None:
    drafted = subject.session.draft(read(subject.session, [4, 5, 6, 7]), [5, 6, 7, 8], limit=3)
    tokens, _, confidences = subject.definition([4, 5, 6, 7, 8], 3)
    assert drafted.tokens == tokens
    assert np.allclose(drafted.confidences, confidences, atol=1e-4)


@pytest.mark.parametrize("kind", ["dflash", "dflash2", "dspark"])
def test_a_drafter_that_is_broken_breaks_nothing(tmp_path: Path, kind: str) -> None:
    subject = Subject(tmp_path, FAMILIES[0], kind)
    session, program = subject.session, subject.session.model.program
    assert isinstance(program, EagerProgram)
    plain = list(session.generate([5, 6, 7], max_new_tokens=20, eos_ids=()))
    drafter = program._methods["draft"].drafter
    assert isinstance(drafter, ArtifactDrafter)
    drafter.get_submodule("weights.backbone.norm").weight.fill_(float("nan"))
    for sampling in (Sampling(), Sampling(temperature=1.0, seed=1), Sampling(temperature=1.0)):
        session.reset()
        drafted = session.generate([5, 6, 7], max_new_tokens=20, drafter=OwnDrafter(session), sampling=sampling, eos_ids=())
        tokens = list(drafted)
        assert len(tokens) == 20
        assert sampling.temperature or tokens == plain
