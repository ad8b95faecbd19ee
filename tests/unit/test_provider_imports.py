"""The package works with its base dependencies alone: SDKs and HTTP clients come in when they are used."""

import subprocess
import sys

OPTIONAL = ("openai", "anthropic", "stripe", "httpx", "httpx2", "httpcore", "requests", "urllib3", "genai_prices")


def run(script: str) -> str:
    blocked = f"import sys\nfor name in {OPTIONAL!r}:\n    sys.modules[name] = None\n"
    done = subprocess.run(
        [sys.executable, "-c", blocked + script], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_provider_module_imports_without_an_sdk() -> None:
    run(
        "import importlib, pkgutil\n"
        "import dagster_idempotent.providers as providers\n"
        "for module in pkgutil.iter_modules(providers.__path__):\n"
        # Holds classes of httpcore's, and is loaded by the first request.
        "    if module.name == 'watched_network': continue\n"
        "    importlib.import_module(f'dagster_idempotent.providers.{module.name}')\n"
    )


def test_what_is_not_installed_is_named_with_its_extra() -> None:
    shown = run(
        "from dagster_idempotent.errors import ConfigurationError\n"
        "from dagster_idempotent.providers import clients, pricing\n"
        "from dagster_idempotent.providers.http_provider import HttpProvider\n"
        "from dagster_idempotent.providers.profiles import OPENAI\n"
        "provider = HttpProvider(OPENAI)\n"
        "for build in (clients.openai_client, clients.anthropic_client, clients.stripe_client,\n"
        "              clients.requests_session, lambda *_: pricing.model_cost('openai')):\n"
        "    try:\n"
        "        build(None, provider)\n"
        "    except ConfigurationError as error:\n"
        "        print(error)\n"
    )

    for extra in ("openai", "anthropic", "stripe", "http", "prices"):
        assert f"dagster-idempotent[{extra}]" in shown


def test_an_error_surfaced_through_an_sdk_is_read_where_the_sdk_is_missing() -> None:
    script = (
        "import pickle, sys\n"
        "from dagster_idempotent.errors import CallInDoubt\n"
        "from dagster_idempotent.providers.sdk_errors import surfaced\n"
    )
    make = (
        script + "import openai\n"
        "error = surfaced(CallInDoubt('it is in doubt', call_key='summary'), 'openai', 'OpenAIError')\n"
        "assert isinstance(error, openai.OpenAIError)\n"
        "sys.stdout.write(pickle.dumps(error).hex())\n"
    )
    pickled = subprocess.run(
        [sys.executable, "-c", make], capture_output=True, text=True, check=True, timeout=60
    ).stdout

    shown = run(script + f"error = pickle.loads(bytes.fromhex({pickled!r}))\nprint(type(error), error, error.facts)\n")

    assert "CallInDoubt" in shown
    assert "it is in doubt {'call_key': 'summary'}" in shown
