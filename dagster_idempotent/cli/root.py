"""`dagster-idempotent NOUN VERB`: nouns are loaded when they are asked for, so that a command starts quickly."""

from importlib import import_module

import click

# Read, not imported: the package's own names stand above this layer.
_VERSION: str = import_module("dagster_idempotent").__version__
# Noun: (module under this package, what it is about).
_NOUNS = {
    "approvals": ("approvals", "Open and close the gates that wait for a named person."),
    "audit": ("audit", "List who decided what, when and why."),
    "budgets": ("budgets", "Show and set limits, and release tasks that were held at one."),
    "calls": ("calls", "Paid calls: list, look up at the provider, resolve, cancel, abandon, send again knowingly."),
    "costs": ("costs", "What was paid, by task, period, pipeline or provider."),
    "dead-letters": ("dead_letters", "Tasks out of attempts: list, redrive, discard."),
    "doctor": ("doctor", "Check the database, the schema, the rights, the settings and your definitions."),
    "explain": ("explain", "Say who holds what and why, and what is safe to do next."),
    "legacy": ("legacy", "Import old per-week records as tasks, map and check them."),
    "outbox": ("outbox", "Messages: list, deliver, resolve."),
    "pipelines": ("pipelines", "List pipelines, freeze and unfreeze their paid calls."),
    "postgres": ("postgres", "Start, stop and find the embedded PostgreSQL of a folder."),
    "prune": ("prune", "Drop the payloads of old tasks; keys, hashes and costs stay."),
    "schema": ("schema", "Create, check and print the ledger's schema."),
    "tasks": ("tasks", "List and show tasks, read what is kept of them, release a lease."),
    "verify": ("verify", "Check the whole ledger, read only."),
}

_EPILOG = """\b
Start at the thing that is stuck:
  dagster-idempotent explain 2026-W32-0

\b
Every option can be given as an environment variable: DAGSTER_IDEMPOTENT_POSTGRES_URL, DAGSTER_IDEMPOTENT_ACTOR,
DAGSTER_IDEMPOTENT_REASON, DAGSTER_IDEMPOTENT_JSON, DAGSTER_IDEMPOTENT_PROVIDERS, else
DAGSTER_IDEMPOTENT_<NOUN>_<VERB>_<OPTION>.

\b
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 somebody has to decide.
Data goes to stdout, talk to stderr; --json gives programs one JSON document; --dry-run shows a change and undoes it.

\b
Completion, for bash:
  eval "$(_DAGSTER_IDEMPOTENT_COMPLETE=bash_source dagster-idempotent)"
and zsh_source or fish_source for the other shells.
"""


class Nouns(click.Group):
    """A group whose commands live in modules of their own."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Name every noun."""
        return sorted(_NOUNS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Load one noun."""
        if cmd_name not in _NOUNS:
            return None
        module, _ = _NOUNS[cmd_name]
        command = import_module(f"dagster_idempotent.cli.{module}").command
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the nouns without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl([(noun, about) for noun, (_, about) in sorted(_NOUNS.items())])


@click.group(
    cls=Nouns,
    epilog=_EPILOG,
    context_settings={
        "auto_envvar_prefix": "DAGSTER_IDEMPOTENT",
        "help_option_names": ["-h", "--help"],
        "max_content_width": 120,
    },
)
@click.version_option(_VERSION, "-V", "--version", prog_name="dagster-idempotent")
def main() -> None:
    """See, explain and decide what the ledger of idempotent Dagster pipelines holds."""
