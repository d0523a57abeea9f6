"""Checkpoints in the form that people have: exported whole, they generate and chat."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoint_forms import edit_json
from public_folders import END_OF_DOCUMENT, END_OF_TURN, TOKENS, save_qwen3_5
from safetensors import safe_open
from store import exported
from tiny import lively, tiny_config, tiny_model
from tokenizer_folders import TEXT
from tokenizers import ByteLevelBPETokenizer

from hybridge.export.check.oracle import uncached
from hybridge.export.program.build import build_cache
from hybridge.export.source.checkpoint import load_checkpoint, resolve_checkpoint
from hybridge.runtime import ExportOptions, Session, open_artifact
from hybridge.runtime.binding.drafters import OwnDrafter
from hybridge.runtime.binding.tokenizer import Tokenizer as CoreTokenizer
from hybridge.runtime.text.chat_template import load_template

OPTIONS = ExportOptions(max_seq_len=64, prefill_chunk=8, verify_len=5, tap_layers=(-1,), mtp=True, draft_len=3)
"""As in test_draft_vocabulary.py, so that the program is the same."""
SCRIPT = Path(sys.executable).parent / "hybridge"


@pytest.fixture(scope="module")
def qwen_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen3_5")
    save_qwen3_5(folder)
    return folder


@pytest.fixture(scope="module")
def qwen_artifact(qwen_checkpoint: Path) -> Path:
    return exported(qwen_checkpoint, OPTIONS, draft_vocab="self:96")


def test_the_folder_is_as_they_are_published(qwen_checkpoint: Path) -> None:
    config = json.loads((qwen_checkpoint / "config.json").read_text())
    assert config["architectures"] == ["Qwen3_5ForConditionalGeneration"]
    assert "num_attention_heads" not in config
    with safe_open(qwen_checkpoint / "model.safetensors", framework="pt") as file:
        names = set(file.keys())
    assert {name.split(".")[0] for name in names} == {"model", "mtp", "lm_head"}
    assert {name.split(".")[1] for name in names if name.startswith("model.")} == {"language_model", "visual"}


def test_the_state_of_a_drafter_is_that_of_the_text_model(qwen_checkpoint: Path) -> None:
    whole = resolve_checkpoint(qwen_checkpoint).config
    caches = [build_cache(config, OPTIONS) for config in (whole, whole.get_text_config())]
    shapes = [{name: each.shape for name, each in cache.named_buffers()} for cache in caches]
    assert shapes[0] == shapes[1]


@pytest.mark.thorough
def test_text_is_the_same_with_its_own_drafter(qwen_artifact: Path) -> None:
    session = Session.load(qwen_artifact)
    texts = []
    for drafter in (None, OwnDrafter(session)):
        session.reset()
        texts.append(list(session.generate([5, 6, 7, 8], max_new_tokens=40, drafter=drafter, eos_ids=[])))
    assert len(texts[0]) == 40
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_turns_end_too(qwen_artifact: Path) -> None:
    assert open_artifact(qwen_artifact).manifest.eos_ids == [END_OF_DOCUMENT, END_OF_TURN]


def test_its_tokenizer_was_made_of_vocabulary_and_merges(qwen_checkpoint: Path, qwen_artifact: Path) -> None:
    made = CoreTokenizer.from_file(qwen_artifact / "tokenizer.json")
    original = ByteLevelBPETokenizer.from_file(str(qwen_checkpoint / "vocab.json"), str(qwen_checkpoint / "merges.txt"))
    assert len(made.vocabulary()) == TOKENS
    for text in TEXT[:3]:
        assert made.decode(made.encode(text).ids) == text
    assert made.encode("state").ids == original.encode("state").ids
    assert made.encode("<|im_end|>").ids == [END_OF_TURN]


def test_its_template_takes_variables(qwen_artifact: Path) -> None:
    artifact, told = open_artifact(qwen_artifact), [{"role": "user", "content": "hi"}]
    assert load_template(artifact).render(told).text.endswith("<think>\n")
    assert load_template(artifact, {"enable_thinking": False}).render(told).text.endswith("<think>\n\n</think>\n\n")


@pytest.mark.slow
def test_the_commands_run_and_chat(qwen_artifact: Path) -> None:
    for words in (("run", "--prompt", "hybrid models"), ("chat", "--template-arg", "enable_thinking=false")):
        command = [SCRIPT, words[0], qwen_artifact, *words[1:], "--drafter", "--max-new-tokens", "4"]
        done = subprocess.run(command, input="hi\n", check=False, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()


def test_a_published_rwkv7_loads_without_its_code(tmp_path: Path) -> None:
    """In flash-linear-attention's layout, with files of Python beside it and a tokenizer that only these can read."""
    model = lively(tiny_model(tiny_config("rwkv7")))
    model.save_pretrained(tmp_path)
    modeling = {f"Auto{kind}": f"modeling_rwkv7.RWKV7{name}" for kind, name in (("Config", "Config"), ("Model", "Model"))}
    edit_json(tmp_path / "config.json", architectures=["RWKV7ForCausalLM"], auto_map=modeling, fuse_cross_entropy=True)
    for name in ("modeling_rwkv7.py", "hf_rwkv_tokenizer.py"):
        (tmp_path / name).write_text("raise SystemExit('a checkpoint's code ran')")
    tokenizer = {"tokenizer_class": "RwkvTokenizer", "auto_map": {"AutoTokenizer": ["hf_rwkv_tokenizer.RwkvTokenizer", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    loaded = load_checkpoint(tmp_path)
    assert uncached(loaded.model)([1, 2, 3]).equal(uncached(model)([1, 2, 3]))
    assert loaded.source.tokenizer.tokenizer is None
