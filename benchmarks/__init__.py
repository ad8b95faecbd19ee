"""What the ledger costs, as a ratio to the least that PostgreSQL could cost, measured in the same run."""
