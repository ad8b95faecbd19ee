"""Errors as one line on stderr and an exit code."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import IO, Any

import click
import psycopg

from dagster_idempotent.errors import ConfigurationError, IdempotentError

FAILED = 1
USAGE = 2
NEEDS_OPERATOR = 3


class Failure(click.ClickException):
    """What went wrong, for stderr."""

    exit_code = FAILED

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))

    def show(self, file: IO[Any] | None = None) -> None:
        """Print one line."""
        click.echo(f"Error: {self.message}", file=file, err=file is None)


class WrongUsage(Failure):
    """An argument or a setting is wrong; nothing was done."""

    exit_code = USAGE


class NeedsOperator(Failure):
    """Somebody has to decide before this can go on."""

    exit_code = NEEDS_OPERATOR


@contextmanager
def failures_told() -> Generator[None]:
    """Turn the errors that a command may meet into one line each; anything else is a bug and keeps its traceback."""
    try:
        yield
    except ConfigurationError as error:
        raise WrongUsage(error.message) from error
    except IdempotentError as error:
        raise Failure(error.message) from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise Failure(
            f"PostgreSQL refused: {error.diag.message_primary}. Expected the rights on schema dagster_idempotent that "
            "`dagster-idempotent doctor` lists. Nothing was changed."
        ) from error
    except psycopg.OperationalError as error:
        raise Failure(
            f"The connection to PostgreSQL was lost: {str(error).strip()}. A decision that was being written is "
            "either whole or absent: `dagster-idempotent audit` shows which."
        ) from error
    except psycopg.Error as error:
        raise Failure(f"PostgreSQL refused: {error.diag.message_primary or error}. Nothing was changed.") from error
