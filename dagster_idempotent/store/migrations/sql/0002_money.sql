-- Limits that an operator sets for one counter; the declared ones hold for tasks that are allocated later.

-- Verdicts: set, missing (no such pipeline, period or task).
CREATE FUNCTION dagster_idempotent.set_limit_v1(
    p_pipeline text, p_scope text, p_currency text, p_limit numeric, p_actor text, p_reason text)
RETURNS TABLE (verdict text, before jsonb, after jsonb) LANGUAGE plpgsql AS $$
DECLARE
    b dagster_idempotent.budgets;
    seen jsonb;
BEGIN
    IF NOT (CASE WHEN p_scope = 'pipeline'
            THEN EXISTS (SELECT FROM dagster_idempotent.pipelines p WHERE p.pipeline = p_pipeline)
            WHEN p_scope LIKE 'period:%' THEN EXISTS (SELECT FROM dagster_idempotent.tasks t
                WHERE t.pipeline = p_pipeline AND t.period_id = substr(p_scope, 8))
            ELSE EXISTS (SELECT FROM dagster_idempotent.tasks t
                WHERE t.pipeline = p_pipeline AND t.task_id = substr(p_scope, 6)) END) THEN
        RETURN QUERY SELECT 'missing', NULL::jsonb, NULL::jsonb;
        RETURN;
    END IF;
    INSERT INTO dagster_idempotent.budgets (pipeline, scope, currency) VALUES (p_pipeline, p_scope, p_currency)
        ON CONFLICT DO NOTHING;
    SELECT * INTO b FROM dagster_idempotent.budgets x
        WHERE (x.pipeline, x.scope, x.currency) = (p_pipeline, p_scope, p_currency) FOR NO KEY UPDATE;
    seen := to_jsonb(b);
    UPDATE dagster_idempotent.budgets x SET "limit" = p_limit
        WHERE (x.pipeline, x.scope, x.currency) = (p_pipeline, p_scope, p_currency) RETURNING * INTO b;
    PERFORM dagster_idempotent.note_v1(p_actor, 'set_limit', p_reason, p_pipeline,
        CASE WHEN p_scope LIKE 'task:%' THEN substr(p_scope, 6) END, seen, to_jsonb(b));
    RETURN QUERY SELECT 'set', seen, to_jsonb(b);
END $$;
