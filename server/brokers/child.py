"""A broker's process: started, watched, restarted on the same port, gone with its parent."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from kellet.sdk.errors import LinkError

__all__ = ["Child", "command_that_dies_with_us", "port_is_free", "start_child"]

log = logging.getLogger("kellet.brokers")

START_TIMEOUT = 15.0  # s
STOP_TIMEOUT = 5.0  # s
SHORT_LIFE = 5.0  # s; one that dies sooner is not started again at once
LONGEST_PAUSE = 1.0  # s; a fleet without a broker costs more than a start a second
PORT_ATTEMPTS = 5
_LAUNCHER = Path(__file__).with_name("_child.py")


class Child:
    """Runs ``command`` until ``stop``, and again whenever it dies.

    It counts as started when the process itself listens on every one of
    ``ports`` (that *something* does would not prove that it is ours).
    ``arguments`` are those of ``_child.py``.
    """

    def __init__(
        self, name: str, arguments: Sequence[str], *, ports: Sequence[int], log_file: Path
    ) -> None:
        self._name = name
        self._arguments = list(arguments)
        self._ports = set(ports)
        self._log_file = log_file
        self._state = threading.Condition()  # over what follows
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0  # how often it came up
        self._stopping = False
        self._asked = False  # the end to come is ours
        self._error: LinkError | None = None
        self._thread = threading.Thread(target=self._supervise, name=f"kellet-{name}", daemon=True)

    @property
    def pid(self) -> int | None:
        """The process that serves now, or None while there is none."""
        with self._state:
            return None if self._process is None else self._process.pid

    @property
    def starts(self) -> int:
        """How often it has come up."""
        with self._state:
            return self._starts

    def alive(self) -> bool:
        """Whether the process runs and has come up."""
        with self._state:
            return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start, and block until it listens. Raises ``LinkError`` with the end of its log."""
        self._log_file.write_bytes(b"")
        self._thread.start()
        self._await_start(1)

    def restart(self) -> None:
        """Kill the process, and block until its successor listens."""
        with self._state:
            seen = self._starts
            process = self._process
            self._asked = process is not None
        if process is not None:
            process.kill()
        self._await_start(seen + 1)

    def stop(self) -> None:
        """Stop for good. Idempotent."""
        with self._state:
            self._stopping = True
            process = self._process
            self._state.notify_all()
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        if self._thread.ident is not None:
            self._thread.join(STOP_TIMEOUT)
            if self._thread.is_alive() and process is not None:
                process.kill()
                self._thread.join()

    def _await_start(self, count: int) -> None:
        with self._state:
            self._state.wait_for(
                lambda: self._starts >= count or self._error is not None or self._stopping,
                timeout=START_TIMEOUT * 2,
            )
            if self._error is not None:
                raise self._error
            if self._starts < count:
                raise LinkError(f"the {self._name} broker did not come up", repair=self._see_log())

    # The supervising thread. Every start happens here: the kernel ties the child's life to the
    # thread that started it, not to the process.

    def _supervise(self) -> None:
        short_lives = 0
        while True:
            born = time.monotonic()
            process = self._spawn()
            up = self._came_up(process)
            with self._state:
                if up and not self._stopping:
                    self._process = process
                    self._starts += 1
                    self._state.notify_all()
                stopping = self._stopping
            if stopping or not up:
                process.kill()
            code = process.wait()
            with self._state:
                self._process = None
                asked, self._asked = self._asked, False
                if self._stopping:
                    return
            if not self._starts:
                self._give_up(code)
                return
            if asked:
                continue
            log.warning("the %s broker ended with code %d; starting it again", self._name, code)
            short_lives = short_lives + 1 if time.monotonic() - born < SHORT_LIFE else 0
            with self._state:
                pause = min(LONGEST_PAUSE, 0.1 * short_lives)
                if self._state.wait_for(lambda: self._stopping, timeout=pause):
                    return

    def _spawn(self) -> subprocess.Popen[bytes]:
        with self._log_file.open("ab") as output:
            return subprocess.Popen(
                command_that_dies_with_us(self._arguments),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,  # Ctrl-C is ours to answer, and then it goes in order
            )

    def _came_up(self, process: subprocess.Popen[bytes]) -> bool:
        deadline = time.monotonic() + START_TIMEOUT
        while process.poll() is None and time.monotonic() < deadline and not self._stopping:
            if self._ports <= _listening(process.pid):
                return True
            time.sleep(0.02)
        return False

    def _give_up(self, code: int) -> None:
        tail = self._log_file.read_text(errors="replace").strip().splitlines()[-3:]
        with self._state:
            self._error = LinkError(
                f"the {self._name} broker does not start (exit code {code})",
                why=" / ".join(line.strip() for line in tail),
                repair=self._see_log(),
            )
            self._state.notify_all()

    def _see_log(self) -> str:
        return f"see {self._log_file}"


def command_that_dies_with_us(arguments: Sequence[str]) -> list[str]:
    """What to start so that it lives no longer than the thread that starts it.

    ``arguments`` are those of ``_child.py``: ``exec`` and a command, or what a broker needs.
    """
    # -P keeps the working directory off sys.path, where it could shadow packages.
    return [sys.executable, "-P", str(_LAUNCHER), str(os.getpid()), *arguments]


def _listening(pid: int) -> set[int]:
    """The TCP ports on which a process of ours listens."""
    try:
        connections = psutil.Process(pid).net_connections(kind="tcp")
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return set()
    return {each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN}


def start_child(
    make: Callable[[list[int]], Child], addresses: Sequence[tuple[str, int | None]]
) -> tuple[Child, list[int]]:
    """Start ``make(ports)`` with a port for each (host, port or None) of ``addresses``.

    A port that is not given is chosen free, and chosen anew should somebody
    else be quicker. Raises ``LinkError`` where a given one is taken, or the
    broker does not start.
    """
    for host, port in addresses:
        if port is not None and not port_is_free(host, port):
            raise LinkError(
                f"port {port} is taken",
                why=f"something listens on {host} there",
                repair="choose another port, or leave it open",
            )
    attempts = PORT_ATTEMPTS
    while True:
        attempts -= 1
        ports = _choose(addresses)
        child = make(ports)
        try:
            child.start()
        except LinkError:
            lost = any(
                given is None and not port_is_free(host, port)
                for (host, given), port in zip(addresses, ports, strict=True)
            )
            if not lost or not attempts:
                raise
        except BaseException:
            child.stop()
            raise
        else:
            return child, ports


def _choose(addresses: Sequence[tuple[str, int | None]]) -> list[int]:
    """The given ports and free ones; all are held at once, so that no two are the same."""
    ports: list[int] = []
    with contextlib.ExitStack() as held:
        for host, given in addresses:
            if given is not None:
                ports.append(given)
                continue
            probe = held.enter_context(socket.socket(_family(host), socket.SOCK_STREAM))
            probe.bind((host, 0))
            ports.append(probe.getsockname()[1])
    return ports


def port_is_free(host: str, port: int) -> bool:
    """Whether ``host:port`` can be listened on now."""
    with socket.socket(_family(host), socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
