-- What `verify --against-provider` asks about, in pages. Each page is one read-only statement: no transaction is open
-- while a provider is asked.

-- name: sends
-- Every send to the given providers; imported ones carry no key that a provider knows.
SELECT s.pipeline, s.task_id, s.call_key, s.submission, s.state, s.late, s.provider, s.idempotency_key, s.remote_ref,
    s.cost, s.currency, s.cost_basis
FROM dagster_idempotent.submissions s
WHERE s.provider = ANY (%(providers)s) AND s.owner <> 'legacy import'
  AND (%(pipeline)s::text IS NULL OR s.pipeline = %(pipeline)s)
  AND (s.pipeline, s.task_id, s.call_key, s.submission) > (%(a)s, %(b)s, %(c)s, %(d)s)
ORDER BY s.pipeline, s.task_id, s.call_key, s.submission LIMIT %(limit)s

-- name: calls_never_made
-- Calls that other tasks of the pipeline made and an unfinished one has no record of: after a failover that lost the
-- latest commits their charge stands at the provider alone. Of a pipeline, at most that many names of calls.
SELECT l.ledger_id, t.pipeline, t.task_id, coalesce(t.run_id, t.task_id) AS identity, k.call_key, k.provider
FROM dagster_idempotent.tasks t CROSS JOIN dagster_idempotent.ledger l
CROSS JOIN LATERAL (SELECT DISTINCT s.call_key, s.provider FROM dagster_idempotent.submissions s
    WHERE s.pipeline = t.pipeline AND s.provider = ANY (%(providers)s) AND s.owner <> 'legacy import'
    ORDER BY s.call_key, s.provider LIMIT %(names)s) k
WHERE t.status IN ('pending', 'running', 'failed', 'held', 'dead')
  AND (%(pipeline)s::text IS NULL OR t.pipeline = %(pipeline)s)
  AND (t.pipeline, t.task_id, k.call_key, k.provider) > (%(a)s, %(b)s, %(c)s, %(d)s)
  AND NOT EXISTS (SELECT FROM dagster_idempotent.submissions s WHERE s.pipeline = t.pipeline
    AND s.task_id = t.task_id AND s.call_key = k.call_key)
ORDER BY t.pipeline, t.task_id, k.call_key, k.provider LIMIT %(limit)s

-- name: sends_by_provider
SELECT s.provider, count(*) AS sends, count(DISTINCT (s.pipeline, s.task_id, s.call_key)) AS calls
FROM dagster_idempotent.submissions s
WHERE s.owner <> 'legacy import' AND (%(pipeline)s::text IS NULL OR s.pipeline = %(pipeline)s)
GROUP BY s.provider ORDER BY s.provider
