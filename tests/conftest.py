"""One small hybrid checkpoint and one artifact of it for the whole session: an export takes half a minute."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

# A process for each core, each with one thread: threads that share a core spend their time waiting for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before PyTorch starts

import pytest
import torch
from hypothesis import HealthCheck, settings

with warnings.catch_warnings():
    # What the pinned libraries say of themselves while they are imported.
    warnings.simplefilter("ignore")
    import hybridge.export.write.pte  # noqa: F401

from command_line import Outcome, Run, exit_code, outcome
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
from store import exported as stored
from tiny import save_checkpoint, save_lively_checkpoint, save_tokenizer, tiny_config

from hybridge.__main__ import main
from hybridge.runtime.artifact.options import ExportOptions
from hybridge.runtime.native_log import LOG_LINE

pytest_plugins = ["selection", "budget"]

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
def onnx_artifact(checkpoint: Path) -> Path:
    """The ONNX artifact of ``checkpoint``, with the sizes of ``artifact``."""
    return stored(checkpoint, replace(SIZES, format="onnx", kernels="hybridge"))


@pytest.fixture(scope="session")
def lively_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint like ``checkpoint`` whose weights are large enough to show mistakes."""
    folder = tmp_path_factory.mktemp("lively")
    save_lively_checkpoint(folder, tiny_config("qwen3_5_text", **HYBRID))
    save_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def lively_onnx_artifact(lively_checkpoint: Path) -> Path:
    """The ONNX artifact of ``lively_checkpoint``. Copy it before changing it."""
    return stored(lively_checkpoint, replace(SIZES, format="onnx", kernels="hybridge"))


@pytest.fixture(scope="session")
def pictures_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An LFM2-VL checkpoint in its public form, scaled down."""
    folder = tmp_path_factory.mktemp("lfm2_vl")
    save_lfm2_vl(folder)
    return folder


@pytest.fixture(scope="session")
def pictures_artifact(pictures_checkpoint: Path) -> Path:
    """The artifact of ``pictures_checkpoint``, whose encoder has two methods."""
    return stored(pictures_checkpoint, LFM2_VL_OPTIONS)


@pytest.fixture(scope="session")
def grid_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3.5 checkpoint in its public form, scaled down, whose pictures have rope positions on three axes."""
    folder = tmp_path_factory.mktemp("qwen3_5")
    save_qwen3_5_pictures(folder)
    return folder


@pytest.fixture(scope="session")
def grid_artifact(grid_checkpoint: Path) -> Path:
    """The artifact of ``grid_checkpoint``, with its own drafter and an encoder of two methods."""
    return stored(grid_checkpoint, QWEN_OPTIONS)


@pytest.fixture(scope="session")
def block_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Gemma 4 checkpoint in the public form of 26B-A4B, scaled down, where rows of a picture see each other."""
    folder = tmp_path_factory.mktemp("gemma4")
    save_gemma4(folder)
    return folder


@pytest.fixture(scope="session")
def block_artifact(block_checkpoint: Path) -> Path:
    """The artifact of ``block_checkpoint``, which reads pictures of 20 rows at once and tokens by 16."""
    return stored(block_checkpoint, GEMMA_OPTIONS)


@pytest.fixture(scope="session")
def square_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Gemma 3 checkpoint in its public form, scaled down, whose pictures are squares of one size."""
    folder = tmp_path_factory.mktemp("gemma3")
    save_gemma3(folder)
    return folder


@pytest.fixture(scope="session")
def square_artifact(square_checkpoint: Path) -> Path:
    """The artifact of ``square_checkpoint``, which reads the 16 rows of a picture at once and tokens by 10."""
    return stored(square_checkpoint, GEMMA3_OPTIONS)


@pytest.fixture(scope="session")
def row_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint in the public form of Gemma 4 12B, scaled down, each of whose patches is a row."""
    folder = tmp_path_factory.mktemp("gemma4_unified")
    save_gemma4_unified(folder)
    return folder


@pytest.fixture(scope="session")
def row_artifact(row_checkpoint: Path) -> Path:
    """The artifact of ``row_checkpoint``, which reads the rows of a picture at once."""
    return stored(row_checkpoint, GEMMA_OPTIONS)


@pytest.fixture(scope="session")
def canvas_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GLM5-Next checkpoint in its public form, scaled down, whose pictures keep their shape on a canvas of whole tokens."""
    folder = tmp_path_factory.mktemp("glm5_next")
    save_glm5_next(folder)
    return folder


@pytest.fixture(scope="session")
def canvas_artifact(canvas_checkpoint: Path) -> Path:
    """The artifact of ``canvas_checkpoint``, whose encoder takes 20 tokens, and its pictures are of 1 to 16."""
    return stored(canvas_checkpoint, GLM_OPTIONS)


@pytest.fixture(scope="session")
def omni_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Nemotron-H Omni checkpoint in its public form, scaled down, which takes sounds and videos, too."""
    folder = tmp_path_factory.mktemp("nemotron_h_omni")
    save_nemotron_h_omni(folder)
    return folder


@pytest.fixture(scope="session")
def omni_artifact(omni_checkpoint: Path) -> Path:
    """The artifact of ``omni_checkpoint``, whose pictures are enlarged to 6 tokens at least."""
    return stored(omni_checkpoint, OMNI_OPTIONS)


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
