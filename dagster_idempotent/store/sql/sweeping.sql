-- What a sweep looks at. Plain reads, bounded, on the partial index of unfinished tasks; each finding is decided again
-- under its own lock, one task at a time.

-- name: spent_tasks
-- Out of attempts: dead once nobody works on them. A failed one's owner may be over before its lease is.
SELECT t.task_id, t.owner, t.fencing_token, t.lease_expires_at > statement_timestamp() AS leased
FROM dagster_idempotent.tasks t JOIN dagster_idempotent.pipelines p ON p.pipeline = t.pipeline
WHERE t.pipeline = %(pipeline)s AND t.status IN ('pending', 'running', 'failed')
  AND t.task_id > %(after)s AND (t.final OR t.attempts >= p.max_attempts)
  AND (t.status <> 'running' OR t.lease_expires_at <= statement_timestamp())
ORDER BY t.task_id LIMIT %(limit)s

-- name: resolvable_holds
-- Held tasks with nothing left to wait for. A frozen pipeline keeps them.
SELECT t.task_id, NULL::text AS owner, t.fencing_token, false AS leased
FROM dagster_idempotent.tasks t JOIN dagster_idempotent.pipelines p ON p.pipeline = t.pipeline
WHERE t.pipeline = %(pipeline)s AND t.status = 'held' AND t.held_for <> 'budget' AND p.frozen_reason IS NULL
  AND t.task_id > %(after)s AND dagster_idempotent.resolved_v1(t)
ORDER BY t.task_id LIMIT %(limit)s

-- name: doubtful_tasks
-- Tasks with a call that only its provider can settle, its sender being gone.
SELECT DISTINCT s.task_id FROM dagster_idempotent.submissions s
WHERE s.pipeline = %(pipeline)s AND s.state IN ('intended', 'in_doubt') AND s.task_id > %(after)s
  AND s.sender_expires_at <= statement_timestamp()
ORDER BY s.task_id LIMIT %(limit)s

-- name: due_tasks
-- Tasks that an automatic attempt may be started for. A killed run wrote no time for the next attempt: the wait counts
-- from the end of its lease. A task that was never claimed gets a lease's length for its own run to do so.
SELECT t.task_id, t.status, t.owner, t.fencing_token, t.attempts, t.launch, t.error,
    t.subject_id, t.scheduled_at, t.version, t.allocation_key,
    t.status = 'failed' AND t.lease_expires_at > statement_timestamp() AS leased
FROM dagster_idempotent.tasks t JOIN dagster_idempotent.pipelines p ON p.pipeline = t.pipeline
WHERE t.pipeline = %(pipeline)s AND t.status IN ('pending', 'running', 'failed') AND p.frozen_reason IS NULL
  AND t.task_id > %(after)s AND NOT t.final AND t.attempts < p.max_attempts
  AND statement_timestamp() >= CASE t.status
    WHEN 'pending' THEN CASE WHEN t.fencing_token = 0 THEN t.created_at + p.lease
                             ELSE coalesce(t.next_attempt_at, t.created_at) END
    WHEN 'failed' THEN coalesce(t.next_attempt_at, t.created_at)
    ELSE t.lease_expires_at + dagster_idempotent.backoff_v1(t.attempts, p.backoff_base, 2, p.backoff_cap, 0) END
ORDER BY t.task_id LIMIT %(limit)s

-- name: sweep_task
SELECT verdict FROM dagster_idempotent.sweep_task_v1(
    %(pipeline)s, %(task_id)s, %(finished_owner)s, %(finished_token)s)
