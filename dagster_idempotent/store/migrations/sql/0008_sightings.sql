-- What a look-up showed of a send beside its answer; it settles nothing, and people are shown it.
-- confirmed: after a send under the same key was repeated, the provider knows one request and no other.
-- charged_again: it knows another one, which may have been charged too.
-- possible: a look-up that is not exact shows a request that may be this one; only a person can tell.
CREATE TABLE dagster_idempotent.sightings (
    pipeline    text        NOT NULL,
    task_id     text        NOT NULL,
    call_key    text        NOT NULL,
    submission  integer     NOT NULL,
    kind        text        NOT NULL CHECK (kind IN ('confirmed', 'charged_again', 'possible')),
    -- What the provider calls it; '' where nothing beside the answer was found.
    remote_ref  text        NOT NULL,
    described   text        NOT NULL,
    seen_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (pipeline, task_id, call_key, submission, kind, remote_ref),
    FOREIGN KEY (pipeline, task_id, call_key, submission) REFERENCES dagster_idempotent.submissions,
    CONSTRAINT a_find_has_a_name CHECK ((kind = 'confirmed') = (remote_ref = ''))
);
CREATE INDEX sightings_red ON dagster_idempotent.sightings (seen_at) WHERE kind = 'charged_again';
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON dagster_idempotent.sightings
    FOR EACH ROW EXECUTE FUNCTION dagster_idempotent.refuse('what a provider showed is kept for ever');
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON dagster_idempotent.sightings
    FOR EACH STATEMENT EXECUTE FUNCTION dagster_idempotent.refuse('the ledger forgets nothing');
