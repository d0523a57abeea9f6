"""Draft models: the text is plain decoding's, and those that do not fit a target are refused."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forgery import forge
from numpy.typing import NDArray
from store import demo_folder
from table import VOCABULARY, Table, table_model, table_session

from hybridge.errors import DraftError, GrammarError, UsageError
from hybridge.runtime import Artifact, ExportOptions, GenerationStats, Model, PromptLookup, Sampling, Session, open_artifact
from hybridge.runtime.artifact.folder import file_entry
from hybridge.runtime.artifact.model_info import ProgramInfo
from hybridge.runtime.binding.drafters import DraftModel, OwnDrafter
from hybridge.runtime.binding.programs import TextProgram

PROMPT = [5, 6, 7, 8, 9, 5, 6, 7]
CODE = [*b"class Point:\n    def __init__(self, x, y):\n        self.x = x\n"]


@pytest.fixture(scope="module")
def opened_artifact(artifact: Path) -> Artifact:
    return open_artifact(artifact)


@pytest.fixture
def session(artifact: Path) -> Session:
    return Session.load(artifact)


def generate(session: Session, draft: DraftModel | None, sampling: Sampling = Sampling()) -> tuple[list[int], GenerationStats]:  # noqa: B008
    session.reset()
    stats, block = GenerationStats(), 5 if draft else None
    tokens = session.generate(PROMPT, max_new_tokens=60, drafter=draft, sampling=sampling, block_length=block, stats=stats)
    return list(tokens), stats


@pytest.mark.slow
@pytest.mark.parametrize("seed", [None, 5])
def test_the_text_is_plain_decodings(seed: int | None) -> None:
    """A trained draft, in turns that go on, start anew and go back, and texts that its context does not hold."""
    demo = demo_folder()
    session = Session.load(demo / "hybridge-demo")
    draft = DraftModel(Model.open(open_artifact(demo / "hybridge-demo-draft")), session)
    sampling = Sampling() if seed is None else Sampling(temperature=0.8, top_k=30, repetition_penalty=1.1, seed=seed)
    stats = GenerationStats()
    for block in (None, 2, 4, 7):
        for prompt in (CODE, CODE[:9], CODE * 5):
            texts = []
            for drafter in (None, draft):
                session.reset()
                options: dict[str, Any] = {"block_length": block, "stats": stats} if drafter else {}
                new = session.generate(prompt, max_new_tokens=60, sampling=sampling, drafter=drafter, **options)
                texts.append(list(new))
            assert texts[0] == texts[1]
            assert block is None or min(stats.verifies, stats.accepted) > 5
    assert stats.rollbacks > 0


@pytest.mark.slow
def test_a_hybrid_draft_goes_back_by_its_own_snapshot() -> None:
    """What it read of a rejected block is gone from its state: with its own model's text it is right again, drawn or not."""
    demo = demo_folder()
    session = Session.load(demo / "hybridge-demo")
    draft = DraftModel(Model.open(open_artifact(demo / "hybridge-demo")), session)
    other = Session.load(demo / "hybridge-demo-draft")
    for target, sampling in ((session, Sampling()), (other, Sampling()), (session, Sampling(temperature=1.5, seed=2))):
        target.reset()
        stats = GenerationStats()
        list(target.generate(CODE, max_new_tokens=80, drafter=draft, sampling=sampling, block_length=4, stats=stats))
        right = stats.acceptance_rate
        assert right == 1.0 if target is session else 0 < right < 1


def test_another_vocabulary_is_refused() -> None:
    with pytest.raises(DraftError, match="7 tokens and the target 9"):
        DraftModel(table_model(), table_session(vocab_size=9))


def test_a_draft_without_slots_is_refused() -> None:
    options = ExportOptions(max_seq_len=60, snapshot_slots=0)
    draft = Model.over(TextProgram(Table(), 60, 0), ProgramInfo(vocab_size=VOCABULARY, options=options))
    with pytest.raises(DraftError, match="--snapshot-slots 1"):
        DraftModel(draft, table_session())


def test_a_draft_that_was_closed_is_refused(artifact: Path, opened_artifact: Artifact, session: Session) -> None:
    draft = DraftModel.load(artifact, opened_artifact, session)
    draft.model.close()
    with pytest.raises(UsageError, match="closed"):
        list(session.generate(PROMPT, max_new_tokens=3, drafter=draft))
    assert session.length == 0


def test_a_draft_for_another_target_is_refused_where_it_is_used() -> None:
    draft = DraftModel(table_model(), table_session())
    with pytest.raises(DraftError, match="7 tokens and the target 9"):
        list(table_session(vocab_size=9).generate([1], drafter=draft))


def test_a_tokenizer_that_means_other_tokens_is_refused(
    artifact_copy: Path, opened_artifact: Artifact, session: Session
) -> None:
    path = artifact_copy / "tokenizer.json"
    content = json.loads(path.read_text())
    vocabulary = content["model"]["vocab"]
    one, other = list(vocabulary)[:2]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    _replace_tokenizer(artifact_copy, json.dumps(content))
    with pytest.raises(DraftError, match="2 tokens differ"):
        DraftModel.load(artifact_copy, opened_artifact, session)


def test_a_tokenizer_written_otherwise_is_the_same(artifact_copy: Path, opened_artifact: Artifact, session: Session) -> None:
    _replace_tokenizer(artifact_copy, json.dumps(json.loads((artifact_copy / "tokenizer.json").read_text()), indent=1))
    guessed, stats = generate(session, DraftModel.load(artifact_copy, opened_artifact, session))
    assert guessed
    assert stats.proposed > 0


def _replace_tokenizer(folder: Path, text: str) -> None:
    (folder / "tokenizer.json").write_text(text)
    entry = file_entry(folder / "tokenizer.json")
    forge(folder, lambda content: content["files"].update({"tokenizer.json": entry.model_dump()}))


def test_an_artifact_without_a_drafter_of_its_own_says_how_to_get_one(session: Session) -> None:
    with pytest.raises(DraftError, match="--mtp"):
        OwnDrafter(session)


class Modulus:
    """Lets those tokens come that add up with the text's length to a multiple of ``modulus``."""

    def __init__(self, modulus: int, place: int) -> None:
        self.modulus, self.place = modulus, place

    def mask(self, logits: NDArray[np.float32]) -> None:
        logits[(np.arange(len(logits)) + self.place) % self.modulus != 0] = -np.inf

    def take(self, token: int) -> None:
        self.place += 1

    def forced(self) -> list[int]:
        return []

    def fitting(self, tokens: Sequence[int]) -> int:
        return len(tokens)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, top_k=30, seed=5)], ids=["greedy", "drawn"])
def test_a_constraint_decides_what_may_come_with_every_drafter(sampling: Sampling) -> None:
    demo = demo_folder()
    session = Session.load(demo / "hybridge-demo")
    draft = DraftModel(Model.open(open_artifact(demo / "hybridge-demo-draft")), session)
    texts, stats = [], GenerationStats()
    for drafter in (None, PromptLookup(), OwnDrafter(session), draft):
        session.reset()
        options: dict[str, Any] = {"block_length": 4, "stats": stats} if drafter else {}
        constraint = Modulus(3, len(CODE))
        new = session.generate(CODE, max_new_tokens=60, sampling=sampling, constraint=constraint, drafter=drafter, **options)
        texts.append(list(new))
    assert all((token + len(CODE) + i) % 3 == 0 for i, token in enumerate(texts[0]))
    assert texts[1:] == texts[:1] * 3
    assert stats.rollbacks > 0


def test_a_constraint_that_leaves_nothing_is_refused(session: Session) -> None:
    with pytest.raises(GrammarError, match="leaves no token"):
        list(session.generate(PROMPT, max_new_tokens=3, constraint=Modulus(10**9, 1)))
    session.reset()
    assert len(list(session.generate(PROMPT, max_new_tokens=3))) == 3
