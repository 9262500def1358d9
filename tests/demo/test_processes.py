"""free_port() chooses ports for servers that bind them later."""

import secrets
import socket
from pathlib import Path

import pytest

from demo.processes import free_port


def test_a_free_port_is_never_an_ephemeral_port() -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="utf-8").split())
    assert not any(first <= free_port() <= last for _ in range(100))


def test_a_port_in_use_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    free = free_port()
    with socket.create_server(("127.0.0.1", 0)) as server:
        ports = iter([server.getsockname()[1], free])
        monkeypatch.setattr(secrets, "choice", lambda _: next(ports))
        assert free_port() == free
