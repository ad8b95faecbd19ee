-- What operators decide, beside what 0001 records.

-- "Send again, it may charge twice": the abandoned submission after which a new one is allowed, on whose word.
CREATE TABLE dagster_idempotent.resends (
    pipeline    text        NOT NULL,
    task_id     text        NOT NULL,
    call_key    text        NOT NULL,
    submission  integer     NOT NULL,
    actor       text        NOT NULL CHECK (actor <> ''),
    reason      text        NOT NULL CHECK (reason <> ''),
    -- What the second charge may come to; NULL: nobody can say.
    amount      numeric     CHECK (amount >= 0),
    currency    text        CHECK (currency ~ '^([A-Z]{3,8}|[a-z][a-z0-9_]{0,31})$'),
    allowed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (pipeline, task_id, call_key, submission),
    FOREIGN KEY (pipeline, task_id, call_key, submission) REFERENCES dagster_idempotent.submissions,
    CONSTRAINT amount_has_a_currency CHECK ((amount IS NULL) = (currency IS NULL))
);
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON dagster_idempotent.resends
    FOR EACH ROW EXECUTE FUNCTION dagster_idempotent.refuse('a permission to send again is kept for ever');
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON dagster_idempotent.resends
    FOR EACH STATEMENT EXECUTE FUNCTION dagster_idempotent.refuse('the ledger forgets nothing');

-- The wall behind the guard: nothing follows an abandoned submission unless an operator allowed it.
CREATE FUNCTION dagster_idempotent.guard_resend() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM dagster_idempotent.submissions s
            WHERE (s.pipeline, s.task_id, s.call_key, s.submission)
                = (new.pipeline, new.task_id, new.call_key, new.submission - 1) AND s.state = 'abandoned')
       AND NOT EXISTS (SELECT FROM dagster_idempotent.resends r
            WHERE (r.pipeline, r.task_id, r.call_key, r.submission)
                = (new.pipeline, new.task_id, new.call_key, new.submission - 1)) THEN
        RAISE EXCEPTION 'submission % of call % was abandoned; only an operator may allow another',
            new.submission - 1, new.call_key USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN new;
END $$;
CREATE TRIGGER resend_is_allowed BEFORE INSERT ON dagster_idempotent.submissions
    FOR EACH ROW WHEN (new.submission > 1) EXECUTE FUNCTION dagster_idempotent.guard_resend();

-- An abandoned submission was settled at its upper bound. When its real answer comes after all, the difference is booked.
CREATE FUNCTION dagster_idempotent.adjust_abandoned() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    booked dagster_idempotent.costs;
    home_period text;
    scope_name text;
BEGIN
    SELECT * INTO booked FROM dagster_idempotent.costs c
        WHERE (c.pipeline, c.task_id, c.call_key, c.submission)
            = (new.pipeline, new.task_id, new.call_key, new.submission) AND c.kind = 'settled';
    IF NOT FOUND OR booked.currency <> new.currency OR booked.amount = new.cost THEN
        RETURN NULL;
    END IF;
    SELECT t.period_id INTO home_period FROM dagster_idempotent.tasks t
        WHERE (t.pipeline, t.task_id) = (new.pipeline, new.task_id);
    FOREACH scope_name IN ARRAY ARRAY['pipeline', 'period:' || home_period, 'task:' || new.task_id] LOOP
        UPDATE dagster_idempotent.budgets SET settled = settled + new.cost - booked.amount
            WHERE pipeline = new.pipeline AND scope = scope_name AND currency = new.currency;
    END LOOP;
    INSERT INTO dagster_idempotent.costs (pipeline, task_id, call_key, submission, kind, amount, currency)
        VALUES (new.pipeline, new.task_id, new.call_key, new.submission, 'adjusted', new.cost - booked.amount,
            new.currency)
        ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER adjust AFTER UPDATE ON dagster_idempotent.submissions FOR EACH ROW
    WHEN (old.state = 'abandoned' AND old.cost IS NULL AND new.cost IS NOT NULL)
    EXECUTE FUNCTION dagster_idempotent.adjust_abandoned();

-- A delivered message carries a copy of the output; pruning has to reach it too.
ALTER TABLE dagster_idempotent.outbox
    ADD COLUMN pruned_at timestamptz,
    ALTER COLUMN payload DROP NOT NULL,
    ADD CONSTRAINT payload_present_unless_pruned
        CHECK ((payload IS NULL) = (pruned_at IS NOT NULL) AND (pruned_at IS NULL OR state = 'delivered'));
CREATE OR REPLACE FUNCTION dagster_idempotent.guard_message() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (new.pipeline, new.task_id, new.channel, new.deduplicates)
            IS DISTINCT FROM (old.pipeline, old.task_id, old.channel, old.deduplicates)
       OR new.payload::text IS DISTINCT FROM old.payload::text AND new.pruned_at IS NULL
       OR old.pruned_at IS NOT NULL AND new.pruned_at IS DISTINCT FROM old.pruned_at THEN
        RAISE EXCEPTION 'message % of task % is fixed', old.channel, old.task_id USING ERRCODE = 'restrict_violation';
    END IF;
    IF new.state <> old.state AND (old.state, new.state) NOT IN (
        ('waiting', 'ready'), ('ready', 'sending'), ('sending', 'delivered'), ('sending', 'ready'),
        ('sending', 'in_doubt'), ('sending', 'dead'), ('in_doubt', 'delivered'), ('in_doubt', 'ready'),
        ('in_doubt', 'dead'), ('ready', 'dead'), ('dead', 'ready')) THEN
        RAISE EXCEPTION 'message % of task % cannot go from % to %', old.channel, old.task_id, old.state, new.state
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN new;
END $$;

-- What retention looks for, in the order in which it goes through it.
CREATE INDEX tasks_prunable ON dagster_idempotent.tasks (pipeline, (coalesce(completed_at, created_at)), task_id)
    WHERE status IN ('completed', 'discarded') AND pruned_at IS NULL;
CREATE INDEX audit_at ON dagster_idempotent.audit (at);

-- What the audit trail keeps of a row: what a decision is about, never a payload.
CREATE FUNCTION dagster_idempotent.told_v1(t dagster_idempotent.tasks) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT jsonb_build_object('status', t.status, 'held_for', t.held_for, 'owner', t.owner,
        'fencing_token', t.fencing_token, 'attempts', t.attempts, 'final', t.final, 'error', t.error)
$$;
CREATE FUNCTION dagster_idempotent.told_v1(s dagster_idempotent.submissions) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT jsonb_build_object('call_key', s.call_key, 'submission', s.submission, 'state', s.state,
        'settled_by', s.settled_by, 'sends', s.sends, 'remote_ref', s.remote_ref, 'cost', s.cost,
        'currency', s.currency, 'response_sha256', s.response_sha256, 'error', s.error)
$$;

-- Who, what, why, before and after, in the transaction of the change itself.
CREATE FUNCTION dagster_idempotent.note_v1(
    p_actor text, p_action text, p_reason text, p_pipeline text, p_task_id text, p_before jsonb, p_after jsonb)
RETURNS void LANGUAGE sql AS $$
    INSERT INTO dagster_idempotent.audit (actor, action, reason, pipeline, task_id, before, after)
    VALUES (p_actor, p_action, p_reason, p_pipeline, p_task_id, p_before, p_after)
$$;
