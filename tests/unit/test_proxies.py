"""Proxies of the environment, as people expect them."""

import pytest

from dagster_idempotent.errors import ConfigurationError
from dagster_idempotent.providers.proxies import proxy_for

NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "REQUEST_METHOD")


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def chosen(url: str, configured: str | None = None) -> str | None:
    found = proxy_for(url, configured)
    return None if found is None else found.geturl()


def test_without_any_setting_there_is_none() -> None:
    assert chosen("https://api.example/v1") is None


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"])
def test_the_environment_names_it_in_either_case(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "http://user:p%40ss@proxy.example:3128")
    found = proxy_for("https://api.example/v1", None)
    assert found is not None
    assert (found.hostname, found.port, found.username, found.password) == ("proxy.example", 3128, "user", "p%40ss")


def test_each_scheme_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://secure:1")
    monkeypatch.setenv("HTTP_PROXY", "http://plain:2")
    monkeypatch.setenv("ALL_PROXY", "http://all:3")
    assert chosen("https://api.example") == "http://secure:1"
    assert chosen("http://api.example") == "http://plain:2"
    monkeypatch.delenv("HTTPS_PROXY")
    assert chosen("https://api.example") == "http://all:3"


def test_an_address_without_a_scheme_is_http(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "proxy.example:3128")
    assert chosen("https://api.example") == "http://proxy.example:3128"


@pytest.mark.parametrize(
    ("no_proxy", "url", "direct"),
    [
        ("*", "https://api.example", True),
        ("api.example", "https://api.example/v1", True),
        ("example", "https://api.example", True),
        (".example", "https://api.example", True),
        ("other.example", "https://api.example", False),
        ("pi.example", "https://api.example", False),
        ("api.example:443", "https://api.example:443", True),
        ("api.example:8443", "https://api.example", False),
        (" a.test , api.example ", "https://api.example", True),
        ("10.0.0.0/8", "https://10.1.2.3", True),
        ("10.0.0.0/8", "https://11.1.2.3", False),
        ("10.1.2.3", "https://10.1.2.3", True),
        ("fd00::/8", "https://[fd00::1]", True),
        ("nonsense/x", "https://10.1.2.3", False),
        ("10.0.0.0/8", "https://api.example", False),
    ],
)
def test_exceptions_are_names_suffixes_addresses_and_networks(
    monkeypatch: pytest.MonkeyPatch, no_proxy: str, url: str, direct: bool
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", no_proxy)
    assert (chosen(url) is None) is direct


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1.2.3", "[::1]", "metered.localhost"])
def test_loopback_never_goes_to_a_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://proxy.example:3128")
    assert chosen(f"http://{host}:8000/v1") is None
    assert chosen(f"http://{host}:8000/v1", "http://own:1") == "http://own:1"


def test_the_configured_one_comes_first_and_an_empty_one_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    assert chosen("https://api.example", "http://own:1") == "http://own:1"
    assert chosen("https://api.example", "") is None


def test_in_a_cgi_a_header_cannot_name_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REQUEST_METHOD", "GET")
    monkeypatch.setenv("HTTP_PROXY", "http://evil:1")
    assert chosen("http://api.example") is None


@pytest.mark.parametrize("address", ["socks5://proxy:1080", "http://", "http://proxy:99999", "ftp://proxy:21"])
def test_what_is_no_http_proxy_is_refused_and_its_password_not_told(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", address.replace("://", "://user:hunter2@"))
    with pytest.raises(ConfigurationError, match="HTTPS_PROXY of the environment") as caught:
        proxy_for("https://api.example", None)
    assert "hunter2" not in str(caught.value)
    assert caught.value.facts["field"] == "proxy"
