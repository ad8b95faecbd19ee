"""Clients of paid services that no guard stands before: as objects, as resources, and made in source code."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType, ModuleType

SERVICES = frozenset({"openai", "anthropic", "stripe"})
# Dagster's own integrations: each builds a client whose retries are on.
STOCK: Mapping[str, str] = MappingProxyType(
    {"dagster_openai": "GuardedOpenAIResource", "dagster_anthropic": "GuardedAnthropicResource"}
)
_GUARDED = {
    "openai": "GuardedOpenAIResource",
    "anthropic": "GuardedAnthropicResource",
    "stripe": "GuardedStripeResource",
}
_CLIENTS = frozenset(
    {
        *(f"openai.{name}" for name in ("OpenAI", "AsyncOpenAI", "AzureOpenAI", "AsyncAzureOpenAI")),
        *(f"anthropic.{name}" for name in ("Anthropic", "AsyncAnthropic", "AnthropicBedrock", "AnthropicVertex")),
        "stripe.StripeClient",
    }
)
# Each sends by the module's own client.
_STRIPE_VERBS = frozenset({"create", "capture", "confirm", "pay"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidClient:
    """An unguarded client: of which service, with how many retries of its own (None: unknown), and what to use."""

    service: str
    what: str
    retries: int | None
    instead: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Construction:
    """A place in source code where a client is made, or a paid request is sent past any client."""

    line: int
    what: str
    service: str
    retries_off: bool


def paid_client(value: object) -> PaidClient | None:
    """Recognise an unguarded client: a stock resource, an SDK client, or an SDK's module."""
    if isinstance(value, ModuleType):
        name = value.__name__
        retries = getattr(value, "max_network_retries", 2)
        return _found(name, f"the module {name}", retries if isinstance(retries, int) else None)
    for kind in type(value).__mro__:
        package = kind.__module__.partition(".")[0]
        if package in STOCK:
            service = package.removeprefix("dagster_")
            # The SDKs' own default, which these resources leave as it is.
            return PaidClient(service=service, what=f"{package}.{kind.__name__}", retries=2, instead=STOCK[package])
        if package in SERVICES:
            return _found(package, f"a {package}.{kind.__name__}", _retries_of(value))
    return None


def constructions(source: str) -> Iterator[Construction]:
    """Find where a module makes clients of paid services by hand."""
    tree = ast.parse(source)
    names = dict(_imported(tree))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = _qualified(node.func, names)
        service, _, rest = called.partition(".")
        if called in _CLIENTS:
            retries = _keyword(node, "max_retries", "max_network_retries")
            off = isinstance(retries, ast.Constant) and retries.value == 0
            yield Construction(line=node.lineno, what=f"{called}()", service=service, retries_off=off)
        elif service == "stripe" and rest.count(".") >= 1 and called.rpartition(".")[2] in _STRIPE_VERBS:
            yield Construction(line=node.lineno, what=f"{called}()", service=service, retries_off=False)


def _found(service: str, what: str, retries: int | None) -> PaidClient | None:
    instead = _GUARDED.get(service)
    return None if instead is None else PaidClient(service=service, what=what, retries=retries, instead=instead)


def instead_of(service: str) -> str:
    """Name the guarded resource of a service."""
    return _GUARDED[service]


def _retries_of(client: object) -> int | None:
    retries = getattr(client, "max_retries", None)
    return retries if isinstance(retries, int) else None


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                top = each.name.partition(".")[0]
                if top in SERVICES:
                    yield (each.asname, each.name) if each.asname else (top, top)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in SERVICES:
            for each in node.names:
                yield each.asname or each.name, f"{node.module}.{each.name}"


def _qualified(node: ast.expr, names: Mapping[str, str]) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in names:
        return ""
    return ".".join([names[node.id], *reversed(parts)])


def _keyword(call: ast.Call, *names: str) -> ast.expr | None:
    return next((each.value for each in call.keywords if each.arg in names), None)
