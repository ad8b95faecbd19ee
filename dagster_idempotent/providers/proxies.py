"""Which HTTP proxy a request goes through: the configured one, else that of the environment."""

from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies_environment

from dagster_idempotent.errors import ConfigurationError

IpNetwork = IPv4Network | IPv6Network
SUPPORTED = frozenset({"http", "https"})


def proxy_for(url: str, configured: str | None) -> SplitResult | None:
    """Return the proxy for a URL, None for none; `configured` None asks the environment, "" goes without.

    HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY are read in either case when a request leaves; NO_PROXY takes
    names, suffixes, addresses, networks such as 10.0.0.0/8, and `*`. A loopback address never goes to a proxy of the
    environment. Raises ConfigurationError for a proxy that is not HTTP.
    """
    address, source = (configured, "proxy") if configured is not None else _of_environment(urlsplit(url))
    if not address:
        return None
    parts = urlsplit(address if "://" in address else f"http://{address}")
    if parts.scheme not in SUPPORTED or not parts.hostname or not _has_port(parts):
        raise ConfigurationError(
            f'The proxy ({source}) is not an address such as "http://proxy.example:3128"; nothing was sent.',
            field="proxy",
        )
    return parts


def _of_environment(target: SplitResult) -> tuple[str | None, str]:
    host = target.hostname or ""
    found = getproxies_environment()
    if not found or _is_loopback(host) or _is_excepted(host, target.netloc.rpartition("@")[2], found.get("no", "")):
        return None, ""
    name = target.scheme if target.scheme in found else "all"
    return found.get(name), f"{name.upper()}_PROXY of the environment"


def _is_excepted(host: str, place: str, exceptions: str) -> bool:
    entries = [entry.strip().lower() for entry in exceptions.split(",") if entry.strip()]
    if "*" in entries:
        return True
    names = [entry.lstrip(".") for entry in entries]
    if any(each == name or each.endswith(f".{name}") for each in (host, place.lower()) for name in names):
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return any(address in network for network in _networks(entries))


def _networks(entries: list[str]) -> list[IpNetwork]:
    networks: list[IpNetwork] = []
    for entry in entries:
        try:
            networks.append(ip_network(entry, strict=False))
        except ValueError:
            continue
    return networks


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _has_port(parts: SplitResult) -> bool:
    try:
        return parts.port is None or parts.port > 0
    except ValueError:
        return False
