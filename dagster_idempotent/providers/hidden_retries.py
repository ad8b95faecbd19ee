"""Clients that would send by themselves, again or past the guard, are refused with the reason."""

from types import ModuleType
from typing import Any, NoReturn, cast

from dagster_idempotent.errors import ConfigurationError

_KNOWN = frozenset({"openai", "anthropic", "stripe", "httpx", "httpx2", "requests"})
_ADVICE = "Nothing was sent. Build the client by this library's own function for it"


def refuse_hidden_retries(client: object) -> None:
    """Return where a client sends only through the guard and never by itself again; raise ConfigurationError else.

    Clients of openai, anthropic, stripe, httpx, httpx2 and requests are known.
    """
    if isinstance(client, ModuleType):
        _refuse(
            f"{client.__name__} itself, the module, is given as a client. Its requests go out by a client of its own, "
            "with retries, that cannot be guarded"
        )
    owner = _package(client)
    match owner:
        case "google.genai":
            _refuse(
                "A client of google-genai is given. Its asynchronous side goes out through aiohttp, past a guarded "
                "HTTP client, so that it could only be half covered"
            )
        case "openai" | "anthropic":
            _check_model_client(client, owner)
        case "stripe":
            _check_stripe(client)
        case "httpx" | "httpx2":
            _check_transport(client, owner)
        case "requests":
            _check_session(client)
        case _:
            _refuse(f"A client of {owner} is given, which is not one that this library knows how to guard")


def _check_model_client(client: Any, owner: str) -> None:  # noqa: ANN401 - the SDK's own type
    retries = getattr(client, "max_retries", None)
    if retries != 0:
        _refuse(f"The {owner} client has max_retries={retries}, expected 0: it would send a paid request again")
    _check_transport(getattr(client, "_client", None), owner)


def _check_transport(client: Any, owner: str) -> None:  # noqa: ANN401 - the SDK's own type
    transport = getattr(client, "_transport", None)
    mounted = [each for each in getattr(client, "_mounts", {}).values() if each is not None]
    if not all(_is_ours(each) for each in (transport, *mounted)):
        _refuse(f"The {owner} client sends through {type(transport).__name__}, expected the guarded transport")
    if getattr(client, "follow_redirects", False):
        _refuse(f"The {owner} client follows redirects, expected not: a paid request could be sent twice")


def _check_stripe(client: Any) -> None:  # noqa: ANN401 - the SDK's own type
    requestor = getattr(client, "_requestor", None)
    if requestor is None:
        _refuse(f"A {type(client).__name__} of stripe is given, expected a StripeClient")
    options = getattr(requestor, "_options", None)
    if getattr(options, "max_network_retries", None) not in {0, None}:
        _refuse("The stripe client has max_network_retries above 0: it would send a paid request again")
    if not _is_ours(getattr(requestor, "_client", None)):
        _refuse("The stripe client sends by an HTTP client of its own, expected the guarded one")


def _check_session(session: Any) -> None:  # noqa: ANN401 - requests' own type
    adapters = cast("dict[str, object]", getattr(session, "adapters", {}))
    if not adapters or not all(_is_ours(adapter) for adapter in adapters.values()):
        _refuse("The requests session sends by an adapter of its own, expected the guarded one for every address")


def _is_ours(part: object) -> bool:
    return type(part).__module__.startswith("dagster_idempotent.providers.")


def _package(client: object) -> str:
    for kind in type(client).__mro__:
        if f"{kind.__module__}.".startswith("google.genai."):
            return "google.genai"
        name = kind.__module__.partition(".")[0]
        if name in _KNOWN:
            return name
    return type(client).__module__


def _refuse(found: str) -> NoReturn:
    raise ConfigurationError(f"{found}. {_ADVICE}.", field="client")
