"""A draft model over real programs, and draft models that do not fit a target."""

import json
from pathlib import Path

import pytest
from forgery import forge
from table import Table, table_session

from hybridge.cache.errors import ArtifactError, DraftError
from hybridge.runtime import Artifact, GenerationStats, Sampling, Session, open_artifact
from hybridge.runtime.artifacts.artifact import file_entry
from hybridge.runtime.core.drafters import BlockDrafter, DraftModel

PROMPT = [5, 6, 7, 8, 9, 5, 6, 7]


@pytest.fixture(scope="module")
def opened(artifact: Path) -> Artifact:
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
def test_a_model_that_guesses_for_itself_is_always_right(artifact: Path, opened: Artifact, session: Session) -> None:
    plain, _ = generate(session, None)
    guessed, stats = generate(session, DraftModel.load(artifact, opened, session))
    assert guessed == plain
    assert stats.acceptance_rate == 1.0
    assert stats.mean_accepted_length > 4.5


class Mistaken(DraftModel):
    """Every third draft token is another one than the draft model would propose: its state must go back each time."""

    def propose(self, context, limit):  # type: ignore[no-untyped-def]
        proposal = super().propose(context, limit)
        for i in range(len(context.tokens) % 3, len(proposal.tokens), 3):
            proposal.tokens[i] = (proposal.tokens[i] + 1) % self.session.vocab_size
        return proposal


@pytest.mark.slow
def test_a_hybrid_draft_goes_back_by_its_own_snapshot(artifact: Path, session: Session) -> None:
    plain, _ = generate(session, None)
    draft = Mistaken(Session.load(artifact), session)
    guessed, stats = generate(session, draft)
    assert guessed == plain
    assert stats.rollbacks > 10
    assert stats.accepted > 15, "what is not spoilt is right, as the draft is the target"


@pytest.mark.slow
def test_a_seed_gives_the_text_of_plain_sampling(artifact: Path, opened: Artifact, session: Session) -> None:
    sampling = Sampling(temperature=0.8, top_k=20, seed=3)
    plain, _ = generate(session, None, sampling)
    guessed, stats = generate(session, DraftModel.load(artifact, opened, session), sampling)
    assert guessed == plain
    assert 0 < stats.acceptance_rate < 1


def test_another_vocabulary_is_refused() -> None:
    with pytest.raises(DraftError, match="7 tokens and the target 9"):
        DraftModel(table_session(), table_session(vocab_size=9))


def test_a_draft_without_slots_is_refused() -> None:
    draft = table_session()
    draft.snapshot_slots = 0
    with pytest.raises(DraftError, match="--snapshot-slots 1"):
        DraftModel(draft, table_session())


def test_a_tokenizer_that_means_other_tokens_is_refused(copied: Path, opened: Artifact, session: Session) -> None:
    path = copied / "tokenizer.json"
    content = json.loads(path.read_text())
    vocabulary = content["model"]["vocab"]
    one, other = list(vocabulary)[:2]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    _replace_tokenizer(copied, json.dumps(content))
    with pytest.raises(DraftError, match="2 tokens differ"):
        DraftModel.load(copied, opened, session)


def test_a_tokenizer_written_otherwise_is_the_same(copied: Path, opened: Artifact, session: Session) -> None:
    _replace_tokenizer(copied, json.dumps(json.loads((copied / "tokenizer.json").read_text()), indent=1))
    guessed, stats = generate(session, DraftModel.load(copied, opened, session))
    assert guessed
    assert stats.proposed > 0


def _replace_tokenizer(folder: Path, text: str) -> None:
    (folder / "tokenizer.json").write_text(text)
    entry = file_entry(folder / "tokenizer.json")
    forge(folder, lambda content: content["files"].update({"tokenizer.json": entry.model_dump()}))


def test_another_format_version_is_refused(copied: Path, opened: Artifact, session: Session) -> None:
    forge(copied, lambda content: content.update(format_version=99))
    with pytest.raises(ArtifactError, match="format version 99"):
        DraftModel.load(copied, opened, session)


def test_a_checkpoint_is_no_draft(checkpoint: Path, opened: Artifact, session: Session) -> None:
    with pytest.raises(ArtifactError, match="is not an artifact"):
        DraftModel.load(checkpoint, opened, session)


def test_an_artifact_without_a_drafter_of_its_own_says_how_to_get_one(session: Session) -> None:
    with pytest.raises(DraftError, match="--mtp"):
        BlockDrafter(session)


def test_a_draft_with_a_small_context_slides_along() -> None:
    table = Table(3, ends=False)
    target = table_session(table, max_seq_len=200)
    draft = DraftModel(table_session(table, max_seq_len=12), target)
    stats = GenerationStats()
    list(target.generate([1, 2], max_new_tokens=150, drafter=draft, block_length=4, stats=stats))
    assert stats.acceptance_rate == 1.0
