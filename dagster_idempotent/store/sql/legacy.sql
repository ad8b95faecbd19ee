-- Statements of the legacy import.

-- name: inspect_records
SELECT i.verdict, i.task_ids, i.sequence FROM unnest(%(tasks)s::jsonb[]) WITH ORDINALITY AS r (task, number)
CROSS JOIN LATERAL dagster_idempotent.inspect_record_v1(r.task) i ORDER BY r.number

-- name: import_record
SELECT verdict, task_ids FROM dagster_idempotent.import_record_v1(
    %(task)s, %(output)s, %(bodies)s, %(actor)s, %(reason)s)

-- name: map_task
SELECT verdict, task_ids FROM dagster_idempotent.map_task_v1(
    %(pipeline)s, %(task_id)s, %(allocation_key)s, %(run_id)s, %(subject)s, %(scheduled_at)s, %(version)s, %(actor)s,
    %(reason)s)

-- name: read_only
-- One snapshot for all that follows, and a wall against any write.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY

-- name: find_import
-- Everything that an imported record left in the ledger, to be set against the record.
SELECT t.task_id, t.status, t.completed_at, t.output_sha256,
    encode(sha256(convert_to(t.output::text, 'UTF8')), 'hex') AS output_now,
    (SELECT coalesce(jsonb_object_agg(c.currency, c.total), '{}') FROM (
        SELECT b.currency, sum(b.amount)::text AS total
        FROM dagster_idempotent.costs b
        JOIN dagster_idempotent.submissions s USING (pipeline, task_id, call_key, submission)
        WHERE b.pipeline = t.pipeline AND b.task_id = t.task_id AND b.kind IN ('settled', 'adjusted')
          AND s.owner = 'legacy import'
        GROUP BY b.currency) c) AS costs,
    (SELECT coalesce(jsonb_object_agg(c.currency, c.total), '{}') FROM (
        SELECT b.currency, sum(b.amount)::text AS total FROM dagster_idempotent.costs b
        WHERE b.pipeline = t.pipeline AND b.task_id = t.task_id AND b.kind IN ('settled', 'adjusted')
        GROUP BY b.currency HAVING sum(b.amount) <> 0) c) AS booked,
    (SELECT coalesce(jsonb_object_agg(b.currency, b.settled::text), '{}') FROM dagster_idempotent.budgets b
        WHERE b.pipeline = t.pipeline AND b.scope = 'task:' || t.task_id AND b.settled <> 0) AS counters,
    (SELECT coalesce(jsonb_agg(s.remote_ref ORDER BY s.call_key COLLATE "C", s.submission), '[]')
        FROM dagster_idempotent.submissions s
        WHERE s.pipeline = t.pipeline AND s.task_id = t.task_id AND s.remote_ref IS NOT NULL
          AND s.owner = 'legacy import') AS refs,
    (SELECT coalesce(jsonb_agg(coalesce(encode(sha256(s.response_body), 'hex'), s.response_sha256) ORDER BY s.call_key COLLATE "C", s.submission),
        '[]') FROM dagster_idempotent.submissions s
        WHERE s.pipeline = t.pipeline AND s.task_id = t.task_id AND s.response_sha256 IS NOT NULL
          AND s.owner = 'legacy import') AS answers,
    (SELECT coalesce(jsonb_agg(jsonb_build_array(a.actor, a.gate, a.created_at) ORDER BY a.id), '[]')
        FROM dagster_idempotent.approvals a
        WHERE a.pipeline = t.pipeline AND a.task_id = t.task_id) AS approvals,
    (SELECT coalesce(jsonb_object_agg(a.name, CASE WHEN a.body IS NULL THEN a.sha256
            ELSE encode(sha256(a.body), 'hex') END), '{}') FROM dagster_idempotent.artifacts a
        WHERE a.pipeline = t.pipeline AND a.task_id = t.task_id AND a.name LIKE 'legacy/%%') AS artifacts
FROM dagster_idempotent.tasks t
WHERE t.pipeline = %(pipeline)s AND t.import_metadata IS NOT NULL
  AND t.import_metadata ->> 'record_sha256' = %(record_sha256)s
  AND t.import_metadata ->> 'collection' = %(collection)s

-- name: import_totals
SELECT count(*) AS tasks,
    (SELECT count(*) FROM dagster_idempotent.submissions s JOIN dagster_idempotent.tasks t USING (pipeline, task_id)
        WHERE pipeline = %(pipeline)s AND t.import_metadata ->> 'collection' = %(collection)s
          AND s.remote_ref IS NOT NULL AND s.owner = 'legacy import') AS references,
    (SELECT coalesce(jsonb_object_agg(x.currency, x.total), '{}') FROM (
        SELECT c.currency, sum(c.amount)::text AS total
        FROM dagster_idempotent.costs c JOIN dagster_idempotent.tasks t USING (pipeline, task_id)
        JOIN dagster_idempotent.submissions s USING (pipeline, task_id, call_key, submission)
        WHERE pipeline = %(pipeline)s AND t.import_metadata ->> 'collection' = %(collection)s
          AND c.kind IN ('settled', 'adjusted') AND s.owner = 'legacy import'
        GROUP BY c.currency) x) AS costs,
    (SELECT count(*) FROM dagster_idempotent.artifacts a JOIN dagster_idempotent.tasks t USING (pipeline, task_id)
        WHERE pipeline = %(pipeline)s AND t.import_metadata ->> 'collection' = %(collection)s
          AND a.uri LIKE 'legacy:%%') AS files
FROM dagster_idempotent.tasks
WHERE pipeline = %(pipeline)s AND import_metadata ->> 'collection' = %(collection)s
