-- Import of old records. A record is known by the hash of all that it holds, an import is one statement: killed at any
-- point, it is whole or absent, and issued again it finds itself.

-- The strongest rule: one record is one task of a pipeline.
CREATE UNIQUE INDEX tasks_imported_record ON dagster_idempotent.tasks
    (pipeline, (import_metadata ->> 'record_sha256')) WHERE import_metadata IS NOT NULL;
CREATE INDEX tasks_imported_source ON dagster_idempotent.tasks
    (pipeline, (import_metadata ->> 'source')) WHERE import_metadata IS NOT NULL;

-- What the ledger knows of a record. Verdicts: imported (by this very import), already_imported, other_content (its key
-- or its place was imported with another hash), key_taken (by a task that was not imported), new.
-- `sequence` is what the record would get.
CREATE FUNCTION dagster_idempotent.inspect_record_v1(p_task jsonb)
RETURNS TABLE (verdict text, task_ids text[], sequence integer) LANGUAGE plpgsql STABLE AS $$
DECLARE
    wanted dagster_idempotent.tasks := jsonb_populate_record(NULL::dagster_idempotent.tasks, p_task);
    known dagster_idempotent.tasks;
    ids text[];
    imported boolean;
BEGIN
    SELECT * INTO known FROM dagster_idempotent.tasks t
        WHERE t.pipeline = wanted.pipeline AND t.import_metadata IS NOT NULL
          AND t.import_metadata ->> 'record_sha256' = wanted.import_metadata ->> 'record_sha256';
    IF FOUND THEN
        RETURN QUERY SELECT
            CASE WHEN known.import_metadata ->> 'import_id' = wanted.import_metadata ->> 'import_id'
                THEN 'imported' ELSE 'already_imported' END,
            ARRAY[known.task_id], known.sequence;
        RETURN;
    END IF;
    IF wanted.allocation_key IS NOT NULL THEN
        SELECT array_agg(t.task_id ORDER BY t.task_id), bool_and(t.import_metadata IS NOT NULL) INTO ids, imported
            FROM dagster_idempotent.find_tasks_v1(wanted.pipeline, wanted.allocation_key, wanted.run_id,
                wanted.subject_id, wanted.scheduled_at, wanted.version) t;
        IF ids IS NOT NULL THEN
            RETURN QUERY SELECT CASE WHEN imported THEN 'other_content' ELSE 'key_taken' END, ids, NULL::integer;
            RETURN;
        END IF;
    END IF;
    SELECT array_agg(t.task_id ORDER BY t.task_id) INTO ids FROM dagster_idempotent.tasks t
        WHERE t.pipeline = wanted.pipeline AND t.import_metadata IS NOT NULL
          AND t.import_metadata ->> 'source' = wanted.import_metadata ->> 'source';
    IF ids IS NOT NULL THEN
        RETURN QUERY SELECT 'other_content', ids, NULL::integer;
        RETURN;
    END IF;
    RETURN QUERY SELECT 'new', ARRAY[]::text[], coalesce(max(t.sequence) + 1, 0) FROM dagster_idempotent.tasks t
        WHERE t.pipeline = wanted.pipeline AND t.period_id = wanted.period_id;
END $$;

-- One submission of an old record. It starts as every submission does and moves as every submission may, so that no wall
-- has to open for an import. Its sender, the old system, is gone and has expired: nothing of it is ever sent.
CREATE FUNCTION dagster_idempotent.import_submission_v1(
    p_pipeline text, p_task_id text, p_call jsonb, p_body bytea, p_settled_at timestamptz)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    s dagster_idempotent.submissions := jsonb_populate_record(NULL::dagster_idempotent.submissions, p_call);
    wanted text := s.state;
BEGIN
    s.pipeline := p_pipeline;
    s.task_id := p_task_id;
    s.state := 'intended';
    s.sender := gen_random_uuid();
    s.sends := 1;
    s.intended_at := coalesce(s.intended_at, s.settled_at, p_settled_at);
    s.sender_expires_at := s.intended_at;
    s.owner := 'legacy import';
    s.fencing_token := 0;
    s.fingerprint_version := 1;
    s.fingerprint_fields := '{}';
    s.key_no := 0;
    s.lookup := 'none';
    s.settle_delay := interval '0';
    s.late := false;
    INSERT INTO dagster_idempotent.submissions (pipeline, task_id, call_key, submission, state, sender,
            sender_expires_at, sends, owner, fencing_token, provider, fingerprint, fingerprint_version,
            fingerprint_fields, idempotency_key, key_no, lookup, settle_delay, late, intended_at)
        VALUES (s.pipeline, s.task_id, s.call_key, s.submission, s.state, s.sender, s.sender_expires_at, s.sends,
            s.owner, s.fencing_token, s.provider, s.fingerprint, s.fingerprint_version, s.fingerprint_fields,
            s.idempotency_key, s.key_no, s.lookup, s.settle_delay, s.late, s.intended_at);
    IF wanted = 'failed' THEN
        UPDATE dagster_idempotent.submissions x SET state = 'accepted', remote_ref = s.remote_ref,
                settled_by = 'sender', settled_at = coalesce(s.settled_at, p_settled_at)
            WHERE (x.pipeline, x.task_id, x.call_key, x.submission) = (s.pipeline, s.task_id, s.call_key, s.submission);
    END IF;
    UPDATE dagster_idempotent.submissions x SET state = wanted, remote_ref = s.remote_ref,
            response = CASE WHEN wanted = 'succeeded' THEN '{"imported": true}'::jsonb END,
            response_body = CASE WHEN wanted = 'succeeded' THEN p_body END,
            response_sha256 = CASE WHEN wanted = 'succeeded' THEN encode(sha256(p_body), 'hex') END,
            cost = s.cost, currency = s.currency,
            cost_basis = CASE WHEN s.cost IS NOT NULL THEN 'reported' END,
            settled_by = CASE WHEN wanted <> 'in_doubt' THEN 'sender' END,
            settled_at = CASE WHEN wanted <> 'in_doubt' THEN coalesce(s.settled_at, p_settled_at) END,
            error = CASE wanted WHEN 'in_doubt' THEN 'the old record does not say what became of it'
                                WHEN 'succeeded' THEN NULL ELSE 'failed in the old record' END
        WHERE (x.pipeline, x.task_id, x.call_key, x.submission) = (s.pipeline, s.task_id, s.call_key, s.submission)
        RETURNING * INTO s;
    PERFORM dagster_idempotent.book_v1(s, s.cost, s.currency);
END $$;

-- One record, one statement. `p_task` holds columns of `tasks`, and arrays: calls (columns of `submissions`, their
-- excerpts in `body`), artifacts (columns; the n-th document's bytes are p_bodies[n]), approvals.
CREATE FUNCTION dagster_idempotent.import_record_v1(
    p_task jsonb, p_output text, p_bodies bytea[], p_actor text, p_reason text)
RETURNS TABLE (verdict text, task_ids text[]) LANGUAGE plpgsql AS $$
DECLARE
    wanted dagster_idempotent.tasks := jsonb_populate_record(NULL::dagster_idempotent.tasks, p_task);
    home dagster_idempotent.pipelines;
    seen record;
    item jsonb;
    instant timestamptz := clock_timestamp();
BEGIN
    SELECT * INTO home FROM dagster_idempotent.pipelines p WHERE p.pipeline = wanted.pipeline FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'pipeline % is not registered', wanted.pipeline USING ERRCODE = 'foreign_key_violation';
    END IF;
    -- After the lock, in a fresh snapshot: discovery and persistence are one (R6).
    SELECT * INTO seen FROM dagster_idempotent.inspect_record_v1(p_task);
    IF seen.verdict <> 'new' THEN
        RETURN QUERY SELECT seen.verdict, seen.task_ids;
        RETURN;
    END IF;
    wanted.sequence := seen.sequence;
    wanted.task_id := wanted.period_id || '-' || seen.sequence;
    IF home.currency IS NOT NULL THEN
        INSERT INTO dagster_idempotent.budgets (pipeline, scope, currency, "limit") VALUES
            (wanted.pipeline, 'pipeline', home.currency, home.pipeline_limit),
            (wanted.pipeline, 'period:' || wanted.period_id, home.currency, home.period_limit),
            (wanted.pipeline, 'task:' || wanted.task_id, home.currency, home.task_limit)
        ON CONFLICT DO NOTHING;
    END IF;
    INSERT INTO dagster_idempotent.tasks (pipeline, task_id, period_id, sequence, subject_id, scheduled_at, version,
            allocation_key, run_id, origin, import_metadata, status, held_for, output, output_sha256, completed_by,
            completed_at)
        VALUES (wanted.pipeline, wanted.task_id, wanted.period_id, wanted.sequence, wanted.subject_id,
            wanted.scheduled_at, wanted.version, wanted.allocation_key, wanted.run_id, wanted.origin,
            wanted.import_metadata || jsonb_build_object('imported_at', instant), wanted.status, wanted.held_for,
            p_output::json, wanted.output_sha256, CASE WHEN wanted.status = 'completed' THEN 'legacy import' END,
            wanted.completed_at);
    INSERT INTO dagster_idempotent.artifacts (pipeline, task_id, name, sha256, size, media_type, body, uri)
        SELECT wanted.pipeline, wanted.task_id, a.name, a.sha256, a.size, a.media_type, p_bodies[a.document], a.uri
        FROM jsonb_to_recordset(p_task -> 'artifacts')
            AS a (name text, sha256 text, size bigint, media_type text, document integer, uri text);
    FOR item IN SELECT * FROM jsonb_array_elements(p_task -> 'calls') LOOP
        PERFORM dagster_idempotent.import_submission_v1(wanted.pipeline, wanted.task_id, item,
            convert_to(item ->> 'body', 'UTF8'), coalesce(wanted.completed_at, instant));
    END LOOP;
    -- An old approval speaks of the old result: for a task that may still make another it is on record, not in force.
    INSERT INTO dagster_idempotent.approvals (pipeline, task_id, gate, actor, reason, amount_cap, currency,
            shown_sha256, created_at, revoked_at)
        SELECT wanted.pipeline, wanted.task_id, a.gate, a.actor, a.reason, a.amount_cap, a.currency, a.shown_sha256,
            a.created_at, CASE WHEN wanted.status <> 'completed' THEN instant END
        FROM jsonb_to_recordset(p_task -> 'approvals')
            AS a (gate text, actor text, reason text, amount_cap numeric, currency text, shown_sha256 text,
                  created_at timestamptz);
    INSERT INTO dagster_idempotent.audit (actor, action, reason, pipeline, task_id, after)
        VALUES (p_actor, 'legacy_import', p_reason, wanted.pipeline, wanted.task_id, wanted.import_metadata);
    -- Every discarded task names who put it away.
    IF wanted.status = 'discarded' THEN
        INSERT INTO dagster_idempotent.audit (actor, action, reason, pipeline, task_id, after)
            VALUES (p_actor, 'discard', 'the old record says that it failed: ' || p_reason, wanted.pipeline,
                wanted.task_id, jsonb_build_object('status', 'discarded'));
    END IF;
    RETURN QUERY SELECT 'imported', ARRAY[wanted.task_id];
END $$;

-- Gives an imported task its identity, or (no key) marks it unrelated. Verdicts: mapped (also when it is so already),
-- missing, fixed (it has another identity, or never lacked one), taken (the key belongs to other tasks).
CREATE FUNCTION dagster_idempotent.map_task_v1(
    p_pipeline text, p_task_id text, p_allocation_key text, p_run_id text, p_subject text, p_scheduled_at timestamptz,
    p_version text, p_actor text, p_reason text)
RETURNS TABLE (verdict text, task_ids text[]) LANGUAGE plpgsql AS $$
DECLARE
    t dagster_idempotent.tasks;
    ids text[];
BEGIN
    PERFORM FROM dagster_idempotent.pipelines p WHERE p.pipeline = p_pipeline FOR NO KEY UPDATE;
    SELECT * INTO t FROM dagster_idempotent.tasks x
        WHERE x.pipeline = p_pipeline AND x.task_id = p_task_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'missing', ARRAY[]::text[];
        RETURN;
    END IF;
    IF t.origin <> 'imported' OR t.allocation_key IS NOT NULL THEN
        RETURN QUERY SELECT
            CASE WHEN t.origin <> 'allocated' AND t.run_id IS NOT DISTINCT FROM p_run_id THEN 'mapped' ELSE 'fixed' END,
            ARRAY[t.task_id];
        RETURN;
    END IF;
    IF p_allocation_key IS NOT NULL THEN
        SELECT array_agg(x.task_id ORDER BY x.task_id) INTO ids FROM dagster_idempotent.find_tasks_v1(
            p_pipeline, p_allocation_key, p_run_id, p_subject, p_scheduled_at, p_version) x;
        IF ids IS NOT NULL THEN
            RETURN QUERY SELECT 'taken', ids;
            RETURN;
        END IF;
    END IF;
    UPDATE dagster_idempotent.tasks x SET
            origin = CASE WHEN p_allocation_key IS NULL THEN 'unrelated' ELSE 'imported' END,
            allocation_key = p_allocation_key, run_id = p_run_id, scheduled_at = p_scheduled_at,
            subject_id = CASE WHEN p_allocation_key IS NULL THEN x.subject_id ELSE p_subject END,
            version = CASE WHEN p_allocation_key IS NULL THEN x.version ELSE p_version END
        WHERE x.pipeline = p_pipeline AND x.task_id = p_task_id;
    INSERT INTO dagster_idempotent.audit (actor, action, reason, pipeline, task_id, before, after)
        VALUES (p_actor, 'legacy_map', p_reason, p_pipeline, p_task_id,
            jsonb_build_object('origin', t.origin, 'allocation_key', t.allocation_key),
            jsonb_build_object('origin', CASE WHEN p_allocation_key IS NULL THEN 'unrelated' ELSE 'imported' END,
                'allocation_key', p_allocation_key));
    RETURN QUERY SELECT 'mapped', ARRAY[t.task_id];
END $$;
