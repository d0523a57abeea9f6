"""Take in the pictures of requests: each is decoded alone, so that many large ones at once take the memory of one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from hybridge.runtime.binding.pictures import Picture
from hybridge.runtime.server.remote_pictures import RemotePictures
from hybridge.runtime.server.requests import MOST_PICTURES, ChatMessage, invalid
from hybridge.runtime.text.pictures import PictureProcessor, data_of_url


class RequestPictures:
    """Opens the pictures of requests.

    A large one takes hundreds of MB until it is resized, and the C library keeps memory for every thread that had some. So one
    thread decodes all of them, one after another; requests without pictures do not wait for it.
    """

    def __init__(
        self, processor: PictureProcessor | None, remote: RemotePictures | None, check_length: Callable[[int, str], None]
    ) -> None:
        """Decode nothing yet.

        Args:
            processor: of the model; None if it takes no pictures.
            remote: fetches pictures from addresses; None if these are refused.
            check_length: raises ApiError for a prompt of more tokens than the context has; the second argument names the field.
        """
        self.processor, self.remote, self._check_length = processor, remote, check_length
        self._decoder = ThreadPoolExecutor(1, "decode-pictures")

    @property
    def takes_some(self) -> bool:
        """Return whether the model takes pictures."""
        return self.processor is not None

    async def opened(self, messages: Sequence[ChatMessage]) -> list[Picture]:
        """Return the pictures of a request, in order.

        Raises PictureError for one that cannot be read, and ApiError if they are too many, or the model takes none.
        """
        urls = [url for message in messages for url in message.pictures]
        if not urls:
            return []
        if self.processor is None:
            raise invalid("this model takes no pictures: its artifact has the text model alone.", "messages")
        if len(urls) > MOST_PICTURES:
            raise invalid(f"a request has at most {MOST_PICTURES} pictures, and this one has {len(urls)}.", "messages")
        fetched = await self.remote.fetched(urls) if self.remote is not None else {}
        opened, tokens, loop = list[Picture](), 0, asyncio.get_running_loop()
        for url in urls:
            opened.append(await loop.run_in_executor(self._decoder, _open, self.processor, url, fetched))
            tokens += len(opened[-1].ids)
            self._check_length(tokens, "messages")
        return opened


def _open(processor: PictureProcessor, url: str, fetched: Mapping[str, bytes]) -> Picture:
    return processor.prepare(fetched[url] if url in fetched else data_of_url(url))
