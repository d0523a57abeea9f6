"""``scripts/bench``: its arithmetic, its processes, and that llama.cpp computes the same from the files written for it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from campaigns.bench import driver, export_cost, peers, prepare, results, shapes, worker
from campaigns.bench.driver import Client, EngineError
from campaigns.bench.results import BASELINES, VARIANTS, Bits, Row, Run, Samples, Variant
from campaigns.bench.worker import tokens
from tiny import lively
from transformers import AutoModelForCausalLM

LFM2 = shapes.LFM2 | {"vocab_size": 320, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
LFM2 |= {"num_key_value_heads": 2, "full_attn_idxs": [1]}
GRANITE = shapes.GRANITE | {"vocab_size": 320, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
GRANITE |= {"num_key_value_heads": 2, "layer_types": ["mamba", "attention", "mamba"], "shared_intermediate_size": 96}
GRANITE |= {"mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 32}
SMALL = {
    "qwen3_5_text": shapes.SHAPES["tiny"],
    "lfm2": shapes.Shape("lfm2", LFM2),
    "granitemoehybrid": shapes.Shape("granitemoehybrid", GRANITE),
}
WORK = Path.home() / ".cache" / "hybridge-bench"

FAKE = """
import sys, time
class Fake:
    def load(self): print("chatter of a native library")
    def set_threads(self, count): raise NotImplementedError("one thread only")
    def fill(self, context): time.sleep(context)
    def decode(self): sys.exit(3)
    def verify(self, count): raise ValueError("no")
    def prefill(self, count): import os; os._exit(7)
"""


def samples(measure: results.Measure, *rounds: list[float], context: int = 128, threads: int = 1) -> Samples:
    return Samples(measure=measure, context=context, threads=threads, rounds=list(rounds))


def run_of(*rows: Row) -> Run:
    return Run(shape="qwen3.5-0.8b", contexts=[128, 2048], threads=[1, 2], machine={"CPU": "one"}, rows=list(rows))


def row(variant: str, *measured: Samples, **fields: Any) -> Row:
    group = next(v.group for v in VARIANTS if v.name == variant)
    return Row(variant=variant, group=group, samples=list(measured), **fields)


def test_a_ratio_is_taken_round_by_round() -> None:
    """Noise that makes a round slow for both must not change it; medians over all steps would."""
    ours = samples("decode", [1.0, 1.0, 1.0], [10.0, 10.0, 10.0], [1.0])
    theirs = samples("decode", [2.0], [20.0, 20.0, 90.0], [2.0])
    assert results.speedup(ours, theirs) == 2.0
    assert results.speedup(None, theirs) is None


def test_the_limit_is_what_is_read_over_what_memory_gave_in_the_round() -> None:
    measured = samples("decode", [0.5], [1.0], [9.0])
    measured.bandwidth = [16e9, 8e9, 8e9]
    run = run_of(row("hybridge", measured, bytes_read={128: 4e9}))
    assert run.of_limit(run.rows[0], 128, 1) == 0.5
    assert run.of_limit(run.rows[0], 128, 2) is None
    assert "| hybridge | 50 % |" in results.limits(run)


def test_bytes_read_by_one_decode() -> None:
    sizes = shapes.Sizes(linear=1000, head=200, small=10, recurrent=20, row=8)
    variant = Variant("x", "int4", "llama", Bits(4.5, 8, 16))
    assert prepare.weight_bytes(variant, sizes) == 1000 * 4.5 / 8 + 200 + 40
    assert prepare.bytes_read(variant, sizes, 100) == 1000 * 4.5 / 8 + 200 + 40 + 8 * 100 * 2 + 80


def test_every_number_of_a_checkpoint_is_counted_once(tmp_path: Path) -> None:
    shapes.write_checkpoint(shapes.SHAPES["tiny"], tmp_path / "checkpoint")
    counted = shapes.sizes_of(tmp_path / "checkpoint")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint")
    assert counted.linear + counted.head + counted.small == model.num_parameters()
    assert counted.head == 320 * 64
    assert counted.row == 2 * 2 * 32  # one attention layer with two heads of 32
    assert counted.recurrent == 3 * (2 * 32 * 32 + 6 * 32 * 3)


def test_tables_say_what_failed_and_why_once() -> None:
    missing = {"verify": "only decode", "prefill": "only decode"}
    measured = row("hybridge", samples("decode", [0.01]), missing=missing)
    run = run_of(measured, row("llama.cpp Q4_0", failed=peers.how()))
    text = results.shape(run)
    assert f"- llama.cpp Q4_0: {peers.how()}" in text
    assert "- hybridge: no verify, prefill: only decode" in text
    assert "| hybridge | 100 | – |" in text
    widths = {line.count("|") for line in results.speeds(run, run.rows, "float32", 1).splitlines()}
    assert len(widths) == 1


@pytest.mark.parametrize(
    ("value", "text"), [(1234.4, "1,234"), (12.34, "12.3"), (1.234, "1.23"), (0.1234, "0.123"), (None, "–")]
)
def test_numbers_have_three_digits(value: float | None, text: str) -> None:
    assert results.number(value) == text


def test_names_of_variants_can_be_given_with_commas_between() -> None:
    names = [variant.name for variant in VARIANTS]
    assert len(set(names)) == len(names)
    assert not any("," in name for name in names)
    assert all(name in names for name in BASELINES.values())


def test_results_come_back_from_their_file(tmp_path: Path) -> None:
    run = run_of(row("hybridge", samples("decode", [0.5, 0.25]), bytes_read={128: 4e9}))
    run.bandwidth = {1: [1e9]}
    results.save([run], tmp_path / "raw.json")
    assert results.read(tmp_path / "raw.json") == [run]


def test_a_group_that_is_measured_again_replaces_its_rows_only() -> None:
    old, new = run_of(row("hybridge"), row("llama.cpp Q4_0")), run_of(row("llama.cpp Q4_0 rollback"))
    old.bandwidth, new.bandwidth = {1: [1.0]}, {1: [2.0]}
    (both,) = results.merged([old], new)
    assert [r.variant for r in both.rows] == ["hybridge", "llama.cpp Q4_0 rollback"]
    assert both.bandwidth[1] == [1.0, 2.0]
    new.contexts = [128]
    assert results.merged([old], new) == [new]


class Scripted:
    """A client that notes what it is asked for; ``broken`` fails."""

    def __init__(self, name: str, log: list[str], broken: str = "") -> None:
        self.name, self.log, self.broken = name, log, broken
        self.process = self

    def poll(self) -> None:
        return None

    def ask(self, limit: float, **request: Any) -> dict[str, Any]:
        if request["do"] != "measure":
            return {"seconds": [0.0]}
        what = request["what"]["name"]
        if what == self.broken:
            raise EngineError("cannot")
        self.log.append(f"{self.name} {what}")
        return {"seconds": [0.5] * request["steps"]}


class Steady:
    def measure(self, threads: int) -> float:
        return 1e9


def test_engines_take_turns_and_one_that_fails_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "PAUSE", 0)
    log: list[str] = []
    clients: list[Any] = [Scripted("a", log), Scripted("b", log, broken="commit")]
    rows = [row("hybridge"), row("transformers eager")]
    run = run_of(*rows)
    run.contexts, run.threads = [128], [1]
    contestants = [driver.Contestant(client, r) for client, r in zip(clients, rows, strict=True)]
    bandwidth: Any = Steady()
    driver.measure_group(run, contestants, bandwidth, driver.Limits(rounds=3), lambda text: None)
    decodes = [line for line in log if line.endswith("decode")][2:]
    assert decodes == ["a decode", "a decode", "b decode", "b decode"] * 3
    assert rows[1].missing == {"commit": "cannot"}
    assert [s.measure for s in rows[0].samples] == ["decode", "verify", "commit", "prefill"]
    assert [s.measure for s in rows[1].samples] == ["decode", "verify", "prefill"]


class Counting:
    """Verifies and commits, in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def verify(self, count: int) -> None:
        self.calls.append(f"verify {count}")

    def commit(self, count: int) -> None:
        self.calls.append(f"commit {count}")


def test_a_commit_is_of_a_verify() -> None:
    engine: Any = Counting()
    answer = worker.respond(engine, {"do": "measure", "what": {"name": "commit", "arguments": [4]}, "steps": 2})
    assert engine.calls == ["verify 8", "commit 4"] * 2
    assert len(answer["seconds"]) == 2


def test_a_worker_says_why_and_a_dead_or_slow_one_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fake_engine.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    client = Client(sys.executable, "fake_engine:Fake", {}, tmp_path / "log")
    try:
        assert client.ask(30, do="load")["seconds"][0] >= 0
        with pytest.raises(EngineError, match=r"^one thread only$"):
            client.ask(30, do="set_threads", count=2)
        with pytest.raises(EngineError, match="ValueError: no"):
            client.ask(30, do="measure", what={"name": "verify", "arguments": [8]}, steps=1)
        with pytest.raises(EngineError, match="ended with 7"):
            client.ask(30, do="measure", what={"name": "prefill", "arguments": [8]}, steps=1)
    finally:
        client.close()
    assert "chatter" in (tmp_path / "log").read_text()
    slow = Client(sys.executable, "fake_engine:Fake", {}, tmp_path / "log")
    with pytest.raises(EngineError, match="no answer within 0 s"):
        slow.ask(0.2, do="fill", context=60)


@pytest.mark.slow
def test_an_export_that_fails_or_takes_too_long_says_so(tmp_path: Path) -> None:
    failing = [sys.executable, "-c", "import sys; print('│ no such option │', file=sys.stderr); print('╰──╯'); sys.exit(2)"]
    with pytest.raises(export_cost.CannotExportError, match=r"^no such option$"):
        export_cost.run_measured(failing, tmp_path / "log", limit=30)
    with pytest.raises(export_cost.CannotExportError, match="not finished after 0 s"):
        export_cost.run_measured([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "log", limit=0.3)
    seconds, memory = export_cost.run_measured([sys.executable, "-c", "x = b'1' * 2**26"], tmp_path / "log", limit=30)
    assert seconds < 30
    assert memory > 2**26


LOGITS = """
import json, sys
from pathlib import Path
from campaigns.bench import gguf_file, llama_engine
folder, vocabulary = Path(sys.argv[1]), int(sys.argv[2])
gguf_file.main(folder / "checkpoint", folder / "F32.gguf", "F32")
engine = llama_engine.LlamaEngine(str(folder / "F32.gguf"), vocabulary, "f32", 128, 0)
engine.load()
engine.prefill(40)
logits = llama_engine.llama.llama_get_logits_ith(engine.context, -1)
print(json.dumps([logits[i] for i in range(vocabulary)]))
"""


@pytest.mark.skipif(not peers.installed(WORK), reason="needs scripts/bench --install-peers")
@pytest.mark.parametrize("model_type", SMALL)
def test_llama_cpp_computes_the_same(model_type: str, tmp_path: Path) -> None:
    shapes.write_checkpoint(SMALL[model_type], tmp_path / "checkpoint")
    model = lively(AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint").eval())
    model.save_pretrained(tmp_path / "checkpoint")
    with torch.no_grad():
        wanted = model(torch.tensor([tokens(40, 320)])).logits[0, -1]
    command = [str(peers.python_of(WORK)), "-c", LOGITS, str(tmp_path), "320"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = torch.tensor(json.loads(done.stdout))
    assert (found - wanted).abs().max() <= 2e-3 * wanted.abs().max()  # llama.cpp rounds to float16 in places
