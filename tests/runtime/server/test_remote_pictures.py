"""Pictures from addresses: off by default, from public hosts only, with limits on bytes, time and redirects."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import openai
import pytest
from picture_files import file_of, noise, url_of
from served import Served, chat, running

from hybridge.errors import PictureError
from hybridge.runtime.binding.checkpoint import PrefixCache
from hybridge.runtime.binding.jinja import JinjaTemplate
from hybridge.runtime.server.app import Server, ServerSettings
from hybridge.runtime.server.remote_pictures import RemotePictures, is_public
from hybridge.runtime.server.worker import SessionSlot
from hybridge.runtime.text.answers import AnswerFormat
from hybridge.runtime.text.chat_template import load_template
from hybridge.runtime.text.generate import open_text_models

PICTURE = file_of(noise(20, 20))
LOCAL = "127.0.0.1"


class Pages(BaseHTTPRequestHandler):
    """Pictures and traps of a host on this machine; ``asked`` has the paths of requests."""

    asked: Sequence[str] = ()
    to = ""

    def do_GET(self) -> None:
        type(self).asked = (*self.asked, self.path)
        name, _, rest = self.path.lstrip("/").partition("/")
        match name:
            case "cat.png":
                self._send(200, PICTURE)
            case "moved":
                self._send(302, b"", Location=self.to if rest == "away" else "/cat.png")
            case "round":
                self._send(307, b"", Location="/round")
            case "large":
                self._send(200, bytes(3 << 20))
            case "slow":
                self.send_response(200)
                self.end_headers()
                for _ in range(200):
                    self.wfile.write(b"a")
                    time.sleep(0.05)
            case "half":
                self.send_response(200)
                self.send_header("Content-Length", str(len(PICTURE)))
                self.end_headers()
                self.wfile.write(PICTURE[:100])
            case "page":
                self._send(200, b"<html>")
            case _:
                self._send(404, b"")

    def _send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for header, value in headers.items():
            self.send_header(header, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def serving_pages(context: ssl.SSLContext | None = None) -> Iterator[str]:
    """Yield the address of a host on this machine; context: for one with encryption."""
    Pages.asked, Pages.to = (), "http://169.254.169.254/cat.png"
    server = ThreadingHTTPServer((LOCAL, 0), Pages)
    server.handle_error = lambda *_: None  # type: ignore[method-assign,assignment]  # clients leave in the middle
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"{'http' if context is None else 'https'}://{LOCAL}:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def host() -> Iterator[str]:
    with serving_pages() as url:
        yield url


@pytest.fixture
def remote() -> RemotePictures:
    """Fetches from one address of this machine, and from no other that is not public."""
    return RemotePictures(1 << 20, 2.0, lambda address: address == LOCAL)


def fetched(remote: RemotePictures, *urls: str) -> dict[str, bytes]:
    return asyncio.run(remote.fetched(urls))


def test_pictures_are_fetched_once_each(host: str, remote: RemotePictures) -> None:
    urls = [f"{host}/cat.png", f"{host}/moved", "data:image/png;base64,", f"{host}/cat.png"]
    assert fetched(remote, *urls) == {urls[0]: PICTURE, urls[1]: PICTURE}
    assert Pages.asked == ("/cat.png", "/moved", "/cat.png")


def test_a_query_belongs_to_an_address_and_a_fragment_does_not(host: str, remote: RemotePictures) -> None:
    with pytest.raises(PictureError, match="status 404"):
        fetched(remote, f"{host}?name=a%20b#part")
    assert Pages.asked == ("/?name=a%20b",)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("missing", "status 404"),
        ("round", "redirects more than 3 times"),
        ("moved/away", "not of a public host"),
        ("large", "more than 1,048,576 bytes"),
        ("slow", "more than 2 seconds"),
        ("half", "only a part"),
        ("cat png", "cannot be fetched"),
        ("cat.png\r\nX: y", "cannot be fetched|status 404"),
        ("a" * 9000, "more than 8192 characters"),
    ],
)
def test_what_is_not_fetched(host: str, remote: RemotePictures, path: str, reason: str) -> None:
    began = time.monotonic()
    with pytest.raises(PictureError, match=reason):
        fetched(remote, f"{host}/{path}")
    assert time.monotonic() - began < 4


def test_a_handshake_that_comes_byte_by_byte_ends_in_time(remote: RemotePictures) -> None:
    with socket.create_server((LOCAL, 0)) as listening:

        def drip() -> None:
            connected, _ = listening.accept()
            with connected, suppress(OSError):
                connected.sendall(b"\x16\x03\x03\x40\x00")  # a part of a handshake, of 16,384 bytes
                for _ in range(200):
                    connected.sendall(b"\x00")
                    time.sleep(0.05)

        thread = threading.Thread(target=drip)
        thread.start()
        began = time.monotonic()
        with pytest.raises(PictureError, match="more than 2 seconds"):
            fetched(remote, f"https://{LOCAL}:{listening.getsockname()[1]}/cat.png")
        assert time.monotonic() - began < 4
        thread.join()


def test_bytes_are_of_all_pictures_together(host: str) -> None:
    remote = RemotePictures(len(PICTURE) + 10, 5.0, lambda address: address == LOCAL)
    assert fetched(remote, f"{host}/cat.png")
    with pytest.raises(PictureError, match="have more than"):
        fetched(remote, f"{host}/cat.png", f"{host}/cat.png/again")


@pytest.mark.parametrize("address", ["http://user:word@{}/cat.png", "http://:80/", "http://[::1/", "http://{}:99999/cat.png"])
def test_addresses_that_are_none(host: str, remote: RemotePictures, address: str) -> None:
    with pytest.raises(PictureError):
        fetched(remote, address.format(host.removeprefix("http://").partition(":")[0]))
    assert Pages.asked == ()


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0"])
def test_this_machine_is_not_asked_by_any_of_its_names(host: str, name: str) -> None:
    port = host.rpartition(":")[2]
    with pytest.raises(PictureError, match=r"not of a public host|cannot be fetched"):
        fetched(RemotePictures(1 << 20), f"http://{name}:{port}/cat.png")
    assert Pages.asked == ()


def test_a_name_is_resolved_once_and_all_of_its_addresses_are_checked(
    host: str, remote: RemotePictures, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that is public when it is checked, and local when it is connected to, would be a way in."""
    port, answers = int(host.rpartition(":")[2]), [[LOCAL], ["10.0.0.1"]]

    def resolved(name: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in answers.pop(0)]

    resolve = socket.getaddrinfo
    monkeypatch.setattr(
        "hybridge.runtime.server.remote_pictures.socket.getaddrinfo",
        lambda name, *a, **b: resolved(name) if name == "cats.example" else resolve(name, *a, **b),
    )
    assert fetched(remote, f"http://cats.example:{port}/cat.png")
    answers[:] = [[LOCAL, "10.0.0.1"]]
    with pytest.raises(PictureError, match="not of a public host"):
        fetched(remote, f"http://cats.example:{port}/cat.png")
    assert Pages.asked == ("/cat.png",)


@pytest.mark.parametrize(
    ("address", "public"),
    [
        *((each, True) for each in ("93.184.215.14", "8.8.8.8", "2606:4700::1111", "64:ff9b::808:808")),
        *((each, False) for each in ("127.0.0.1", "127.9.9.9", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254")),
        *((each, False) for each in ("0.0.0.0", "100.64.0.1", "224.0.0.1", "239.1.1.1", "255.255.255.255", "192.0.2.1")),
        *((each, False) for each in ("::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "ff02::1", "ff0e::1")),
        *((each, False) for each in ("::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe")),
        *((each, False) for each in ("2002:7f00:1::", "2002:a00:1::1", "2001:0:7f00:1::", "fec0::1")),
        *((each, False) for each in ("64:ff9b:1::1", "64:ff9b:1:ffff::1", "::7f00:1", "192.0.0.8", "64:ff9b::c000:8")),
    ],
)
def test_public_addresses(address: str, public: bool) -> None:
    assert is_public(address) is public


@pytest.fixture
def fetching_server(pictures_artifact: Path, remote: RemotePictures) -> Iterator[Served]:
    """A server that fetches pictures from this machine."""
    models = open_text_models(pictures_artifact, 1)
    places = [SessionSlot(model.session, model.drafter) for model in models]
    form = AnswerFormat.find(JinjaTemplate(models[0].artifact.folder), models[0].tokenizer)
    server = Server(
        places, models[0].tokenizer, load_template(models[0].artifact).render, PrefixCache(models[0].session.model),
        ServerSettings(name="babble"), form, models[0].pictures, remote,
    )  # fmt: skip
    with running(server, places) as one:
        yield one


def test_a_server_answers_about_a_fetched_picture_as_about_its_data(fetching_server: Served, host: str) -> None:
    def asked(url: str) -> list[dict[str, object]]:
        picture = {"type": "image_url", "image_url": {"url": url}}
        return [{"role": "user", "content": [picture, {"type": "text", "text": "Cat?"}]}]

    answers = [chat(fetching_server, asked(url), max_tokens=5) for url in (f"{host}/cat.png", url_of(PICTURE))]
    assert answers[0].choices[0].message.content == answers[1].choices[0].message.content
    refused = {f"{host}/page": "no picture", "file:///etc/passwd": "must be its data", f"{host}/no": "status 404"}
    for url, reason in refused.items():
        with pytest.raises(openai.BadRequestError, match=reason):
            chat(fetching_server, asked(url))
    fetching_server.server.pictures.remote = None
    asked_before = Pages.asked
    with pytest.raises(openai.BadRequestError, match="--allow-remote-images"):
        chat(fetching_server, asked(f"{host}/cat.png"))
    assert Pages.asked == asked_before


def test_a_certificate_is_checked(remote: RemotePictures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [str(tmp_path / name) for name in ("certificate.pem", "key.pem")]
    name = ["-subj", "/CN=cats", "-addext", f"subjectAltName=IP:{LOCAL}"]
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", *name]
    subprocess.run([*make, "-out", files[0], "-keyout", files[1]], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    with serving_pages(context) as url:
        with pytest.raises(PictureError, match="certificate"):
            fetched(remote, f"{url}/cat.png")
        monkeypatch.setenv("SSL_CERT_FILE", files[0])
        assert fetched(remote, f"{url}/cat.png") == {f"{url}/cat.png": PICTURE}
        Pages.to = url.replace("https", "http") + "/cat.png"
        with pytest.raises(PictureError, match="redirects from https"):
            fetched(remote, f"{url}/moved/away")
