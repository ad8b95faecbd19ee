-- Statements of the lease. Every guarded write states owner and token in its WHERE; no row means that it lost.

-- name: claim
SELECT verdict, retry_after, (task).* FROM dagster_idempotent.claim_v1(
    %(pipeline)s, %(task_id)s, %(owner)s, %(finished_owner)s, %(finished_token)s, %(backoff)s)

-- name: renew
UPDATE dagster_idempotent.tasks t SET lease_expires_at = clock_timestamp() + p.lease
FROM dagster_idempotent.pipelines p
WHERE p.pipeline = t.pipeline AND t.pipeline = %(pipeline)s AND t.task_id = %(task_id)s
  AND t.owner = %(owner)s AND t.fencing_token = %(token)s AND t.status IN ('running', 'failed')
RETURNING t.lease_expires_at

-- name: fail
-- The lease stays: sibling ops and the op's own retry go on under the same token. Dead is never decided here.
UPDATE dagster_idempotent.tasks SET status = 'failed', error = %(error)s,
    next_attempt_at = clock_timestamp() + %(delay)s, final = final OR %(final)s
WHERE pipeline = %(pipeline)s AND task_id = %(task_id)s
  AND owner = %(owner)s AND fencing_token = %(token)s AND status IN ('running', 'failed')
RETURNING next_attempt_at

-- name: hold
SELECT verdict, (task).* FROM dagster_idempotent.hold_v1(
    %(pipeline)s, %(task_id)s, %(owner)s, %(token)s, %(held_for)s, %(error)s)

-- name: wait
SELECT verdict FROM dagster_idempotent.wait_v1(
    %(pipeline)s, %(task_id)s, %(owner)s, %(token)s, %(delay)s, %(error)s)

-- name: release_held
SELECT verdict FROM dagster_idempotent.release_held_v1(%(pipeline)s, %(task_id)s)

-- name: sweep
SELECT verdict FROM dagster_idempotent.sweep_v1(%(pipeline)s, %(task_id)s, %(finished_owner)s, %(finished_token)s)

-- name: complete
-- The accepted output and its outbox rows in one statement: both are committed, or neither (R23).
WITH done AS (
    UPDATE dagster_idempotent.tasks SET status = 'completed', output = %(output)s, output_sha256 = %(sha256)s,
        completed_by = %(completed_by)s, completed_at = clock_timestamp(), error = NULL, next_attempt_at = NULL
    WHERE pipeline = %(pipeline)s AND task_id = %(task_id)s
      AND owner = %(owner)s AND fencing_token = %(token)s AND status IN ('running', 'failed')
    RETURNING *
), messages AS (
    INSERT INTO dagster_idempotent.outbox (pipeline, task_id, channel, payload, state, deduplicates, position)
    SELECT done.pipeline, done.task_id, m.channel, done.output,
        CASE WHEN dagster_idempotent.gate_open_v1(done.pipeline, done.task_id, 'publish')
            THEN 'ready' ELSE 'waiting' END,
        m.deduplicates, m.position
    FROM done, unnest(%(channels)s::text[], %(deduplicates)s::boolean[]) WITH ORDINALITY
        AS m (channel, deduplicates, position)
)
SELECT * FROM done
