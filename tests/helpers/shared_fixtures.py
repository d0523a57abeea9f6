"""Fixtures of all tests: one small hybrid checkpoint and one artifact of it, as an export takes half a minute, and others."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from command_line import Outcome, Run, exit_code, outcome
from hypothesis import HealthCheck, settings
from public_folders import (
    GEMMA3_OPTIONS,
    GEMMA_OPTIONS,
    GLM_OPTIONS,
    LFM2_VL_OPTIONS,
    OMNI_OPTIONS,
    QWEN_OPTIONS,
    save_gemma3,
    save_gemma4,
    save_gemma4_unified,
    save_glm5_next,
    save_lfm2_vl,
    save_nemotron_h_omni,
    save_qwen3_5_pictures,
)
from store import demo_folder
from store import exported as stored
from tiny import save_checkpoint, save_lively_checkpoint, save_tokenizer, tiny_config

import hybridge.export.write.pte
from hybridge.__main__ import main
from hybridge.runtime.artifact.options import ExportOptions
from hybridge.runtime.native_log import LOG_LINE

# An example that failed once is written beside its test as @example: hypothesis's own store knows a test by its path and text.
settings.register_profile(
    "hybridge",
    max_examples=15,
    derandomize=False,
    print_blob=bool(os.environ.get("CI")),
    # Seconds say something of a shared machine, and nothing of the code.
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("hybridge-all", settings.get_profile("hybridge"), max_examples=100)


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("hybridge-all" if config.getoption("all") else "hybridge")
    # A shell has its background commands ignore Ctrl-C, and so would the tests of it and what they start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """Tests of threads leave torch's number of them as it was: two processes with two each would wait for each other."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="session")
def _nothing_kept() -> Iterator[None]:
    """Keep no programs: a test may have changed what makes them in its process, which their keys do not know."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(hybridge.export.write.pte, "find_program", lambda key: None)
        patched.setattr(hybridge.export.write.pte, "keep_program", lambda key, program: None)
        yield


@pytest.fixture(autouse=True, scope="module")
def _collected() -> None:
    """Keep later collections from walking what the modules before left: graphs are objects by the million.

    The last failed test's variables go as well. An open session among them, or one that was frozen while a test still had
    it, would keep others from setting the number of threads.
    """
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        vars(sys).pop(name, None)
    gc.collect()
    gc.freeze()


HYBRID = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One linear_attention and one full_attention layer, and a tokenizer of ASCII characters."""
    folder = tmp_path_factory.mktemp("checkpoint")
    save_checkpoint(folder, tiny_config("qwen3_5_text", **HYBRID))
    save_tokenizer(folder)
    return folder


SIZES = ExportOptions(max_seq_len=96, prefill_chunk=17, verify_len=5, snapshot_slots=2, kernels="llm")


@pytest.fixture(scope="session")
def artifact(checkpoint: Path) -> Path:
    """The artifact of ``checkpoint``. Copy it before changing it."""
    return stored(checkpoint, SIZES)


@pytest.fixture(scope="session")
def kernels_artifact(checkpoint: Path) -> Path:
    """The artifact of ``checkpoint`` with ``--kernels hybridge``. Copy it before changing it."""
    return stored(checkpoint, replace(SIZES, kernels="hybridge"))


@pytest.fixture(scope="session")
def long_artifact(checkpoint: Path) -> Path:
    """An artifact of ``checkpoint`` for 100,000 tokens."""
    return stored(checkpoint, replace(SIZES, kernels="hybridge", max_seq_len=100_000))


@pytest.fixture(scope="session")
def lively_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint like ``checkpoint`` whose weights are large enough to show mistakes."""
    folder = tmp_path_factory.mktemp("lively")
    save_lively_checkpoint(folder, tiny_config("qwen3_5_text", **HYBRID))
    save_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def onnx_artifact(lively_checkpoint: Path) -> Path:
    """The ONNX artifact of ``lively_checkpoint``, with the sizes of ``artifact``. Copy it before changing it."""
    return stored(lively_checkpoint, replace(SIZES, format="onnx", kernels="hybridge"))


def _pictured(form: str, save: Callable[[Path], None], options: ExportOptions) -> tuple[object, object]:
    """Return two fixtures: a checkpoint that takes pictures, in its public form and scaled down, and its artifact."""

    @pytest.fixture(scope="session", name=f"{form}_checkpoint")
    def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
        folder = tmp_path_factory.mktemp(form)
        save(folder)
        return folder

    @pytest.fixture(scope="session", name=f"{form}_artifact")
    def artifact(request: pytest.FixtureRequest) -> Path:
        return stored(request.getfixturevalue(f"{form}_checkpoint"), options)

    return checkpoint, artifact


# LFM2-VL, whose encoder has two methods; Qwen3.5, with rope positions on three axes and a drafter; Gemma 4 26B-A4B, where rows
# of a picture see each other; Gemma 3, whose pictures are squares of one size; Gemma 4 12B, each of whose patches is a row;
# GLM5-Next, whose pictures keep their shape on a canvas of whole tokens; Nemotron-H Omni, which takes sounds and videos, too.
pictures_checkpoint, pictures_artifact = _pictured("pictures", save_lfm2_vl, LFM2_VL_OPTIONS)
grid_checkpoint, grid_artifact = _pictured("grid", save_qwen3_5_pictures, QWEN_OPTIONS)
block_checkpoint, block_artifact = _pictured("block", save_gemma4, GEMMA_OPTIONS)
square_checkpoint, square_artifact = _pictured("square", save_gemma3, GEMMA3_OPTIONS)
row_checkpoint, row_artifact = _pictured("row", save_gemma4_unified, GEMMA_OPTIONS)
canvas_checkpoint, canvas_artifact = _pictured("canvas", save_glm5_next, GLM_OPTIONS)
omni_checkpoint, omni_artifact = _pictured("omni", save_nemotron_h_omni, OMNI_OPTIONS)


@pytest.fixture(scope="session")
def demo() -> Path:
    """The embedded model's artifact, with a chat template and a drafter; those of its draft model and DSpark are beside it."""
    return demo_folder() / "hybridge-demo"


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process."""

    def run(*arguments: object) -> Outcome:
        capsys.readouterr()
        code = exit_code(monkeypatch, main, "hybridge", *arguments)
        out, err = capsys.readouterr()
        # ExecuTorch's extension logs to sys.stderr at its first use: file descriptor 2 of a command, but not under capsys.
        return outcome(code, out, LOG_LINE.sub(b"", err.encode()).decode())

    return run


@pytest.fixture
def artifact_copy(artifact: Path, tmp_path: Path) -> Path:
    """A copy of ``artifact``, to be damaged."""
    return Path(shutil.copytree(artifact, tmp_path / "artifact"))
