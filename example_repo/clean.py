"""`make clean`: end what the example has left running, and remove what it wrote."""

import shutil
import sys

from dagster_idempotent import embedded
from example_repo import settings
from example_repo.model import stop_metered_provider


def main() -> None:
    """Stop the metered provider and the embedded server; remove ledger, bill and files."""
    if stop_metered_provider(settings.PROVIDER):
        print("The metered provider has been stopped.", file=sys.stderr)
    # Its data may lie outside of the folder: where root starts it, another account runs it.
    embedded.remove(settings.POSTGRES)
    for written in (settings.PROVIDER, settings.DELIVERIES, settings.ASSEMBLED, settings.ARTIFACTS):
        shutil.rmtree(written, ignore_errors=True)


if __name__ == "__main__":
    main()
