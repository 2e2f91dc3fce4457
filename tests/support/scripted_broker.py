"""A socket that answers MQTT's CONNECT as told: for answers that no broker here gives."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

__all__ = ["CONNACK_5", "ScriptedBroker", "read_packet"]

CONNACK_5 = bytes([0x20, 3, 0, 0, 0])

Script = Callable[[socket.socket, bytes], None]


class ScriptedBroker:
    """Calls ``script(connection, connect_packet)`` for each connection, and closes it after."""

    def __init__(self, script: Script) -> None:
        self.connects: list[bytes] = []
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.url = f"mqtt://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(3)
                try:
                    connect = read_packet(connection)
                    self.connects.append(connect)
                    self._script(connection, connect)
                except OSError:
                    pass  # the client went first


def read_packet(connection: socket.socket) -> bytes:
    """One MQTT packet: the type byte and the body, without the length."""
    kind = _read(connection, 1)
    length, shift = 0, 0
    while True:
        byte = _read(connection, 1)[0]
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return kind + _read(connection, length)


def _read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise ConnectionResetError
        data += piece
    return data
