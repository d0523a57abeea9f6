"""bindings/node: the package that scripts/pack-node makes installs without a compiler and answers as Python's binding does."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from ctypes import pointer
from pathlib import Path
from typing import Any

import numpy as np
import pack_node
import pytest
from c_functions import functions
from checkout import CHECKOUT
from documents import Document
from forgery import TOOLS, forge, with_file
from store import demo_folder

import hybridge
from hybridge.runtime import Sampling, Session
from hybridge.runtime.binding import bundle, library
from hybridge.runtime.binding.chat import Chat
from hybridge.runtime.binding.interface import GenerationStruct, SamplingStruct, Status
from hybridge.runtime.binding.pictures import Picture
from hybridge.runtime.text.generate import open_text_model

PACKAGE = CHECKOUT / "bindings/node"
TESTS = CHECKOUT / "tests/apps/node"
PROMPT = [5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 5, 6]
HEAT = {"temperature": 0.9, "topP": 0.95, "topK": 30, "repetitionPenalty": 1.2, "seed": 11}
QUESTION = "how to read a file"
DRAWS: list[dict[str, Any]] = [
    {"temperature": 0.9, "seed": 11} | each
    for each in (
        {"topK": 3}, {"topP": 0.5}, {"minP": 0.3}, {"topNSigma": 1.0}, {"repetitionPenalty": 1.5},
        {"repetitionPenalty": 1.5, "repeatLastN": 4}, {"presencePenalty": 1.5}, {"frequencyPenalty": 1.5},
        {"logitBias": {10: -100.0}},
    )
] + [
    {"dryMultiplier": 0.5}, {"dryMultiplier": 0.5, "dryBase": 3.0}, {"dryMultiplier": 2.0, "dryAllowedLength": 5},
    {"dryMultiplier": 1.0, "dryBreakers": [32]},
]  # fmt: skip
"""Each option of a sampling, by the package's names: each gives another text of the embedded model."""
OWN = {"temperature": 0.9, "top_k": 5, "presence_penalty": 0.5}
"""A generation_config.json."""
THINKS = (
    "{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}{% endfor %}<assistant><think>\n"
)


def node_version() -> int:
    node = shutil.which("node")
    return (
        int(
            subprocess.run([node, "-p", "process.versions.node"], capture_output=True, text=True, check=True).stdout.split(".")[
                0
            ]
        )
        if node
        else 0
    )


needs_node = pytest.mark.skipif(
    node_version() < 18 or not shutil.which("npm"), reason="needs Node.js 18 or later with npm: apt-get install nodejs npm"
)


def run(*words: object, folder: Path, **environment: str) -> str:
    done = subprocess.run(
        list(map(str, words)),
        check=False,
        capture_output=True,
        encoding="utf-8",
        timeout=900,
        cwd=folder,
        env=os.environ | environment,
    )
    assert done.returncode == 0, f"{words[0]} ended with {done.returncode}:\n{done.stdout[-6000:]}{done.stderr[-4000:]}"
    return done.stdout


def sampling(options: dict[str, Any]) -> Sampling:
    """Return options of the package as Python's."""
    return Sampling(**{re.sub("[A-Z]", lambda capital: f"_{capital[0].lower()}", name): each for name, each in options.items()})


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_the_addon_has_each_c_function() -> None:
    found = re.findall(r"each\((\w+)\)", text(PACKAGE / "src/library.h"))
    header = text(library.SOURCES / "hybridge/hybridge.h")
    assert set(functions(header)) <= {f"hybridge_{name}" for name in found}
    sources = "".join(text(path) for path in sorted((PACKAGE / "src").glob("*.cpp")))
    called = {name for name in found if re.search(rf"(?:call\(\)\.|library\(\)->|library\.|found\.){name}\(", sources)}
    assert set(found) - called == set()


def test_the_statuses_are_the_headers() -> None:
    listed = re.search(r"STATUSES = \[(.*?)\]", text(PACKAGE / "lib/errors.js"), re.DOTALL)
    assert listed
    assert re.findall(r"\w+", listed[1]) == [each.name for each in sorted(Status)]
    typed = re.search(r"type Status =(.*?);", text(PACKAGE / "index.d.ts"), re.DOTALL)
    assert typed
    assert set(re.findall(r"\w+", typed[1])) == {each.name for each in Status} - {"OK"} | {"LIBRARY"}


def test_the_types_name_what_the_package_gives() -> None:
    exported = re.search(r"module\.exports = \{(.*?)\}", text(PACKAGE / "index.js"), re.DOTALL)
    reexported = re.search(r"export const \{(.*?)\}", text(PACKAGE / "index.mjs"), re.DOTALL)
    assert exported
    assert reexported
    names = set(re.findall(r"\w+", exported[1]))
    assert set(re.findall(r"\w+", reexported[1])) == names
    assert set(re.findall(r"^export (?:class|const|function) (\w+)", text(PACKAGE / "index.d.ts"), re.MULTILINE)) == names


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the package is installed, without a network and without a compiler, and the tests beside it."""
    folder = tmp_path_factory.mktemp("app")
    package = pack_node.pack(tmp_path_factory.mktemp("package"))
    tools = Path(shutil.which("node") or "").parent
    run(
        "npm",
        "install",
        "--offline",
        "--no-audit",
        "--no-fund",
        package,
        folder=folder,
        PATH=str(tools),
        npm_config_update_notifier="0",
    )
    for path in TESTS.iterdir():
        shutil.copy(path, folder)
    return folder


@pytest.fixture(scope="module")
def cases(kernels_artifact: Path, pictures_artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artifacts of the tests, and what Python's binding gives of them."""
    folder, demo = tmp_path_factory.mktemp("cases"), demo_folder() / "hybridge-demo"
    newer = with_file(demo, folder / "newer", "chat_template.jinja", TOOLS)
    forge(newer, lambda content: content.update(format_version=999))
    model, pieces = open_text_model(pictures_artifact), list[str]()
    assert model.pictures
    rgb = np.array([i * i % 251 for i in range(3 * 30 * 20)], np.uint8).reshape(20, 30, 3)
    Chat.open(demo).send(QUESTION, lambda content, _: pieces.append(content), GenerationStruct(max_new_tokens=40))
    session = Session.load(kernels_artifact)
    texts = []
    for options in ({}, HEAT):
        session.reset()
        texts.append(list(session.generate(PROMPT, max_new_tokens=20, sampling=sampling(options))))
    sampled = shutil.copytree(demo, folder / "sampled")
    (sampled / "generation_config.json").write_text(json.dumps(OWN), encoding="utf-8")
    own, drawn = GenerationStruct(max_new_tokens=40), list[str]()
    own.sampling = pointer(SamplingStruct(**OWN, seed=11, has_seed=1))
    Chat.open(demo).send(QUESTION, lambda content, _: drawn.append(content), own)
    embedded, prompt = open_text_model(demo).session, list(b"how to read a file read a file read")
    draws = []
    for options in DRAWS:
        embedded.reset()
        tokens = list(embedded.generate(prompt, max_new_tokens=30, sampling=sampling(options)))
        draws.append({"options": options, "tokens": tokens})
    assert len({tuple(draw["tokens"]) for draw in draws}) == len(DRAWS)
    content = {
        "version": hybridge.__version__,
        "demo": str(demo),
        "tools": str(with_file(demo, folder / "tools", "chat_template.jinja", TOOLS)),
        "newer": str(newer),
        "kernels": str(kernels_artifact),
        "pictures": str(pictures_artifact),
        "pictureIds": [str(row) for row in Picture(model.session.model, rgb).ids],
        "said": "".join(pieces),
        "sampled": str(sampled),
        "saidByItself": "".join(drawn),
        "thinks": str(with_file(demo, folder / "thinks", "chat_template.jinja", THINKS)),
        "words": prompt,
        "draws": draws,
        "prompt": PROMPT,
        "plain": texts[0],
        "drawn": texts[1],
        "heat": HEAT,
        "tokens": open_text_model(demo).tokenizer.encode("漢字 👩 <|endoftext|>", plain=[(0, 18)]).ids,
        "library": library.NAME,
        "companions": [path.name for path in bundle.libraries() if path.name != library.NAME],
    }
    path = folder / "cases.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


@needs_node
@pytest.mark.slow
def test_the_installed_package_answers(installed: Path, cases: Path) -> None:
    run("node", "--test", *sorted(path.name for path in installed.glob("*.test.mjs")), folder=installed, CASES=str(cases))


@needs_node
@pytest.mark.slow
def test_the_chat_of_the_page_answers(installed: Path) -> None:
    """Of docs/apps.md."""
    (source,) = Document.read(CHECKOUT / "docs/apps.md").blocks("js")
    (installed / "chat.mjs").write_text(source, encoding="utf-8")
    demo, pieces = demo_folder() / "hybridge-demo", list[str]()
    (installed / "OUT").symlink_to(demo)
    Chat.open(demo).send(QUESTION, lambda content, _: pieces.append(content))
    words = ["node", "chat.mjs"]
    done = subprocess.run(words, input=f"{QUESTION}\n".encode(), cwd=installed, capture_output=True, check=True, timeout=300)
    assert done.stdout.decode() == "".join(pieces) + "\n"


@pytest.mark.skipif(shutil.which("tsc") is None, reason="needs tsc: npm install --global typescript")
@pytest.mark.slow
def test_an_app_is_typed(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "node_modules/hybridge")
    shutil.copy(TESTS / "types.mts", tmp_path)
    options = {"noEmit": True, "strict": True, "target": "es2022", "lib": ["es2023", "dom", "esnext.disposable"], "types": []}
    project = {"compilerOptions": options | {"module": "nodenext"}, "files": ["types.mts"]}
    (tmp_path / "tsconfig.json").write_text(json.dumps(project), encoding="utf-8")
    run("tsc", "--project", ".", folder=tmp_path)
