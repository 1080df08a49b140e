"""Alerts by HTTPS: one POST each to one address, from a thread of its own."""

from __future__ import annotations

import http.client
import json
import queue
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from .errors import InvalidArgumentError

_TIMEOUT_S = 2.0
_WAITING_MAX = 16


class Webhook:
    """Sends a JSON object to `url`, and to no other host: a redirection is a failure. 2 s at most for each, the look-up of the host's
    name included. At most 16 wait to be sent; more are refused and counted. status() tells; nothing is raised and nobody waits for it.

    InvalidArgumentError, a ValueError: the url is not https://HOST..., has a user's name in it, or blanks or letters beyond ASCII.
    """

    def __init__(self, url: str) -> None:
        is_plain = isinstance(url, str) and all("!" <= letter <= "~" for letter in url)  # Others no request can hold: escape them.
        try:
            parts = urlsplit(url) if is_plain else None
            port = None if parts is None else parts.port
        except ValueError:  # A bracket without its other one; a port above 65535, or no number.
            parts, port = None, None
        if parts is None or parts.scheme != "https" or not parts.hostname or parts.username is not None:
            raise InvalidArgumentError(f"monitor: webhook: wanted https://HOST/PATH without a user's name, found {url!r}")
        self._host, self._port = parts.hostname, port or 443
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._waiting: queue.Queue[bytes | None] = queue.Queue(_WAITING_MAX)
        self._sent, self._failed, self._refused, self._reason = 0, 0, 0, ""  # Each is counted by one thread.
        self._looked_up: queue.SimpleQueue[list[Any] | Exception] | None = None  # None: no look-up goes on.
        self._thread = threading.Thread(target=self._run, name="headrace webhook", daemon=True)
        self._thread.start()

    def send(self, document: Mapping[str, Any]) -> None:
        try:
            self._waiting.put_nowait(json.dumps(document).encode())
        except queue.Full:
            self._refused, self._reason = self._refused + 1, f"{_WAITING_MAX} alerts wait to be sent"

    def status(self) -> dict[str, Any]:
        """As a sink's: without path and query, which may be a secret."""
        address = f"https://{self._host}:{self._port}"
        return {"name": "webhook", "requested": address, "applied": address, "reason": self._reason, "records": self._sent,
                "lost": self._failed + self._refused}

    def close(self) -> None:
        """Gives what waits 3 s, and then leaves it."""
        with suppress(queue.Full):
            self._waiting.put_nowait(None)
        self._thread.join(3.0)

    def _run(self) -> None:
        while (body := self._waiting.get()) is not None:
            reason = self._post(body)
            if reason:
                self._failed, self._reason = self._failed + 1, reason
            else:
                self._sent += 1

    def _post(self, body: bytes) -> str:
        """Empty: the host took it. Else why not."""
        ends = time.monotonic() + _TIMEOUT_S
        context = ssl.create_default_context()  # Checks the certificate and the host's name.
        connection = http.client.HTTPSConnection(self._host, self._port, context=context)
        # A timeout is for one call of the socket's, of which a slow host can make many.
        is_late = threading.Event()

        def give_up() -> None:
            is_late.set()
            with suppress(OSError, AttributeError):  # It is not connected yet, or no more.
                connection.sock.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(_TIMEOUT_S, give_up)
        try:
            timer.start()
            connection.sock = self._connected(ends)
            self._secure(connection, context)
            if is_late.is_set():
                raise TimeoutError
            connection.request("POST", self._path, body, {"Content-Type": "application/json"})
            status = connection.getresponse().status
            return "" if 200 <= status < 300 else f"the host answered {status}; wanted 200 to 299, and follow no redirection"
        except (OSError, ValueError, http.client.HTTPException) as error:  # ValueError: give_up() came between.
            is_slow = is_late.is_set() or isinstance(error, TimeoutError)
            return f"no answer within {_TIMEOUT_S:g} s" if is_slow else f"{type(error).__name__}: {error}"
        finally:
            timer.cancel()
            connection.close()

    def _connected(self, ends: float) -> socket.socket:
        failure: OSError = TimeoutError()
        for *_, address in self._addresses(ends):
            try:
                return socket.create_connection(address[:2], _left_s(ends))
            except OSError as error:
                failure = error
        raise failure

    def _addresses(self, ends: float) -> list[Any]:
        """As getaddrinfo() has them. Nothing can break off a look-up: one that is late goes on, and the next alert waits for the same."""
        if self._looked_up is None:
            self._looked_up = queue.SimpleQueue()
            threading.Thread(target=_look_up, args=(self._host, self._port, self._looked_up), name="headrace look-up", daemon=True).start()
        try:
            found = self._looked_up.get(timeout=_left_s(ends))
        except queue.Empty:
            raise TimeoutError from None
        self._looked_up = None
        if isinstance(found, Exception):
            raise found
        return found

    def _secure(self, connection: http.client.HTTPConnection, context: ssl.SSLContext) -> None:
        """TLS over its socket. It is the connection's before the hands are shaken, or nobody could shut it down meanwhile."""
        connection.sock = context.wrap_socket(connection.sock, server_hostname=self._host, do_handshake_on_connect=False)
        connection.sock.do_handshake()


def _look_up(host: str, port: int, answer: queue.SimpleQueue[list[Any] | Exception]) -> None:
    try:
        answer.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError) as error:  # UnicodeError: what no name of a host can be.
        answer.put(error)


def _left_s(ends: float) -> float:
    return max(ends - time.monotonic(), 0.001)  # A time-out of 0 would mean: do not wait at all.
