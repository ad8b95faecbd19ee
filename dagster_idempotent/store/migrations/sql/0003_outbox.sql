-- Order and backoff of the outbox, effects in the user's own transaction, sweeping.

-- In which order the messages of one task go: as its channels were declared.
ALTER TABLE dagster_idempotent.outbox ADD COLUMN position integer NOT NULL DEFAULT 0;
CREATE INDEX outbox_due ON dagster_idempotent.outbox (pipeline, channel, (coalesce(next_attempt_at, created_at)))
    WHERE state = 'ready';
CREATE INDEX outbox_sender ON dagster_idempotent.outbox (sender) WHERE state = 'sending';

-- By task id, so that a sweep can go on where the last one stopped; completed tasks are not in it.
CREATE INDEX tasks_unfinished ON dagster_idempotent.tasks (pipeline, task_id)
    WHERE status IN ('pending', 'running', 'failed', 'held');

-- The wait after attempt n: exponential, capped, `p_jitter` of it left to chance. In seconds: an interval times a
-- large power overflows.
CREATE FUNCTION dagster_idempotent.backoff_v1(
    p_attempt integer, p_base interval, p_factor double precision, p_cap interval, p_jitter double precision)
RETURNS interval LANGUAGE sql VOLATILE AS $$
    SELECT make_interval(secs => (1 - p_jitter * random()) * least(
        extract(epoch FROM p_cap)::double precision,
        extract(epoch FROM p_base)::double precision * power(p_factor, least(greatest(p_attempt - 1, 0), 60))))
$$;

CREATE TABLE dagster_idempotent.effects (
    pipeline             text        NOT NULL,
    task_id              text        NOT NULL,
    effect               text        NOT NULL CHECK (effect <> '' AND length(effect) <= 200),
    -- Which run of the transaction this is: after a lost reply to COMMIT it tells our own from another's.
    attempt              uuid        NOT NULL,
    fingerprint          text        NOT NULL CHECK (fingerprint <> ''),
    fingerprint_version  integer     NOT NULL CHECK (fingerprint_version >= 1),
    fingerprint_fields   jsonb       NOT NULL,
    result               json,
    finished_at          timestamptz,
    created_at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (pipeline, task_id, effect),
    FOREIGN KEY (pipeline, task_id) REFERENCES dagster_idempotent.tasks,
    CONSTRAINT finished_has_a_result CHECK ((finished_at IS NULL) = (result IS NULL))
);
CREATE TRIGGER for_ever BEFORE DELETE ON dagster_idempotent.effects
    FOR EACH ROW EXECUTE FUNCTION dagster_idempotent.refuse('effects are the record of what happened');
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON dagster_idempotent.effects
    FOR EACH STATEMENT EXECUTE FUNCTION dagster_idempotent.refuse('the ledger forgets nothing');

CREATE FUNCTION dagster_idempotent.guard_effect() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- Retention drops the result and keeps all else. As JSON: its columns come with a later migration.
    IF old.finished_at IS NOT NULL AND NOT (new.result IS NULL
        AND to_jsonb(new) ->> 'pruned_at' IS NOT NULL AND to_jsonb(old) ->> 'pruned_at' IS NULL
        AND to_jsonb(new) - '{result,result_sha256,pruned_at}'::text[]
            = to_jsonb(old) - '{result,result_sha256,pruned_at}'::text[]) THEN
        RAISE EXCEPTION 'effect % of task % happened: its record is final', old.effect, old.task_id
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN new;
END $$;
CREATE TRIGGER final BEFORE UPDATE ON dagster_idempotent.effects
    FOR EACH ROW EXECUTE FUNCTION dagster_idempotent.guard_effect();

-- Asked at COMMIT: an effect whose result was never written must not commit.
CREATE FUNCTION dagster_idempotent.check_effect_finished() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM dagster_idempotent.effects e
            WHERE (e.pipeline, e.task_id, e.effect) = (new.pipeline, new.task_id, new.effect) AND e.finished_at IS NULL) THEN
        RAISE EXCEPTION 'effect % of task % was committed before it was finished', new.effect, new.task_id
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER finished AFTER INSERT ON dagster_idempotent.effects DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION dagster_idempotent.check_effect_finished();

-- One task of a sweep, without ever waiting for it: a row that somebody else has locked is left for the next sweep.
-- A task that is out of attempts ends, also one that a settled hold set free at its cap.
CREATE FUNCTION dagster_idempotent.sweep_task_v1(
    p_pipeline text, p_task_id text, p_finished_owner text, p_finished_token bigint)
RETURNS TABLE (verdict text) LANGUAGE plpgsql AS $$
DECLARE
    t dagster_idempotent.tasks;
BEGIN
    SELECT * INTO t FROM dagster_idempotent.tasks x
        WHERE x.pipeline = p_pipeline AND x.task_id = p_task_id FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'locked';
    ELSIF t.status = 'held' THEN
        RETURN QUERY SELECT r.verdict FROM dagster_idempotent.release_held_v1(p_pipeline, p_task_id) r;
    ELSIF t.status = 'pending' THEN
        UPDATE dagster_idempotent.tasks x SET status = 'dead', fencing_token = x.fencing_token + 1
            FROM dagster_idempotent.pipelines p
            WHERE x.pipeline = p_pipeline AND x.task_id = p_task_id AND p.pipeline = x.pipeline
              AND (x.final OR x.attempts >= p.max_attempts)
              AND NOT dagster_idempotent.in_doubt_v1(p_pipeline, p_task_id)
              AND dagster_idempotent.sending_until_v1(p_pipeline, p_task_id) IS NULL;
        RETURN QUERY SELECT CASE WHEN FOUND THEN 'dead' ELSE 'untouched' END;
    ELSE
        RETURN QUERY SELECT s.verdict FROM dagster_idempotent.sweep_v1(
            p_pipeline, p_task_id, p_finished_owner, p_finished_token) s;
    END IF;
END $$;
