"""Ports for servers that bind them later."""

import secrets
import socket
from pathlib import Path

import pytest

from demo.processes import free_port


def test_a_port_for_later_is_none_that_the_system_gives_to_whoever_asks_for_any() -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="utf-8").split())
    assert not any(first <= free_port() <= last for _ in range(100))


def test_a_port_that_somebody_listens_on_is_passed_by(monkeypatch: pytest.MonkeyPatch) -> None:
    free = free_port()
    with socket.create_server(("127.0.0.1", 0)) as server:
        ports = iter([server.getsockname()[1], free])
        monkeypatch.setattr(secrets, "choice", lambda _: next(ports))
        assert free_port() == free
