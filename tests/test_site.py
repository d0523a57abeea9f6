"""The documentation's site: the pages that are made from sources say all of them, and every document has its place."""

from __future__ import annotations

import re
import sys

import yaml
from command_names import hybridge_commands
from documents import Document
from source_names import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import pytest
from documenting import command_line, headers, python_api, schema

import hybridge
from hybridge import runtime
from hybridge.runtime.artifacts.manifest import Manifest

pytestmark = pytest.mark.thorough  # of a campaign script

GENERATED = ("index.md", "contributing.md", "changelog.md", "embedded-model.md", "examples/", "reference/")


def places(entries: list[object]) -> set[str]:
    """The pages of a part of mkdocs.yml's nav."""
    values = (value for entry in entries for value in (entry.values() if isinstance(entry, dict) else [entry]))
    return {place for value in values for place in (places(value) if isinstance(value, list) else {str(value)})}


def test_every_document_has_its_place_in_the_site() -> None:
    text = re.sub(r"!!python/\S+", "", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    shown = places(yaml.safe_load(text)["nav"])
    assert {each for each in shown if not each.startswith(GENERATED)} == {path.name for path in (ROOT / "docs").glob("*.md")}


def test_the_command_line_page_has_every_command_and_option() -> None:
    page = command_line.page()
    for command, options in hybridge_commands().items():
        if command:
            assert f"## hybridge {command}\n" in page
            assert [each for each in options.values if each not in page] == []
    assert "| `-o, --output` | `path` | The folder to write; appears whole or not at all. [required] |" in page
    assert "| `--draft-vocab` | `FILE\\|N` |" in page
    assert "$ hybridge export Qwen3.5-0.8B -o qwen --max-seq-len 2048" in page


def test_the_manifest_page_has_every_field() -> None:
    headings = set(Document.parse(ROOT / "docs/reference/manifest.md", schema.page()).headings)
    described = Manifest.model_json_schema()
    assert headings >= {"Manifest", *described["$defs"]}
    assert all(f"| `{field}` |" in schema.page() for field in described["properties"])


def test_the_python_page_has_every_promised_name() -> None:
    page = python_api.page(ROOT)
    for name in {*hybridge.__all__, *runtime.__all__} - {"errors"}:
        assert re.search(rf"^::: hybridge\.(\w+\.)*{name}$", page, re.MULTILINE), name


def test_the_c_page_has_every_function() -> None:
    page = headers.c_page(ROOT)
    functions = re.findall(
        r"^\w[\w* ]+ \*?(hybridge_\w+)\(", (ROOT / headers.NATIVE / "hybridge.h").read_text(encoding="utf-8"), re.M
    )
    assert len(functions) > 15
    assert all(f"{name}(" in page for name in functions)
    assert "#if" not in page


def test_the_cpp_page_has_declarations_without_bodies() -> None:
    page = headers.cpp_page(ROOT)
    for name in (
        "class Session",
        "class Model",
        "struct Generation",
        "Result<int64_t> commit(int64_t count);",
        "class BlockDrafter",
    ):
        assert name in page
    assert not re.search(r"private:|return [^s]|\n\n```cpp\n\};", page)


HEADER = """
namespace detail {
int f() {}
}  // namespace detail
int g();
class A {
 public:
  explicit A(int b) : b_(b), c_{} {}
  // f(x) { is fine.
  int f() { if (a) { b(); } }
  int d = 1, e = {};

 private:
  int g_;
};
"""
DECLARATIONS = """
int g();
class A {
 public:
  explicit A(int b);
  // f(x) { is fine.
  int f();
  int d = 1, e = {};
};
"""


def test_a_header_is_cut_down_to_its_declarations() -> None:
    assert headers.declarations(HEADER).strip() == DECLARATIONS.strip()
