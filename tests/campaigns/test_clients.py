"""``scripts/trust clients`` notices a client with a wrong text, turn or reset, and one that cannot be run."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from campaigns.clients import __main__ as clients
from campaigns.clients import in_programs
from campaigns.clients.conversations import (
    NEW,
    Client,
    ClientError,
    Conversation,
    Ends,
    Functions,
    Row,
    Score,
    conversation,
    score,
)
from tokenizers import Tokenizer
from torch import Tensor

from hybridge.runtime import Session

VOCABULARY = 50
TEXTS = ([3, 4], [8, 1, 5], [20])
TURN = [9, 2]


def oracle(tokens: Sequence[int]) -> Tensor:
    """The next token depends on the whole text, and on its order."""
    text = 0
    for token in tokens:
        text = (31 * text + token + 1) % 10_007
    return torch.nn.functional.one_hot(torch.tensor([text % VOCABULARY]), VOCABULARY).float()


class Right:
    """What the oracle writes, from a text that ends before or behind the last token; ``fault`` breaks one thing."""

    def __init__(self, ends: Ends, fault: str = "") -> None:
        self.ends, self.fault, self.text = ends, fault, list[int]()

    def reset(self) -> None:
        if self.fault != "a reset that keeps the state":
            self.text = []

    def generate(self, tokens: list[int], count: int) -> list[int]:
        if self.fault == "a turn that forgets" and tokens == TURN:
            self.text = []
        self.text += tokens
        new = []
        for _ in range(count):
            new.append(int(oracle(self.text)[-1].argmax()))
            self.text.append(new[-1])
        if self.ends == "before":
            self.text.pop()
        return [*new[:-1], 7] if self.fault == "a wrong last token" and count == NEW else new


@pytest.fixture(scope="module")
def conversations() -> list[Conversation]:
    return [conversation(oracle, [], text, TURN) for text in TEXTS]


@pytest.mark.parametrize("ends", ["before", "behind"])
def test_a_right_client_is_right_wherever_its_text_ends(ends: Ends, conversations: list[Conversation]) -> None:
    scored = score(Right(ends), ends, conversations)
    assert scored == Score(3, 3, 3)
    assert scored.is_perfect(3)
    assert not scored.is_perfect(4)


def test_a_client_without_turns_is_not_asked_for_them(conversations: list[Conversation]) -> None:
    scored = score(Right("behind", "a turn that forgets"), None, conversations)
    assert scored == Score(3, None, 3)
    assert scored.is_perfect(3)


FAULTS = {
    "a wrong last token": Score(0, 3, 3),
    "a turn that forgets": Score(3, 0, 3),
    "a reset that keeps the state": Score(1, 1, 0),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_shows_in_its_column(fault: str, conversations: list[Conversation]) -> None:
    scored = score(Right("before", fault), "before", conversations)
    assert scored == FAULTS[fault]
    assert not scored.is_perfect(3)


def test_an_end_of_sequence_is_the_last_token() -> None:
    whole = conversation(oracle, [], TEXTS[0], TURN)
    end = whole.after_prompt[10]
    asked = conversation(oracle, [end], TEXTS[0], TURN)
    assert asked.after_prompt == whole.after_prompt[: whole.after_prompt.index(end) + 1]


def cannot(message: str, error: type[Exception] = ClientError) -> Callable[[ExitStack], Client]:
    def start(stack: ExitStack) -> Client:
        raise error(message)

    return start


def test_a_client_that_cannot_be_run_is_a_row_and_stops_no_other(
    conversations: list[Conversation], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        Row("first", cannot("no network\nhere")),
        Row("second", cannot("Generation failed", RuntimeError)),
        Row("third", lambda _: Right("before")),
    ]
    assert not clients.print_clients(rows, conversations)
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| first | not run: no network here | | |",
        "| second | not run: RuntimeError: Generation failed | | |",
        "| third | 3 | 3 | 3 |",
    ]
    assert clients.print_clients(rows[2:], conversations)


def test_the_exit_code_is_1_where_a_client_fails(
    conversations: list[Conversation], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(clients, "rows", lambda folder: [Row("only", cannot("no network"))])
    for name in ("export", "load_oracle", "open_artifact"):
        monkeypatch.setattr(clients, name, lambda *_: None)
    monkeypatch.setattr(clients, "asked", lambda *_: conversations)
    monkeypatch.setattr(clients, "print_errors", lambda *_: True)
    monkeypatch.setattr(sys, "argv", ["clients"])
    monkeypatch.setattr(clients, "open_artifact", lambda _: type("Artifact", (), {"manifest": None}))
    assert clients.main() == 1
    monkeypatch.setattr(clients, "rows", lambda folder: [Row("only", lambda _: Right("before"))])
    assert clients.main() == 0


def test_an_unknown_name_is_wrong_usage_and_the_names_are_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["clients", "--only", "llama.cpp"])
    assert clients.main() == 2
    listed = capsys.readouterr().err
    assert "no client's name has 'llama.cpp' in it" in listed
    for name in ("TextLLMRunner` of 1.5.1 in C++", "TextLLMRunner` of 1.4.1 in Python", "optimum-executorch", "C API", "genai"):
        assert name in listed


# Programs


PROGRAM = f"""
import sys
sys.path.insert(0, {str(in_programs.PROGRAMS)!r})
from protocol import claim_stdout, serve
answers, text = claim_stdout(), []
print("chatter of a native library")
def generate(numbers, count):
    if 13 in numbers: raise RuntimeError("no 13 here")
    text.extend(numbers)
    return [sum(text)] * count
serve(generate, text.clear, answers)
"""


def test_a_program_is_asked_line_by_line() -> None:
    with ExitStack() as stack:
        client = in_programs.started(stack, [sys.executable, "-c", PROGRAM])
        assert client.generate([1, 2], 2) == [3, 3]
        assert client.generate([4], 1) == [7]
        client.reset()
        assert client.generate([4], 1) == [4]


def test_a_program_that_ends_says_why() -> None:
    with ExitStack() as stack:
        client = in_programs.started(stack, [sys.executable, "-c", PROGRAM])
        with pytest.raises(ClientError, match=r"^it ended with 1: RuntimeError: no 13 here$"):
            client.generate([13], 1)


def test_text_clients_get_bytes_and_give_tokens(checkpoint: Path) -> None:
    upper = Functions(lambda numbers, count: list(bytes(numbers).upper())[:count], lambda: None)
    assert in_programs.in_text(upper, checkpoint).generate(list(b"abc"), 2) == list(b"AB")


PROMPTS = [[5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 5, 6], [40, 41, 42], list(b"def main(")]


def sessions(artifact: Path) -> list[list[int]]:
    """Each prompt from an empty state, and a second turn."""
    session, texts = Session.load(artifact), []
    for prompt in PROMPTS:
        session.reset()
        texts += [list(session.generate(each, max_new_tokens=12, eos_ids=[])) for each in (prompt, PROMPTS[1])]
    return texts


def answers(client: Client) -> list[list[int]]:
    texts = []
    for prompt in PROMPTS:
        client.reset()
        texts += [client.generate(prompt, 12), client.generate(PROMPTS[1], 12)]
    return texts


@pytest.mark.slow
def test_the_c_program_gives_the_sessions_tokens(kernels_artifact: Path) -> None:
    with ExitStack() as stack:
        assert answers(in_programs.of_c(stack, kernels_artifact, "lookup")) == sessions(kernels_artifact)


@pytest.mark.slow
@pytest.mark.parametrize("start", [in_programs.of_runner, in_programs.of_runner_in_cpp])
def test_the_text_runner_gives_the_sessions_text(start: Callable[..., Client], artifact: Path) -> None:
    """The C++ program declares the runner itself, because the wheel has no header of it: a pin of what it declares."""
    tokenizer = Tokenizer.from_file(str(artifact / "tokenizer.json"))
    texts = [tokenizer.decode(tokens, skip_special_tokens=False) for tokens in sessions(artifact)]
    with ExitStack() as stack:
        try:
            client = start(stack, Path(sys.executable), artifact)
        except ClientError as error:
            pytest.skip(str(error)) if "libpython" in str(error) else pytest.fail(str(error))
        assert answers(client) == [tokenizer.encode(text).ids for text in texts]


# Environments


@pytest.fixture
def requirements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(in_programs, "REQUIREMENTS", tmp_path)
    return tmp_path / "client.txt"


@pytest.mark.slow
def test_an_environment_is_made_once(requirements: Path, capsys: pytest.CaptureFixture[str]) -> None:
    requirements.write_text("# nothing\n")
    python = in_programs.python_of("client")
    assert in_programs.python_of("client") == python
    assert python.exists()
    assert capsys.readouterr().err.count("Setting up") == 1


@pytest.mark.slow
def test_an_environment_that_cannot_be_installed_leaves_nothing(requirements: Path, tmp_path: Path) -> None:
    requirements.write_text("--no-index\nno-such-client==1.0\n")
    with pytest.raises(ClientError, match=r"client-.* cannot be installed: .*no-such-client==1.0"):
        in_programs.python_of("client")
    assert [path.suffix for path in (tmp_path / "cache/hybridge/clients").iterdir()] in ([], [".lock"])


@pytest.mark.parametrize("path", sorted(in_programs.REQUIREMENTS.glob("*.txt")), ids=lambda path: path.stem)
def test_every_package_of_an_environment_is_pinned(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if not re.fullmatch(r"#.*|[\w.-]+==[\w.]+", line)] == []
    assert path.stem.replace("-", "==").replace("optimum==", "optimum-") in lines
