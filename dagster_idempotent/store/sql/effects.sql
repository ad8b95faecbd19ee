-- Statements of effects: a record that commits with the user's own writes, or not at all.

-- name: get_effect
SELECT * FROM dagster_idempotent.effects
WHERE pipeline = %(pipeline)s AND task_id = %(task_id)s AND effect = %(effect)s

-- name: begin_effect
-- Waits for a rival's uncommitted record, and then is the second.
INSERT INTO dagster_idempotent.effects
    (pipeline, task_id, effect, attempt, fingerprint, fingerprint_version, fingerprint_fields)
VALUES (%(pipeline)s, %(task_id)s, %(effect)s, %(attempt)s, %(fingerprint)s, %(fingerprint_version)s,
    %(fingerprint_fields)s)
ON CONFLICT DO NOTHING
RETURNING effect

-- name: finish_effect
-- The fence is read last, right before COMMIT: a takeover waits for it or makes this match nothing. Earlier it would
-- keep the lease's own renewal waiting for as long as the user's statements take.
UPDATE dagster_idempotent.effects e SET result = %(result)s, finished_at = clock_timestamp()
WHERE e.pipeline = %(pipeline)s AND e.task_id = %(task_id)s AND e.effect = %(effect)s AND e.attempt = %(attempt)s
  AND (%(owner)s::text IS NULL OR EXISTS (SELECT FROM dagster_idempotent.tasks t
        WHERE t.pipeline = e.pipeline AND t.task_id = e.task_id AND t.owner = %(owner)s
          AND t.fencing_token = %(token)s AND t.status IN ('running', 'failed') FOR SHARE))
RETURNING e.effect
