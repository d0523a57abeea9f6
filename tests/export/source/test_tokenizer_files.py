"""Tokenizers of checkpoints in all their forms, against the libraries that wrote them; and what ends a text."""

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tiny import save_checkpoint, save_tokenizer, tiny_config
from tokenizer_folders import TEXT, save_sentencepiece, save_tiktoken, save_vocabulary, write_json
from tokenizers import Tokenizer
from transformers import GenerationConfig

from hybridge.errors import CheckpointError
from hybridge.export.cli.progress import ConsoleProgress
from hybridge.export.source.checkpoint import LoadedModel, load_checkpoint
from hybridge.export.source.tokenizer import TokenizerFiles, as_transformers, read_tokenizer
from hybridge.export.write.manifest import write_tokenizer
from hybridge.runtime.binding.tokenizer import Tokenizer as CoreTokenizer
from hybridge.runtime.integrations.causal_lm import read_generation_config

LONG = "".join(TEXT[:9])


def said(checkpoint: LoadedModel, folder: Path) -> str:
    """What an export into ``folder`` tells of the tokenizer."""
    folder.mkdir()
    console = Console(file=io.StringIO(), width=10_000)
    write_tokenizer(checkpoint, folder, ConsoleProgress(console))
    return console.file.getvalue()  # type: ignore[attr-defined]


def written(files: TokenizerFiles, folder: Path) -> CoreTokenizer:
    """The tokenizer that an artifact gets, as it is loaded again."""
    folder.mkdir()
    files.write(folder)
    return CoreTokenizer.from_file(folder / "tokenizer.json")


# Converted ones

MODEL_TYPES = ("llama", "gemma2", "qwen3_5_text", "lfm2")


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("own_class", [None, "LlamaTokenizer"])
def test_a_sentencepiece_model_is_converted(tmp_path: Path, kind: str, model_type: str, own_class: str | None) -> None:
    original = save_sentencepiece(tmp_path, kind)
    write_json(tmp_path / "config.json", {"model_type": model_type})
    if own_class:
        write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": own_class, "bos_token": "<s>", "eos_token": "</s>"})
    files = read_tokenizer(tmp_path)
    assert "one was made of tokenizer.model" in files.note
    assert files.special["eos_token"] in ("</s>", "<eos>")
    made = written(files, tmp_path / "artifact")
    for text in TEXT[:5]:
        want = original.encode("\n" + text)
        assert made.encode("\n" + text, around=False).ids in (want, want[1:] if kind == "unigram" else want)
        assert made.decode(made.encode(text).ids).strip() == text


@pytest.mark.parametrize("model_type", ["qwen3_5_text", "granitemoehybrid", "lfm2", "llama"])
@pytest.mark.parametrize("own_class", [None, "GPT2Tokenizer", "Qwen2Tokenizer", "Qwen2TokenizerFast"])
def test_vocabulary_and_merges_are_converted(tmp_path: Path, model_type: str, own_class: str | None) -> None:
    original = save_vocabulary(tmp_path)
    write_json(tmp_path / "config.json", {"model_type": model_type})
    if own_class:
        write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": own_class, "eos_token": "<|im_end|>"})
    files = read_tokenizer(tmp_path)
    if files.tokenizer is None:
        assert own_class is None, "transformers knows by its class how such a tokenizer cuts words"
        assert "names its tokenizer_class" in files.note
        return
    assert files.special["eos_token"] == ("<|im_end|>" if own_class else "<|endoftext|>")
    made = written(files, tmp_path / "artifact")
    assert made.vocabulary() == original.get_vocab()
    for text in TEXT[:5]:
        assert made.decode(made.encode(text).ids) == text
        words = text.split(": ")[1].split(" of ")[0]  # without digits and signs, which the classes cut otherwise
        assert made.encode(words).ids == original.encode(words).ids


@pytest.mark.parametrize("name", ["tiktoken.model", "tokenizer.model"])
@pytest.mark.parametrize("model_type", ["llama", "kimi_linear"])
def test_a_tiktoken_file_is_converted(tmp_path: Path, name: str, model_type: str) -> None:
    original = save_tiktoken(tmp_path, name)
    write_json(tmp_path / "config.json", {"model_type": model_type})
    files = read_tokenizer(tmp_path)
    assert f"one was made of {name}" in files.note
    made = written(files, tmp_path / "artifact")
    for text in [*TEXT[:5], "<|im_start|>user\nthe tokens<|im_end|>"]:
        assert made.encode(text, around=False).ids == original.encode(text, allowed_special="all")


def test_code_beside_a_tokenizer_never_runs(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    save_tiktoken(tmp_path)
    (tmp_path / "evil.py").write_text(f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n")
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    for evil in (["evil.Evil", None], ["evil.Evil", "evil.Evil"]):
        write_json(
            tmp_path / "tokenizer_config.json", {**config, "tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": evil}}
        )
        for model_type in ("llama", "kimi_linear", "made_up"):
            write_json(tmp_path / "config.json", {"model_type": model_type})
            read_tokenizer(tmp_path)
    assert not marker.exists()


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "no tokenizer at all": (lambda folder: None, "has no tokenizer"),
    "no merges": (lambda folder: (save_vocabulary(folder), (folder / "merges.txt").unlink()), "merges.txt .* missing"),
    "another vocabulary": (
        lambda folder: (save_vocabulary(folder), write_json(folder / "vocab.json", {"a": 0, "b": 1})),
        "vocab.json cannot be converted",
    ),
    "a damaged model": (
        lambda folder: (folder / "tokenizer.model").write_bytes(b"\x00\x01 no"),
        "tokenizer.model cannot be conv",
    ),
    "an empty tiktoken": (lambda folder: (folder / "tiktoken.model").write_text(""), "tiktoken.model cannot be converted"),
    "an empty vocabulary": (
        lambda folder: ((folder / "vocab.json").write_text("{}"), (folder / "merges.txt").write_text("")),
        "vocab.json cannot be converted",
    ),
}


@pytest.mark.parametrize("spoilt", SPOILT)
def test_what_makes_no_tokenizer_is_said_with_what_follows(tmp_path: Path, spoilt: str) -> None:
    change, says = SPOILT[spoilt]
    save_checkpoint(tmp_path, tiny_config("qwen3"))
    change(tmp_path)
    told = said(load_checkpoint(tmp_path), tmp_path / "artifact")
    assert re.search(says, told), told
    assert "'run' and 'chat' will refuse it" in told
    assert not (tmp_path / "artifact" / "tokenizer.json").exists()


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize("text", ["", "{", "[]", "\ud800"])
def test_damaged_files_are_named(tmp_path: Path, name: str, text: str) -> None:
    save_tokenizer(tmp_path)
    (tmp_path / name).write_text(text, errors="surrogatepass")
    with pytest.raises(CheckpointError, match=name):
        read_tokenizer(tmp_path)


# Truncation and padding


def limited(folder: Path) -> Tokenizer:
    """Save ``save_tokenizer``'s as training scripts leave it: cut after 8 tokens, filled up to 16. Returns the one without."""
    save_tokenizer(folder)
    path = folder / "tokenizer.json"
    plain, limits = (Tokenizer.from_file(str(path)) for _ in range(2))
    limits.enable_truncation(8)
    limits.enable_padding(length=16)
    limits.save(str(path))
    assert len(Tokenizer.from_file(str(path)).encode(LONG).ids) == 16
    return plain


def test_a_tokenizer_that_truncates_and_pads_encodes_prompts_whole(tmp_path: Path) -> None:
    want = limited(tmp_path).encode(LONG).ids
    assert CoreTokenizer.from_file(tmp_path / "tokenizer.json").encode(LONG).ids == want
    files = read_tokenizer(tmp_path)
    assert files.tokenizer is not None
    assert files.tokenizer.encode(LONG).ids == want
    (tmp_path / "artifact").mkdir()
    files.write(tmp_path / "artifact")
    as_others_read_it = Tokenizer.from_file(str(tmp_path / "artifact" / "tokenizer.json"))
    assert as_others_read_it.encode(LONG).ids == want


def test_a_plain_tokenizer_is_copied_byte_for_byte(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    (tmp_path / "artifact").mkdir()
    read_tokenizer(tmp_path).write(tmp_path / "artifact")
    assert (tmp_path / "artifact" / "tokenizer.json").read_bytes() == (tmp_path / "tokenizer.json").read_bytes()


def test_a_token_that_only_transformers_class_has_is_not_needed(tmp_path: Path) -> None:
    """Gemma's class makes an unknown token up; without the file's own it cannot encode all texts, and the file can."""
    save_checkpoint(tmp_path, tiny_config("gemma3_text"))
    save_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink(missing_ok=True)
    own = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert own.token_to_id("<unk>") is None
    assert as_transformers(tmp_path, own) is own


# Parts that the core does not have

UNKNOWN: dict[str, tuple[dict[str, Any], str]] = {
    "pre-tokenizer": ({"pre_tokenizer": {"type": "UnicodeScripts"}}, "the pre-tokenizer 'UnicodeScripts' is not supported"),
    "decoder": (
        {"decoder": {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True}},
        "the decoder 'CTC' is not supported",
    ),
    "expression": (
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "a{2}+"}, "behavior": "Isolated", "invert": False}},
        "has a '+' after braces",
    ),
}
"""Files of the tokenizers library that it reads itself, and what is said of them."""


@pytest.mark.parametrize("part", UNKNOWN)
def test_a_part_that_the_core_does_not_have_is_refused_by_name_before_an_export(tmp_path: Path, part: str) -> None:
    save_tokenizer(tmp_path)
    path, (changes, reason) = tmp_path / "tokenizer.json", UNKNOWN[part]
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    assert Tokenizer.from_file(str(path)).encode("a").ids
    for verbatim in (True, False):
        with pytest.raises(CheckpointError, match=re.escape(reason)) as refused:
            read_tokenizer(tmp_path, verbatim=verbatim)
        assert "by --tokenizer" in str(refused.value)


# What ends a text


def ends(
    folder: Path,
    generation: Any = None,
    config: Any = None,
    text: Any = None,
    tokenizer: dict[str, Any] | None = None,
    legacy: dict[str, Any] | None = None,
    **overrides: Any,
) -> LoadedModel:
    """A checkpoint whose files name these ends; None leaves a file or its entry out."""
    save_checkpoint(folder, tiny_config("qwen3", **overrides))
    path = folder / "config.json"
    content = {name: each for name, each in json.loads(path.read_text()).items() if name != "eos_token_id"}
    content |= {} if config is None else {"eos_token_id": config}
    write_json(path, content)
    (folder / "generation_config.json").unlink(missing_ok=True)
    if generation is not None:
        write_json(folder / "generation_config.json", {"eos_token_id": generation})
    checkpoint = load_checkpoint(folder)
    if text is not None:
        write_json(path, {**content, "text_config": {"eos_token_id": text}})
    save_tokenizer(folder)
    for name, each in (("tokenizer_config.json", tokenizer), ("special_tokens_map.json", legacy)):
        if each is not None:
            write_json(folder / name, each)
    return checkpoint


END = 130
"""``<end>`` of ``save_tokenizer``."""


@pytest.mark.parametrize(
    ("files", "ids"),
    [
        ({}, []),
        ({"config": 5}, [5]),
        ({"config": [5, 6]}, [5, 6]),
        ({"generation": 7, "config": 5}, [7, 5]),
        ({"generation": [7, 5], "config": 5, "text": [8, 7]}, [7, 5, 8]),
        ({"config": 5, "tokenizer": {"eos_token": "<end>"}}, [5, END]),
        ({"config": 5, "tokenizer": {"eos_token": {"__type": "AddedToken", "content": "<end>"}}}, [5, END]),
        ({"config": 5, "tokenizer": {"eos_token": None}}, [5]),
        ({"config": 5, "legacy": {"eos_token": {"content": "<end>", "lstrip": False}}}, [5, END]),
        ({"config": 5, "tokenizer": {"eos_token": "<begin>"}, "legacy": {"eos_token": "<end>"}}, [5, END]),
        (
            {"config": 5, "tokenizer": {"eos_token": "<begin>", "added_tokens_decoder": {}}, "legacy": {"eos_token": "<end>"}},
            [5, 129],
        ),
        ({"tokenizer": {"eos_token": "<end>"}}, [END]),
    ],
    ids=str,
)
def test_the_ends_are_those_of_all_files(tmp_path: Path, files: dict[str, Any], ids: list[int]) -> None:
    found = ends(tmp_path, **files)
    assert found.eos_ids == ids
    assert found.end_of_text.ignored == []


def test_an_id_that_a_config_class_makes_up_counts_only_where_the_files_are_silent(tmp_path: Path) -> None:
    (tmp_path / "silent").mkdir()
    silent = ends(tmp_path / "silent")
    assert silent.eos_ids == []
    for name, named, want in (
        ("a", {}, [2]),
        ("b", {"generation": 7}, [7]),
        ("c", {"tokenizer": {"eos_token": "<end>"}}, [END]),
    ):
        folder = tmp_path / name
        folder.mkdir()
        save_checkpoint(folder, tiny_config("llama"))
        content = json.loads((folder / "config.json").read_text())
        write_json(folder / "config.json", {key: each for key, each in content.items() if key != "eos_token_id"})
        (folder / "generation_config.json").unlink(missing_ok=True)
        save_tokenizer(folder)
        if "generation" in named:
            write_json(folder / "generation_config.json", {"eos_token_id": 7})
        if "tokenizer" in named:
            write_json(folder / "tokenizer_config.json", {"eos_token": "<end>"})
        assert load_checkpoint(folder).eos_ids == want


@pytest.mark.parametrize("wrong", [131, -1, [5, 1000], True, 2.5, "nowhere", {"id": 3}])
def test_an_end_that_is_no_token_is_ignored_and_said(tmp_path: Path, wrong: Any) -> None:
    found = ends(tmp_path, text=wrong, tokenizer={"eos_token": "<end>"})
    assert found.eos_ids == ([5, END] if isinstance(wrong, list) else [END])
    told = said(found, tmp_path / "artifact")
    named = wrong[-1] if isinstance(wrong, list) else wrong
    assert f"Warning: {named!r} should end a text" in told
    assert f"Texts end with {found.eos_ids}" in told


def test_an_end_that_the_tokenizer_does_not_know_is_said(tmp_path: Path) -> None:
    found = ends(tmp_path, config=5, tokenizer={"eos_token": "<|im_end|>"})
    assert found.eos_ids == [5]
    assert "'<|im_end|>' should end a text" in said(found, tmp_path / "artifact")


def test_transformers_interface_ends_where_the_artifact_does(tmp_path: Path) -> None:
    GenerationConfig(eos_token_id=7, temperature=0.5, do_sample=True).save_pretrained(tmp_path)
    config = read_generation_config(tmp_path, [7, 8])
    assert (config.eos_token_id, config.temperature) == ([7, 8], 0.5)
