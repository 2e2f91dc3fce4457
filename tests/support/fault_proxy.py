"""A TCP proxy that makes a bad link between MQTT clients on this machine and a broker.

It can be slow, cut after so many bytes, swallow everything, lose PUBACKs, or
refuse. Faults may be set and taken back while connections are open.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable
from types import TracebackType
from typing import Self

__all__ = ["FaultProxy"]

_PUBACK = 0x40
_CHUNK = 4096


class FaultProxy:
    """Forwards 127.0.0.1:``port`` to the broker at ``target_host``:``target_port``.

    Attributes, all free to change at any time
    ----------
    rate_up, rate_down:
        bytes/s from client to broker and back; None for no limit.
    cut_after:
        bytes from client to broker after which a connection is reset.
    black_hole:
        take bytes in both directions and deliver none.
    drop_puback:
        lose the broker's acknowledgements.
    refuse:
        reset new connections.
    """

    def __init__(self, target_port: int, target_host: str = "127.0.0.1") -> None:
        self.rate_up: float | None = None
        self.rate_down: float | None = None
        self.cut_after: int | None = None
        self.black_hole = False
        self.drop_puback = False
        self.refuse = False
        self.connections = 0  # accepted so far
        self.bytes_up = 0
        self.bytes_down = 0
        self.dropped_pubacks = 0
        self._target = (target_host, target_port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._links: set[_Link] = set()
        self._thread = threading.Thread(target=self._run, name="fault-proxy", daemon=True)

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"mqtt://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Reset every connection that is open now."""
        done = asyncio.run_coroutine_threadsafe(self._cut(), self._loop)
        done.result(timeout=5)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._stop = asyncio.Event()
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._accept, sock=self._listener, limit=_CHUNK)
        await self._stop.wait()
        server.close()
        await self._cut()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)

    async def _cut(self) -> None:
        for link in list(self._links):
            link.reset()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.refuse:
            writer.transport.abort()
            return
        try:
            target = await asyncio.open_connection(*self._target, limit=_CHUNK)
        except OSError:
            writer.transport.abort()
            return
        link = _Link(self, (reader, writer), target)
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)


_Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Link:
    """One client's connection through the proxy."""

    def __init__(self, proxy: FaultProxy, client: _Streams, broker: _Streams) -> None:
        self._proxy = proxy
        self._client = client
        self._broker = broker
        self._sent = 0
        self._pubacks = _PubackFilter()

    def reset(self) -> None:
        for _, writer in (self._client, self._broker):
            writer.transport.abort()

    async def run(self) -> None:
        """Until both sides have ended. One's end is passed on, and the other may still speak."""
        await asyncio.gather(self._guard(self._up()), self._guard(self._down()))
        for _, writer in (self._client, self._broker):
            writer.close()

    async def _guard(self, way: Awaitable[None]) -> None:
        try:
            await way
        except OSError:  # one side reset the connection: so does the proxy, on the other
            self.reset()

    async def _up(self) -> None:
        proxy = self._proxy
        while data := await self._client[0].read(_CHUNK):
            self._sent += len(data)
            proxy.bytes_up += len(data)
            if proxy.cut_after is not None and self._sent > proxy.cut_after:
                self.reset()
                return
            await self._forward(data, self._broker[1], proxy.rate_up)
        self._broker[1].write_eof()

    async def _down(self) -> None:
        proxy = self._proxy
        while data := await self._broker[0].read(_CHUNK):
            proxy.bytes_down += len(data)
            kept = self._pubacks.strip(data, drop=proxy.drop_puback)
            proxy.dropped_pubacks += self._pubacks.take_count()
            await self._forward(kept, self._client[1], proxy.rate_down)
        self._client[1].write_eof()

    async def _forward(self, data: bytes, writer: asyncio.StreamWriter, rate: float | None) -> None:
        if self._proxy.black_hole or not data:
            return
        writer.write(data)
        await writer.drain()
        if rate is not None:
            await asyncio.sleep(len(data) / rate)


class _PubackFilter:
    """Follows the packets of a byte stream, so that whole PUBACKs can be taken out of it."""

    def __init__(self) -> None:
        self._header = bytearray()  # of a packet whose length is not complete yet
        self._left = 0  # bytes of the current packet that are still to come
        self._dropping = False
        self._count = 0

    def take_count(self) -> int:
        count, self._count = self._count, 0
        return count

    def strip(self, data: bytes, *, drop: bool) -> bytes:
        kept = bytearray()
        at = 0
        while at < len(data):
            if self._left:
                piece = data[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                if not self._dropping:
                    kept += piece
                continue
            self._header.append(data[at])
            at += 1
            if len(self._header) > 1 and self._header[-1] < 0x80:
                self._begin(drop)
                if not self._dropping:
                    kept += self._header
                self._header.clear()
        return bytes(kept)

    def _begin(self, drop: bool) -> None:
        self._dropping = drop and self._header[0] & 0xF0 == _PUBACK
        self._count += self._dropping
        self._left = sum((byte & 0x7F) << (7 * i) for i, byte in enumerate(self._header[1:]))
