-- Remote jobs: their own end, an operator's cancellation, waiting for them; and answers that are too large for a table.

-- An answer lies in its row, or in a file that a row of `artifacts` describes; both ways its hash stands here.
ALTER TABLE dagster_idempotent.submissions
    ADD COLUMN response_artifact text,
    ADD CONSTRAINT answer_file FOREIGN KEY (pipeline, task_id, response_artifact)
        REFERENCES dagster_idempotent.artifacts (pipeline, task_id, name),
    ADD CONSTRAINT one_place_for_an_answer CHECK (response_body IS NULL OR response_artifact IS NULL),
    DROP CONSTRAINT body_present_unless_pruned,
    ADD CONSTRAINT body_present_unless_pruned CHECK (response_sha256 IS NULL
        OR (response_body IS NULL AND response_artifact IS NULL) = (pruned_at IS NOT NULL));
CREATE TRIGGER answer_file_is_fixed BEFORE UPDATE ON dagster_idempotent.submissions FOR EACH ROW
    WHEN (old.response_sha256 IS NOT NULL AND new.response_artifact IS DISTINCT FROM old.response_artifact)
    EXECUTE FUNCTION dagster_idempotent.refuse('where an answer lies is fixed with the answer');

-- The row of an answer's file, in the transaction that records the answer. The first writer wins: whoever comes second
-- finds the answer recorded too.
CREATE FUNCTION dagster_idempotent.store_answer_file_v1(p_answer jsonb) RETURNS void LANGUAGE sql AS $$
    INSERT INTO dagster_idempotent.artifacts (pipeline, task_id, name, sha256, size, media_type, uri)
    SELECT p_answer ->> 'pipeline', p_answer ->> 'task_id', p_answer ->> 'response_artifact',
        p_answer ->> 'response_sha256', (p_answer ->> 'file_size')::bigint, p_answer ->> 'file_media_type',
        p_answer ->> 'file_uri'
    WHERE p_answer ->> 'response_artifact' IS NOT NULL
    ON CONFLICT DO NOTHING
$$;

-- The job's own end without a result: final, never revived. It was charged when it was accepted: a cost that nobody can
-- tell is the upper bound.
CREATE FUNCTION dagster_idempotent.end_job_v1(
    p_pipeline text, p_task_id text, p_call_key text, p_submission integer, p_error text,
    p_cost numeric, p_currency text)
RETURNS SETOF dagster_idempotent.submissions LANGUAGE plpgsql AS $$
DECLARE
    s dagster_idempotent.submissions;
    hold dagster_idempotent.costs;
BEGIN
    UPDATE dagster_idempotent.submissions x SET state = 'failed', settled_by = 'poll', settled_at = clock_timestamp(),
            error = p_error, cost = p_cost, currency = p_currency,
            cost_basis = CASE WHEN p_cost IS NOT NULL THEN 'reported' END
        WHERE (x.pipeline, x.task_id, x.call_key, x.submission) = (p_pipeline, p_task_id, p_call_key, p_submission)
          AND x.state = 'accepted'
        RETURNING * INTO s;
    IF FOUND THEN
        SELECT * INTO hold FROM dagster_idempotent.costs c
            WHERE (c.pipeline, c.task_id, c.call_key, c.submission) = (p_pipeline, p_task_id, p_call_key, p_submission)
              AND c.kind = 'reserved';
        PERFORM dagster_idempotent.book_v1(s, coalesce(p_cost, hold.amount),
            CASE WHEN p_cost IS NULL THEN hold.currency ELSE p_currency END);
        RETURN NEXT s;
    END IF;
END $$;

-- An operator's cancellation, after the provider was asked: what it said decides. Verdicts: cancelled (it ended without
-- a result), asked (it goes on, or ended well), missing, changed.
CREATE FUNCTION dagster_idempotent.cancel_job_v1(
    p_pipeline text, p_task_id text, p_call_key text, p_submission integer, p_ended boolean, p_said text,
    p_cost numeric, p_currency text, p_actor text, p_reason text)
RETURNS TABLE (verdict text, before jsonb, after jsonb) LANGUAGE plpgsql AS $$
DECLARE
    s dagster_idempotent.submissions;
    seen jsonb;
BEGIN
    PERFORM FROM dagster_idempotent.tasks t
        WHERE t.pipeline = p_pipeline AND t.task_id = p_task_id FOR NO KEY UPDATE;
    SELECT * INTO s FROM dagster_idempotent.submissions x
        WHERE (x.pipeline, x.task_id, x.call_key, x.submission) = (p_pipeline, p_task_id, p_call_key, p_submission)
        FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'missing', NULL::jsonb, NULL::jsonb;
        RETURN;
    END IF;
    seen := dagster_idempotent.told_v1(s);
    IF s.state <> 'accepted' THEN
        RETURN QUERY SELECT 'changed', seen, NULL::jsonb;
        RETURN;
    END IF;
    IF p_ended THEN
        SELECT * INTO s FROM dagster_idempotent.end_job_v1(
            p_pipeline, p_task_id, p_call_key, p_submission, p_said, p_cost, p_currency);
    END IF;
    PERFORM dagster_idempotent.note_v1(p_actor, 'cancel', p_reason, p_pipeline, p_task_id, seen,
        dagster_idempotent.told_v1(s) || jsonb_build_object('provider_said', p_said));
    RETURN QUERY SELECT CASE WHEN p_ended THEN 'cancelled' ELSE 'asked' END, seen,
        dagster_idempotent.told_v1(s) || jsonb_build_object('provider_said', p_said);
END $$;

-- A run that has polled long enough lets go of the task: due again after a while. Waiting uses no attempt, whoever
-- submitted the job; an attempt that has failed at something (a job that ended badly, a refusal) stays counted, so that
-- each new job after a failed one costs an attempt.
CREATE FUNCTION dagster_idempotent.wait_v1(
    p_pipeline text, p_task_id text, p_owner text, p_token bigint, p_delay interval, p_error text)
RETURNS TABLE (verdict text) LANGUAGE plpgsql AS $$
DECLARE
    t dagster_idempotent.tasks;
BEGIN
    SELECT * INTO t FROM dagster_idempotent.tasks x
        WHERE x.pipeline = p_pipeline AND x.task_id = p_task_id FOR NO KEY UPDATE;
    IF NOT FOUND OR t.owner IS DISTINCT FROM p_owner OR t.fencing_token <> p_token
       OR t.status NOT IN ('running', 'failed')
       OR NOT EXISTS (SELECT FROM dagster_idempotent.submissions s
            WHERE s.pipeline = p_pipeline AND s.task_id = p_task_id AND s.state = 'accepted') THEN
        RETURN QUERY SELECT 'refused';
        RETURN;
    END IF;
    UPDATE dagster_idempotent.tasks x SET status = 'pending', owner = NULL, lease_expires_at = NULL,
            fencing_token = x.fencing_token + 1, next_attempt_at = clock_timestamp() + p_delay, error = p_error,
            attempts = x.attempts - CASE WHEN t.status = 'running' THEN 1 ELSE 0 END
        WHERE x.pipeline = p_pipeline AND x.task_id = p_task_id;
    RETURN QUERY SELECT 'waiting';
END $$;
