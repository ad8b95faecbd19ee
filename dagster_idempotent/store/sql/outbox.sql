-- Statements of the outbox. No lock spans a delivery.

-- name: list_messages
SELECT *, sender_expires_at - clock_timestamp() AS sender_expires_in FROM dagster_idempotent.outbox
WHERE pipeline = %(pipeline)s AND task_id = %(task_id)s ORDER BY channel

-- name: take_message
-- A message whose sender expired goes again only where the channel deduplicates; SKIP LOCKED stands in this claim only.
WITH free AS (
    SELECT o.pipeline, o.task_id, o.channel FROM dagster_idempotent.outbox o
    WHERE o.pipeline = %(pipeline)s AND o.task_id = %(task_id)s AND o.channel = %(channel)s
      AND (o.state = 'ready' OR o.state = 'sending' AND o.sender = %(sender)s)
    FOR UPDATE SKIP LOCKED
)
UPDATE dagster_idempotent.outbox o SET state = 'sending', sender = %(sender)s,
    sender_expires_at = clock_timestamp() + p.sender_lease,
    attempts = o.attempts + CASE WHEN o.state = 'sending' THEN 0 ELSE 1 END
FROM free, dagster_idempotent.pipelines p
WHERE (o.pipeline, o.task_id, o.channel) = (free.pipeline, free.task_id, free.channel) AND p.pipeline = o.pipeline
RETURNING o.*, o.sender_expires_at - clock_timestamp() AS sender_expires_in, p.send_window

-- name: expire_message
-- The relay that held it is gone: ready under the same key where the channel deduplicates, in doubt otherwise.
UPDATE dagster_idempotent.outbox o SET error = 'the relay stopped before it wrote an outcome',
    state = CASE WHEN NOT o.deduplicates THEN 'in_doubt' WHEN o.attempts >= p.max_attempts THEN 'dead' ELSE 'ready' END
FROM dagster_idempotent.pipelines p
WHERE p.pipeline = o.pipeline
  AND o.pipeline = %(pipeline)s AND o.task_id = %(task_id)s AND o.channel = %(channel)s
  AND o.state = 'sending' AND o.sender_expires_at <= clock_timestamp()
RETURNING o.state

-- name: record_delivery
UPDATE dagster_idempotent.outbox SET state = 'delivered', delivered_at = clock_timestamp(), receipt = %(receipt)s,
    error = NULL
WHERE pipeline = %(pipeline)s AND task_id = %(task_id)s AND channel = %(channel)s
  AND state IN ('sending', 'in_doubt') AND sender = %(sender)s
RETURNING state

-- name: record_undelivered
-- Attempts that are spent make it dead: nothing tries for ever.
UPDATE dagster_idempotent.outbox o SET error = %(error)s,
    state = CASE WHEN %(state)s = 'ready' AND o.attempts >= p.max_attempts THEN 'dead' ELSE %(state)s END
FROM dagster_idempotent.pipelines p
WHERE p.pipeline = o.pipeline
  AND o.pipeline = %(pipeline)s AND o.task_id = %(task_id)s AND o.channel = %(channel)s
  AND o.state = 'sending' AND o.sender = %(sender)s
RETURNING o.state
