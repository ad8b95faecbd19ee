"""Credentials: named when a provider is built, read when a request is about to leave, put on a copy of it."""

import os
import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from dagster_idempotent.errors import ConfigurationError, CredentialMissing
from dagster_idempotent.providers.single_send import HeaderPairs

# What an SDK is built with; the real credential takes its place on a copy of the request.
PLACEHOLDER = "placeholder-replaced-when-sent"
CREDENTIAL_HEADERS = frozenset({"authorization", "x-api-key", "x-goog-api-key", "api-key"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialPlace:
    """Where a provider wants its credential: a header, or a field of the query."""

    header: str | None = None
    prefix: str = ""
    query: str | None = None

    def put(self, credential: str, url: str, headers: HeaderPairs) -> tuple[str, list[tuple[str, str]]]:
        """Return URL and headers of a copy that carries the credential and no other one."""
        pairs = [(name, value) for name, value in headers if name.lower() not in CREDENTIAL_HEADERS]
        if self.header is not None:
            pairs.append((self.header, f"{self.prefix}{credential}"))
        if self.query is not None:
            parts = urlsplit(url)
            fields = [pair for pair in parse_qsl(parts.query, keep_blank_values=True) if pair[0] != self.query]
            url = urlunsplit(parts._replace(query=urlencode([*fields, (self.query, credential)])))
        return url, pairs


BEARER = CredentialPlace(header="Authorization", prefix="Bearer ")


_VARIABLE = re.compile(r"(?!(sk|rk|pk|gsk|hf|ghp|xai|r8)_)[A-Za-z_][A-Za-z0-9_]{0,199}")


def check_variable(name: str) -> str:
    """Return the name of an environment variable; raises ConfigurationError for what may be the credential itself."""
    if _VARIABLE.fullmatch(name) is None:
        raise ConfigurationError(
            "The name of the variable with the credential is no name of an environment variable; it is not shown, "
            "since it may be the key itself. Expected one such as OPENAI_API_KEY. If it is a key, revoke it: resource "
            "pages show this setting.",
            field="api_key_variable",
        )
    return name


def read_credential(variable: str) -> str:
    """Return the credential in an environment variable; raises CredentialMissing where no header could carry it."""
    credential = os.environ.get(variable, "").strip()
    if not credential:
        raise CredentialMissing(
            f"The environment variable {variable} is unset or empty where this step runs. "
            "Nothing was sent. Set it for the run workers and start the run again.",
            variable=variable,
        )
    if not credential.isascii() or not credential.isprintable():
        raise CredentialMissing(
            f"The environment variable {variable} holds characters that no header can carry. "
            "Nothing was sent. Set it to the key alone.",
            variable=variable,
        )
    return credential
