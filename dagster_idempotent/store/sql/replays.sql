-- Statements that count replays. In the order of the key: ops of one task count at the same time.

-- name: count_replays
INSERT INTO dagster_idempotent.replays AS r (pipeline, task_id, call_key, submission, times)
SELECT %(pipeline)s, %(task_id)s, x.call_key, x.submission, count(*)
FROM unnest(%(call_keys)s::text[], %(submissions)s::integer[]) AS x (call_key, submission)
GROUP BY x.call_key, x.submission ORDER BY x.call_key, x.submission
ON CONFLICT (pipeline, task_id, call_key, submission)
DO UPDATE SET times = r.times + excluded.times, last_at = excluded.last_at

-- name: count_task_replayed
-- The accepted output stood in for a whole run: every answer that it rests on would have been paid for again.
INSERT INTO dagster_idempotent.replays AS r (pipeline, task_id, call_key, submission, times)
SELECT s.pipeline, s.task_id, s.call_key, s.submission, 1 FROM dagster_idempotent.submissions s
WHERE s.pipeline = %(pipeline)s AND s.task_id = %(task_id)s AND s.state = 'succeeded'
ORDER BY s.call_key, s.submission
ON CONFLICT (pipeline, task_id, call_key, submission)
DO UPDATE SET times = r.times + excluded.times, last_at = excluded.last_at

-- name: total_replays
SELECT coalesce(sum(times), 0)::bigint AS times FROM dagster_idempotent.replays
