"""Copied as ``sitecustomize`` beside upstream's tests: every Python process of them reaches this machine only."""

import ipaddress
import socket
import sys
from typing import Any


def _here(host: object) -> bool:
    """Whether an address or a name is of this machine."""
    name = host.decode() if isinstance(host, bytes) else host
    if not isinstance(name, str) or name in ("", "localhost", socket.gethostname()):
        return True
    try:
        return ipaddress.ip_address(name.partition("%")[0]).is_loopback or name in ("0.0.0.0", "::")
    except ValueError:
        return False


def _refuse(event: str, given: tuple[Any, ...]) -> None:
    if event == "socket.getaddrinfo" and not _here(given[0]):
        raise OSError(f"upstream's tests run without a network: {given[0]}")
    if event == "socket.connect" and isinstance(given[1], tuple) and not _here(given[1][0]):
        raise OSError(f"upstream's tests run without a network: {given[1][0]}")


sys.addaudithook(_refuse)
