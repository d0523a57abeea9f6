"""Chat templates of the public kinds, in each form that checkpoints have them, against transformers' own rendering."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from babbling import rendered
from command_line import exit_code
from public_folders import CHAT_TEMPLATES
from tiny import save_tokenizer
from tokenizer_folders import added_token, write_json
from transformers import PreTrainedTokenizerFast

from hybridge.__main__ import main
from hybridge.errors import ArtifactError, UsageError
from hybridge.export.source.tokenizer import read_tokenizer
from hybridge.runtime.artifact.folder import Artifact, file_entry
from hybridge.runtime.binding.jinja import JinjaTemplate
from hybridge.runtime.cli.options import template_variables
from hybridge.runtime.text.chat_template import RESERVED, ChatTemplate, load_template

CONFIG: dict[str, Any] = {
    "add_bos_token": True,
    "bos_token": {"__type": "AddedToken", **added_token("<begin>")},
    "eos_token": "<end>",
    "unk_token": "<unknown>",
    "image_token": "<picture>",
    "boi_token": "<start_of_image>",
    "think_token": None,
    "extra_special_tokens": {"turn_token": "<turn>", "end_of_turn_token": "<turned>", "think_token": "<think>"},
}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": 'Tell the weather <now> & "here"',
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}
SYSTEM, USER = {"role": "system", "content": " Be brief. "}, {"role": "user", "content": "what is <2>?"}
TEMPLATES = {path.stem: path.read_text() for path in sorted(CHAT_TEMPLATES.glob("*.jinja"))}


def tokenizer_folder(folder: Path, **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    save_tokenizer(folder)
    write_json(folder / "tokenizer_config.json", {**CONFIG, **config})
    return folder


def artifact_of(folder: Path, out: Path) -> Artifact:
    """Write what an export makes of the tokenizer in ``folder``."""
    out.mkdir(exist_ok=True)
    read_tokenizer(folder).write(out)
    manifest: Any = SimpleNamespace(files={path.name: file_entry(path) for path in out.iterdir()}, pictures=None)
    return Artifact(folder=out, manifest=manifest)


def ours(artifact: Artifact, messages: list[dict[str, str]], variables: dict[str, Any]) -> str:
    """The text, or what is wrong."""
    try:
        return load_template(artifact, variables).render(messages).text
    except UsageError as error:
        return str(error)


def assert_as_transformers(folder: Path, messages: list[dict[str, str]], variables: dict[str, Any]) -> None:
    """Both render the same, or refuse for the same reason."""
    theirs = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    got = ours(artifact_of(folder, folder / "artifact"), messages, variables)
    try:
        want = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **variables)
    except Exception as error:
        want = f"the model's chat template refuses this conversation: {error}"
    assert got == want


# Which template

FORMS: dict[str, dict[str, str]] = {
    "a text": {"chat_template": "text {{ bos_token }}"},
    "named ones": {"chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]},  # type: ignore[dict-item]
    "named ones without a tool's": {"chat_template": [{"name": "default", "template": "D"}, {"name": "rag", "template": "R"}]},  # type: ignore[dict-item]
    "a file": {"chat_template.jinja": "file {{ eos_token }}"},
    "a file and a text": {"chat_template.jinja": "file", "chat_template": "text"},
    "files": {"chat_template.jinja": "file", "additional_chat_templates/tool_use.jinja": "tools"},
    "files and a text": {"chat_template.jinja": "f", "additional_chat_templates/rag.jinja": "r", "chat_template": "text"},
}


def write_form(folder: Path, form: dict[str, Any]) -> Path:
    tokenizer_folder(folder, **{name: each for name, each in form.items() if name == "chat_template"})
    for name, text in form.items():
        if name.endswith(".jinja"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("variables", [{}, {"tools": [TOOL]}, {"tools": None}, {"tools": []}], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_the_template_is_the_one_that_transformers_takes(tmp_path: Path, form: str, variables: dict[str, Any]) -> None:
    assert_as_transformers(write_form(tmp_path / "checkpoint", FORMS[form]), [USER], variables)


@pytest.mark.parametrize(
    "form",
    [
        {"chat_template": [{"name": "rag", "template": "R"}, {"name": "tool_use", "template": "T"}]},
        {"additional_chat_templates/rag.jinja": "r", "additional_chat_templates/tool_use.jinja": "t", "chat_template": "text"},
    ],
    ids=["listed", "files"],
)
def test_without_a_default_the_names_are_told(tmp_path: Path, form: dict[str, Any]) -> None:
    artifact = artifact_of(write_form(tmp_path / "checkpoint", form), tmp_path / "artifact")
    with pytest.raises(UsageError, match="chat templates for rag, tool_use and no default one"):
        load_template(artifact).render([USER])
    assert load_template(artifact, {"tools": [TOOL]}).render([USER]).text in ("T", "t")


def test_a_processors_template_is_taken_where_there_is_no_other(tmp_path: Path) -> None:
    folder = tokenizer_folder(tmp_path / "checkpoint")
    write_json(folder / "chat_template.json", {"chat_template": "processor {{ image_token }}"})
    assert ours(artifact_of(folder, tmp_path / "artifact"), [USER], {}) == "processor <picture>"


@pytest.mark.parametrize("legacy", [{"eos_token": {"content": "<other>", "lstrip": False}, "pad_token": "<pad>"}, {}], ids=str)
@pytest.mark.parametrize("lists", [True, False])
def test_special_tokens_map_counts_as_it_does_for_transformers(tmp_path: Path, legacy: dict[str, Any], lists: bool) -> None:
    text = "{{ eos_token }} {{ pad_token }} {{ bos_token }} {{ turn_token }}"
    config = {"added_tokens_decoder": {"128": added_token("<unknown>")}} if lists else {}
    folder = tokenizer_folder(tmp_path / "checkpoint", chat_template=text, **config)
    write_json(folder / "special_tokens_map.json", legacy)
    assert_as_transformers(folder, [USER], {})


# Hostile and broken ones


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (
            "{{ raise_exception('Conversation roles must alternate') }}",
            "refuses this conversation: Conversation roles must alternate",
        ),
        ("{% for %}", "is no Jinja template: .* \\(line 1\\)"),
        ("a\n{{ x", "is no Jinja template: .* \\(line 2\\)"),
        ("{{ 1 / 0 }}", "refuses this conversation: division by zero"),
        ("{{ messages[0].content.nothing.more }}", "refuses this conversation: .*no attribute"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "refuses this conversation"),
        ("{{ messages.append(1) }}", "refuses this conversation"),
        ("{{ raise_exception('') }}", "refuses this conversation: it says no reason"),
        ("{% for i in range(10 ** 9) %}x{% endfor %}", "refuses this conversation"),
        ("{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", "refuses this conversation"),
        ("{% include '/etc/passwd' %}", "is no Jinja template: the tag 'include' is not supported"),
    ],
)
def test_what_a_template_cannot_do_is_said(template: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        rendered(template, [USER])


# --template-arg


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ("enable_thinking=false", False),
        ("enable_thinking=true", True),
        ("budget=128", 128),
        ("share=0.5", 0.5),
        ("nothing=null", None),
        ("name=Ada", "Ada"),
        ('quoted="true"', "true"),
        ("equation=a=b", "a=b"),
        ("empty=", ""),
        ("False=False", "False"),
        ("half={", "{"),
        (f"tools={json.dumps([TOOL])}", [TOOL]),
        ("documents=[]", []),
    ],
)
def test_values_are_json_else_texts(given: str, want: Any) -> None:
    found = template_variables([given])
    assert found == {given.partition("=")[0]: want}
    assert type(next(iter(found.values()))) is type(want)


def test_several_arguments_are_all_taken() -> None:
    assert template_variables(["a=1", "b=x"]) == {"a": 1, "b": "x"}


@pytest.mark.parametrize("given", ["", "=", "=1", "enable_thinking", "a b=1", "1a=2", "tools=x", "tools=[1]", "documents={}"])
def test_malformed_arguments_are_wrong_usage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str) -> None:
    with pytest.raises(typer.BadParameter):
        template_variables([given])
    assert exit_code(monkeypatch, main, "hybridge", "chat", tmp_path, "--template-arg", given) == 2


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_what_the_conversation_sets_is_not_taken(name: str) -> None:
    with pytest.raises(typer.BadParameter, match="leave it out"):
        template_variables([f"{name}=1"])
    with pytest.raises(typer.BadParameter, match="twice"):
        template_variables(["x=1", "x=2"])


# Thinking


@pytest.mark.parametrize("thinking", [True, False])
def test_thinking_is_the_templates_own_switch(tmp_path: Path, thinking: bool) -> None:
    folder = tokenizer_folder(tmp_path / "tokenizer", chat_template=TEMPLATES["qwen3_5"])
    artifact = artifact_of(folder, tmp_path / "out")
    switched = load_template(artifact, {}, thinking).render([USER])
    assert switched == load_template(artifact, {"enable_thinking": thinking}).render([USER])
    assert switched != load_template(artifact, {"enable_thinking": not thinking}).render([USER])


@pytest.mark.parametrize(
    ("template", "switch"),
    [
        ("{% if enable_thinking %}x{% endif %}", "enable_thinking"),
        ("{{ 'x' if thinking is defined and thinking }}", "thinking"),
        ("{% generation %}{{ thinking }}{% endgeneration %}", "thinking"),
        ("{{ message.thinking }}{{ message . thinking }}{{ 'thinking' }} thinking", None),
        ("{{ messages[0].content }}", None),
        ("{{ reasoning_effort }}", None),
    ],
)
def test_the_switch_is_a_variable_of_the_template(template: str, switch: str | None) -> None:
    jinja = JinjaTemplate(template)
    assert ChatTemplate(jinja).variables == {}
    if switch is not None:
        assert ChatTemplate(jinja, {}, thinking=False).variables == {switch: False}
        with pytest.raises(UsageError, match=f"--thinking and --template-arg {switch} say the same thing"):
            ChatTemplate(jinja, {switch: True}, thinking=True)
    else:
        with pytest.raises(UsageError, match="no switch for thinking"):
            ChatTemplate(jinja, {}, thinking=False)


def test_a_request_switches_thinking_otherwise() -> None:
    switch = "{% if enable_thinking is defined and not enable_thinking %}quick{% else %}<think>{% endif %}"
    template = ChatTemplate(JinjaTemplate(switch), thinking=False)
    assert template.render([]).text == "quick"
    assert template.render([], {"enable_thinking": True}).text == "<think>"
    with pytest.raises(UsageError, match="messages is set by the conversation itself"):
        template.render([], {"messages": []})


def test_a_file_that_is_not_the_manifests_is_refused(tmp_path: Path) -> None:
    """One that the manifest does not list is not read."""
    folder = tokenizer_folder(tmp_path / "checkpoint", chat_template="text {{ bos_token }}")
    artifact = artifact_of(folder, tmp_path / "out")
    files = {name: each.model_dump() for name, each in artifact.manifest.files.items()}
    write_json(artifact.folder / "manifest.json", {"files": files})
    (artifact.folder / "chat_template.jinja").write_text("another")
    assert ours(artifact, [USER], {}) == "text <begin>"
    with (artifact.folder / "tokenizer_config.json").open("a") as file:
        file.write(" ")
    with pytest.raises(ArtifactError, match=r"tokenizer_config.json was altered: its SHA-256 is not the manifest's"):
        load_template(artifact)


def test_a_template_is_rendered_up_to_the_answer_in_a_sandbox() -> None:
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }};{% endfor %}{% if add_generation_prompt %}A:{% endif %}"
    message = [{"role": "user", "content": "hi \u00e9"}]
    assert rendered(template, message, {"bos_token": "<s>"}).text == "<s>hi \u00e9;A:"
    for wrong in (
        "{{ raise_exception('no') }}", "{{ messages.__class__.__mro__ }}", "{{ namespace(_a=1) }}",
        "{% set n = namespace() %}{% set n._a = 1 %}", "{{ messages.append(1) }}",
    ):  # fmt: skip
        with pytest.raises(UsageError, match="refuses this conversation"):
            rendered(wrong, message)
    with pytest.raises(UsageError, match="is no Jinja template"):
        rendered("{{ '\\ud800' }}", message)


def test_reasoning_goes_by_every_name_that_templates_read() -> None:
    template = "{{ messages[0].reasoning_content }}{{ messages[0].thinking }}"
    for name in ("reasoning_content", "thinking", "reasoning"):
        assert rendered(template, [{"role": "assistant", "content": "", name: "hm"}]).text == "hmhm"
    assert rendered("{% generation %}a{% endgeneration %}{{ strftime_now('%Y') | int > 2000 }}", []).text == "aTrue"


def test_threads_render_by_one_template() -> None:
    """One at a time, and each gets its own text."""
    template = "{% for i in range(2000) %}{{ messages[0].content }}{% endfor %}"
    with ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(lambda i: rendered(template, [{"content": f"{i};"}]).text, range(100)))
    assert texts == [f"{i};" * 2000 for i in range(100)]
