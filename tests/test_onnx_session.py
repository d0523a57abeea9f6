"""The same Session over onnxruntime, held against a model in PyTorch that has no cache."""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from forgery import Content, forge
from small_onnx import OPTIONS, save_small_onnx, uncached, weights
from tiny import save_tokenizer
from torch import Tensor

from hybridge.cache.errors import ArtifactError, SnapshotError
from hybridge.export.cli import main
from hybridge.runtime import ExportOptions, PromptLookup, Session
from hybridge.runtime.draft_model import DraftModel
from hybridge.runtime.manifest import ONNX_COMMIT, ONNX_PROGRAM, ONNX_WEIGHTS
from hybridge.runtime.onnx_graph import OnnxGraph
from hybridge.runtime.random_program import RandomProgram
from hybridge.runtime.session import number, padded
from hybridge.runtime.validation import validate

PROMPT = [5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 5, 6]
WEIGHTS = weights()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("onnx") / "artifact"
    folder.mkdir()
    save_tokenizer(folder)
    save_small_onnx(folder, WEIGHTS)
    return folder


@pytest.fixture(scope="module")
def session(small: Path) -> Session:
    return Session.load(small)


@pytest.fixture(autouse=True)
def _empty(session: Session) -> None:
    session.reset()


@pytest.fixture
def copied(small: Path, tmp_path: Path) -> Path:
    """An artifact to be spoilt."""
    return Path(shutil.copytree(small, tmp_path / "artifact"))


def oracle(tokens: Sequence[int]) -> Tensor:
    return uncached(WEIGHTS, tokens)


def close(got: Tensor, want: Tensor) -> None:
    assert float((got - want).abs().max()) <= 1e-5 * float(want.abs().max())


def bits(session: Session) -> dict[str, Tensor]:
    """The committed state: rows that the length does not reach hold anything."""
    state = session.state()
    rows = {name: each[:, :, : session.length] for name, each in state.items() if name in ("layers.1.key", "layers.1.value")}
    return {name: each.contiguous().reshape(-1).view(torch.uint8) for name, each in (state | rows).items()}


def same_bits(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(each, other[name]) for name, each in one.items())


# What it computes


def test_random_programs_and_generation_agree_with_the_uncached_model(session: Session) -> None:
    report = validate(session, oracle, programs=15, prompts=3, new_tokens=40, seed=1, notify=lambda done, total: None)
    assert report.passed, report
    assert report.generation.rollbacks > 0
    assert set(report.operations) == {"prefill", "decode", "verify", "commit", "snapshot", "restore", "reset"}


@pytest.mark.parametrize("count", range(6))
def test_a_commit_is_what_decoding_leaves(session: Session, small: Path, count: int) -> None:
    block, other = [1, 2, 3, 4, 5], Session.load(small)
    for each in (session, other):
        each.prefill(PROMPT)
    session.verify(block)
    assert session.commit(count) == len(PROMPT) + count
    for token in block[:count]:
        other.decode(token)
    want = other.state()
    for name, tensor in session.state().items():
        if name.startswith("layers.0"):
            torch.testing.assert_close(tensor, want[name])
    close(session.decode(7), oracle([*PROMPT, *block[:count], 7])[-1])


def test_a_rejection_changes_no_bit(session: Session) -> None:
    session.prefill(PROMPT)
    before = bits(session)
    session.verify([1, 2, 3])
    session.commit(0)
    assert same_bits(before, bits(session))
    session.verify([1, 2, 3])
    session.commit(1)
    assert not torch.equal(before["layers.0.conv_state"], bits(session)["layers.0.conv_state"]), "the check notices a commit"


def test_a_verify_runs_only_the_tokens_that_fit(session: Session) -> None:
    """A harness may pad a block beyond the last position."""
    text = list(range(94))
    session.prefill(text)
    (logits,) = session._program.call("verify", padded([3, 4], 5))
    close(logits[0, :2], oracle([*text, 3, 4])[-2:])
    assert bool(logits[0, 2:].isnan().all())
    assert session._program.call("commit", number(3))[0].tolist() == [-1]
    assert session._program.call("commit", number(2))[0].tolist() == [96]


# Snapshots


def test_a_snapshot_copies_nothing_and_versions_are_few(session: Session) -> None:
    state = session._program._state  # type: ignore[attr-defined]
    session.prefill(PROMPT)
    session.snapshot(0)
    assert state.slots[0] is state.now
    RandomProgram(session, random.Random(3)).play(300)
    assert len(state._versions) <= session.snapshot_slots + 2


def test_a_slot_whose_rows_were_overwritten_is_refused(session: Session) -> None:
    session.prefill([1, 2, 3])
    session.snapshot(0)
    session.prefill([4, 5])
    session.snapshot(1)
    session.restore(0)
    session.verify([7, 8])
    with pytest.raises(SnapshotError, match="written below"):
        session.restore(1)
    assert session.restore(0) == 3
    close(session.decode(4), oracle([1, 2, 3, 4])[-1])


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("commit", [number(1)]),
        ("snapshot", [number(2)]),
        ("snapshot", [number(-1)]),
        ("restore", [number(0)]),
        ("restore", [number(-1)]),
        ("restore", [number(7)]),
        ("prefill", [padded([1], 17), number(0)]),
        ("prefill", [padded([1], 17), number(18)]),
        ("forward", [torch.tensor([[1]]), number(2)]),
    ],
)
def test_the_program_itself_refuses(session: Session, name: str, inputs: list[Tensor]) -> None:
    session.prefill(PROMPT)
    before = bits(session)
    (answer,) = session._program.call(name, *inputs)
    assert bool(answer.isnan().all()) if answer.is_floating_point() else answer.tolist() == [-1]
    assert same_bits(before, bits(session))


def test_a_full_context_is_refused(session: Session) -> None:
    session.prefill([1] * session.max_seq_len)
    before = bits(session)
    for name in ("decode", "verify"):
        assert bool(session._program.call(name, torch.tensor([[1]]))[0].isnan().all())
    assert session._program.call("commit", number(0))[0].tolist() == [-1]
    assert same_bits(before, bits(session))


def test_a_token_outside_the_vocabulary_fails_and_changes_nothing(session: Session) -> None:
    session.prefill(PROMPT)
    before = bits(session)
    with pytest.raises(ArtifactError, match="indices element out of data bounds"):
        session._program.call("decode", torch.tensor([[131]]))
    assert same_bits(before, bits(session))


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupt_leaves_a_usable_session(session: Session, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(graph: OnnxGraph, binding: object) -> None:
        if when == "after":
            really(graph, binding)
        raise KeyboardInterrupt

    really = OnnxGraph.run
    session.prefill(PROMPT)
    session.verify([1, 2])
    for call in (lambda: session.commit(1), lambda: session.decode(3), lambda: session.prefill([3, 4])):
        with monkeypatch.context() as patched:
            patched.setattr(OnnxGraph, "run", run)
            with pytest.raises(KeyboardInterrupt):
                call()
        assert session.tokens == PROMPT
    close(session.decode(4), oracle([*PROMPT, 4])[-1])


def test_forward_serves_a_stock_loop(session: Session) -> None:
    session.prefill([9, 9])
    for i, token in enumerate(PROMPT):
        (logits,) = session._program.call("forward", torch.tensor([[token]]), number(i))
    close(logits[0, 0], oracle(PROMPT)[-1])


# On disk


def test_a_saved_state_goes_on_bit_for_bit(session: Session, small: Path, tmp_path: Path) -> None:
    session.prefill(PROMPT[:4])
    session.snapshot(1)
    session.prefill(PROMPT[4:])
    session.snapshot(0)
    session.verify([1, 2])
    session.save(tmp_path / "state")
    other = Session.load(small)
    other.prefill([1, 2, 3])
    other.snapshot(0)
    other.verify([4, 4])
    assert other.load_state(tmp_path / "state") == len(PROMPT)
    assert other._program.call("commit", number(1))[0].tolist() == [-1], "no block waits"
    assert same_bits(bits(session), bits(other))
    for going in (lambda each: each.decode(3), lambda each: each.restore(0), lambda each: each.decode(4)):
        assert torch.equal(torch.as_tensor(going(session)), torch.as_tensor(going(other)))
    for each in (session, other):
        assert each.restore(1) == 4
        close(each.decode(8), oracle([*PROMPT[:4], 8])[-1])


# What guesses


def test_a_draft_model_guesses_for_it(session: Session, small: Path, tmp_path: Path) -> None:
    plain = list(session.generate(PROMPT, max_new_tokens=30))
    save_small_onnx(tmp_path / "draft", WEIGHTS, ExportOptions(**{**vars(OPTIONS), "max_seq_len": 64}))
    draft = Session.load(tmp_path / "draft")
    for drafter in (DraftModel(draft, session), PromptLookup()):
        session.reset()
        assert list(session.generate(PROMPT, max_new_tokens=30, drafter=drafter)) == plain


# The command line


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["hybridge", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit_:
        main()
    return int(exit_.value.code or 0)


def test_the_commands_take_either_artifact(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "run", small, "--prompt", "abcabcabc", "--max-new-tokens", 12) == 0
    assert capsys.readouterr().out.startswith("abcabcabc")
    assert run(monkeypatch, "inspect", small) == 0
    assert "com.microsoft::LinearAttention" in capsys.readouterr().out
    assert run(monkeypatch, "bench", small, "--profile") == 2
    assert "onnxruntime's own profiler" in " ".join(capsys.readouterr().err.split())


# What an export writes


def test_hybridge_validate_passes(
    exported: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "validate", exported, "--against", checkpoint, "--programs", 8, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["passed"]
    assert report["worst_relative"] <= 2e-5


def test_greedy_tokens_are_those_of_the_pte(exported: Path, artifact: Path) -> None:
    session, pte = Session.load(exported), Session.load(artifact)
    drafters = [None, PromptLookup(), DraftModel(Session.load(artifact), session)]
    for seed in range(9):
        rng = random.Random(seed)
        prompt = [rng.randrange(session.vocab_size) for _ in range(rng.randint(1, 30))]
        session.reset()
        pte.reset()
        want = list(pte.generate(prompt, max_new_tokens=60))
        assert list(session.generate(prompt, max_new_tokens=60, drafter=drafters[seed % 3])) == want


# Folders that cannot be trusted


def refused(folder: Path, says: str) -> None:
    with pytest.raises(ArtifactError, match=says):
        Session.load(folder)


def edit(folder: Path, change: Callable[[onnx.ModelProto], object], name: str = ONNX_PROGRAM) -> None:
    """Change a graph and sign it."""
    model = onnx.load(folder / name, load_external_data=False)
    change(model)
    (folder / name).write_bytes(model.SerializeToString())
    forge(folder)


@pytest.mark.parametrize("name", [ONNX_PROGRAM, ONNX_WEIGHTS, ONNX_COMMIT])
def test_a_missing_resized_or_altered_file_is_named(copied: Path, name: str) -> None:
    data = (copied / name).read_bytes()
    for spoilt, says in ((data[:-1], "bytes, but the manifest says"), (data[:-1] + b"~", "was altered")):
        (copied / name).write_bytes(spoilt)
        refused(copied, f"{name}.*{says}")
    (copied / name).unlink()
    refused(copied, f"{name} is missing")


FORGERIES: dict[str, tuple[Callable[[Content], object], str]] = {
    "another vocabulary": (lambda c: c.update(vocab_size=130), "gives something else .* logits"),
    "another state": (lambda c: c["onnx"]["states"][1]["shape"].reverse(), "past_key_values.0.recurrent_state"),
    "a state less": (lambda c: c["onnx"]["states"].pop(), "past_key_values.1.value is .* not there"),
    "another staged tensor": (lambda c: c["onnx"]["staged"][0].update(name="0.q"), "staged.0.conv_input"),
    "fewer rows": (lambda c: c["onnx"]["states"][2]["shape"].__setitem__(2, 95), "1.key .95. rows, not 96"),
    "no rows": (lambda c: c["onnx"]["states"][2].update(shape=[1]), "1.key .. rows, not 96"),
    "a shorter block": (lambda c: c["onnx"]["staged"][1]["shape"].__setitem__(1, 4), "0.key .4. rows, not 5"),
    "another type": (lambda c: c["onnx"]["states"][0].update(dtype="cuda"), "onnx.states.0.dtype"),
    "no section": (lambda c: c.update(onnx=None), "belongs to the format 'onnx'"),
    "a section too many": (lambda c: c["options"].update(format="pte"), "belongs to the format 'onnx'"),
    "another format": (lambda c: c["options"].update(format="gguf"), "options.format"),
    "another version": (lambda c: c.update(format_version=2), "has format version 2"),
    "no commit": (lambda c: c["files"].pop(ONNX_COMMIT), "lists no commit.onnx"),
    "no weights": (lambda c: c["files"].pop(ONNX_WEIGHTS), "lists no model.onnx.data"),
    "a method less": (lambda c: c["methods"].pop("restore"), "lists no method restore"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_manifest_that_lies_is_refused(copied: Path, name: str) -> None:
    change, says = FORGERIES[name]
    forge(copied, change)
    refused(copied, says)


def set_location(model: onnx.ModelProto, location: str) -> None:
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location


@pytest.mark.parametrize("location", ["../outside", "{folder}/outside", "x/../../outside", "link"])
def test_weights_outside_the_folder_are_refused(copied: Path, tmp_path: Path, location: str) -> None:
    shutil.copy(copied / ONNX_WEIGHTS, tmp_path / "outside")
    (copied / "link").symlink_to(tmp_path / "outside")
    edit(copied, lambda model: set_location(model, location.format(folder=tmp_path)))
    refused(copied, "does not load .*(escapes|[Aa]bsolute)")


def test_weights_that_end_too_early_are_refused(copied: Path) -> None:
    (copied / ONNX_WEIGHTS).write_bytes((copied / ONNX_WEIGHTS).read_bytes()[:999])
    forge(copied)
    refused(copied, "does not load .*out of bounds")


def rename_operator(model: onnx.ModelProto) -> None:
    fused = next(node for node in model.graph.node if node.op_type == "LinearAttention")
    fused.op_type = "LinearAttention9"


GRAPHS: dict[str, tuple[Callable[[onnx.ModelProto], object], str]] = {
    "an unknown operator": (rename_operator, "LinearAttention9.* is not a registered"),
    "a later opset": (lambda model: setattr(model.opset_import[0], "version", 99), "does not load .*[Oo]pset 99"),
    "an output less": (lambda model: model.graph.output.pop(), "staged.0.beta is missing"),
    "a fixed number of tokens": (
        lambda model: setattr(model.graph.input[0].type.tensor_type.shape.dim[1], "dim_value", 3), "input_ids is .*3",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_that_is_something_else_is_refused(copied: Path, name: str) -> None:
    change, says = GRAPHS[name]
    edit(copied, change)
    refused(copied, says)


def test_a_commit_graph_that_is_something_else_is_refused(copied: Path) -> None:
    edit(copied, lambda model: model.graph.input.pop(), ONNX_COMMIT)
    refused(copied, "commit.onnx")


def test_onnxruntime_is_an_extra(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing: Any = None
    monkeypatch.setitem(sys.modules, "onnxruntime", missing)
    refused(small, r"pip install 'hybridge\[onnx\]'")
