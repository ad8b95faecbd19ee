-- A same-key resend that a freeze or a closed gate refuses waits for that decision, and goes on after it.

-- The claim of a same-key resend: the same row, which stays in doubt, and its conditions are those of an intent, read
-- in the same order. Only while the provider still honours the key: counted from the key's first intent, less the time
-- in which the request may still leave and land. Verdicts: claimed, lease_lost, frozen, gate, refused (another send has
-- begun, or the key may be forgotten).
CREATE FUNCTION dagster_idempotent.claim_resend_v2(
    p_pipeline text, p_task_id text, p_call_key text, p_submission integer, p_fingerprint text, p_seen_sends integer,
    p_sender uuid, p_owner text, p_token bigint)
RETURNS TABLE (verdict text) LANGUAGE plpgsql AS $$
DECLARE
    t dagster_idempotent.tasks;
    home dagster_idempotent.pipelines;
BEGIN
    SELECT * INTO t FROM dagster_idempotent.tasks x
        WHERE x.pipeline = p_pipeline AND x.task_id = p_task_id FOR SHARE;
    IF NOT FOUND OR NOT dagster_idempotent.may_spend_v1(t, p_owner, p_token) THEN
        RETURN QUERY SELECT 'lease_lost';
        RETURN;
    END IF;
    -- A fresh snapshot, after the locks: a freeze that committed while we waited for one of them is seen.
    SELECT * INTO home FROM dagster_idempotent.pipelines p WHERE p.pipeline = p_pipeline;
    IF home.frozen_reason IS NOT NULL THEN
        RETURN QUERY SELECT 'frozen';
    ELSIF NOT dagster_idempotent.gate_open_v1(p_pipeline, p_task_id, 'spend') THEN
        RETURN QUERY SELECT 'gate';
    ELSE
        UPDATE dagster_idempotent.submissions s SET sends = s.sends + 1, sender = p_sender, owner = p_owner,
                fencing_token = p_token, sender_expires_at = clock_timestamp() + home.sender_lease
            WHERE s.pipeline = p_pipeline AND s.task_id = p_task_id AND s.call_key = p_call_key
              AND s.submission = p_submission AND s.state = 'in_doubt' AND s.sends = p_seen_sends
              AND s.fingerprint = p_fingerprint
              AND clock_timestamp() < s.key_window - home.send_window - s.settle_delay + (
                    SELECT min(k.intended_at) FROM dagster_idempotent.submissions k
                    WHERE k.pipeline = s.pipeline AND k.task_id = s.task_id AND k.call_key = s.call_key
                      AND k.idempotency_key = s.idempotency_key);
        RETURN QUERY SELECT CASE WHEN FOUND THEN 'claimed' ELSE 'refused' END;
    END IF;
END $$;
DROP FUNCTION dagster_idempotent.claim_resend_v1;

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
CREATE OR REPLACE FUNCTION dagster_idempotent.release_held_v1(p_pipeline text, p_task_id text)
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
