"""Ask ``hybridge serve`` by the packages that people use: each must get the text that the artifact writes without a server.

lm-evaluation-harness scores a small task by ``local-completions``, with the server's tokenizer, and by our own integration: the
figures must be the same. Exit code 1 where a client gets anything else, or cannot be run on this machine; its row says why.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from campaigns import campaign
from campaigns.clients.conversations import ClientError
from campaigns.clients.in_programs import PROGRAMS, python_of
from campaigns.clients.programs.http_clients import CLIENTS, MOST, QUESTION
from campaigns.serve_bench.server import serving
from hybridge.runtime.text.chat_template import load_template
from hybridge.runtime.text.generate import generate_text, open_text_model

DOCUMENTS = [
    {"question": "The capital of France is", "choices": [" Paris", " Rome", " a river"], "answer": 0},
    {"question": "Two and two make", "choices": [" five", " four", " a cat"], "answer": 1},
    {"question": "A week has", "choices": [" twelve months", " a colour", " seven days"], "answer": 2},
]
METRICS = ("acc", "acc_norm", "bits_per_byte", "exact_match")
TASKS: dict[str, dict[str, Any]] = {
    "choice": {
        "output_type": "multiple_choice", "doc_to_text": "{{question}}", "doc_to_choice": "{{choices}}",
        "doc_to_target": "answer", "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    },
    "rolling": {
        "output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{question}} {{choices | join(',')}}",
        "metric_list": [{"metric": "bits_per_byte"}],
    },
    "writing": {
        "output_type": "generate_until", "doc_to_text": "{{question}}", "doc_to_target": "{{choices[answer]}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 12, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    },
}  # fmt: skip


def main() -> int:
    """Print the table; returns the exit code."""
    parser = campaign.parser("server-clients", __doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact", type=Path, help="of a model with a chat template")
    parser.add_argument("--python", type=Path, help="an interpreter that has the clients; an environment is made if left out")
    parser.add_argument("--only", choices=[*CLIENTS, "lm-eval"], nargs="+", default=[*CLIENTS, "lm-eval"])
    options = parser.parse_args()
    python, model = options.python or python_of("http-clients"), options.artifact.name
    right = _written(options.artifact)
    print("| client | text, stream, tool or schema |\n|---|---|")
    wrong = 0
    with serving(options.artifact) as server:
        url = f"http://127.0.0.1:{server.port}"
        for name in options.only:
            try:
                said = (
                    _evaluate(options.artifact, python, url) if name == "lm-eval" else _asked(python, name, url, model, right)
                )
            except ClientError as error:
                wrong, said = wrong + 1, f"wrong: {error}"
            print(f"| {name} | {said} |", flush=True)
    return 1 if wrong else 0


def _written(artifact: Path) -> str:
    """Return the greedy answer to the clients' question, without a server."""
    model = open_text_model(artifact, plain=True)
    prompt = load_template(model.artifact).render([{"role": "user", "content": QUESTION}])
    tokens = model.tokenizer.encode(prompt.text, around=False, plain=prompt.words).ids
    return "".join(piece.text for piece in generate_text(model.session, tokens, model.tokenizer, max_new_tokens=MOST))


def _asked(python: Path, name: str, url: str, model: str, right: str) -> str:
    """Return what to say of a client. Raises ClientError if it got anything else than ``right``."""
    got = json.loads(_run([python, PROGRAMS / "http_clients.py", name, url, model]).splitlines()[-1])
    for kind in ("text", "streamed"):
        if got[kind].strip() != right.strip():
            raise ClientError(f"{kind} is {got[kind]!r}, not {right!r}")
    if got["place"].get("place") not in ("Ulm", "Rome"):
        raise ClientError(f"the place is {got['place']!r}")
    return "right"


def _evaluate(artifact: Path, python: Path, url: str) -> str:
    """Return the harness's figures, which are the same by both ways. Raises ClientError."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "documents.jsonl").write_text("".join(json.dumps(each) + "\n" for each in DOCUMENTS))
        for task, fields in TASKS.items():
            data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(folder / "documents.jsonl")}}}
            (folder / f"{task}.yaml").write_text(json.dumps({"task": task, "test_split": "test", **data, **fields}))
        words = ["--tasks", ",".join(TASKS), "--include_path", str(folder), "--log_samples"]
        served = ["--model", "local-completions", "--model_args", f"model={artifact.name},base_url={url}/v1/completions"]
        own = ["--model", "hybridge", "--model_args", f"artifact={artifact}"]
        _run([python, "-m", "lm_eval", "run", *served, *words, "--output_path", folder / "served"])
        _run([Path(sys.executable).parent / "hybridge", "lm-eval", "run", *own, *words, "--output_path", folder / "own"])
        figures = [_figures(folder / way) for way in ("served", "own")]
    if figures[0].keys() != figures[1].keys() or not all(
        math.isclose(figures[0][name], figures[1][name], rel_tol=1e-6) for name in figures[0]
    ):
        raise ClientError(f"the figures are {figures[0]}, but by our own integration {figures[1]}")
    return ", ".join(f"{name} {value:.6g}" for name, value in figures[0].items())


def _figures(folder: Path) -> dict[str, float]:
    """Return the figures of a run by task and metric."""
    results = json.loads(next(folder.rglob("results_*.json")).read_text())["results"]
    return {f"{task} {metric}": results[task][f"{metric},none"] for task in TASKS for metric in METRICS
            if f"{metric},none" in results[task]}  # fmt: skip


def _run(words: list[object]) -> str:
    """Return what a program prints. Raises ClientError with its last words if it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"HF_DATASETS_OFFLINE": "1"}
    try:
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True, env=environment, check=False, timeout=600)
    except subprocess.TimeoutExpired:
        raise ClientError("it took longer than 10 minutes") from None
    if done.returncode:
        raise ClientError(f"it ended with {done.returncode}: {' '.join(done.stderr.strip().splitlines()[-1:])[-500:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
