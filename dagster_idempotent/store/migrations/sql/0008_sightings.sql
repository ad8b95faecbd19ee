-- What a look-up showed of a send beside its answer; it settles nothing, and people are shown it.
-- confirmed: after a send under the same key was repeated, the provider knows one request and no other.
-- charged_again: it knows another one, which may have been charged too.
-- possible: a look-up that is not exact shows a request that may be this one; only a person can tell.
-- acknowledged: a named person has seen to what was charged again under this reference; 'late answer' stands for a paid
-- answer that came beside another one.
CREATE TABLE dagster_idempotent.sightings (
    pipeline    text        NOT NULL,
    task_id     text        NOT NULL,
    call_key    text        NOT NULL,
    submission  integer     NOT NULL,
    kind        text        NOT NULL CHECK (kind IN ('confirmed', 'charged_again', 'possible', 'acknowledged')),
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

-- What was paid for more than once and nobody has seen to yet: found under one key, or come beside another answer.
CREATE VIEW dagster_idempotent.charged_twice AS
    SELECT x.pipeline, x.task_id, x.call_key, x.submission, x.remote_ref, x.found, x.at FROM (
        SELECT s.pipeline, s.task_id, s.call_key, s.submission, s.remote_ref, s.seen_at AS at,
            'the provider shows ' || s.remote_ref || ' beside the answer' AS found
        FROM dagster_idempotent.sightings s WHERE s.kind = 'charged_again'
        UNION ALL
        SELECT s.pipeline, s.task_id, s.call_key, s.submission, 'late answer', s.intended_at,
            'a paid answer came beside another one' || coalesce(', cost ' || s.cost || ' ' || s.currency, '')
        FROM dagster_idempotent.submissions s WHERE s.late) x
    WHERE NOT EXISTS (SELECT FROM dagster_idempotent.sightings a WHERE a.kind = 'acknowledged'
        AND (a.pipeline, a.task_id, a.call_key, a.submission, a.remote_ref)
            = (x.pipeline, x.task_id, x.call_key, x.submission, x.remote_ref));

-- A person has seen to the double charges of a call: a refund, or nothing more to be had. Costs stay as they are booked.
-- Verdicts: acknowledged, nothing (nothing is red), missing (no such task).
CREATE FUNCTION dagster_idempotent.acknowledge_charges_v1(
    p_pipeline text, p_task_id text, p_call_key text, p_actor text, p_reason text)
RETURNS TABLE (verdict text, before jsonb, after jsonb) LANGUAGE plpgsql AS $$
DECLARE
    red jsonb;
BEGIN
    PERFORM FROM dagster_idempotent.tasks t
        WHERE t.pipeline = p_pipeline AND t.task_id = p_task_id FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'missing', NULL::jsonb, NULL::jsonb;
        RETURN;
    END IF;
    SELECT jsonb_agg(jsonb_build_object('submission', c.submission, 'remote_ref', c.remote_ref, 'found', c.found)
            ORDER BY c.submission, c.remote_ref) INTO red
        FROM dagster_idempotent.charged_twice c
        WHERE (c.pipeline, c.task_id, c.call_key) = (p_pipeline, p_task_id, p_call_key);
    IF red IS NULL THEN
        RETURN QUERY SELECT 'nothing', NULL::jsonb, NULL::jsonb;
        RETURN;
    END IF;
    INSERT INTO dagster_idempotent.sightings (pipeline, task_id, call_key, submission, kind, remote_ref, described)
        SELECT c.pipeline, c.task_id, c.call_key, c.submission, 'acknowledged', c.remote_ref,
            'seen to by ' || p_actor || ': ' || p_reason
        FROM dagster_idempotent.charged_twice c
        WHERE (c.pipeline, c.task_id, c.call_key) = (p_pipeline, p_task_id, p_call_key);
    PERFORM dagster_idempotent.note_v1(p_actor, 'acknowledge', p_reason, p_pipeline, p_task_id,
        jsonb_build_object('call_key', p_call_key, 'charged_twice', red),
        jsonb_build_object('call_key', p_call_key, 'charged_twice', '[]'::jsonb));
    RETURN QUERY SELECT 'acknowledged', jsonb_build_object('charged_twice', red),
        jsonb_build_object('charged_twice', '[]'::jsonb);
END $$;
