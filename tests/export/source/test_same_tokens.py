"""An artifact's tokens are those of transformers for a folder and of llama.cpp for a GGUF file, form by form, on odd texts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from babbling import template_of
from gguf_files import random_model, save_gguf
from gguf_tokenizers import FILES, by_score, byte_level
from llama_cpp_tokens import reference
from tiny import save_tokenizer
from tokenizer_folders import SPECIAL, TEXT, added_token, save_sentencepiece, save_tiktoken, save_vocabulary, write_json
from tokenizer_zoo import odd_texts
from tokenizers import (
    ByteLevelBPETokenizer,
    Tokenizer,
    processors,
)
from transformers import AutoTokenizer

from hybridge.errors import CheckpointError, ValidationError
from hybridge.export.check.validate import compare_tokenizers
from hybridge.export.report import ValidationReport
from hybridge.export.source.gguf.checkpoint import write_tokenizer_files
from hybridge.export.source.gguf.file import open_gguf
from hybridge.export.source.tokenizer import read_tokenizer
from hybridge.runtime.binding.tokenizer import Tokenizer as CoreTokenizer
from hybridge.runtime.cli.run import as_message, as_text
from hybridge.runtime.pack.tokenizer import PRE_TOKENIZERS, read_gguf_tokenizer

COUNT = 400
"""Texts of each form; the campaign gguf-files compares 3,000 with llama.cpp itself."""

# Folders


def byte_level_json(folder: Path, **settings: Any) -> None:
    """Write a tokenizer.json of GPT-2's kind with special tokens, and its config."""
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(TEXT, vocab_size=330, special_tokens=SPECIAL, show_progress=False)
    around = settings.pop("around", None)
    made = Tokenizer.from_str(tokenizer.to_str())
    if around:
        tokens = [(text, SPECIAL.index(text)) for text in around if text != "$A"]
        made.post_processor = processors.TemplateProcessing(single=around, special_tokens=tokens)
    made.save(str(folder / "tokenizer.json"))
    if settings:
        write_json(folder / "tokenizer_config.json", settings)


def vocabulary(folder: Path, name: str, **settings: Any) -> None:
    save_vocabulary(folder)
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": name, "eos_token": SPECIAL[2], **settings})


def sentencepiece(folder: Path, kind: str, **settings: Any) -> None:
    save_sentencepiece(folder, kind)
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "LlamaTokenizer", **settings})


BOTH = {"bos_token": SPECIAL[0], "eos_token": SPECIAL[2], "add_bos_token": True, "add_eos_token": True}
NAMED = {"bos_token": "<s>", "eos_token": "</s>"}
FOLDERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "tokenizer.json": ("llama", byte_level_json),
    "tokenizer.json of characters": ("qwen3", save_tokenizer),
    "tokenizer.json, switches": ("llama", lambda folder: byte_level_json(folder, **BOTH)),
    "tokenizer.json, tokens around": ("llama", lambda folder: byte_level_json(folder, around=[SPECIAL[0], "$A", SPECIAL[2]])),
    "tokenizer.json, another class": ("qwen3", lambda folder: byte_level_json(folder, tokenizer_class="Qwen2Tokenizer")),
    "tokenizer.json, Llama's class": ("llama", lambda folder: byte_level_json(folder, tokenizer_class="LlamaTokenizer")),
    "tokenizer.json, an added token": (
        "qwen3",
        lambda folder: byte_level_json(
            folder, tokenizer_class="Qwen2Tokenizer", added_tokens_decoder={"400": added_token("<tool>")}
        ),
    ),
    "vocab.json": ("qwen3", lambda folder: vocabulary(folder, "Qwen2Tokenizer")),
    "vocab.json of GPT-2": ("llama", lambda folder: vocabulary(folder, "GPT2Tokenizer")),
    "vocab.json, switches": ("qwen3", lambda folder: vocabulary(folder, "Qwen2Tokenizer", **BOTH)),
    "tokenizer.model": ("llama", lambda folder: sentencepiece(folder, "bpe", **NAMED)),
    "tokenizer.model, switches": (
        "llama",
        lambda folder: sentencepiece(folder, "bpe", **NAMED, add_bos_token=True, add_eos_token=True),
    ),
    "tokenizer.model, bos off": ("llama", lambda folder: sentencepiece(folder, "bpe", **NAMED, add_bos_token=False)),
    "tiktoken.model": ("llama", save_tiktoken),
}
"""The type of model, and what writes the tokenizer.

Not a tokenizer.model that no config names a class for: sentencepiece's own tokens are right there, see test_tokenizer_files.py.
"""
LOSES_TEXT = {"tokenizer.json of characters"}
"""AutoTokenizer reads these with a class of another kind, which drops spaces: the file's own tokens are right there."""


@pytest.mark.parametrize("form", FOLDERS)
def test_a_folders_tokens_are_those_of_transformers(tmp_path: Path, form: str) -> None:
    model_type, save = FOLDERS[form]
    folder, artifact = tmp_path / "folder", tmp_path / "artifact"
    folder.mkdir()
    artifact.mkdir()
    save(folder)
    write_json(folder / "config.json", {"model_type": model_type})
    if form in LOSES_TEXT:
        (folder / "config.json").unlink()
    wanted = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    read_tokenizer(folder).write(artifact)
    found, again = (
        CoreTokenizer.from_file(artifact / "tokenizer.json"),
        AutoTokenizer.from_pretrained(artifact, local_files_only=True),
    )
    for text in odd_texts(COUNT, (*SPECIAL, "<s>", "</s>", "<unk>", "<end>", "<tool>")):
        want = wanted.encode(text)
        assert found.encode(text).ids == want, repr(text)
        assert again.encode(text) == want, repr(text)
        assert found.encode(text, around=False).ids == wanted.encode(text, add_special_tokens=False)


def test_a_class_that_loses_text_is_not_followed(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    write_json(tmp_path / "config.json", {"model_type": "qwen3"})
    tokenizer = read_tokenizer(tmp_path).tokenizer
    assert tokenizer is not None
    assert tokenizer.decode(tokenizer.encode("a  b").ids) == "a  b"


def test_tokens_that_a_class_makes_up_are_none(tmp_path: Path) -> None:
    byte_level_json(tmp_path, tokenizer_class="LlamaTokenizer", bos_token="<s>")
    own = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer = read_tokenizer(tmp_path).tokenizer
    assert tokenizer is not None
    assert tokenizer.get_vocab().keys() <= own.get_vocab().keys()


def test_a_bos_that_nobody_adds_is_said(tmp_path: Path) -> None:
    byte_level_json(tmp_path, tokenizer_class="PreTrainedTokenizerFast", bos_token=SPECIAL[0], add_bos_token=True)
    assert "says add_bos_token, but tokenizer.json adds no <|endoftext|>" in read_tokenizer(tmp_path).note
    byte_level_json(tmp_path, tokenizer_class="PreTrainedTokenizerFast", bos_token=SPECIAL[0], add_bos_token=False)
    assert read_tokenizer(tmp_path).note == ""


# Files of llama.cpp


def write_vocabulary(path: Path, metadata: dict[str, Any], template: str = "") -> None:
    """Write a GGUF file that has a tokenizer, and what its config is made of."""
    save_gguf(path, "llama", random_model("llama", vocab_size=len(metadata["tokens"])), tokenizer=metadata, template=template)


@pytest.mark.parametrize("form", FILES)
def test_a_files_tokens_are_those_of_llama_cpp(tmp_path: Path, form: str) -> None:
    metadata = FILES[form]()
    write_vocabulary(tmp_path / "model.gguf", metadata)
    assert write_tokenizer_files(open_gguf(tmp_path / "model.gguf"), tmp_path) == ""
    (tmp_path / "artifact").mkdir()
    read_tokenizer(tmp_path, verbatim=True).write(tmp_path / "artifact")
    found = CoreTokenizer.from_file(tmp_path / "artifact" / "tokenizer.json")
    again = AutoTokenizer.from_pretrained(tmp_path / "artifact", local_files_only=True)
    wanted = reference(tmp_path / "model.gguf", metadata)
    for text in odd_texts(COUNT, (*SPECIAL, "<s>", "</s>", "<unk>", "<think>", "<start_of_turn>")):
        want = wanted(text)
        assert found.encode(text).ids == want, repr(text)
        assert again.encode(text) == want, repr(text)


def test_a_template_that_is_a_name_is_the_one_of_that_name(tmp_path: Path) -> None:
    write_vocabulary(tmp_path / "model.gguf", FILES["rwkv"](), "rwkv-world")
    write_tokenizer_files(open_gguf(tmp_path / "model.gguf"), tmp_path)
    template, said = (tmp_path / "chat_template.jinja").read_text(), [{"role": "system", "content": "Be brief. "}]
    asked = template_of(template).render([*said, {"role": "user", "content": "Hello"}])
    assert asked.text == "System: Be brief.\n\nUser: Hello\n\nAssistant:"


def converted(metadata: dict[str, Any]) -> Tokenizer:
    """The tokenizer that is written for a file, which is as the library writes it."""
    text = json.dumps(read_gguf_tokenizer(metadata).content)
    made = Tokenizer.from_str(text)
    assert json.loads(made.to_str()) == json.loads(text)
    return made


@pytest.mark.parametrize("kind", [*(kind for kind in FILES if kind != "rwkv"), *PRE_TOKENIZERS])
def test_the_stock_runners_tokens_are_ours(tmp_path: Path, kind: str) -> None:
    """ExecuTorch's leaves out bos unless it is asked for, drops what an expression does not match, and reads no RWKV's."""
    stock = pytest.importorskip("pytorch_tokenizers.pytorch_tokenizers_cpp").HFTokenizer()
    metadata = FILES[kind]() if kind in FILES else byte_level(kind)
    made = converted({f"tokenizer.ggml.{name}": value for name, value in metadata.items()})
    made.save(str(tmp_path / "tokenizer.json"))
    stock.load(str(tmp_path / "tokenizer.json"))
    for text in odd_texts(100, (*SPECIAL, "<s>", "<think>", "<start_of_turn>")):
        assert list(stock.encode(text, 0, 0)) == made.encode(text, add_special_tokens=False).ids, repr(text)
        assert list(stock.encode(text, 1, 0)) == made.encode(text).ids, repr(text)


@pytest.mark.parametrize("kind", PRE_TOKENIZERS)
def test_every_kind_of_words_is_cut_in_the_same_way_by_the_core(kind: str) -> None:
    metadata = {f"tokenizer.ggml.{name}": value for name, value in byte_level(kind).items()}
    reference = converted(metadata)
    made = CoreTokenizer(reference.to_str().encode())
    for text in odd_texts(100, SPECIAL):
        assert made.encode(text).ids == reference.encode(text).ids, repr(text)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "words": ({"pre": "made-up"}, r"tokenizer\.ggml\.pre 'made-up' is not known"),
    "model": ({"model": "t5"}, r"tokenizer\.ggml\.model 't5' is not read"),
    "no merges": ({"merges": None}, r"tokenizer\.ggml\.merges is missing"),
    "twice": ({"tokens": ["a", "a"]}, "has a token twice"),
    "no bytes": ({"model": "rwkv", "tokens": ["<s>", r"\x00"]}, "has no token for byte 1"),
    "no such token": ({"tokens": ["a", "b"], "add_bos_token": True, "bos_token_id": 5}, "add_bos_token is true"),
}


def test_hostile_tokens_are_refused_at_once() -> None:
    metadata = {f"tokenizer.ggml.{name}": value for name, value in by_score().items()}
    metadata["tokenizer.ggml.tokens"][300] = "a" * (1 << 20)
    with pytest.raises(CheckpointError, match="too long to be tokens"):
        read_gguf_tokenizer(metadata)


@pytest.mark.parametrize("case", BAD)
def test_a_tokenizer_that_is_not_read_is_named(case: str) -> None:
    change, says = BAD[case]
    metadata = {f"tokenizer.ggml.{name}": value for name, value in {**byte_level("gpt-2"), **change}.items()}
    with pytest.raises(CheckpointError, match=says):
        read_gguf_tokenizer(metadata)


def test_a_kind_that_is_not_said_is_llama_cpps_default_and_told() -> None:
    metadata = {f"tokenizer.ggml.{name}": value for name, value in byte_level("").items()}
    assert "cut as llama.cpp does by default" in read_gguf_tokenizer(metadata).note


def test_a_kind_that_nobody_knows_leaves_an_artifact_without_a_tokenizer(tmp_path: Path) -> None:
    write_vocabulary(tmp_path / "model.gguf", byte_level("made-up"))
    said = write_tokenizer_files(open_gguf(tmp_path / "model.gguf"), tmp_path)
    assert "'made-up' is not known" in said
    assert "give one with --tokenizer FOLDER" in said
    assert not (tmp_path / "tokenizer.json").exists()


@pytest.mark.parametrize(
    ("template", "adds", "written"),
    [("{{ x }}", True, "{{ bos_token }}{{ x }}"), ("{{ x }}", False, "{{ x }}"), ("{{ bos_token }}{{ x }}", True, None)],
)
def test_a_chat_begins_with_one_bos_where_llama_cpp_puts_one(tmp_path: Path, template: str, adds: bool, written: str) -> None:
    write_vocabulary(tmp_path / "model.gguf", byte_level("smollm", add_bos_token=adds), template)
    write_tokenizer_files(open_gguf(tmp_path / "model.gguf"), tmp_path)
    assert (tmp_path / "chat_template.jinja").read_text() == (written or template)


# What comes before a text, and validation


@pytest.mark.parametrize(
    ("around", "want"),
    [(["$A"], []), ([SPECIAL[0], "$A"], [0]), (["$A", SPECIAL[2]], []), ([SPECIAL[1], "$A", SPECIAL[2]], [1])],
)
def test_a_window_begins_with_bos_and_never_with_eos(tmp_path: Path, around: list[str], want: list[int]) -> None:
    byte_level_json(tmp_path, around=around)
    assert CoreTokenizer.from_file(tmp_path / "tokenizer.json").before_texts == want


def test_validation_compares_the_tokens_of_texts(tmp_path: Path) -> None:
    checkpoint, artifact = tmp_path / "checkpoint", tmp_path / "artifact"
    for folder in (checkpoint, artifact):
        folder.mkdir()
        byte_level_json(folder, around=[SPECIAL[0], "$A"] if folder == checkpoint else ["$A"])
    wanted, found = (CoreTokenizer.from_file(folder / "tokenizer.json") for folder in (checkpoint, artifact))
    same, other = compare_tokenizers(wanted, wanted, SPECIAL), compare_tokenizers(found, wanted, SPECIAL)
    assert same.texts == same.equal > len(SPECIAL)
    assert same.difference == ""
    assert other.equal == 0
    report = ValidationReport(seed=0, tolerance=0.1, tokenizer=same)
    assert report.passed
    report.check()
    report.tokenizer = other
    assert not report.passed
    with pytest.raises(ValidationError, match=r"gives other tokens than the checkpoint's: '' is \[\], but should be \[0\]"):
        report.check()
    assert report.to_dict()["tokenizer"]["equal"] == 0


@pytest.mark.parametrize("written", ["", SPECIAL[0]])
def test_a_chat_has_the_bos_of_its_template_and_no_other(tmp_path: Path, written: str) -> None:
    byte_level_json(tmp_path, around=[SPECIAL[0], "$A"])
    tokenizer = CoreTokenizer.from_file(tmp_path / "tokenizer.json")
    message = as_message(tokenizer, "the tokens", "", template_of(f"{written}{{{{ messages[-1].content }}}}"))
    assert message.ids.count(0) == bool(written)
    assert as_text(tokenizer, "the tokens").ids.count(0) == 1
