-- Rules that need a fresh snapshot between their statements: VOLATILE functions under READ COMMITTED, one round trip each.
-- Names carry a version: old and new processes run side by side during a deployment.
-- Lock order everywhere: pipelines, tasks, submissions, budgets, outbox, costs, audit.

-- The setting rows of a pipeline; a difference in a fixed column meets the trigger, any other is audited.
CREATE FUNCTION dagster_idempotent.register_pipeline_v1(p_settings jsonb, p_actor text)
RETURNS dagster_idempotent.pipelines LANGUAGE plpgsql AS $$
DECLARE
    wanted dagster_idempotent.pipelines := jsonb_populate_record(NULL::dagster_idempotent.pipelines, p_settings);
    known dagster_idempotent.pipelines;
BEGIN
    SELECT * INTO known FROM dagster_idempotent.pipelines WHERE pipeline = wanted.pipeline;
    IF NOT FOUND THEN
        wanted.created_at := clock_timestamp();
        INSERT INTO dagster_idempotent.pipelines SELECT wanted.* ON CONFLICT DO NOTHING;
        SELECT * INTO known FROM dagster_idempotent.pipelines WHERE pipeline = wanted.pipeline;
    END IF;
    wanted.frozen_reason := known.frozen_reason;
    wanted.created_at := known.created_at;
    IF wanted IS NOT DISTINCT FROM known THEN
        RETURN known;
    END IF;
    SELECT * INTO known FROM dagster_idempotent.pipelines WHERE pipeline = wanted.pipeline FOR NO KEY UPDATE;
    UPDATE dagster_idempotent.pipelines SET
        period_kind = wanted.period_kind, timezone = wanted.timezone, lease = wanted.lease,
        sender_lease = wanted.sender_lease, send_window = wanted.send_window,
        max_attempts = wanted.max_attempts, backoff_base = wanted.backoff_base, backoff_cap = wanted.backoff_cap,
        gate = wanted.gate, currency = wanted.currency, task_limit = wanted.task_limit,
        period_limit = wanted.period_limit, pipeline_limit = wanted.pipeline_limit
    WHERE pipeline = wanted.pipeline;
    INSERT INTO dagster_idempotent.audit (actor, action, reason, pipeline, before, after)
    VALUES (p_actor, 'register', 'the declared settings changed', wanted.pipeline, to_jsonb(known), to_jsonb(wanted));
    RETURN wanted;
END $$;

CREATE FUNCTION dagster_idempotent.period_of_v1(p_instant timestamptz, p_kind text, p_timezone text)
RETURNS text LANGUAGE sql STABLE AS $$
    SELECT to_char(p_instant AT TIME ZONE p_timezone,
        CASE p_kind WHEN 'iso_week' THEN 'IYYY"-W"IW' WHEN 'day' THEN 'YYYY-MM-DD' ELSE 'YYYY-MM' END)
$$;

CREATE FUNCTION dagster_idempotent.find_tasks_v1(
    p_pipeline text, p_allocation_key text, p_run_id text, p_subject text, p_scheduled_at timestamptz, p_version text)
RETURNS SETOF dagster_idempotent.tasks LANGUAGE sql STABLE AS $$
    SELECT * FROM dagster_idempotent.tasks t
    WHERE t.pipeline = p_pipeline
      AND (t.allocation_key = p_allocation_key OR t.run_id = p_run_id
           OR (p_scheduled_at IS NOT NULL AND t.scheduled_at = p_scheduled_at
               AND t.subject_id = p_subject AND t.version = p_version))
    ORDER BY t.task_id
$$;

-- Discovery and persistence under one pipeline lock (R6). Rows that were found are returned as they are: whether they
-- are the one expected task or a conflict is the caller's question (R7). Nothing is written unless nothing was found.
CREATE FUNCTION dagster_idempotent.allocate_v1(
    p_pipeline text, p_allocation_key text, p_run_id text, p_subject text, p_scheduled_at timestamptz, p_version text,
    p_period_id text, p_launch jsonb)
RETURNS TABLE (verdict text, task dagster_idempotent.tasks) LANGUAGE plpgsql AS $$
DECLARE
    home dagster_idempotent.pipelines;
    newest dagster_idempotent.tasks;
    number integer;
BEGIN
    RETURN QUERY SELECT 'found', t FROM dagster_idempotent.find_tasks_v1(
        p_pipeline, p_allocation_key, p_run_id, p_subject, p_scheduled_at, p_version) t;
    IF FOUND THEN RETURN; END IF;
    SELECT * INTO home FROM dagster_idempotent.pipelines WHERE pipeline = p_pipeline FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'pipeline % is not registered', p_pipeline USING ERRCODE = 'foreign_key_violation';
    END IF;
    -- A new statement is a new snapshot: it sees what committed while we waited for the lock.
    RETURN QUERY SELECT 'found', t FROM dagster_idempotent.find_tasks_v1(
        p_pipeline, p_allocation_key, p_run_id, p_subject, p_scheduled_at, p_version) t;
    IF FOUND THEN RETURN; END IF;
    -- Keys from ticks and keys from partitions name the same work at different times: a pipeline has one kind of them
    -- (a version). The rule keeps itself, so the newest task that says is enough.
    IF p_launch ? 'time_from' THEN
        SELECT * INTO newest FROM dagster_idempotent.tasks x
            WHERE x.pipeline = p_pipeline AND x.version = p_version AND x.launch ? 'time_from'
            ORDER BY x.period_id DESC, x.sequence DESC LIMIT 1;
        IF newest.launch ->> 'time_from' <> p_launch ->> 'time_from' THEN
            RETURN QUERY SELECT 'timed_otherwise', newest;
            RETURN;
        END IF;
    END IF;
    p_period_id := coalesce(p_period_id,
        dagster_idempotent.period_of_v1(clock_timestamp(), home.period_kind, home.timezone));
    RETURN QUERY SELECT 'unmapped', t FROM dagster_idempotent.tasks t
        WHERE t.pipeline = p_pipeline AND t.period_id = p_period_id
          AND t.origin = 'imported' AND t.allocation_key IS NULL;
    IF FOUND THEN RETURN; END IF;
    SELECT coalesce(max(sequence) + 1, 0) INTO number FROM dagster_idempotent.tasks
        WHERE pipeline = p_pipeline AND period_id = p_period_id;
    IF home.currency IS NOT NULL THEN
        INSERT INTO dagster_idempotent.budgets (pipeline, scope, currency, "limit") VALUES
            (p_pipeline, 'pipeline', home.currency, home.pipeline_limit),
            (p_pipeline, 'period:' || p_period_id, home.currency, home.period_limit),
            (p_pipeline, 'task:' || p_period_id || '-' || number, home.currency, home.task_limit)
        ON CONFLICT DO NOTHING;
    END IF;
    RETURN QUERY
        INSERT INTO dagster_idempotent.tasks AS t
            (pipeline, task_id, period_id, sequence, subject_id, scheduled_at, version, allocation_key, run_id, launch)
        VALUES (p_pipeline, p_period_id || '-' || number, p_period_id, number, p_subject, p_scheduled_at, p_version,
            p_allocation_key, p_run_id, p_launch)
        RETURNING 'created', t;
END $$;

-- In doubt, here and for dead: in_doubt, or intended by a sender that expired.
CREATE FUNCTION dagster_idempotent.in_doubt_v1(p_pipeline text, p_task_id text)
RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT EXISTS (SELECT FROM dagster_idempotent.submissions
        WHERE pipeline = p_pipeline AND task_id = p_task_id
          AND (state = 'in_doubt' OR state = 'intended' AND sender_expires_at <= clock_timestamp()))
$$;

CREATE FUNCTION dagster_idempotent.sending_until_v1(p_pipeline text, p_task_id text)
RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
    SELECT max(sender_expires_at) FROM dagster_idempotent.submissions
        WHERE pipeline = p_pipeline AND task_id = p_task_id
          AND state = 'intended' AND sender_expires_at > clock_timestamp()
$$;

CREATE FUNCTION dagster_idempotent.gate_open_v1(p_pipeline text, p_task_id text, p_gate text)
RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT p.gate <> p_gate OR EXISTS (SELECT FROM dagster_idempotent.approvals a
            WHERE a.pipeline = p_pipeline AND a.task_id = p_task_id AND a.gate = p_gate AND a.revoked_at IS NULL)
    FROM dagster_idempotent.pipelines p WHERE p.pipeline = p_pipeline
$$;

-- One atomic claim (R26). Verdicts that write: claimed, reentered, dead. All others write nothing.
-- `p_finished_*`: the caller asked Dagster about the owner it was told of, and that run is over.
CREATE FUNCTION dagster_idempotent.claim_v1(
    p_pipeline text, p_task_id text, p_owner text, p_finished_owner text, p_finished_token bigint, p_backoff boolean)
RETURNS TABLE (verdict text, retry_after interval, task dagster_idempotent.tasks) LANGUAGE plpgsql AS $$
DECLARE
    t dagster_idempotent.tasks;
    home dagster_idempotent.pipelines;
    sending timestamptz;
    instant timestamptz;
BEGIN
    SELECT * INTO t FROM dagster_idempotent.tasks x
        WHERE x.pipeline = p_pipeline AND x.task_id = p_task_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'missing', NULL::interval, NULL::dagster_idempotent.tasks;
        RETURN;
    END IF;
    SELECT * INTO home FROM dagster_idempotent.pipelines p WHERE p.pipeline = p_pipeline;
    sending := dagster_idempotent.sending_until_v1(p_pipeline, p_task_id);
    -- Read after the lock was granted: waiting for it may have taken longer than a lease.
    instant := clock_timestamp();
    IF t.owner = p_owner AND t.status IN ('running', 'failed') THEN
        UPDATE dagster_idempotent.tasks x SET lease_expires_at = instant + home.lease
            WHERE x.pipeline = p_pipeline AND x.task_id = p_task_id RETURNING * INTO t;
        RETURN QUERY SELECT 'reentered', NULL::interval, t;
    ELSIF t.status IN ('completed', 'dead', 'discarded', 'held') THEN
        RETURN QUERY SELECT t.status, NULL::interval, t;
    ELSIF sending IS NOT NULL THEN
        RETURN QUERY SELECT 'sending', sending - instant, t;
    ELSIF t.status IN ('running', 'failed') AND (t.lease_expires_at IS NULL OR t.lease_expires_at > instant)
          AND (t.owner, t.fencing_token) IS DISTINCT FROM (p_finished_owner, p_finished_token) THEN
        RETURN QUERY SELECT 'busy', t.lease_expires_at - instant, t;
    ELSIF t.attempts >= home.max_attempts OR t.final THEN
        IF dagster_idempotent.in_doubt_v1(p_pipeline, p_task_id) THEN
            RETURN QUERY SELECT 'spent_in_doubt', NULL::interval, t;
        ELSE
            UPDATE dagster_idempotent.tasks x SET status = 'dead', owner = NULL, lease_expires_at = NULL,
                    fencing_token = x.fencing_token + 1
                WHERE x.pipeline = p_pipeline AND x.task_id = p_task_id RETURNING * INTO t;
            RETURN QUERY SELECT 'dead', NULL::interval, t;
        END IF;
    ELSIF p_backoff AND t.next_attempt_at > instant THEN
        RETURN QUERY SELECT 'backoff', t.next_attempt_at - instant, t;
    ELSE
        UPDATE dagster_idempotent.tasks x SET status = 'running', owner = p_owner, last_owner = p_owner,
                lease_expires_at = instant + home.lease, fencing_token = x.fencing_token + 1,
                attempts = x.attempts + 1, next_attempt_at = NULL
            WHERE x.pipeline = p_pipeline AND x.task_id = p_task_id RETURNING * INTO t;
        RETURN QUERY SELECT 'claimed', NULL::interval, t;
    END IF;
END $$;

-- At the cap, with the lease expired or its owner's run over: dead, or held while something is in doubt.
CREATE FUNCTION dagster_idempotent.sweep_v1(
    p_pipeline text, p_task_id text, p_finished_owner text, p_finished_token bigint)
RETURNS TABLE (verdict text) LANGUAGE plpgsql AS $$
DECLARE
    t dagster_idempotent.tasks;
    doubt boolean;
BEGIN
    SELECT * INTO t FROM dagster_idempotent.tasks x
        WHERE x.pipeline = p_pipeline AND x.task_id = p_task_id FOR NO KEY UPDATE;
    IF NOT FOUND OR t.status NOT IN ('running', 'failed')
       OR NOT (t.final OR t.attempts >= (SELECT max_attempts FROM dagster_idempotent.pipelines p WHERE p.pipeline = p_pipeline))
       OR (t.lease_expires_at IS NULL OR t.lease_expires_at > clock_timestamp())
          AND (t.owner, t.fencing_token) IS DISTINCT FROM (p_finished_owner, p_finished_token)
       OR dagster_idempotent.sending_until_v1(p_pipeline, p_task_id) IS NOT NULL THEN
        RETURN QUERY SELECT 'untouched';
        RETURN;
    END IF;
    doubt := dagster_idempotent.in_doubt_v1(p_pipeline, p_task_id);
    UPDATE dagster_idempotent.tasks x SET
            status = CASE WHEN doubt THEN 'held' ELSE 'dead' END,
            held_for = CASE WHEN doubt THEN 'in_doubt' END,
            owner = NULL, lease_expires_at = NULL, fencing_token = x.fencing_token + 1
        WHERE x.pipeline = p_pipeline AND x.task_id = p_task_id;
    RETURN QUERY SELECT CASE WHEN doubt THEN 'held' ELSE 'dead' END;
END $$;

-- Entered by the run that must stop. The attempt is given back only if this run has sent nothing: a refund after a
-- send would let "not found, again" go on without bound (R15).
CREATE FUNCTION dagster_idempotent.hold_v1(
    p_pipeline text, p_task_id text, p_owner text, p_token bigint, p_held_for text, p_error text)
RETURNS TABLE (verdict text, task dagster_idempotent.tasks) LANGUAGE plpgsql AS $$
DECLARE
    t dagster_idempotent.tasks;
BEGIN
    SELECT * INTO t FROM dagster_idempotent.tasks x
        WHERE x.pipeline = p_pipeline AND x.task_id = p_task_id FOR NO KEY UPDATE;
    IF NOT FOUND OR t.owner IS DISTINCT FROM p_owner OR t.fencing_token <> p_token
       OR t.status NOT IN ('running', 'failed') THEN
        RETURN QUERY SELECT 'refused', t;
        RETURN;
    END IF;
    UPDATE dagster_idempotent.tasks x SET status = 'held', held_for = p_held_for, error = p_error,
            attempts = x.attempts - CASE WHEN EXISTS (SELECT FROM dagster_idempotent.submissions s
                WHERE s.pipeline = p_pipeline AND s.task_id = p_task_id AND s.owner = p_owner
                  AND s.fencing_token = p_token) THEN 0 ELSE 1 END
        WHERE x.pipeline = p_pipeline AND x.task_id = p_task_id RETURNING * INTO t;
    RETURN QUERY SELECT 'held', t;
END $$;

-- Whether a held task has nothing left to wait for.
CREATE FUNCTION dagster_idempotent.resolved_v1(t dagster_idempotent.tasks)
RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT t.status = 'held' AND t.held_for <> 'budget'
        AND (t.held_for = 'gate' AND NOT t.final AND t.attempts < (
                SELECT p.max_attempts FROM dagster_idempotent.pipelines p WHERE p.pipeline = t.pipeline)
                AND dagster_idempotent.sending_until_v1(t.pipeline, t.task_id) IS NULL
             OR NOT EXISTS (SELECT FROM dagster_idempotent.submissions s
                WHERE s.pipeline = t.pipeline AND s.task_id = t.task_id AND s.state IN ('intended', 'in_doubt')))
        AND dagster_idempotent.gate_open_v1(t.pipeline, t.task_id, 'spend')
$$;

-- held -> pending, where nothing is left to wait for. Looked at by level, never by edge: a call settled just before
-- its task was held would otherwise hold it for ever. Budget holds are an operator's to release. A hold that waited for
-- the gate, or for the end of a freeze, ends with that: what is in doubt is then asked about, or sent again under its
-- key, by the next run, which holds the task for the doubt where neither settles it. At its cap it waits for a person.
CREATE FUNCTION dagster_idempotent.release_held_v1(p_pipeline text, p_task_id text)
RETURNS TABLE (verdict text) LANGUAGE plpgsql AS $$
DECLARE
    t dagster_idempotent.tasks;
BEGIN
    SELECT * INTO t FROM dagster_idempotent.tasks x
        WHERE x.pipeline = p_pipeline AND x.task_id = p_task_id FOR NO KEY UPDATE;
    IF NOT FOUND OR NOT dagster_idempotent.resolved_v1(t) THEN
        RETURN QUERY SELECT 'untouched';
        RETURN;
    END IF;
    UPDATE dagster_idempotent.tasks x SET status = 'pending', held_for = NULL, owner = NULL, lease_expires_at = NULL,
            fencing_token = x.fencing_token + 1
        WHERE x.pipeline = p_pipeline AND x.task_id = p_task_id;
    RETURN QUERY SELECT 'released';
END $$;
