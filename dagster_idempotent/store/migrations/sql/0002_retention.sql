-- One bounded batch of retention: bodies go, rows, hashes and keys stay (R9). It takes no lock that allocation needs, and
-- leaves a task that somebody else holds to the next time. (p_after_*) is where the batch before ended.
CREATE FUNCTION dagster_idempotent.prune_v1(
    p_pipeline text, p_before timestamptz, p_after_at timestamptz, p_after_task text, p_limit integer,
    p_actor text, p_reason text)
RETURNS TABLE (seen bigint, tasks bigint, bodies bigint, bytes bigint, last_at timestamptz, last_task text)
LANGUAGE plpgsql AS $$
DECLARE
    found_ids text[];
    ids text[];
    counted bigint;
    size bigint;
BEGIN
    SELECT array_agg(c.task_id ORDER BY c.ended, c.task_id), max(c.ended) INTO found_ids, last_at FROM (
        SELECT t.task_id, coalesce(t.completed_at, t.created_at) AS ended FROM dagster_idempotent.tasks t
        WHERE t.pipeline = p_pipeline AND t.status IN ('completed', 'discarded') AND t.pruned_at IS NULL
          AND coalesce(t.completed_at, t.created_at) < p_before
          AND (p_after_at IS NULL OR (coalesce(t.completed_at, t.created_at), t.task_id) > (p_after_at, p_after_task))
        ORDER BY coalesce(t.completed_at, t.created_at), t.task_id LIMIT p_limit
        FOR NO KEY UPDATE SKIP LOCKED) c;
    seen := coalesce(cardinality(found_ids), 0);
    last_task := found_ids[cardinality(found_ids)];
    -- Decided in a fresh snapshot, under the locks.
    SELECT array_agg(t.task_id) INTO ids FROM dagster_idempotent.tasks t
        WHERE t.pipeline = p_pipeline AND t.task_id = ANY (found_ids)
          AND NOT EXISTS (SELECT FROM dagster_idempotent.submissions s WHERE s.pipeline = p_pipeline
              AND s.task_id = t.task_id AND s.state IN ('intended', 'in_doubt', 'accepted'))
          AND NOT EXISTS (SELECT FROM dagster_idempotent.outbox o WHERE o.pipeline = p_pipeline
              AND o.task_id = t.task_id AND o.state <> 'delivered')
          AND NOT EXISTS (SELECT FROM dagster_idempotent.audit a WHERE t.status = 'discarded'
              AND a.pipeline = p_pipeline AND a.task_id = t.task_id AND a.action = 'discard' AND a.at >= p_before);
    tasks := coalesce(cardinality(ids), 0);
    bodies := 0;
    bytes := 0;
    IF tasks > 0 THEN
        SELECT coalesce(sum(octet_length(t.output::text)), 0), count(t.output) INTO size, counted
            FROM dagster_idempotent.tasks t WHERE t.pipeline = p_pipeline AND t.task_id = ANY (ids);
        bodies := bodies + counted;
        bytes := bytes + size;
        UPDATE dagster_idempotent.tasks t SET output = NULL, pruned_at = clock_timestamp()
            WHERE t.pipeline = p_pipeline AND t.task_id = ANY (ids);
        SELECT coalesce(sum(a.size), 0), count(*) INTO size, counted FROM dagster_idempotent.artifacts a
            WHERE a.pipeline = p_pipeline AND a.task_id = ANY (ids) AND a.body IS NOT NULL;
        bodies := bodies + counted;
        bytes := bytes + size;
        UPDATE dagster_idempotent.artifacts a SET body = NULL, pruned_at = clock_timestamp()
            WHERE a.pipeline = p_pipeline AND a.task_id = ANY (ids) AND a.body IS NOT NULL;
        -- Only rows with an answer are marked: a late one must still find a row that takes its body.
        SELECT coalesce(sum(octet_length(s.response_body)), 0), count(*) INTO size, counted
            FROM dagster_idempotent.submissions s
            WHERE s.pipeline = p_pipeline AND s.task_id = ANY (ids) AND s.response_body IS NOT NULL;
        bodies := bodies + counted;
        bytes := bytes + size;
        UPDATE dagster_idempotent.submissions s SET response = NULL, response_body = NULL, pruned_at = clock_timestamp()
            WHERE s.pipeline = p_pipeline AND s.task_id = ANY (ids) AND s.response_body IS NOT NULL;
        SELECT coalesce(sum(octet_length(o.payload::text)), 0), count(o.payload) INTO size, counted
            FROM dagster_idempotent.outbox o WHERE o.pipeline = p_pipeline AND o.task_id = ANY (ids);
        bodies := bodies + counted;
        bytes := bytes + size;
        UPDATE dagster_idempotent.outbox o SET payload = NULL, pruned_at = clock_timestamp()
            WHERE o.pipeline = p_pipeline AND o.task_id = ANY (ids) AND o.payload IS NOT NULL;
        SELECT coalesce(sum(octet_length(e.result::text)), 0), count(e.result) INTO size, counted
            FROM dagster_idempotent.effects e WHERE e.pipeline = p_pipeline AND e.task_id = ANY (ids);
        bodies := bodies + counted;
        bytes := bytes + size;
        UPDATE dagster_idempotent.effects e SET result = NULL, pruned_at = clock_timestamp(),
                result_sha256 = encode(sha256(convert_to(e.result::text, 'UTF8')), 'hex')
            WHERE e.pipeline = p_pipeline AND e.task_id = ANY (ids) AND e.result IS NOT NULL;
        PERFORM dagster_idempotent.note_v1(p_actor, 'prune', p_reason, p_pipeline, NULL,
            jsonb_build_object('before', p_before),
            jsonb_build_object('tasks', tasks, 'bodies', bodies, 'bytes', bytes, 'first', found_ids[1], 'last', last_task));
    END IF;
    RETURN NEXT;
END $$;
