"""Errors as one line on stderr and an exit code."""

from collections.abc import Generator
from contextlib import contextmanager
from types import TracebackType
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


class UsersCode:
    """Runs code of the user's own (`what`): an error of it is told in one line."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        """Start the part whose errors are the user's."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Tell an error that is neither ours nor the command line's."""
        ours = IdempotentError | click.ClickException | psycopg.Error
        if isinstance(error, Exception) and not isinstance(error, ours):
            raise Failure(f"{self._what} raised {type(error).__name__}: {error}") from error


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
