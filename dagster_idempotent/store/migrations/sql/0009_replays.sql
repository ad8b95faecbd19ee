-- How often an answer that had been paid for was handed out again where another request would have been sent.
-- A number for people: no rule reads it. An op counts its replays once, at its end, and a lost count is not repeated.
CREATE TABLE dagster_idempotent.replays (
    pipeline    text        NOT NULL,
    task_id     text        NOT NULL,
    call_key    text        NOT NULL,
    submission  integer     NOT NULL,
    times       bigint      NOT NULL CHECK (times > 0),
    last_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (pipeline, task_id, call_key, submission),
    FOREIGN KEY (pipeline, task_id, call_key, submission) REFERENCES dagster_idempotent.submissions
);
CREATE TRIGGER never_deleted BEFORE DELETE ON dagster_idempotent.replays
    FOR EACH ROW EXECUTE FUNCTION dagster_idempotent.refuse('the ledger forgets nothing');
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON dagster_idempotent.replays
    FOR EACH STATEMENT EXECUTE FUNCTION dagster_idempotent.refuse('the ledger forgets nothing');
