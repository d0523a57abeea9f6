"""The drafter of a checkpoint's own layers against transformers' ``MtpModel``, eagerly and as a real program."""

import copy
import dataclasses
import itertools
import random
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from ctypes import byref, c_int64, c_size_t
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from checkpoint_forms import edit_json
from drafter_programs import compare_blocks, draft, drawn_token
from mtp_reference import MtpReference, published, random_mtp, save_mtp
from quantized_folders import FORMS
from store import exported
from tiny import lively, save_checkpoint, tiny_config, tiny_model

from hybridge.errors import CheckpointError, SnapshotError, StateFileError, UnsupportedModelError, UsageError
from hybridge.export.api import export_model
from hybridge.export.drafters.drafter import DrafterPlan
from hybridge.export.drafters.mtp import MtpPlan, MtpWeights, has_mtp, load_mtp
from hybridge.export.drafters.plan import plan_drafter, plan_own_drafter
from hybridge.export.program.build import build_cache
from hybridge.export.program.eager import EagerProgram, LoadedDrafter, eager_session
from hybridge.export.progress import ExportProgress
from hybridge.export.source.checkpoint import LoadedModel, load_checkpoint, resolve_checkpoint
from hybridge.runtime import Context, ExportOptions, GenerationStats, PrefixCache, Sampling, Session
from hybridge.runtime.artifact.drafter import DrafterDescription
from hybridge.runtime.artifact.model_info import ProgramInfo
from hybridge.runtime.binding.drafters import AutoDrafter, OwnDrafter
from hybridge.runtime.binding.library import run
from hybridge.runtime.binding.prompt_prefill import bring_to
from hybridge.runtime.binding.session import DraftNoise

OPTIONS = ExportOptions(
    max_seq_len=41, prefill_chunk=7, verify_len=5, shorter_verify_lens=(3,), tap_layers=(1, -1), mtp=True, draft_len=3
)
TOKENS = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 3, 2, 1, 40, 41, 42]
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_5_text": {},
    "qwen3_next": {},
    "bailing_hybrid": {"num_mtp_layers": 2},
    "inkling_text": {"num_mtp_layers": 4, "mtp_local_layer_ids": [0, 2], "chain_hidden_post_norm": True},
}
"""With layers whose last one goes on, and with more than propose; inkling's have windows and convolutions."""


def blocks_of(family: str) -> tuple[int, ...]:
    """Return blocks in which each layer proposes."""
    return (4,) if family == "inkling_text" else (3, 4)


def program(model: Any, weights: MtpWeights) -> EagerProgram:
    """The methods over memory that was never written."""
    cache = build_cache(model.config, OPTIONS)
    for name, buffer in cache.named_buffers():
        if name != "operations":  # a count that the core goes by from the start
            buffer.fill_(float("nan") if buffer.is_floating_point() else -(2**40))
    return EagerProgram(
        model, cache, OPTIONS, MtpPlan(model.config, blocks_of(model.config.model_type)).build(weights, cache, model.lm_head)
    )


@pytest.fixture(scope="module", params=[*FAMILIES])
def reference_and_session(request: pytest.FixtureRequest) -> tuple[MtpReference, Session]:
    model = lively(tiny_model(tiny_config(request.param, **FAMILIES[request.param])))
    weights = random_mtp(model)
    adapted, drafter = copy.deepcopy((model, weights))
    drafter.layers = drafter.layers[: OPTIONS.draft_len]  # as many as propose
    description = ProgramInfo(
        model_type="tiny",
        vocab_size=model.config.vocab_size,
        eos_ids=[],
        options=OPTIONS,
        drafter=DrafterDescription(kind="mtp", taps=(-1,), blocks=blocks_of(request.param), samples=True),
        identity=f"tiny {request.param}",
    )
    return MtpReference(model, weights), Session.over(program(adapted, drafter), description)


def proposed(session: Session, context: Context, limit: int = 3) -> list[int]:
    return draft(session, context, limit).tokens


def fed(session: Session, context: Context, tokens: list[int], last: int) -> None:
    """Commit ``tokens`` and let ``last`` be known after them."""
    session.prefill(tokens)
    context.tokens[:] = [*session.tokens, last]
    context.add_hidden(session.hidden)


@pytest.mark.parametrize("cuts", [(1,), (4, 5), (9, 10, 13), (12,), (16,), (1, 2, 3)])
def test_guesses_are_those_of_the_chain_without_a_cache(
    reference_and_session: tuple[MtpReference, Session], cuts: tuple[int, ...]
) -> None:
    reference, session = reference_and_session
    session.reset()
    context = Context([], Sampling())
    start = 0
    for cut in cuts:
        fed(session, context, TOKENS[start:cut], TOKENS[cut] if cut < len(TOKENS) else 0)
        start = cut
        assert proposed(session, context) == reference.chain(context.tokens, 3)
        assert proposed(session, context) == [], "nothing new was committed since"


def test_tokens_are_drawn_by_the_noise_of_their_positions(reference_and_session: tuple[MtpReference, Session]) -> None:
    reference, session = reference_and_session
    session.reset()
    session.prefill(TOKENS[:6])
    heat, noise = 1.7, [3, 2**31, 2**32 - 1]
    drafted = session.draft(session.hidden, TOKENS[1:7], draws=DraftNoise(noise, heat))
    _, scores = reference.guess(TOKENS[:7], 3, drawn=drafted.tokens)
    assert drafted.tokens == [drawn_token(row, heat, bits) for row, bits in zip(scores, noise, strict=True)]


def test_random_programs_with_rejections_and_restores(reference_and_session: tuple[MtpReference, Session]) -> None:
    reference, session = reference_and_session
    session.reset()
    assert compare_blocks(session, reference.chain, seed=1, operations=12) > 3


def test_what_stands_behind_the_pairs_is_not_looked_at(reference_and_session: tuple[MtpReference, Session]) -> None:
    reference, session = reference_and_session
    session.reset()
    session.prefill(TOKENS[:3])
    hidden = session.hidden[:, session.hidden.shape[-1] // 2 :]
    rows = np.full((1, 5, hidden.shape[-1]), np.nan, np.float32)
    rows[0, :3] = hidden
    assert session.model.program is not None
    draws = np.zeros((1, 3), np.int64), np.zeros(1, np.float32)
    tokens, chances = session.model.program.call("draft", rows, np.array([[*TOKENS[1:4], 0, 0]]), np.array([3]), *draws)
    assert tokens[0].tolist() == reference.chain(TOKENS[:4], 3)
    assert ((chances > 0) & (chances <= 1)).all()


def test_a_slot_is_invalid_once_the_drafter_wrote_below_its_length(reference_and_session: tuple[MtpReference, Session]) -> None:
    _, session = reference_and_session
    session.reset()
    session.prefill(TOKENS[:3])
    hidden = session.hidden
    session.draft(hidden[:1], TOKENS[1:2])
    session.snapshot(0)
    session.draft(hidden[1:], TOKENS[2:4])
    session.snapshot(1)
    session.restore(0)
    session.draft(hidden[1:2], [77])
    with pytest.raises(SnapshotError):
        session.restore(1)
    assert session.restore(0) == 3


def test_a_full_drafter_guesses_nothing_and_stays_as_it_is(reference_and_session: tuple[MtpReference, Session]) -> None:
    _, session = reference_and_session
    session.reset()
    context = Context([], Sampling())
    fed(session, context, (TOKENS * 3)[:39], 7)
    assert proposed(session, context) == []
    assert [each.item() for name, each in session.state().items() if name.endswith("drafted_length")] == [34.0]


# A text that is kept, and continued later


@dataclasses.dataclass(kw_only=True)
class Drafts(GenerationStats):
    """Keeps the draft tokens of each verified block, and the index of the first among the new tokens."""

    blocks: list[tuple[int, list[int]]] = dataclasses.field(default_factory=list)

    def add_block(self, first: int, draft: Sequence[int], accepted: int, forced: bool) -> None:
        self.blocks.append((first, list(draft)))


def steady_clock() -> Callable[[], float]:
    """Return a clock by which drafting could pay, whatever it takes: a drafter that cannot pay reads nothing ahead."""
    return itertools.count(0.0).__next__


def first_drafts(session: Session, text: list[int]) -> tuple[list[int], list[int]]:
    """Continue ``text``, whose last token is not committed; return the text before the first draft tokens, and these."""
    stats, drafter = Drafts(), OwnDrafter(session)
    new = list(
        session.generate(
            text[-1:], max_new_tokens=6, drafter=drafter, block_length=4, eos_ids=(), stats=stats, clock=steady_clock()
        )
    )
    first, drafted = stats.blocks[0]
    return [*text, *new[:first]], drafted


def read(session: Session, text: list[int], cache: PrefixCache, marks: Sequence[int] = ()) -> int:
    return bring_to(session, text, cache, marks, drafter=OwnDrafter(session))


def by_a_shared_half(session: Session, text: list[int], cache: PrefixCache, folder: Path) -> None:
    half = len(text) // 2
    session.reset()
    read(session, [*text[:half], 90, *text[half + 1 :]], PrefixCache(session.model, 0))
    session.reset()
    cache.clear()
    read(session, [*text[:half], 91, 92, 93], cache, [half])
    assert read(session, text, cache) == half


def from_parts(session: Session, text: list[int], cache: PrefixCache, folder: Path) -> None:
    kept = cache.find(text)
    assert kept is not None
    parts = [kept.part(place) for place in range(len(kept.parts()))]
    cache.clear()
    session.reset()
    assert session.resume(session.read_checkpoint(parts)) == len(text)


def from_a_file(session: Session, text: list[int], cache: PrefixCache, folder: Path) -> None:
    assert read(session, text, cache) == len(text)
    session.save(folder / "state")
    session.reset()
    session.prefill([3, 4, 5])
    assert session.load_state(folder / "state") == len(text)


def from_a_slot_in_a_file(session: Session, text: list[int], cache: PrefixCache, folder: Path) -> None:
    assert read(session, text, cache) == len(text)
    session.snapshot(0)
    session.prefill([3, 4, 5])
    session.save(folder / "state")
    session.reset()
    session.load_state(folder / "state")
    assert session.restore(0) == len(text)


def by_the_core(session: Session, text: list[int], cache: PrefixCache, folder: Path) -> None:
    """Read it by the function that other languages call, twice."""
    cache.clear()
    ids, known = (c_int64 * len(text))(*text), c_size_t()
    for _ in range(2):
        session.reset()
        run("bring_to", session.handle, cache.handle, ids, len(text), byref(known))
    assert known.value == len(text)


Way = Callable[[Session, list[int], PrefixCache, Path], None]
WAYS: list[Way] = [by_a_shared_half, from_parts, from_a_file, from_a_slot_in_a_file, by_the_core]


@pytest.mark.parametrize("way", WAYS)
def test_first_drafts_after_a_kept_text_are_those_after_one_that_was_read(
    reference_and_session: tuple[MtpReference, Session], way: Way, tmp_path: Path
) -> None:
    """A drafter once knew nothing of a text that came from a checkpoint: 9 of 40 first draft tokens were right."""
    reference, session = reference_and_session
    rng = random.Random(way.__name__)
    for length in (2, rng.randint(12, 29)):
        text, cache = [rng.randrange(95) for _ in range(length)], PrefixCache(session.model, 1 << 20)
        session.reset()
        read(session, text[:-1], cache)
        session.reset()
        read(session, [94, *text], cache)
        way(session, text[:-1], cache, tmp_path)
        before, drafted = first_drafts(session, text)
        assert drafted == reference.chain(before, len(drafted)) != []


@pytest.mark.parametrize("resumes", [False, True])
def test_a_next_turn_drafts_as_if_it_had_read_the_first(
    reference_and_session: tuple[MtpReference, Session], resumes: bool
) -> None:
    """The next turn lost the hidden states that the drafter had not read at the end of an answer."""
    reference, session = reference_and_session
    session.reset()
    cache = PrefixCache(session.model, 1 << 20)
    read(session, TOKENS[:9], cache)
    for drafter in (OwnDrafter(session), AutoDrafter(session)):
        list(session.generate([7], max_new_tokens=9, drafter=drafter, block_length=3, eos_ids=(), clock=steady_clock()))
        session.keep_checkpoint(cache)
        text = [*session.tokens, 30, 31, 32]
        if resumes:
            session.reset()
        assert read(session, text[:-1], cache) == len(text) - 3
    before, drafted = first_drafts(session, text)
    assert drafted == reference.chain(before, len(drafted)) != []


def test_a_checkpoint_after_a_restore_shares_rows_as_far_as_the_drafter_had_read(
    reference_and_session: tuple[MtpReference, Session],
) -> None:
    """It may read other hidden states after the restore than it had read after the snapshot."""
    _, session = reference_and_session
    session.reset()
    session.prefill(TOKENS[:4])
    hidden, unread = session.hidden, session.checkpoint()
    session.snapshot(0)
    session.prefill(TOKENS[4:8])
    session.snapshot(1)
    session.restore(1)
    assert unread.parts()[0] in session.checkpoint().parts()
    session.restore(0)
    session.draft(hidden[:3], TOKENS[1:4])
    been_read = session.checkpoint()
    session.restore(1)
    assert been_read.parts()[0] not in session.checkpoint().parts()


@pytest.mark.parametrize("place", ["width", "count", "float"])
def test_hidden_states_that_no_session_could_have_kept_are_refused(
    reference_and_session: tuple[MtpReference, Session], place: str
) -> None:
    _, session = reference_and_session
    session.reset()
    read(session, TOKENS[:12], PrefixCache(session.model, 0))
    kept = session.checkpoint()
    *segments, rest = (kept.part(each) for each in range(len(kept.parts())))
    width = session.hidden.shape[1]
    at = rest.rfind(struct.pack("<Q", width))
    assert session.resume(session.read_checkpoint([*segments, rest])) == 12
    row = 4 * width
    wrong = {
        "width": rest[:at] + struct.pack("<Q", 2**62) + rest[at + 8 :],
        "count": rest + rest[-row:] * session.verify_len,
        "float": rest[:-1],
    }
    with pytest.raises(StateFileError, match="no checkpoint"):
        session.read_checkpoint([*segments, wrong[place]])


# From a checkpoint


def save(folder: Path, family: str = "qwen3_5_text", sizes: dict[str, Any] | None = None, **changes: Any) -> LoadedModel:
    model = save_checkpoint(folder, tiny_config(family, **(sizes or {})))
    weights = published(model, random_mtp(model))
    kept = {name: each for name, each in (weights | changes).items() if each is not None}
    safetensors.torch.save_file(kept, folder / "mtp.safetensors")
    return load_checkpoint(folder)


def test_weights_are_read_from_their_own_shard(tmp_path: Path) -> None:
    checkpoint = save(tmp_path)
    got, want = published(checkpoint.model, load_mtp(checkpoint)), safetensors.torch.load_file(tmp_path / "mtp.safetensors")
    assert {"mtp.fc.weight", "mtp.pre_fc_norm_hidden.weight", "mtp.layers.0.self_attn.q_proj.weight"} < got.keys()
    assert got.keys() == want.keys()
    assert all(torch.equal(each, want[name]) for name, each in got.items())


@pytest.mark.parametrize("form", ["fp8", "nvfp4", "int8"])
def test_quantized_layers_are_the_numbers_that_they_stand_for(tmp_path: Path, form: str) -> None:
    save_mtp(tmp_path, tiny_config("qwen3_5_text", hidden_size=64, intermediate_size=96, head_dim=32))
    path = tmp_path / "mtp.safetensors"
    stored, want = safetensors.torch.load_file(path), safetensors.torch.load_file(path)
    for name in [name for name in stored if name.endswith("_proj.weight")]:
        parts, want[name] = FORMS[form].quantize(stored.pop(name))
        stored |= {name.removesuffix(".weight") + end: part.contiguous() for end, part in parts.items()}
    assert len(stored) > len(want)
    safetensors.torch.save_file(stored, path)
    edit_json(tmp_path / "config.json", quantization_config=FORMS[form].config)
    checkpoint = load_checkpoint(tmp_path)
    assert has_mtp(checkpoint.source)
    got = published(checkpoint.model, load_mtp(checkpoint))
    assert got.keys() == want.keys()
    for name, each in got.items():
        torch.testing.assert_close(each, want[name], rtol=1e-6, atol=0)  # for the order of two products


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"mtp.fc.weight": None}, CheckpointError, "lacks mtp.fc.weight"),
        ({"mtp.fc.weight": torch.zeros(2, 2)}, CheckpointError, r"mtp.fc.weight in .* has shape \[2, 2\]"),
        ({"mtp.norm.weight": torch.full((64,), float("nan"))}, CheckpointError, "shape|not finite"),
        ({"mtp.other.weight": torch.zeros(2)}, CheckpointError, "unknown mtp.other.weight"),
        ({"mtp.layers.1.mlp.weight": torch.zeros(2)}, UnsupportedModelError, "several layers"),
    ],
)
def test_weights_that_make_no_drafter_are_refused(tmp_path: Path, changes: dict[str, Any], error: type, says: str) -> None:
    checkpoint = save(tmp_path, **changes)
    with pytest.raises(error, match=says):
        load_mtp(checkpoint)


@pytest.mark.parametrize(
    ("family", "changes", "says"),
    [
        ("bailing_hybrid", {"model.layers.4.hnorm.weight": None}, "lacks model.layers.4.hnorm.weight"),
        ("bailing_hybrid", {"model.layers.6.hnorm.weight": torch.zeros(2)}, "has 3 layers .* config.json says 2"),
        ("bailing_hybrid", {"model.layers.4.other.weight": torch.zeros(2)}, "unknown model.layers.4.other.weight"),
        (
            "inkling_text",
            {"model.mtp.layers.1.transformer_block.attn.wq_du.weight": torch.zeros(2)},
            r"wq_du.* has shape \[2\]",
        ),
        ("inkling_text", {"model.mtp.chain_norm.weight": None}, "lacks model.mtp.chain_norm.weight"),
    ],
)
def test_weights_of_several_layers_that_make_no_drafter_are_refused(
    tmp_path: Path, family: str, changes: dict[str, Any], says: str
) -> None:
    checkpoint = save(tmp_path, family, FAMILIES[family], **changes)
    with pytest.raises(CheckpointError, match=says):
        load_mtp(checkpoint, 2)


def test_names_are_those_of_the_checkpoints(tmp_path: Path) -> None:
    """Ling's are those of its own last layer, which transformers has written."""
    model = save_checkpoint(tmp_path, tiny_config("bailing_hybrid"))
    names = {name for name in published(model, random_mtp(model)) if ".experts." not in name}
    own = {name.replace("layers.3.", "layers.4.") for name in safetensors.torch.load_file(tmp_path / "model.safetensors")}
    assert {name.split(".")[3] for name in names - own} == {"enorm", "hnorm", "eh_proj", "final_layernorm"}


def test_a_config_without_such_layers_says_so() -> None:
    with pytest.raises(CheckpointError, match="says 0 layers of multi-token prediction"):
        build_cache(tiny_config("inkling_text"), OPTIONS)


def test_layers_with_a_state_cannot_go_on() -> None:
    config = tiny_config("inkling_text", num_mtp_layers=2)
    with pytest.raises(UsageError, match="give --draft-len 2"):
        build_cache(config, OPTIONS)


def test_a_checkpoint_without_them_says_so(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, tiny_config("qwen3_5_text"))
    with pytest.raises(CheckpointError, match=r"no mtp\.\* weights"):
        load_mtp(load_checkpoint(tmp_path))


def test_another_family_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match="'llama' models have no multi-token"):
        build_cache(tiny_config("llama"), OPTIONS)


def test_more_tokens_than_a_block_are_refused() -> None:
    with pytest.raises(UsageError, match="draft_len is 9"):
        build_cache(tiny_config("qwen3_5_text"), dataclasses.replace(OPTIONS, draft_len=9))


@pytest.mark.parametrize(
    ("given", "all_", "tap"), [((), (-1,), -1), ((1,), (1, -1), -1), ((-1, 1), (-1, 1), -1), ((2,), (2,), 2)]
)
def test_the_last_hidden_states_are_tapped_for_it(given: tuple[int, ...], all_: tuple[int, ...], tap: int) -> None:
    config = tiny_config("qwen3_5_text")
    assert config.num_hidden_layers == 2
    plan, options = plan_drafter(config, dataclasses.replace(OPTIONS, tap_layers=given))
    assert plan is not None
    assert (options.tap_layers, plan.description.taps) == (all_, (tap,))


def test_experts_that_are_stored_one_by_one_are_stacked(tmp_path: Path) -> None:
    sizes = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 32}
    model = save_checkpoint(tmp_path, tiny_config("qwen3_next", **sizes))
    want = published(model, random_mtp(model))
    own = dict(want)
    experts = "mtp.layers.0.mlp.experts."
    for e, (both, down) in enumerate(zip(own.pop(f"{experts}gate_up_proj"), own.pop(f"{experts}down_proj"), strict=True)):
        gate, up = both.chunk(2)
        own |= {f"{experts}{e}.{name}_proj.weight": each for name, each in (("gate", gate), ("up", up), ("down", down))}
    own = {name: each.clone() for name, each in own.items()}
    safetensors.torch.save_file(own, tmp_path / "mtp.safetensors")
    checkpoint = load_checkpoint(tmp_path)
    got = published(checkpoint.model, load_mtp(checkpoint))
    assert got.keys() == want.keys()
    assert all(torch.equal(got[name], each) for name, each in want.items())
    del own["mtp.layers.0.mlp.experts.1.up_proj.weight"]
    safetensors.torch.save_file(own, tmp_path / "mtp.safetensors")
    with pytest.raises(CheckpointError, match=r"lacks mtp.layers.0.mlp.experts.down_proj"):
        load_mtp(load_checkpoint(tmp_path))


def loaded(checkpoint: LoadedModel) -> LoadedDrafter:
    plan, _ = plan_drafter(checkpoint.config, OPTIONS)
    assert plan is not None
    return LoadedDrafter(plan, plan.load(checkpoint))


def test_an_eager_session_has_it_too(tmp_path: Path) -> None:
    checkpoint = save(tmp_path)
    reference = MtpReference(checkpoint.model, load_mtp(checkpoint))
    session = eager_session(checkpoint.model, OPTIONS, loaded(checkpoint))
    logits = session.prefill(TOKENS[:6])
    guesses = session.draft(session.hidden, [*TOKENS[1:6], int(logits.argmax())]).tokens
    assert guesses == reference.chain([*TOKENS[:6], int(logits.argmax())], 3)
    with pytest.raises(UsageError, match="needs its drafter"):
        eager_session(checkpoint.model, OPTIONS)


def test_a_draft_that_fails_on_its_way_did_not_happen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = save(tmp_path)
    session = eager_session(checkpoint.model, OPTIONS, loaded(checkpoint))
    logits = session.prefill(TOKENS[:12])
    hidden, following = session.hidden, [*TOKENS[1:12], int(logits.argmax())]
    session.snapshot(0)
    want = session.draft(hidden, following)
    session.restore(0)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(torch.nn.functional, "softmax", interrupted)
        patched.setattr(torch.Tensor, "softmax", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.draft(hidden, following)
    assert session.tokens == TOKENS[:12]
    assert session.draft(hidden, following) == want


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("family", "kernels"), [("qwen3_5_text", "hybridge"), ("bailing_hybrid", "llm"), ("inkling_text", "hybridge")]
)
def test_a_real_program_guesses_the_same(tmp_path: Path, family: str, kernels: Any) -> None:
    reference = save_mtp(tmp_path / "checkpoint", tiny_config(family, **FAMILIES[family]))
    own = dataclasses.replace(OPTIONS, snapshot_slots=1, kernels=kernels)
    session = Session.load(exported(tmp_path / "checkpoint", own))
    assert session.manifest.methods["verify_3"].outputs[1].shape == [1, 3, 2 * reference.model.config.hidden_size]
    assert compare_blocks(session, reference.chain, seed=0, operations=16) > 5
    session.save(tmp_path / "state")
    want = list(session.generate([3], max_new_tokens=8, eos_ids=()))
    session.reset()
    session.load_state(tmp_path / "state")
    assert list(session.generate([3], max_new_tokens=8, drafter=OwnDrafter(session), block_length=3, eos_ids=())) == want


# By default

AUTO = dataclasses.replace(OPTIONS, mtp="auto", tap_layers=(), snapshot_slots=0)


def planned(folder: Path, **changes: Any) -> tuple[DrafterPlan | None, ExportOptions]:
    options = dataclasses.replace(AUTO, **changes)
    return plan_own_drafter(resolve_checkpoint(folder), options, None)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_gets_the_drafter_that_it_has(tmp_path: Path, family: str) -> None:
    save(tmp_path, family, FAMILIES[family])
    plan, options = planned(tmp_path)
    assert plan is not None
    assert options == dataclasses.replace(AUTO, mtp=True, tap_layers=(-1,), shorter_verify_lens=(2, 3))
    assert plan.description.blocks == (2, 3, 4)[{"bailing_hybrid": 1, "inkling_text": 2}.get(family, 0) :]
    assert plan.otherwise == dataclasses.replace(AUTO, mtp=False)
    for change in ({"verify_len": 1}, {"format": "onnx"}):
        none, left = planned(tmp_path, **change)
        assert none is None
        assert left.mtp is False


def test_inkling_proposes_no_more_than_its_layers(tmp_path: Path) -> None:
    save(tmp_path, "inkling_text", {"num_mtp_layers": 2})
    plan, options = planned(tmp_path, draft_len=4)
    assert options.draft_len == 2
    assert plan is not None
    assert plan.description.blocks == (3,)


@pytest.mark.parametrize("family", ["qwen3_5_text", "bailing_hybrid", "llama"])
def test_a_checkpoint_without_one_gets_none(tmp_path: Path, family: str) -> None:
    """Whatever its config says."""
    save_checkpoint(tmp_path, tiny_config(family, **FAMILIES.get(family, {})))
    plan, options = planned(tmp_path)
    assert (plan, options) == (None, dataclasses.replace(AUTO, mtp=False))


class Warnings(ExportProgress):
    """Keeps the warnings."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def warn(self, text: str) -> None:
        self.texts.append(text)


class LoweringError(Exception):
    """Raised in place of the lowering, with the options of the program."""


@pytest.mark.parametrize(
    ("vocab", "changes", "says"),
    [
        (4096, {}, None),
        (96, {}, r"own drafter is left out: it would add \d+% to the weights' bytes, more than 12%. --mtp exports it"),
        (
            4096,
            {"mtp.norm.weight": torch.full((48,), float("nan"))},
            "own drafter is left out: mtp.norm.weight .* is not finite",
        ),
    ],
    ids=["kept", "large", "damaged"],
)
def test_a_default_drafter_is_kept_or_left_out_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vocab: int, changes: dict[str, Any], says: str | None
) -> None:
    def lower(methods: Mapping[str, Any], *, options: ExportOptions, **_: Any) -> None:
        raise LoweringError(any("draft" in name for name in methods), options.mtp, options.tap_layers)

    monkeypatch.setattr("hybridge.export.write.pte.lower", lower)
    save(tmp_path / "model", sizes={"vocab_size": vocab}, **changes)
    progress = Warnings()
    with pytest.raises(LoweringError) as lowered:
        export_model(tmp_path / "model", tmp_path / "out", AUTO, progress=progress)
    warned = [text for text in progress.texts if "own drafter" in text]
    kept = says is None
    assert lowered.value.args == (kept, kept, (-1,) * kept)
    assert kept == (not warned)
    assert kept or re.search(str(says), warned[0])


def test_a_damaged_drafter_that_was_asked_for_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "model", **{"mtp.norm.weight": None})
    with pytest.raises(CheckpointError, match=r"lacks mtp\.norm\.weight"):
        export_model(tmp_path / "model", tmp_path / "out", dataclasses.replace(AUTO, mtp=True))
    assert not (tmp_path / "out").exists()
