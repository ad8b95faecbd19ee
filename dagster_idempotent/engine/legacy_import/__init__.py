"""Old per-week records become tasks: dry run first, resumable, the ambiguous ones refused and the rest done (R34).

No provider client can exist in this path: nothing here imports one, and a test holds that.
"""

from dagster_idempotent.engine.legacy_import.choices import Import
from dagster_idempotent.engine.legacy_import.importing import Finding, Summary, import_records
from dagster_idempotent.engine.legacy_import.mapping import map_task
from dagster_idempotent.engine.legacy_import.reading import Adapter, read_weeks

__all__ = ["Adapter", "Finding", "Import", "Summary", "import_records", "map_task", "read_weeks"]
