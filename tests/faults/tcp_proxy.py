"""A TCP proxy on the loopback address that can freeze, delay, cut and redirect connections to PostgreSQL.

    with TcpProxy("127.0.0.1", server_port) as proxy:
        dsn = proxy.dsn(server_dsn)
        link = proxy.wait_for("my application")
        link.freeze()

A frozen connection accepts and acknowledges bytes in both directions and delivers nothing: neither TCP keepalives nor
`tcp_user_timeout` notice it. The proxy delivers these bytes when the connection thaws.
"""

import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Self, cast

from psycopg.conninfo import make_conninfo

_CHUNK = 65536
_TICK = 0.02
_PROTOCOL_3 = 3
_ENCRYPTION_REQUESTS = {80877103, 80877104}  # SSLRequest, GSSENCRequest
_CANCEL_REQUEST = 80877102


class Link:
    """One proxied connection. `name` is the client's application_name, empty until the startup packet has come."""

    def __init__(self, client: socket.socket, server: socket.socket, number: int, *, frozen: bool) -> None:
        self.number = number
        self.name = ""
        self.is_cancel = False
        self._sockets = (client, server)
        self._frozen = frozen
        self._startup = b""
        self._started = False
        self.delay = 0.0
        self.pending: dict[socket.socket, deque[tuple[float, bytes]]] = {client: deque(), server: deque()}

    @property
    def is_frozen(self) -> bool:
        """Whether the connection delivers nothing now."""
        return self._frozen

    def freeze(self) -> None:
        """Stops delivering bytes, but continues to accept them."""
        self._frozen = True

    def thaw(self) -> None:
        """Delivers again, first the bytes that arrived meanwhile."""
        self._frozen = False

    def peer(self, end: socket.socket) -> socket.socket:
        """The other end."""
        client, server = self._sockets
        return server if end is client else client

    def received(self, end: socket.socket, data: bytes) -> None:
        """Keeps bytes for the other end, and reads the client's startup packet."""
        if end is self._sockets[0] and not self._started:
            self._read_startup(data)
        self.pending[self.peer(end)].append((time.monotonic() + self.delay, data))

    def has_due(self, end: socket.socket) -> bool:
        """Whether bytes are to be sent to this end now."""
        chunks = self.pending[end]
        return bool(chunks) and not self._frozen and chunks[0][0] <= time.monotonic()

    def deliver(self) -> None:
        """Sends the kept bytes, unless the connection is frozen."""
        for end, chunks in self.pending.items():
            while self.has_due(end):
                due, data = chunks[0]
                try:
                    sent = end.send(data)
                except BlockingIOError:
                    break
                if sent < len(data):
                    chunks[0] = (due, data[sent:])
                else:
                    chunks.popleft()

    def close(self) -> None:
        """Closes both ends."""
        for end in self._sockets:
            with suppress(OSError):
                end.close()

    @property
    def ends(self) -> tuple[socket.socket, socket.socket]:
        """The client's and the server's socket."""
        return self._sockets

    def _read_startup(self, data: bytes) -> None:
        """Finds application_name in the startup packet, which may follow a request for encryption."""
        self._startup += data
        while len(self._startup) >= 8:
            length, code = struct.unpack("!II", self._startup[:8])
            if len(self._startup) < length:
                return
            packet, self._startup = self._startup[8:length], self._startup[length:]
            if code in _ENCRYPTION_REQUESTS:
                continue
            self._started = True
            self.is_cancel = code == _CANCEL_REQUEST
            if code >> 16 == _PROTOCOL_3:
                words = packet.split(b"\0")
                given = dict(zip(words[::2], words[1::2], strict=False))
                self.name = given.get(b"application_name", b"").decode()
            return


Chosen = Callable[[Link], bool]


class TcpProxy:
    """Forwards connections to a server. Every method may be called from any thread."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.setblocking(False)
        self._links: list[Link] = []
        self._accepted = 0
        self._frozen = False
        self._delay = 0.0
        self._freeze_new: Chosen = lambda _: False
        self._changed = threading.Condition(threading.RLock())
        self._closing = False
        self._half_open: list[socket.socket] | None = None
        self._thread = threading.Thread(target=self._run, name="tcp proxy", daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def port(self) -> int:
        """The port that clients connect to."""
        return int(self._listening.getsockname()[1])

    def dsn(self, server_dsn: str, **parameters: str | int) -> str:
        """A DSN for this proxy instead of the server's address; without encryption, which would hide the names."""
        given: dict[str, str | int] = {"host": "127.0.0.1", "port": self.port, "sslmode": "disable"}
        return make_conninfo(server_dsn, gssencmode="disable", **{**given, **parameters})

    def start(self) -> None:
        """Starts forwarding."""
        self._thread.start()

    def links(self, name: str | None = None) -> list[Link]:
        """The open connections in the order of their arrival. `name`: only those of this application_name."""
        with self._changed:
            return [link for link in self._links if not link.is_cancel and name in (None, link.name)]

    def wait_for(self, name: str | None = None, *, after: int = 0, seconds: float = 200) -> Link:
        """Waits for the first open connection of this application_name whose number is above `after`."""
        with self._changed:
            found = self._changed.wait_for(lambda: [x for x in self.links(name) if x.number > after], seconds)
        assert found, f"no connection of {name!r} came"
        return found[0]

    def freeze(self, name: str | None = None) -> None:
        """Freezes the open connections and those that come later; `name`: only those of this application_name."""
        with self._changed:
            if name is None:
                self._frozen = True
            else:
                self._freeze_new = lambda link: link.name == name
            for link in self.links(name):
                link.freeze()

    def thaw(self) -> None:
        """Thaws all connections, also those that were frozen one by one."""
        with self._changed:
            self._frozen, self._freeze_new = False, lambda _: False
            for link in self._links:
                link.thaw()

    def delay(self, seconds: float) -> None:
        """Delivers the bytes of all connections this much later, to within 20 ms."""
        with self._changed:
            self._delay = seconds
            for link in self._links:
                link.delay = seconds

    def repoint(self, host: str, port: int) -> None:
        """Forwards new connections to another server. Open connections keep their server."""
        with self._changed:
            self._target = (host, port)

    def cut(self, name: str | None = None) -> int:
        """Closes the open connections, and returns how many; `name`: only those of this application_name."""
        with self._changed:
            chosen = self.links(name)
            for link in chosen:
                self._drop(link)
            return len(chosen)

    def keep_server_ends(self, keep: bool) -> None:
        """Whether the server's end of a frozen connection stays open when its client has closed it.

        This is what the server sees after a crash of the client's machine. False closes all ends that were kept.
        """
        with self._changed:
            for end in self._half_open or []:
                end.close()
            self._half_open = [] if keep else None

    def close(self) -> None:
        """Stops, and closes all connections."""
        self._closing = True
        self._thread.join(10)
        self.keep_server_ends(False)
        with self._changed:
            for link in self._links:
                link.close()
            self._links.clear()
        self._listening.close()

    def _run(self) -> None:
        while not self._closing:
            with selectors.DefaultSelector() as selector:
                with self._changed:
                    self._register(selector)
                ready = selector.select(_TICK)
                with self._changed:
                    for key, events in ready:
                        if key.data is None:
                            self._accept()
                        elif key.data in self._links and events & selectors.EVENT_READ:
                            self._receive(key.data, cast("socket.socket", key.fileobj))
                    self._deliver()

    def _register(self, selector: selectors.BaseSelector) -> None:
        selector.register(self._listening, selectors.EVENT_READ)
        for link in self._links:
            for end in link.ends:
                writes = selectors.EVENT_WRITE if link.has_due(end) else 0
                selector.register(end, selectors.EVENT_READ | writes, link)

    def _accept(self) -> None:
        client, _ = self._listening.accept()
        try:
            server = socket.create_connection(self._target, timeout=5)
        except OSError:
            client.close()
            return
        for end in (client, server):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._accepted += 1
        link = Link(client, server, self._accepted, frozen=self._frozen)
        link.delay = self._delay
        self._links.append(link)

    def _receive(self, link: Link, end: socket.socket) -> None:
        try:
            data = end.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(link)
            return
        named = link.name
        link.received(end, data)
        if link.name != named and self._freeze_new(link):
            link.freeze()
        self._changed.notify_all()

    def _deliver(self) -> None:
        for link in list(self._links):
            try:
                link.deliver()
            except OSError:
                self._drop(link)

    def _drop(self, link: Link) -> None:
        if link in self._links:
            with suppress(OSError):
                link.deliver()
            self._links.remove(link)
            if self._half_open is not None and link.is_frozen:
                client, server = link.ends
                client.close()
                self._half_open.append(server)
            else:
                link.close()
        self._changed.notify_all()
