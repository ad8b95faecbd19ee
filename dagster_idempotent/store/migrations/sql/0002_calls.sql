-- An operator's word about a call in doubt. Every function locks the task, then the submission, and decides on what it
-- reads after that; a verdict other than the wanted one has written nothing.

-- Evidence from outside: the provider's console, an invoice, support. `p_seen_sends` is what the operator was shown.
-- Verdicts: resolved, missing, sending, changed, too_early (a request may still land: `after` says until when).
CREATE FUNCTION dagster_idempotent.resolve_v1(
    p_answer jsonb, p_body bytea, p_seen_sends integer, p_evidence text, p_actor text, p_reason text)
RETURNS TABLE (verdict text, before jsonb, after jsonb) LANGUAGE plpgsql AS $$
DECLARE
    answer dagster_idempotent.submissions := jsonb_populate_record(NULL::dagster_idempotent.submissions, p_answer);
    s dagster_idempotent.submissions;
    hold dagster_idempotent.costs;
    seen jsonb;
BEGIN
    PERFORM FROM dagster_idempotent.tasks t
        WHERE t.pipeline = answer.pipeline AND t.task_id = answer.task_id FOR NO KEY UPDATE;
    SELECT * INTO s FROM dagster_idempotent.submissions x
        WHERE (x.pipeline, x.task_id, x.call_key, x.submission)
            = (answer.pipeline, answer.task_id, answer.call_key, answer.submission) FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'missing', NULL::jsonb, NULL::jsonb;
        RETURN;
    END IF;
    seen := dagster_idempotent.told_v1(s);
    IF s.state = 'intended' AND s.sender_expires_at > clock_timestamp() THEN
        RETURN QUERY SELECT 'sending', seen, jsonb_build_object('until', s.sender_expires_at);
        RETURN;
    END IF;
    -- Of a job that was accepted an operator may bring the result, or say that none will come; nothing else.
    IF s.sends <> p_seen_sends OR NOT (CASE s.state WHEN 'accepted' THEN answer.state IN ('succeeded', 'failed')
            WHEN 'intended' THEN answer.state <> 'failed' WHEN 'in_doubt' THEN answer.state <> 'failed'
            ELSE false END) THEN
        RETURN QUERY SELECT 'changed', seen, NULL::jsonb;
        RETURN;
    END IF;
    IF answer.state IN ('not_sent', 'rejected') AND s.sender_expires_at + s.settle_delay > clock_timestamp() THEN
        RETURN QUERY SELECT 'too_early', seen, jsonb_build_object('until', s.sender_expires_at + s.settle_delay);
        RETURN;
    END IF;
    -- A word counts for what is in doubt only: an expired sender's row is so first.
    UPDATE dagster_idempotent.submissions x SET state = 'in_doubt'
        WHERE (x.pipeline, x.task_id, x.call_key, x.submission) = (s.pipeline, s.task_id, s.call_key, s.submission)
          AND x.state = 'intended';
    UPDATE dagster_idempotent.submissions x SET
            state = answer.state, settled_by = 'operator', settled_at = clock_timestamp(),
            remote_ref = coalesce(answer.remote_ref, x.remote_ref), response = answer.response,
            response_body = p_body, response_sha256 = answer.response_sha256, cost = answer.cost,
            currency = answer.currency, cost_basis = answer.cost_basis,
            error = CASE WHEN answer.state IN ('not_sent', 'rejected', 'failed') THEN p_evidence END
        WHERE (x.pipeline, x.task_id, x.call_key, x.submission) = (s.pipeline, s.task_id, s.call_key, s.submission)
        RETURNING * INTO s;
    IF s.state = 'failed' AND s.cost IS NULL THEN
        -- It was charged when it was accepted: at most the upper bound.
        SELECT * INTO hold FROM dagster_idempotent.costs c
            WHERE (c.pipeline, c.task_id, c.call_key, c.submission) = (s.pipeline, s.task_id, s.call_key, s.submission)
              AND c.kind = 'reserved';
        PERFORM dagster_idempotent.book_v1(s, hold.amount, hold.currency);
    ELSIF s.state <> 'accepted' THEN
        PERFORM dagster_idempotent.book_v1(s, s.cost, s.currency);
    END IF;
    PERFORM dagster_idempotent.note_v1(p_actor, 'resolve', p_reason, s.pipeline, s.task_id, seen,
        dagster_idempotent.told_v1(s) || jsonb_build_object('evidence', p_evidence));
    PERFORM dagster_idempotent.release_held_v1(s.pipeline, s.task_id);
    RETURN QUERY SELECT 'resolved', seen, dagster_idempotent.told_v1(s);
END $$;

-- Giving up on an answer, or sending again knowingly. Abandoned settles at the upper bound: it may have been paid.
-- Verdicts: abandoned, resend_allowed, missing, sending, changed, late_answer (a paid answer is on record: adopt it),
-- ended (the task is completed or discarded: nothing would send it again).
CREATE FUNCTION dagster_idempotent.abandon_v1(
    p_pipeline text, p_task_id text, p_call_key text, p_submission integer, p_seen_sends integer, p_resend boolean,
    p_amount numeric, p_currency text, p_actor text, p_reason text)
RETURNS TABLE (verdict text, before jsonb, after jsonb) LANGUAGE plpgsql AS $$
DECLARE
    t dagster_idempotent.tasks;
    s dagster_idempotent.submissions;
    hold dagster_idempotent.costs;
    seen jsonb;
BEGIN
    SELECT * INTO t FROM dagster_idempotent.tasks x
        WHERE x.pipeline = p_pipeline AND x.task_id = p_task_id FOR NO KEY UPDATE;
    SELECT * INTO s FROM dagster_idempotent.submissions x
        WHERE (x.pipeline, x.task_id, x.call_key, x.submission) = (p_pipeline, p_task_id, p_call_key, p_submission)
        FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'missing', NULL::jsonb, NULL::jsonb;
        RETURN;
    END IF;
    seen := dagster_idempotent.told_v1(s);
    IF s.state IN ('intended', 'in_doubt') AND s.sender_expires_at > clock_timestamp() THEN
        RETURN QUERY SELECT 'sending', seen, jsonb_build_object('until', s.sender_expires_at);
        RETURN;
    END IF;
    IF s.sends <> p_seen_sends OR s.state NOT IN ('intended', 'in_doubt') AND NOT (p_resend AND s.state = 'abandoned')
       OR EXISTS (SELECT FROM dagster_idempotent.submissions x
            WHERE (x.pipeline, x.task_id, x.call_key) = (p_pipeline, p_task_id, p_call_key)
              AND x.submission > p_submission)
       OR EXISTS (SELECT FROM dagster_idempotent.resends r
            WHERE (r.pipeline, r.task_id, r.call_key, r.submission) = (p_pipeline, p_task_id, p_call_key, p_submission))
    THEN
        RETURN QUERY SELECT 'changed', seen, NULL::jsonb;
        RETURN;
    END IF;
    IF p_resend AND t.status IN ('completed', 'discarded') THEN
        RETURN QUERY SELECT 'ended', seen, dagster_idempotent.told_v1(t);
        RETURN;
    END IF;
    IF p_resend AND EXISTS (SELECT FROM dagster_idempotent.submissions x
            WHERE (x.pipeline, x.task_id, x.call_key) = (p_pipeline, p_task_id, p_call_key) AND x.late) THEN
        RETURN QUERY SELECT 'late_answer', seen, NULL::jsonb;
        RETURN;
    END IF;
    SELECT * INTO hold FROM dagster_idempotent.costs c
        WHERE (c.pipeline, c.task_id, c.call_key, c.submission) = (p_pipeline, p_task_id, p_call_key, p_submission)
          AND c.kind = 'reserved';
    IF s.state <> 'abandoned' THEN
        -- The moves know no way from intended to abandoned: an expired sender is in doubt first.
        IF s.state = 'intended' THEN
            UPDATE dagster_idempotent.submissions x SET state = 'in_doubt'
                WHERE (x.pipeline, x.task_id, x.call_key, x.submission)
                    = (p_pipeline, p_task_id, p_call_key, p_submission);
        END IF;
        UPDATE dagster_idempotent.submissions x SET state = 'abandoned', settled_by = 'operator',
                settled_at = clock_timestamp()
            WHERE (x.pipeline, x.task_id, x.call_key, x.submission) = (p_pipeline, p_task_id, p_call_key, p_submission)
            RETURNING * INTO s;
        PERFORM dagster_idempotent.book_v1(s, hold.amount, hold.currency);
        PERFORM dagster_idempotent.note_v1(p_actor, 'abandon', p_reason, p_pipeline, p_task_id, seen,
            dagster_idempotent.told_v1(s) || jsonb_build_object('settled_at_most', hold.amount));
    END IF;
    IF p_resend THEN
        INSERT INTO dagster_idempotent.resends (pipeline, task_id, call_key, submission, actor, reason, amount, currency)
            VALUES (p_pipeline, p_task_id, p_call_key, p_submission, p_actor, p_reason,
                coalesce(p_amount, hold.amount), CASE WHEN p_amount IS NULL THEN hold.currency ELSE p_currency END);
        PERFORM dagster_idempotent.note_v1(p_actor, 'resend', p_reason, p_pipeline, p_task_id, seen,
            dagster_idempotent.told_v1(s) || jsonb_build_object('may_charge_again', coalesce(p_amount, hold.amount)));
    END IF;
    PERFORM dagster_idempotent.release_held_v1(p_pipeline, p_task_id);
    RETURN QUERY SELECT CASE WHEN p_resend THEN 'resend_allowed' ELSE 'abandoned' END, seen,
        dagster_idempotent.told_v1(s);
END $$;

-- An operator's word about a delivery: in doubt or dead, to delivered, ready (it goes again) or dead.
CREATE FUNCTION dagster_idempotent.resolve_message_v1(
    p_pipeline text, p_task_id text, p_channel text, p_state text, p_evidence text, p_actor text, p_reason text)
RETURNS TABLE (verdict text, before jsonb, after jsonb) LANGUAGE plpgsql AS $$
DECLARE
    m dagster_idempotent.outbox;
    seen jsonb;
BEGIN
    SELECT * INTO m FROM dagster_idempotent.outbox x
        WHERE (x.pipeline, x.task_id, x.channel) = (p_pipeline, p_task_id, p_channel) FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'missing', NULL::jsonb, NULL::jsonb;
        RETURN;
    END IF;
    seen := jsonb_build_object('channel', m.channel, 'state', m.state, 'attempts', m.attempts, 'error', m.error);
    IF m.state = 'sending' AND m.sender_expires_at > clock_timestamp() THEN
        RETURN QUERY SELECT 'sending', seen, jsonb_build_object('until', m.sender_expires_at);
        RETURN;
    END IF;
    IF NOT (m.state IN ('in_doubt', 'sending') OR m.state = 'dead' AND p_state = 'ready'
            OR m.state = 'ready' AND p_state = 'dead') THEN
        RETURN QUERY SELECT 'changed', seen, NULL::jsonb;
        RETURN;
    END IF;
    UPDATE dagster_idempotent.outbox x SET state = p_state,
            delivered_at = CASE WHEN p_state = 'delivered' THEN clock_timestamp() END,
            receipt = CASE WHEN p_state = 'delivered' THEN p_evidence ELSE x.receipt END,
            error = CASE WHEN p_state = 'delivered' THEN NULL ELSE p_evidence END,
            next_attempt_at = NULL
        WHERE (x.pipeline, x.task_id, x.channel) = (p_pipeline, p_task_id, p_channel) RETURNING * INTO m;
    PERFORM dagster_idempotent.note_v1(p_actor, 'resolve_message', p_reason, p_pipeline, p_task_id, seen,
        jsonb_build_object('channel', m.channel, 'state', m.state, 'evidence', p_evidence));
    RETURN QUERY SELECT 'resolved', seen,
        jsonb_build_object('channel', m.channel, 'state', m.state, 'receipt', m.receipt, 'error', m.error);
END $$;
