"""Fetch pictures from addresses for a server that was told to: from public hosts only, with limits on bytes and time."""

from __future__ import annotations

import asyncio
import http.client
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from time import monotonic
from urllib.parse import SplitResult, urljoin, urlsplit

from hybridge.errors import PictureError

SCHEMES = {"http": 80, "https": 443}
"""Schemes of addresses, with their usual ports."""
LONGEST_URL = 8192
"""Characters of an address."""
MOST_REDIRECTS = 3
MOST_THREADS = 8
"""Pictures that are fetched at a time, for all requests."""
REDIRECTS = (301, 302, 303, 307, 308)
CHUNK = 1 << 16
TRANSLATED = (ip_network("64:ff9b::/96"), ip_network("::/96"))
"""Addresses of IPv6 that stand for the IPv4 address in their last four bytes."""
NOT_PUBLIC = (ip_network("64:ff9b:1::/48"), ip_network("fec0::/10"), ip_network("192.0.0.0/24"))
"""Addresses of local networks and of protocols, some of which ``ipaddress`` takes for global ones."""


def is_public(text: str) -> bool:
    """Return whether an IP address is one of the internet: not of this machine, of a local network or of a protocol."""
    address = ip_address(text.partition("%")[0])
    every = [address, *_inside(address)]
    is_local = any(each in network for network in NOT_PUBLIC for each in every)
    return not is_local and all(each.is_global and not each.is_multicast for each in every)


def _inside(address: IPv4Address | IPv6Address) -> Iterator[IPv4Address]:
    """Yield the addresses of IPv4 to which packets for an address of IPv6 may go."""
    if isinstance(address, IPv4Address):
        return
    yield from filter(None, (address.ipv4_mapped, address.sixtofour, *(address.teredo or ())))
    if any(address in each for each in TRANSLATED):
        yield IPv4Address(int(address) & 0xFFFFFFFF)


@dataclass(frozen=True)
class RemotePictures:
    """Fetches the pictures of requests.

    A host's name is resolved once, every address that it has must be allowed, and the connection goes to one of these, so that
    a name cannot mean another address in between. Redirects are checked alike. There are no proxies, cookies or passwords.

    most_bytes: of a request's fetched pictures together. seconds: that all of them may take. is_allowed: says of an IP address
    whether it may be connected to.
    """

    most_bytes: int
    seconds: float = 20.0
    is_allowed: Callable[[str], bool] = is_public

    async def fetched(self, urls: Sequence[str]) -> dict[str, bytes]:
        """Return the file behind each address among the URLs. Raises PictureError."""
        found = dict[str, bytes]()
        end = monotonic() + self.seconds
        loop = asyncio.get_running_loop()
        for url in dict.fromkeys(url for url in urls if url[:8].lower().startswith(("http://", "https://"))):
            left = self.most_bytes - sum(map(len, found.values()))
            found[url] = await loop.run_in_executor(_THREADS, self._fetch, url, left, end)
        return found

    def _fetch(self, url: str, most: int, end: float) -> bytes:
        try:
            for _ in range(MOST_REDIRECTS + 1):
                with self._answer(url, end) as answer:
                    if answer.status not in REDIRECTS:
                        return self._body(answer, most, end)
                    url = _redirected(url, answer.headers.get("Location", ""))
        except PictureError:
            raise
        except (OSError, ValueError, http.client.HTTPException) as error:
            if monotonic() >= end:
                raise self._too_slow() from None
            is_certificate = isinstance(error, ssl.SSLCertVerificationError)
            reason = "its certificate" if is_certificate else getattr(error, "strerror", None) or type(error).__name__
            raise PictureError(f"a picture's address cannot be fetched ({reason}); send its data instead.") from None
        raise PictureError(f"a picture's address redirects more than {MOST_REDIRECTS} times; give the last one.")

    @contextmanager
    def _answer(self, url: str, end: float) -> Iterator[http.client.HTTPResponse]:
        """Yield the answer to a request, whose connection ends with the body or the time."""
        parts = _split(url)
        host, port = parts.hostname or "", parts.port or SCHEMES[parts.scheme]
        connected, is_secure = self._connected(host, port, end), parts.scheme == "https"
        if is_secure:  # a new socket, and the old one is unusable
            context = ssl.create_default_context()
            connected = context.wrap_socket(connected, server_hostname=host, do_handshake_on_connect=False)
        late = threading.Timer(max(0.0, end - monotonic()), _shut, [connected])
        late.start()
        try:
            if isinstance(connected, ssl.SSLSocket):
                connected.do_handshake()
            connection = (http.client.HTTPSConnection if is_secure else http.client.HTTPConnection)(host, port)
            connection.sock, connection.auto_open = connected, 0  # it never connects by the name itself
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request("GET", target, headers={"Accept": "image/*", "User-Agent": "hybridge"})
            with connection.getresponse() as answer:
                yield answer
        finally:
            late.cancel()
            connected.close()

    def _connected(self, host: str, port: int, end: float) -> socket.socket:
        """Return a connection to a host, all of whose addresses are allowed. Raises PictureError and OSError."""
        found = dict.fromkeys(str(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        if not all(map(self.is_allowed, found)):
            raise PictureError("a picture's address is not of a public host, and this server fetches from no other.")
        failure: OSError = OSError("no address")
        for address in found:
            left = end - monotonic()
            if left <= 0:
                raise self._too_slow()
            try:
                return socket.create_connection((address, port), timeout=left)
            except OSError as error:
                failure = error
        raise failure

    def _body(self, answer: http.client.HTTPResponse, most: int, end: float) -> bytes:
        if answer.status != http.client.OK:
            raise PictureError(f"a picture's address answers with status {answer.status}; check it, or send its data.")
        body = bytearray()
        while chunk := answer.read1(CHUNK):
            body += chunk
            if len(body) > most:
                raise PictureError(
                    f"the pictures behind a request's addresses have more than {self.most_bytes:,} bytes; make them smaller."
                )
        if monotonic() >= end:  # the connection may have been shut in the middle
            raise self._too_slow()
        if answer.length:
            raise PictureError("a picture's address sent only a part of it; try again.")
        return bytes(body)

    def _too_slow(self) -> PictureError:
        return PictureError(f"the pictures behind a request's addresses take more than {self.seconds:g} seconds.")


_THREADS = ThreadPoolExecutor(MOST_THREADS, "hybridge-pictures")


def _split(url: str) -> SplitResult:
    """Return the parts of an address. Raises PictureError, and ValueError for a text that is no address."""
    if len(url) > LONGEST_URL:
        raise PictureError(f"a picture's address has more than {LONGEST_URL} characters.")
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES or not parts.hostname:
        raise PictureError("a picture's address is not one of http:// or https://, with a host.")
    if parts.username is not None or parts.password is not None:
        raise PictureError("a picture's address has a user's name or a password, which are not sent; leave them out.")
    return parts


def _redirected(url: str, location: str) -> str:
    """Return where an answer redirects to. Raises PictureError for what would leave encryption."""
    following = urljoin(url, location)
    if urlsplit(url).scheme == "https" and urlsplit(following).scheme != "https":
        raise PictureError("a picture's address redirects from https:// to another scheme, which is not followed.")
    return following


def _shut(connected: socket.socket) -> None:
    """Shut a connection down below any encryption, so that a thread that reads from it continues."""
    with suppress(OSError):  # it is closed already
        socket.socket.shutdown(connected, socket.SHUT_RDWR)
