"""Official SDKs over the guard: with a placeholder credential, without retries, redirects or proxies of their own.

`exchange` is the guard of one call key; `provider` the HTTP provider that it sends with. What is left of an SDK's own
options (`timeout`, `default_headers`, …) goes to its constructor.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from dagster_idempotent.errors import ConfigurationError
from dagster_idempotent.providers.credentials import PLACEHOLDER
from dagster_idempotent.providers.guarded_exchange import Exchange, GuardedExchange
from dagster_idempotent.providers.hidden_retries import refuse_hidden_retries
from dagster_idempotent.providers.http_provider import HttpProvider
from dagster_idempotent.providers.httpx_transport import async_transport, sync_transport
from dagster_idempotent.providers.requests_adapter import guarded_adapter
from dagster_idempotent.providers.stripe_client import guarded_http_client

if TYPE_CHECKING:
    import anthropic
    import openai
    import requests
    import stripe

_OURS = frozenset(
    {"api_key", "auth_token", "base_url", "base_addresses", "http_client", "transport", "proxy", "mounts"}
    | {"follow_redirects", "max_retries", "max_network_retries", "verify", "cert", "app", "http2", "trust_env"}
)


def openai_client(exchange: Exchange, provider: HttpProvider, **options: Any) -> "openai.OpenAI":  # noqa: ANN401 - the SDK's
    """Return an `openai.OpenAI` whose paid requests go through the guard."""
    return _model_client("openai", "OpenAI", _guarded(exchange, provider, "openai", "OpenAIError"), options)


def async_openai_client(exchange: Exchange, provider: HttpProvider, **options: Any) -> "openai.AsyncOpenAI":  # noqa: ANN401 - the SDK's
    """Return an `openai.AsyncOpenAI` whose paid requests go through the guard."""
    return _model_client("openai", "AsyncOpenAI", _guarded(exchange, provider, "openai", "OpenAIError"), options)


def anthropic_client(exchange: Exchange, provider: HttpProvider, **options: Any) -> "anthropic.Anthropic":  # noqa: ANN401 - the SDK's
    """Return an `anthropic.Anthropic` whose paid requests go through the guard."""
    return _model_client("anthropic", "Anthropic", _guarded(exchange, provider, "anthropic", "AnthropicError"), options)


def async_anthropic_client(
    exchange: Exchange,
    provider: HttpProvider,
    **options: Any,  # noqa: ANN401 - the SDK's
) -> "anthropic.AsyncAnthropic":
    """Return an `anthropic.AsyncAnthropic` whose paid requests go through the guard."""
    return _model_client(
        "anthropic", "AsyncAnthropic", _guarded(exchange, provider, "anthropic", "AnthropicError"), options
    )


def stripe_client(exchange: Exchange, provider: HttpProvider, **options: Any) -> "stripe.StripeClient":  # noqa: ANN401 - the SDK's
    """Return a `stripe.StripeClient` whose paid requests go through the guard, under a key of ours.

    An `idempotency_key` given to a call is replaced: the ledger's key is what a resend and a look-up go by.
    """
    stripe = _sdk("stripe", "stripe")
    _refuse_options(options)
    base = _base_url(provider)
    guarded = _guarded(exchange, provider, "stripe", "StripeError")
    return stripe.StripeClient(
        PLACEHOLDER,
        http_client=guarded_http_client(guarded),
        base_addresses=dict.fromkeys(("api", "connect", "files", "meter_events"), base),
        max_network_retries=0,
        **options,
    )


def httpx_client(exchange: Exchange, provider: HttpProvider, module: Any, **options: Any) -> Any:  # noqa: ANN401 - as the module
    """Return a `Client` of `module`, httpx or httpx2, whose paid requests go through the guard."""
    _refuse_options(options)
    guarded = GuardedExchange(exchange=exchange, provider=provider)
    return module.Client(transport=sync_transport(module)(guarded), **_httpx_options(provider, module, options))


def async_httpx_client(exchange: Exchange, provider: HttpProvider, module: Any, **options: Any) -> Any:  # noqa: ANN401 - as the module
    """Return an `AsyncClient` of `module`, httpx or httpx2, whose paid requests go through the guard."""
    _refuse_options(options)
    guarded = GuardedExchange(exchange=exchange, provider=provider)
    return module.AsyncClient(transport=async_transport(module)(guarded), **_httpx_options(provider, module, options))


def requests_session(exchange: Exchange, provider: HttpProvider) -> "requests.Session":
    """Return a `requests.Session` whose paid requests go through the guard."""
    requests = _sdk("requests", "http")
    session = requests.Session()
    _mount(session, exchange, provider)
    return session


def attach(exchange: Exchange, provider: HttpProvider, client: Any) -> Any:  # noqa: ANN401 - any client of the user's
    """Guard a client that the user built: openai's and anthropic's as a copy with the same settings, a session itself.

    Retries and redirects are switched off, the credential stays out of it. Raises ConfigurationError, naming the
    reason, for what would send past the guard: a module, google-genai, a client whose way out cannot be replaced.
    """
    owner = type(client).__module__.partition(".")[0]
    if owner in {"openai", "anthropic"} and callable(getattr(client, "with_options", None)):
        module = _sdk(owner, owner)
        base_error = {"openai": "OpenAIError", "anthropic": "AnthropicError"}[owner]
        http_client = _http_client(module, _guarded(exchange, provider, owner, base_error), is_async=_is_async(client))
        client = client.with_options(api_key=PLACEHOLDER, max_retries=0, http_client=http_client)
    elif owner == "requests" and callable(getattr(client, "mount", None)):
        _mount(client, exchange, provider)
    refuse_hidden_retries(client)
    return client


def _is_async(client: object) -> bool:
    return any(kind.__name__.startswith("Async") for kind in type(client).__mro__)


def _mount(session: Any, exchange: Exchange, provider: HttpProvider) -> None:  # noqa: ANN401 - requests' own type
    session.trust_env = False  # else a .netrc, a proxy or a bundle of certificates of the machine would come in
    adapter = guarded_adapter(GuardedExchange(exchange=exchange, provider=provider))
    session.mount("https://", adapter)
    session.mount("http://", adapter)


def _guarded(exchange: Exchange, provider: HttpProvider, sdk: str, base_error: str) -> GuardedExchange:
    return GuardedExchange(exchange=exchange, provider=provider, sdk_base=(sdk, base_error))


def _model_client(sdk: str, kind: str, guarded: GuardedExchange, options: dict[str, Any]) -> Any:  # noqa: ANN401 - lazy
    module = _sdk(sdk, sdk)
    _refuse_options(options)
    return getattr(module, kind)(
        api_key=PLACEHOLDER,
        base_url=_base_url(guarded.provider),
        max_retries=0,
        http_client=_http_client(module, guarded, is_async=kind.startswith("Async")),
        **{"timeout": _timeout(httpx_of(module), guarded.provider), **options},
    )


def _http_client(sdk: Any, guarded: GuardedExchange, *, is_async: bool) -> Any:  # noqa: ANN401 - httpx or httpx2
    httpx = httpx_of(sdk)
    transport = (async_transport if is_async else sync_transport)(httpx)(guarded)
    client_class = httpx.AsyncClient if is_async else httpx.Client
    return client_class(transport=transport, follow_redirects=False, trust_env=False)


def httpx_of(sdk: Any) -> Any:  # noqa: ANN401 - a lazily imported module
    """Return the module, httpx or httpx2, whose clients an SDK takes."""
    for base in sdk.DefaultHttpxClient.__mro__:
        name = str(base.__module__).partition(".")[0]
        if name in {"httpx", "httpx2"}:
            return import_module(name)
    raise ConfigurationError(
        f"This version of {sdk.__name__} uses neither httpx nor httpx2, expected one of them. Nothing was sent. "
        "Install a version that this library knows.",
        field="client",
    )


def _httpx_options(provider: HttpProvider, module: Any, options: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - httpx or httpx2
    defaults = {"timeout": _timeout(module, provider), "base_url": provider.base_url or ""}
    return {**defaults, **options, "follow_redirects": False, "trust_env": False}


def _timeout(module: Any, provider: HttpProvider) -> Any:  # noqa: ANN401 - httpx or httpx2
    # httpx gives up reading after 5 seconds by default: a slow paid answer would be in doubt each time.
    route = provider.route
    return module.Timeout(route.read_timeout.total_seconds(), connect=route.connect_timeout.total_seconds())


def _base_url(provider: HttpProvider) -> str:
    if provider.base_url is None:
        raise ConfigurationError("The provider has no `base_url`; name the API that it stands for.", field="base_url")
    return provider.base_url


def _refuse_options(options: dict[str, Any]) -> None:
    for name in options:
        if name in _OURS:
            raise ConfigurationError(
                f"The client is given `{name}`, which the guard decides. Leave it out: credential, address, proxy and "
                "certificates belong to the provider; retries and redirects of a paid request are never hidden.",
                field=name,
            )


def _sdk(name: str, extra: str) -> Any:  # noqa: ANN401 - a lazily imported module
    try:
        return cast("Any", import_module(name))
    except ImportError as error:
        raise ConfigurationError(
            f"{name} is not installed: `pip install 'dagster-idempotent[{extra}]'`.", field="client"
        ) from error
