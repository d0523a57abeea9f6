"""Prompts are read by an accelerator and everything else by the CPU, over one state; whatever fails, the CPU reads it."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from core_child import in_core
from numpy.typing import NDArray
from picture_reference import UNIT, rgb, whole_logits
from public_folders import LFM2_VL_OPTIONS
from store import exported, made
from tiny import save_lively_checkpoint, tiny_config
from typer.testing import CliRunner

from hybridge.__main__ import tree
from hybridge.errors import UsageError
from hybridge.export.check.evaluate import Texts, evaluate
from hybridge.export.check.validate import TOLERANCE, validate_session
from hybridge.export.profile.threshold import PromptSeconds, threshold, write_threshold
from hybridge.export.progress import ExportProgress
from hybridge.export.source.checkpoint import resolve_checkpoint
from hybridge.runtime import ExportOptions, PrefixCache, Session
from hybridge.runtime.artifact.delegates import DELEGATES, Stored
from hybridge.runtime.artifact.folder import open_artifact
from hybridge.runtime.artifact.manifest import Manifest, read_manifest
from hybridge.runtime.artifact.options import NEVER
from hybridge.runtime.binding.model import Model
from hybridge.runtime.binding.pictures import Picture
from hybridge.runtime.binding.prompt_prefill import PromptPrefill

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not DELEGATES["openvino"].is_installed, reason="OpenVINO is not installed")]

CHUNK = 16
OPTIONS = ExportOptions(max_seq_len=64, prefill_chunk=CHUNK, verify_len=4, delegate="openvino", delegate_from=2)
FAMILIES = ("qwen3_5_text", "lfm2", "gemma3_text", "granitemoehybrid", "mamba2")
PROMPT = [3 * i % 97 for i in range(3 * CHUNK)]


def checkpoint(family: str) -> Path:
    return made("delegated", [family], lambda folder: save_lively_checkpoint(folder, tiny_config(family)))


@pytest.fixture(scope="module")
def artifact() -> Path:
    return exported(checkpoint(FAMILIES[0]), OPTIONS)


class SignalStack(ctypes.Structure):
    """``stack_t``"""

    _fields_: ClassVar = [("memory", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]

    @classmethod
    def current(cls) -> int | None:
        """Return the address of the stack that the thread's handlers of signals run on."""
        stack = cls()
        assert ctypes.CDLL(None).sigaltstack(None, ctypes.byref(stack)) == 0
        return stack.memory  # type: ignore[no-any-return]


def test_the_threads_stack_for_signals_is_left_alone(artifact: Path) -> None:
    """OpenVINO 2026.0's plugin for CPUs leaves a freed one behind, and the next Ctrl-C crashed."""
    before = SignalStack.current()
    with Session.load(artifact) as one, Session.load(artifact):
        assert one.prompts_read is not None
        assert one.prompts_read.reason == ""
        assert SignalStack.current() == before
    assert SignalStack.current() == before
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("family", [FAMILIES[0], *(pytest.param(each, marks=pytest.mark.thorough) for each in FAMILIES[1:])])
def test_random_programs_over_both_are_those_of_the_checkpoint(family: str) -> None:
    folder = checkpoint(family)
    source = resolve_checkpoint(folder, (), None, None)
    report = validate_session(exported(folder, OPTIONS), source, ExportProgress(), programs=10, seed=1)
    report.check()
    assert report.worst < TOLERANCE


@pytest.mark.thorough
@pytest.mark.parametrize("weights", ["float16", "int8", "int4"])
def test_weights_of_fewer_bits_have_a_bound_of_their_own(weights: Stored) -> None:
    """The CPU's methods are those of the checkpoint as ever; what the accelerator has read is near it."""
    folder = checkpoint(FAMILIES[0])
    options = replace(OPTIONS, delegate_weights=weights)
    source = resolve_checkpoint(folder, (), None, None)
    report = validate_session(exported(folder, options), source, ExportProgress(), programs=5, seed=1)
    report.check()
    assert report.worst < TOLERANCE
    assert report.delegated is not None
    assert TOLERANCE < report.delegated.worst_relative < report.delegated.tolerance
    found = evaluate(exported(folder, options), source, Texts(window=48, tokens=96), ExportProgress())
    assert found.delegate is not None
    assert found.comparison.whole.kl < 1e-6, "blocks are read by the CPU"
    assert 0 < found.delegate.whole.kl < 0.5, "the CPU's own would have the same bits"


def test_a_saved_state_goes_from_the_accelerator_to_the_cpu_and_back(
    artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Session.load(artifact) as session:
        session.prefill(PROMPT)
        read = session.prompts_read
        assert read is not None
        assert (read.reason, read.delegate_tokens, read.cpu_tokens) == ("", len(PROMPT), 0)
        session.save(tmp_path / "accelerated")
        wanted = session.verify([5, 6, 7])
        monkeypatch.setenv("HYBRIDGE_DELEGATE", "off")
        with Session(session.model) as other:
            other.load_state(tmp_path / "accelerated")
            np.testing.assert_array_equal(other.verify([5, 6, 7]), wanted)
            assert other.prompts_read is not None
            assert other.prompts_read.reason == "HYBRIDGE_DELEGATE is off"
            other.reset()
            other.prefill(PROMPT)
            other.save(tmp_path / "plain")
        session.load_state(tmp_path / "plain")
        error = np.abs(session.verify([5, 6, 7]) - wanted).max() / np.abs(wanted).max()
        assert error < TOLERANCE


def test_kept_texts_say_who_read_them_and_are_reused_strictly(
    artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [range(len(PROMPT))]
    with Session.load(artifact, strict_reuse=True) as session:
        cache = PrefixCache(session.model)
        for _ in PromptPrefill(session, PROMPT, cache).steps():
            pass
        session.snapshot(0)
        session.decode(5)
        session.restore(0)
        assert session.delegated == wanted
        session.save(tmp_path / "accelerated")
        kept = session.checkpoint()
        session.resume(session.read_checkpoint([kept.part(i) for i in range(len(kept.parts()))]))
        session.load_state(tmp_path / "accelerated")
        assert session.delegated == wanted
        session.reset()
        assert session.resume_prefix([*PROMPT, 1], cache) == len(PROMPT), "the accelerator would read it"
        monkeypatch.setenv("HYBRIDGE_DELEGATE", "off")
        with Session(session.model) as by_cpu:
            assert by_cpu.resume_prefix([*PROMPT, 1], cache) == 0, "the CPU would read it"
            with pytest.raises(UsageError, match="read by another method"):
                by_cpu.load_state(tmp_path / "accelerated")
            with pytest.raises(UsageError, match="read by another method"):
                by_cpu.resume(kept)
            by_cpu.prefill(PROMPT)
            assert by_cpu.delegated == []
            by_cpu.keep_checkpoint(cache)
        assert session.resume_prefix([*PROMPT, 1], cache) == len(PROMPT), "the session has it itself"
        session.reset()
        assert session.resume_prefix([*PROMPT, 1], cache) == 0, "the CPU has read it"
        with Session.load(artifact) as lax:
            lax.load_state(tmp_path / "accelerated")
            assert lax.delegated == wanted


def test_sessions_of_a_model_share_its_loaded_parts(artifact: Path, failing: str) -> None:
    """Each would hold its own copy of the weights, 0.36 GB of SmolLM2's in 8 bits."""
    program = """
        import ctypes, os
        imported = ctypes.CDLL(os.environ["OPENVINO_LIB_PATH"]).imported
        other = Session(model)
        session.close()
        print(imported(), other.prefill(range(16)) is not None and other.prompts_read.delegate_tokens)
        other.close()
        Session(model)
        print(imported())
    """
    parts = sum(read_manifest(artifact).methods["delegate_prefill"].delegates.values())
    said = in_core(artifact, program, OPENVINO_LIB_PATH=failing).split()
    assert list(map(int, said)) == [parts, CHUNK, 2 * parts], "the last session that has them closes them"


def test_a_prompt_in_several_calls_counts_as_one(artifact: Path) -> None:
    """A server reads a chunk a call, so a threshold of more than a chunk kept the accelerator from all prompts."""
    with Model.open(open_artifact(artifact)) as model:
        model.delegate_from(2 * CHUNK)
        with Session(model) as session:
            for _ in PromptPrefill(session, PROMPT, PrefixCache(model, 0)).steps():
                pass
            assert session.delegated == [range(len(PROMPT))]
            session.reset()
            session.prefill(PROMPT[:CHUNK])
            assert session.delegated == []


def test_the_threshold_is_measured_and_written(artifact: Path, tmp_path: Path) -> None:
    for times, wanted in (((2.0, 0.5, 0.5), 16), ((0.5, 0.5, 0.5), 9), ((0.5, 0.5, 2.0), NEVER)):
        assert threshold([PromptSeconds(n, time, 1.0) for n, time in zip((9, 16, 32), times, strict=True)]) == wanted
    copy = tmp_path / "copy"
    shutil.copytree(artifact, copy)
    (copy / "manifest.json").chmod(0o644)
    done = CliRunner().invoke(tree(), ["bench", str(copy), "--write-threshold", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert [each["tokens"] for each in found["prompts"]] == [5, 16, 32, 64]
    assert read_manifest(copy).options.delegate_from == found["delegate_from"]
    assert (copy / "manifest.json").stat().st_mode & 0o777 == 0o644
    write_threshold(open_artifact(copy), 40)
    with Session.load(copy) as session:
        session.prefill(PROMPT[:39])
        assert session.delegated == []
        session.reset()
        session.prefill(PROMPT[:40])
        assert session.delegated == [range(40)]


FAILING = """
    import ctypes, os
    fail_at = ctypes.CDLL(os.environ["OPENVINO_LIB_PATH"]).fail_at
    prompt = [3 * i % 97 for i in range({tokens})]

    def after(session):
        at = session.prefill(prompt)
        rest = session.verify([5, 6, 7])
        session.commit(2)
        return np.concatenate([at.ravel(), rest.ravel(), session.decode(9).ravel()])

    os.environ["HYBRIDGE_DELEGATE"] = "off"
    wanted = after(Session(model))
    del os.environ["HYBRIDGE_DELEGATE"]
    used = []
    for nan in (0, 1):
        for n in range(1, 4 * {parts} + 2):  # a chunk to try it, and three of the prompt
            fail_at(n, nan)
            with Session(model) as one:
                found = after(one)
                used.append(one.prompts_read)
            assert np.abs(found - wanted).max() < 2e-5 * np.abs(wanted).max(), (n, nan, used[-1])
    print(*(each.delegate_tokens for each in used), used[0].reason, sep="\\n")
"""


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A library in place of OpenVINO's that fails, or answers NaN, when it is told to."""
    DELEGATES["openvino"].prepare()
    real = Path(os.environ[DELEGATES["openvino"].variable])
    shim = tmp_path_factory.mktemp("failing") / "libopenvino_c.so"
    source = Path(__file__).with_name("failing_openvino.c")
    linked = [f'-DREAL="{real}"', "-Wl,--no-as-needed", str(real), f"-Wl,-rpath,{real.parent}", "-ldl"]
    subprocess.run(["cc", "-shared", "-fPIC", "-o", shim, source, *linked], check=True)
    return str(shim)


def test_whatever_call_fails_the_cpu_reads_the_chunk(artifact: Path, failing: str) -> None:
    parts = sum(read_manifest(artifact).methods["delegate_prefill"].delegates.values())
    program = FAILING.format(tokens=len(PROMPT), parts=parts)
    *read, reason = in_core(artifact, program, OPENVINO_LIB_PATH=failing).splitlines()
    expected = [chunk * CHUNK for chunk in (0, 0, 1, 2) for _ in range(parts)] + [3 * CHUNK]
    assert list(map(int, read)) == expected * 2
    assert "delegate_prefill" in reason


@pytest.fixture(scope="module")
def encoding(pictures_checkpoint: Path) -> Path:
    """An artifact whose pictures of more than 6 tokens are encoded by the accelerator; each has two methods for them."""
    taken = replace(LFM2_VL_OPTIONS, delegate="openvino", delegate_methods=("prefill", "encode"), delegate_from=2)
    return exported(pictures_checkpoint, taken)


def test_pictures_are_encoded_by_the_accelerator(
    encoding: Path, pictures_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = read_manifest(encoding).methods["delegate_vision_encoder"]
    assert method.delegates == {"hybridge.OpenvinoBackend": 3}, "two layers and one more"
    large, small = rgb(4, 4, 1), rgb(2, 2, 2)

    def close(logits: NDArray[np.float32], text: list[int | NDArray[np.uint8]]) -> None:
        wanted = whole_logits(pictures_checkpoint, text)
        np.testing.assert_allclose(logits, wanted, atol=TOLERANCE * np.abs(wanted).max())

    with Session.load(encoding, strict_reuse=True) as session:
        pictures = [Picture(session.model, each, prepared=True) for each in (large, small)]
        text = [1, *pictures[0].ids, 60, 61, *pictures[1].ids, 62]
        close(session.prefill(text), [1, large, 60, 61, small, 62])
        assert session.delegated == [range(1, 17)], "the shorter method of the encoder is the CPU's"
        kept, cache = session.checkpoint(), PrefixCache(session.model)
        session.keep_checkpoint(cache)
        session.reset()
        assert session.resume_prefix([*text, 1], cache) == len(text)
        monkeypatch.setenv("HYBRIDGE_DELEGATE", "off")
        with Session(session.model) as by_cpu:
            with pytest.raises(UsageError, match="read by another method"):
                by_cpu.resume(kept)
            close(by_cpu.prefill(text[:18]), [1, large, 60])
            assert by_cpu.delegated == [], "it encodes again what the accelerator has"
            assert pictures[0].encodings == 2
            by_cpu.keep_checkpoint(cache)
        session.reset()
        assert session.resume_prefix([*text[:18], 9], cache) == 0, "the CPU has encoded it"


FAILING_TO_ENCODE = """
    import ctypes, os
    from hybridge.runtime.binding.pictures import Picture
    fail_at = ctypes.CDLL(os.environ["OPENVINO_LIB_PATH"]).fail_at
    rgb = np.random.default_rng(0).integers(0, 256, (4 * {unit}, 4 * {unit}, 3), dtype=np.uint8)

    def after(session):
        with Picture(session.model, rgb, prepared=True) as picture:
            return session.prefill([1, *picture.ids, 60])

    os.environ["HYBRIDGE_DELEGATE"] = "off"
    wanted = after(Session(model))
    del os.environ["HYBRIDGE_DELEGATE"]
    for nan in (0, 1):
        for n in range(1, 2 * {parts} + 2):  # a picture of one token to try it, and this one
            with Session(model) as one:
                fail_at(n, nan)
                found = after(one)
                print(one.prompts_read.delegate_tokens, one.prompts_read.reason)
            assert np.abs(found - wanted).max() < 2e-5 * np.abs(wanted).max(), (n, nan)
"""


def test_whatever_call_fails_the_cpu_encodes_the_picture(encoding: Path, failing: str) -> None:
    parts = sum(read_manifest(encoding).methods["delegate_vision_encoder"].delegates.values())
    program = FAILING_TO_ENCODE.format(parts=parts, unit=UNIT)
    said = in_core(encoding, program, OPENVINO_LIB_PATH=failing).splitlines()
    used = [int(line.partition(" ")[0]) for line in said]
    assert used == ([0] * 2 * parts + [16]) * 2
    assert "delegate_vision_encoder" in said[0]
    assert "NaN" in said[3 * parts]


def test_a_missing_library_is_named_and_the_cpu_reads(artifact: Path, tmp_path: Path) -> None:
    program = "session.prefill([1, 2, 3]); print(session.prompts_read)"
    said = in_core(artifact, program, OPENVINO_LIB_PATH=str(tmp_path / "none.so"))
    assert "OpenvinoBackend" in said
    assert "pip install 'hybridge[openvino]'" in said
    assert "delegate_tokens=0, cpu_tokens=3" in said


@pytest.mark.thorough
def test_an_accelerator_that_is_not_here_is_named_and_the_cpu_reads() -> None:
    folder = exported(checkpoint("lfm2"), replace(OPTIONS, delegate="vulkan", delegate_device="GPU"))
    method = read_manifest(folder).methods["delegate_prefill"]
    assert method.delegates.keys() == {"hybridge.VulkanBackend"}
    assert method.delegate_bytes > 2 * 4 * 64 * 64, "its weights are beside its parts"
    with Session.load(folder) as session:
        session.prefill(PROMPT)
        read = session.prompts_read
        assert read is not None
        assert "VulkanBackend is not registered" in read.reason
        assert (read.delegate_tokens, read.cpu_tokens) == (0, len(PROMPT))


def test_only_its_own_method_may_hand_parts_to_it(artifact: Path) -> None:
    manifest = read_manifest(artifact)
    stolen = manifest.methods["delegate_prefill"].delegates
    methods = manifest.methods | {"decode": manifest.methods["decode"].model_copy(update={"delegates": stolen})}
    with pytest.raises(ValueError, match="decode hands parts"):
        Manifest(**vars(manifest.model_copy(update={"methods": methods})))
