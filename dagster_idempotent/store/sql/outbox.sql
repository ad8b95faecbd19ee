-- Statements of the outbox. No lock spans a delivery.

-- name: list_messages
SELECT o.*, o.sender_expires_at - clock_timestamp() AS sender_expires_in, t.launch ->> 'partition_key' AS partition_key
FROM dagster_idempotent.outbox o
JOIN dagster_idempotent.tasks t ON t.pipeline = o.pipeline AND t.task_id = o.task_id
WHERE o.pipeline = %(pipeline)s AND o.task_id = %(task_id)s ORDER BY o.position, o.channel

-- name: take_message
-- One named message, whatever its backoff: somebody asked for it. SKIP LOCKED stands in the claiming statements only.
WITH free AS (
    SELECT o.pipeline, o.task_id, o.channel FROM dagster_idempotent.outbox o
    WHERE o.pipeline = %(pipeline)s AND o.task_id = %(task_id)s AND o.channel = %(channel)s
      AND (o.state = 'ready' OR o.state = 'sending' AND o.sender = %(sender)s)
      AND NOT EXISTS (SELECT FROM dagster_idempotent.outbox e
        WHERE e.pipeline = o.pipeline AND e.task_id = o.task_id AND e.state IN ('ready', 'sending')
          AND (e.position, e.channel) < (o.position, o.channel))
    FOR UPDATE SKIP LOCKED
)
UPDATE dagster_idempotent.outbox o SET state = 'sending', sender = %(sender)s,
    sender_expires_at = clock_timestamp() + p.sender_lease,
    attempts = o.attempts + CASE WHEN o.state = 'sending' THEN 0 ELSE 1 END
FROM free, dagster_idempotent.pipelines p, dagster_idempotent.tasks t
WHERE (o.pipeline, o.task_id, o.channel) = (free.pipeline, free.task_id, free.channel) AND p.pipeline = o.pipeline
  AND t.pipeline = free.pipeline AND t.task_id = free.task_id
RETURNING o.*, o.sender_expires_at - clock_timestamp() AS sender_expires_in, p.send_window, p.sender_lease,
    t.launch ->> 'partition_key' AS partition_key

-- name: take_due_message
-- The message that has been due longest in one channel, or the one that this sender took when the reply got lost.
-- No cursor: what committed late is due as anything else. An earlier message of the same task goes first.
WITH mine AS (
    SELECT o.pipeline, o.task_id, o.channel FROM dagster_idempotent.outbox o
    WHERE o.sender = %(sender)s AND o.state = 'sending' LIMIT 1
), free AS (
    SELECT o.pipeline, o.task_id, o.channel FROM dagster_idempotent.outbox o
    WHERE o.pipeline = %(pipeline)s AND o.channel = %(channel)s AND o.state = 'ready'
      AND coalesce(o.next_attempt_at, o.created_at) <= statement_timestamp()
      AND NOT EXISTS (SELECT FROM mine)
      AND NOT EXISTS (SELECT FROM dagster_idempotent.outbox e
        WHERE e.pipeline = o.pipeline AND e.task_id = o.task_id AND e.state IN ('ready', 'sending')
          AND (e.position, e.channel) < (o.position, o.channel))
    ORDER BY coalesce(o.next_attempt_at, o.created_at) LIMIT 1
    FOR UPDATE OF o SKIP LOCKED
), chosen AS (
    SELECT * FROM mine UNION ALL SELECT * FROM free
)
UPDATE dagster_idempotent.outbox o SET state = 'sending', sender = %(sender)s,
    sender_expires_at = clock_timestamp() + p.sender_lease,
    attempts = o.attempts + CASE WHEN o.state = 'sending' THEN 0 ELSE 1 END
FROM chosen, dagster_idempotent.pipelines p, dagster_idempotent.tasks t
WHERE (o.pipeline, o.task_id, o.channel) = (chosen.pipeline, chosen.task_id, chosen.channel) AND p.pipeline = o.pipeline
  AND t.pipeline = chosen.pipeline AND t.task_id = chosen.task_id
RETURNING o.*, o.sender_expires_at - clock_timestamp() AS sender_expires_in, p.send_window, p.sender_lease,
    t.launch ->> 'partition_key' AS partition_key

-- name: give_back
-- By the one process that could have delivered under these senders, and never began: nothing was tried.
UPDATE dagster_idempotent.outbox SET state = 'ready', attempts = attempts - 1
WHERE sender = %(sender)s AND state = 'sending'
RETURNING channel

-- name: renew_delivery
UPDATE dagster_idempotent.outbox o SET sender_expires_at = clock_timestamp() + p.sender_lease
FROM dagster_idempotent.pipelines p
WHERE o.sender = %(sender)s AND o.state = 'sending' AND p.pipeline = o.pipeline
RETURNING o.sender

-- name: expire_messages
-- The relay that held it is gone. Where the channel deduplicates it goes again under the same key, until its attempts
-- are spent; otherwise it is in doubt. Locked in one order, so that two relays do not wait for each other.
WITH expired AS (
    SELECT o.pipeline, o.task_id, o.channel FROM dagster_idempotent.outbox o
    WHERE o.pipeline = %(pipeline)s AND (%(task_id)s::text IS NULL OR o.task_id = %(task_id)s)
      AND o.state = 'sending' AND o.sender_expires_at <= clock_timestamp()
    ORDER BY o.task_id, o.channel FOR UPDATE
)
UPDATE dagster_idempotent.outbox o SET
    state = CASE WHEN NOT o.deduplicates THEN 'in_doubt' WHEN o.attempts >= %(max_attempts)s THEN 'dead' ELSE 'ready' END,
    next_attempt_at = clock_timestamp()
        + dagster_idempotent.backoff_v1(o.attempts, %(base)s, %(factor)s, %(cap)s, %(jitter)s),
    error = 'the relay stopped before it wrote an outcome'
FROM expired WHERE (o.pipeline, o.task_id, o.channel) = (expired.pipeline, expired.task_id, expired.channel)
RETURNING o.task_id, o.channel, o.state

-- name: open_messages
-- Looked at by level: an approval that was given just as the task completed finds its messages here too.
UPDATE dagster_idempotent.outbox SET state = 'ready'
WHERE pipeline = %(pipeline)s AND (%(task_id)s::text IS NULL OR task_id = %(task_id)s) AND state = 'waiting'
  AND dagster_idempotent.gate_open_v1(pipeline, task_id, 'publish')
RETURNING task_id, channel

-- name: record_delivery
-- Also by a relay that was thought dead: it has the acknowledgement. Issued again, it finds what it wrote.
UPDATE dagster_idempotent.outbox SET state = 'delivered', receipt = %(receipt)s, error = NULL,
    delivered_at = coalesce(delivered_at, clock_timestamp())
WHERE pipeline = %(pipeline)s AND task_id = %(task_id)s AND channel = %(channel)s
  AND state IN ('sending', 'in_doubt', 'delivered') AND sender = %(sender)s
RETURNING state

-- name: record_undelivered
UPDATE dagster_idempotent.outbox SET state = %(state)s, error = %(error)s,
    attempts = attempts - CASE WHEN %(counts)s THEN 0 ELSE 1 END, next_attempt_at = clock_timestamp() + %(delay)s
WHERE pipeline = %(pipeline)s AND task_id = %(task_id)s AND channel = %(channel)s
  AND state = 'sending' AND sender = %(sender)s
RETURNING state
