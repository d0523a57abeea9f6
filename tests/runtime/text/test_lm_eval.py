"""``hybridge lm-eval``: the harness itself over an artifact, on a task of local files."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from store import exported
from tiny import save_tokenizer
from tokenizers import Tokenizer, processors
from torch import Tensor

from hybridge.export.check.oracle import load_oracle
from hybridge.runtime.artifact.manifest import read_manifest
from hybridge.runtime.artifact.options import ExportOptions
from hybridge.runtime.binding.tokenizer import Tokenizer as CoreTokenizer

pytest.importorskip("lm_eval", reason="needs lm_eval: .venv/bin/pip install '.[eval]'")

SCRIPT = Path(sys.executable).parent / "hybridge"
SIZES: dict[str, Any] = {"max_seq_len": 128, "prefill_chunk": 16, "verify_len": 4, "snapshot_slots": 1, "kernels": "hybridge"}
DOCUMENTS: list[dict[str, Any]] = [
    {"question": "def add(", "choices": ["first, second)", "x", "zz]"], "answer": 0, "text": "for each in range(10):"},
    {"question": "return ", "choices": ["first", "}", "self"], "answer": 2, "text": "class Sum:\n    pass\n" * 10},
]
TASKS = {
    "choice": {
        "output_type": "multiple_choice", "doc_to_text": "{{question}}", "doc_to_choice": "{{choices}}",
        "doc_to_target": "answer", "metric_list": [{"metric": "acc"}],
    },
    "rolling": {
        "output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{text}}",
        "metric_list": [{"metric": "bits_per_byte"}],
    },
    "writing": {
        "output_type": "generate_until", "doc_to_text": "{{question}}", "doc_to_target": "{{text}}",
        "generation_kwargs": {"until": ["\n\n"], "max_gen_toks": 12, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "documents.jsonl").write_text("".join(json.dumps(each) + "\n" for each in DOCUMENTS))
    for name, task in TASKS.items():
        data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(folder / "documents.jsonl")}}}
        (folder / f"{name}.yaml").write_text(json.dumps({"task": f"local_{name}", "test_split": "test", **data, **task}))
    return folder


@pytest.fixture(scope="module")
def artifact_with_end(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact of a model with a token that ends texts: the harness scores a text's first token after one."""
    folder = tmp_path_factory.mktemp("with-end")
    ended = Path(shutil.copytree(checkpoint, folder / "checkpoint"))
    (ended / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}))
    return exported(ended, ExportOptions(**SIZES))


@pytest.fixture(scope="module")
def plain_results(tasks: Path, artifact_with_end: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the harness wrote about an artifact that drafts nothing."""
    out = tmp_path_factory.mktemp("plain")
    run(tasks, out, f"artifact={artifact_with_end}")
    return out


@pytest.mark.slow
@pytest.mark.thorough
def test_the_harness_scores_as_the_model_does(plain_results: Path, artifact_with_end: Path, checkpoint: Path) -> None:
    """Against the uncached model's own probabilities of the same texts."""
    results = results_of(plain_results)
    oracle = load_oracle(checkpoint, read_manifest(artifact_with_end))
    encode = Tokenizer.from_file(str(checkpoint / "tokenizer.json")).encode

    def scores(first: list[int], text: str) -> Tensor:
        ids = encode(text).ids
        return oracle([*first, *ids])[-1 - len(ids) : -1].log_softmax(-1).gather(-1, torch.tensor(ids)[:, None])

    right = [
        max(range(3), key=lambda i: float(scores(encode(each["question"]).ids, each["choices"][i]).sum())) == each["answer"]
        for each in DOCUMENTS
    ]
    assert results["local_choice"]["acc,none"] == sum(right) / len(right)
    bits = [-float(scores([0], each["text"]).sum()) / math.log(2) for each in DOCUMENTS]
    size = sum(len(each["text"].encode()) for each in DOCUMENTS)
    assert results["local_rolling"]["bits_per_byte,none"] == pytest.approx(sum(bits) / size, rel=1e-4)


@pytest.mark.thorough
@pytest.mark.slow
def test_drafting_changes_no_answer(tasks: Path, plain_results: Path, artifact_with_end: Path, tmp_path: Path) -> None:
    run(tasks, tmp_path, f"artifact={artifact_with_end},lookup=True")
    assert len(written(plain_results)) == len(DOCUMENTS)
    assert written(tmp_path) == written(plain_results)
    assert results_of(tmp_path) == results_of(plain_results)


def run(tasks: Path, out: Path, arguments: str) -> None:
    done = harness(tasks, out, arguments)
    assert done.returncode == 0, done.stderr[-4000:]


def results_of(out: Path) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = json.loads(next(out.rglob("results_*.json")).read_text())["results"]
    return found


def written(out: Path) -> list[Any]:
    samples = next(out.rglob("samples_local_writing*.jsonl"))
    return [json.loads(line)["resps"] for line in samples.read_text().splitlines()]


def harness(tasks: Path, out: Path, arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tasks / "hub")}
    words = ["--tasks", ",".join(f"local_{name}" for name in TASKS), "--include_path", tasks, "--output_path", out]
    return subprocess.run(
        [SCRIPT, "lm-eval", "run", "--model", "hybridge", "--model_args", arguments, *words, "--log_samples"],
        env=environment, check=False, capture_output=True, text=True, timeout=600,
    )  # fmt: skip


def test_a_chat_that_begins_with_bos_gets_no_second_one(tmp_path: Path) -> None:
    from hybridge.runtime.integrations.lm_eval import HybridgeLM

    save_tokenizer(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer.add_special_tokens(["<begin>"])
    tokenizer.post_processor = processors.TemplateProcessing(single=["<begin>", "$A"], special_tokens=[("<begin>", 129)])
    model = SimpleNamespace(tokenizer=CoreTokenizer(tokenizer.to_str().encode()))
    encode = partial(HybridgeLM.tok_encode, SimpleNamespace(model=model))
    assert encode("ab") == encode("<begin>ab") == [129, 97, 98]
    assert encode("<begin>ab", add_special_tokens=True) == [129, 129, 97, 98]
    assert encode("ab", add_special_tokens=False) == [97, 98]
