-- The Dagster run that claimed a task last; `owner` is cleared by every administrative exit, dead letters among them.
ALTER TABLE dagster_idempotent.tasks ADD COLUMN last_owner text CHECK (last_owner <> '');
