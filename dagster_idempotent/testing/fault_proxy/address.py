"""Addresses that the fault proxy understands, and connection strings that lead to it."""

import socket
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from dagster_idempotent.errors import ConfigurationError

Address = tuple[str, int] | Path

_HOST_PARAMETERS = {"host", "hostaddr", "port"}


def parse_address(address: tuple[str, int] | str | Path) -> Address:
    """Read (host, port), "host:port", or the path of a unix socket."""
    if isinstance(address, tuple | Path):
        return address
    if "/" in address:
        return Path(address)
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigurationError(
            f'found address {address!r}, expected (host, port), "host:port" or the path of a unix socket',
            field="address",
        )
    return host.strip("[]"), int(port)


def listen_at(address: Address) -> socket.socket:
    """Open a non-blocking listener."""
    listener = socket.socket(socket.AF_INET if isinstance(address, tuple) else socket.AF_UNIX)
    listener.setblocking(False)  # noqa: FBT003 - the standard library's signature
    try:
        if isinstance(address, tuple):
            # A restart takes the port back while old connections still linger in TIME_WAIT.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        else:
            listener.bind(str(address))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"cannot listen at {address} ({error.strerror}), expected a free address; name another",
            address=address,
        ) from error
    return listener


def redirect_dsn(dsn: str, address: tuple[str, int]) -> str:
    """Return a URL or libpq connection string with another host and port; a host with / is a folder."""
    host, port = address
    if "://" not in dsn:
        # libpq takes the last of several values for one name.
        return f"{dsn} host='{host}' hostaddr='' port={port}".strip()
    url = urlsplit(dsn)
    parameters = [pair for pair in parse_qsl(url.query) if pair[0] not in _HOST_PARAMETERS]
    user, at, _ = url.netloc.rpartition("@")
    if host.startswith("/"):
        place, parameters = "", [*parameters, ("host", host), ("port", str(port))]
    else:
        place = f"{host}:{port}"
    query = urlencode(parameters, quote_via=quote)
    return urlunsplit((url.scheme, f"{user}{at}{place}", url.path, query, url.fragment))
