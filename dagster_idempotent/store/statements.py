"""Named SQL statements: `-- name: claim` in `sql/leases.sql` is `statements("leases")["claim"]`."""

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import LiteralString, cast

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


@cache
def statements(aggregate: LiteralString) -> Mapping[str, LiteralString]:
    """Return the statements of `sql/<aggregate>.sql` by name.

    Their text counts as literal: it is shipped with the code. Everywhere else the type checker refuses SQL that was
    put together at run time.
    """
    text = (files("dagster_idempotent.store") / "sql" / f"{aggregate}.sql").read_text(encoding="utf-8")
    _, *parts = _NAME.split(text)
    named = dict(zip(parts[::2], (part.strip() for part in parts[1::2]), strict=True))
    return MappingProxyType(cast("dict[str, LiteralString]", named))
