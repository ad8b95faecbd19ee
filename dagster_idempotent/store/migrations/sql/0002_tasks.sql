-- An operator's word about a task. Each of these exits clears the owner and adds 1 to the fencing token, so that whoever
-- still works on the task meets a lost lease.

-- Verdicts: released, redriven, discarded; missing; changed (the status is another); sending (a paid call is on its
-- way); unsettled (a call's outcome is not known, so that a discard could hide a charge).
CREATE FUNCTION dagster_idempotent.move_task_v1(
    p_pipeline text, p_task_id text, p_action text, p_actor text, p_reason text)
RETURNS TABLE (verdict text, before jsonb, after jsonb) LANGUAGE plpgsql AS $$
DECLARE
    t dagster_idempotent.tasks;
    seen jsonb;
    sending timestamptz;
    calls jsonb;
BEGIN
    SELECT * INTO t FROM dagster_idempotent.tasks x
        WHERE x.pipeline = p_pipeline AND x.task_id = p_task_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'missing', NULL::jsonb, NULL::jsonb;
        RETURN;
    END IF;
    seen := dagster_idempotent.told_v1(t);
    -- New statements, fresh snapshots: an intent that was under way while we waited for the lock is seen.
    sending := dagster_idempotent.sending_until_v1(p_pipeline, p_task_id);
    SELECT jsonb_agg(s.call_key ORDER BY s.call_key) INTO calls FROM dagster_idempotent.submissions s
        WHERE s.pipeline = p_pipeline AND s.task_id = p_task_id AND s.state IN ('intended', 'in_doubt', 'accepted');
    IF NOT (CASE p_action WHEN 'release' THEN t.status IN ('running', 'failed')
                          WHEN 'release_budget' THEN t.status = 'held' AND t.held_for = 'budget'
                          WHEN 'redrive' THEN t.status = 'dead'
                          ELSE t.status IN ('dead', 'held') END) THEN
        RETURN QUERY SELECT 'changed', seen, NULL::jsonb;
    ELSIF sending IS NOT NULL THEN
        RETURN QUERY SELECT 'sending', seen, jsonb_build_object('until', sending);
    ELSIF p_action = 'discard' AND calls IS NOT NULL THEN
        RETURN QUERY SELECT 'unsettled', seen, jsonb_build_object('calls', calls);
    ELSE
        UPDATE dagster_idempotent.tasks x SET
                status = CASE WHEN p_action = 'discard' THEN 'discarded' ELSE 'pending' END,
                held_for = NULL, owner = NULL, lease_expires_at = NULL, next_attempt_at = NULL,
                fencing_token = x.fencing_token + 1,
                attempts = CASE WHEN p_action = 'redrive' THEN 0 ELSE x.attempts END,
                final = CASE WHEN p_action = 'redrive' THEN false ELSE x.final END
            WHERE x.pipeline = p_pipeline AND x.task_id = p_task_id RETURNING * INTO t;
        PERFORM dagster_idempotent.note_v1(p_actor, p_action, p_reason, p_pipeline, p_task_id, seen,
            dagster_idempotent.told_v1(t));
        RETURN QUERY SELECT 'done', seen, dagster_idempotent.told_v1(t);
    END IF;
END $$;

-- What an approval is given for: the output where it would be published, else the raw artifact, else the identity.
CREATE FUNCTION dagster_idempotent.shown_v1(p_pipeline text, p_task_id text, p_gate text)
RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN p_gate = 'publish' THEN t.output_sha256 ELSE coalesce(
        (SELECT a.sha256 FROM dagster_idempotent.artifacts a
            WHERE a.pipeline = p_pipeline AND a.task_id = p_task_id AND a.name = 'raw'),
        t.run_id, encode(sha256(convert_to(t.pipeline || '/' || t.task_id, 'UTF8')), 'hex')) END
    FROM dagster_idempotent.tasks t WHERE t.pipeline = p_pipeline AND t.task_id = p_task_id
$$;

-- Verdicts: approved, missing, no_gate (the pipeline asks for none), not_ready (nothing to publish yet), changed (what
-- was shown is not what is there), already, no_budget (an amount can only be held to where the pipeline has a budget in
-- that currency).
CREATE FUNCTION dagster_idempotent.approve_v1(
    p_pipeline text, p_task_id text, p_shown text, p_amount numeric, p_currency text, p_actor text, p_reason text)
RETURNS TABLE (verdict text, before jsonb, after jsonb) LANGUAGE plpgsql AS $$
DECLARE
    t dagster_idempotent.tasks;
    home dagster_idempotent.pipelines;
    shown text;
    given dagster_idempotent.approvals;
BEGIN
    SELECT * INTO t FROM dagster_idempotent.tasks x
        WHERE x.pipeline = p_pipeline AND x.task_id = p_task_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'missing', NULL::jsonb, NULL::jsonb;
        RETURN;
    END IF;
    SELECT * INTO home FROM dagster_idempotent.pipelines p WHERE p.pipeline = p_pipeline;
    shown := dagster_idempotent.shown_v1(p_pipeline, p_task_id, home.gate);
    IF home.gate = 'none' THEN
        RETURN QUERY SELECT 'no_gate', dagster_idempotent.told_v1(t), NULL::jsonb;
    ELSIF shown IS NULL THEN
        RETURN QUERY SELECT 'not_ready', dagster_idempotent.told_v1(t), NULL::jsonb;
    ELSIF shown <> p_shown THEN
        RETURN QUERY SELECT 'changed', dagster_idempotent.told_v1(t), jsonb_build_object('shown_sha256', shown);
    ELSIF dagster_idempotent.gate_open_v1(p_pipeline, p_task_id, home.gate) THEN
        RETURN QUERY SELECT 'already', dagster_idempotent.told_v1(t), NULL::jsonb;
    ELSIF p_amount IS NOT NULL AND home.currency IS DISTINCT FROM p_currency THEN
        RETURN QUERY SELECT 'no_budget', dagster_idempotent.told_v1(t), jsonb_build_object('currency', home.currency);
    ELSE
        -- An approved amount is kept by the counter that every intent has to pass.
        IF p_amount IS NOT NULL THEN
            INSERT INTO dagster_idempotent.budgets (pipeline, scope, currency, "limit")
                VALUES (p_pipeline, 'task:' || p_task_id, p_currency, p_amount)
                ON CONFLICT (pipeline, scope, currency) DO UPDATE SET "limit" = excluded."limit";
        END IF;
        UPDATE dagster_idempotent.outbox o SET state = 'ready'
            WHERE home.gate = 'publish' AND o.pipeline = p_pipeline AND o.task_id = p_task_id AND o.state = 'waiting';
        INSERT INTO dagster_idempotent.approvals (pipeline, task_id, gate, actor, reason, amount_cap, currency, shown_sha256)
            VALUES (p_pipeline, p_task_id, home.gate, p_actor, p_reason, p_amount, p_currency, p_shown)
            RETURNING * INTO given;
        PERFORM dagster_idempotent.note_v1(p_actor, 'approve', p_reason, p_pipeline, p_task_id,
            dagster_idempotent.told_v1(t), to_jsonb(given));
        IF home.gate = 'spend' THEN
            PERFORM dagster_idempotent.release_held_v1(p_pipeline, p_task_id);
        END IF;
        RETURN QUERY SELECT 'approved', dagster_idempotent.told_v1(t), to_jsonb(given);
    END IF;
END $$;

-- Verdicts: revoked, missing, changed (revoked already). Messages that were set free stay so; `after` counts them.
CREATE FUNCTION dagster_idempotent.revoke_v1(p_id bigint, p_actor text, p_reason text)
RETURNS TABLE (verdict text, before jsonb, after jsonb) LANGUAGE plpgsql AS $$
DECLARE
    given dagster_idempotent.approvals;
    seen jsonb;
    free bigint;
BEGIN
    SELECT * INTO given FROM dagster_idempotent.approvals WHERE id = p_id;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'missing', NULL::jsonb, NULL::jsonb;
        RETURN;
    END IF;
    -- An intent reads the gate under a share lock of the task: it commits before this, or sees the gate closed.
    PERFORM FROM dagster_idempotent.tasks t
        WHERE t.pipeline = given.pipeline AND t.task_id = given.task_id FOR NO KEY UPDATE;
    SELECT * INTO given FROM dagster_idempotent.approvals WHERE id = p_id FOR NO KEY UPDATE;
    seen := to_jsonb(given);
    IF given.revoked_at IS NOT NULL THEN
        RETURN QUERY SELECT 'changed', seen, NULL::jsonb;
        RETURN;
    END IF;
    UPDATE dagster_idempotent.approvals SET revoked_at = clock_timestamp() WHERE id = p_id RETURNING * INTO given;
    SELECT count(*) INTO free FROM dagster_idempotent.outbox o
        WHERE given.gate = 'publish' AND o.pipeline = given.pipeline AND o.task_id = given.task_id
          AND o.state <> 'waiting';
    PERFORM dagster_idempotent.note_v1(p_actor, 'revoke', p_reason, given.pipeline, given.task_id, seen,
        to_jsonb(given));
    RETURN QUERY SELECT 'revoked', seen, to_jsonb(given) || jsonb_build_object('messages_already_free', free);
END $$;

-- Freezing (p_why not null) and unfreezing. Whoever freezes waits afterwards for the intents under way: only once this
-- is committed does every later intent find the reason. Verdicts: frozen, unfrozen, missing, changed (it is so already).
CREATE FUNCTION dagster_idempotent.freeze_v1(p_pipeline text, p_why text, p_actor text, p_reason text)
RETURNS TABLE (verdict text, before jsonb, after jsonb) LANGUAGE plpgsql AS $$
DECLARE
    home dagster_idempotent.pipelines;
    running bigint;
    done text := CASE WHEN p_why IS NULL THEN 'unfrozen' ELSE 'frozen' END;
BEGIN
    SELECT * INTO home FROM dagster_idempotent.pipelines p WHERE p.pipeline = p_pipeline FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'missing', NULL::jsonb, NULL::jsonb;
        RETURN;
    END IF;
    IF (home.frozen_reason IS NULL) = (p_why IS NULL) THEN
        RETURN QUERY SELECT 'changed', jsonb_build_object('frozen_reason', home.frozen_reason), NULL::jsonb;
        RETURN;
    END IF;
    UPDATE dagster_idempotent.pipelines p SET frozen_reason = p_why WHERE p.pipeline = p_pipeline;
    SELECT count(*) INTO running FROM dagster_idempotent.tasks t
        WHERE t.pipeline = p_pipeline AND t.status IN ('running', 'failed');
    PERFORM dagster_idempotent.note_v1(p_actor, CASE WHEN p_why IS NULL THEN 'unfreeze' ELSE 'freeze' END, p_reason,
        p_pipeline, NULL, jsonb_build_object('frozen_reason', home.frozen_reason),
        jsonb_build_object('frozen_reason', p_why));
    RETURN QUERY SELECT done, jsonb_build_object('frozen_reason', home.frozen_reason),
        jsonb_build_object('frozen_reason', p_why, 'running_tasks', running);
END $$;
