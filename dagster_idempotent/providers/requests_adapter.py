"""The guard as a transport adapter of requests."""

from collections.abc import Iterable
from datetime import timedelta
from http import HTTPStatus
from io import BytesIO
from typing import Any, cast

from dagster_idempotent.errors import ConfigurationError
from dagster_idempotent.providers.guarded_exchange import GuardedExchange
from dagster_idempotent.providers.http_answer import HttpAnswer
from dagster_idempotent.providers.http_request import HttpRequest


def guarded_adapter(guarded: GuardedExchange) -> Any:  # noqa: ANN401 - requests need not be installed
    """Return an adapter to mount on a session for "https://" and "http://"."""
    import requests  # noqa: PLC0415 - an optional dependency
    import urllib3  # noqa: PLC0415 - comes with requests
    from requests.adapters import HTTPAdapter  # noqa: PLC0415 - an optional dependency

    class GuardedAdapter(HTTPAdapter):
        def send(  # noqa: PLR0917 - requests' own signature
            self,
            request: requests.PreparedRequest,
            stream: bool = False,  # noqa: ARG002, FBT001, FBT002 - requests' own signature
            timeout: Any = None,  # noqa: ANN401 - requests' own signature
            verify: bool | str = True,  # noqa: FBT001, FBT002 - requests' own signature
            cert: Any = None,  # noqa: ANN401 - requests' own signature
            proxies: Any = None,  # noqa: ANN401 - requests' own signature
        ) -> requests.Response:
            _refuse_own_route(verify=verify, cert=cert, proxies=proxies)
            answer = guarded(_asked(request, timeout))
            if isinstance(answer, str):
                raise requests.ConnectionError(answer, request=request)
            raw = urllib3.HTTPResponse(
                body=BytesIO(answer.body),
                headers=urllib3.HTTPHeaderDict(answer.headers),
                status=answer.status,
                reason=_phrase(answer),
                preload_content=False,
                decode_content=False,
                request_method=request.method,
            )
            return self.build_response(request, raw)

    return GuardedAdapter(max_retries=0)


def _asked(request: Any, timeout: Any) -> HttpRequest:  # noqa: ANN401 - requests' own types
    connect, read = cast("tuple[Any, Any]", timeout) if isinstance(timeout, tuple) else (timeout, timeout)
    return HttpRequest(
        method=request.method,
        url=request.url,
        headers=tuple((str(name), _text(value)) for name, value in request.headers.items()),
        body=_bytes(request.body),
        connect_timeout=_seconds(connect),
        read_timeout=_seconds(read),
    )


def _refuse_own_route(*, verify: bool | str, cert: object, proxies: object) -> None:
    for name, found in (("verify", verify is not True), ("cert", cert), ("proxies", proxies)):
        if found:
            raise ConfigurationError(
                f"The session sets `{name}`, which the guarded sender does not read. Nothing was sent. Give it to the "
                "provider instead: `HttpProvider(route=Route(ssl_context=…, proxy=…))`.",
                field=name,
            )


def _bytes(body: object) -> bytes:
    if body is None:
        return b""
    if isinstance(body, bytes | bytearray):
        return bytes(body)
    if isinstance(body, str):
        return body.encode()
    read = getattr(body, "read", None)
    if callable(read):
        return _bytes(read())
    return b"".join(_bytes(piece) for piece in cast("Iterable[object]", body))


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _seconds(value: float | None) -> timedelta | None:
    return timedelta(seconds=value) if isinstance(value, int | float) else None


def _phrase(answer: HttpAnswer) -> str:
    try:
        return HTTPStatus(answer.status).phrase
    except ValueError:
        return ""
