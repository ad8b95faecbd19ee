-- Statements of the paid calls.

-- name: read_call
-- Everything that decides what a caller may do, in one snapshot; one row without a submission where there is none.
SELECT t.status, t.owner AS task_owner, t.fencing_token AS task_token, t.held_for, t.run_id,
    l.ledger_id, p.send_window, p.sender_lease, p.frozen_reason,
    s.submission, s.state, s.sender, s.sends, s.owner, s.provider, s.fingerprint, s.fingerprint_version,
    s.fingerprint_fields, s.idempotency_key, s.key_no, s.remote_ref, s.response, s.response_body, s.response_sha256,
    s.cost, s.currency, s.late, s.settled_by, s.error, s.intended_at, s.settled_at,
    s.sender_expires_at - clock_timestamp() AS sender_expires_in,
    s.sender_expires_at + s.settle_delay - clock_timestamp() AS settles_in,
    r.submission IS NOT NULL AS resend_allowed, a.uri AS response_uri, a.size AS response_size,
    s.sends > 1 AND s.state = 'succeeded' AND NOT EXISTS (SELECT FROM dagster_idempotent.sightings x
        WHERE (x.pipeline, x.task_id, x.call_key, x.submission) = (s.pipeline, s.task_id, s.call_key, s.submission)
          AND x.kind <> 'possible') AS unconfirmed
FROM dagster_idempotent.tasks t
JOIN dagster_idempotent.pipelines p ON p.pipeline = t.pipeline
CROSS JOIN dagster_idempotent.ledger l
LEFT JOIN dagster_idempotent.submissions s
    ON s.pipeline = t.pipeline AND s.task_id = t.task_id AND s.call_key = %(call_key)s
LEFT JOIN dagster_idempotent.resends r
    ON (r.pipeline, r.task_id, r.call_key, r.submission) = (s.pipeline, s.task_id, s.call_key, s.submission)
LEFT JOIN dagster_idempotent.artifacts a
    ON (a.pipeline, a.task_id, a.name) = (s.pipeline, s.task_id, s.response_artifact)
WHERE t.pipeline = %(pipeline)s AND t.task_id = %(task_id)s
ORDER BY s.submission

-- name: unsettled_calls
SELECT DISTINCT call_key, provider FROM dagster_idempotent.submissions
WHERE pipeline = %(pipeline)s AND task_id = %(task_id)s AND state IN ('intended', 'in_doubt')
ORDER BY call_key

-- name: settled_calls
SELECT call_key, submission, state, provider, remote_ref, cost, currency, settled_by, sends, late
FROM dagster_idempotent.submissions WHERE pipeline = %(pipeline)s AND task_id = %(task_id)s
ORDER BY call_key, submission

-- name: intend
SELECT verdict, (task).status, (task).owner AS task_owner, (task).fencing_token AS task_token,
    (submission).state, (submission).sends
FROM dagster_idempotent.intend_v1(%(intent)s, %(send_window)s, %(reserve)s, %(reserve_currency)s)

-- name: record_answer
SELECT submission, state FROM dagster_idempotent.record_answer_v1(%(answer)s, %(body)s)

-- name: keep_late_answer
SELECT submission, state FROM dagster_idempotent.keep_late_answer_v1(%(answer)s, %(body)s)

-- name: adopt_late_answer
-- A paid answer that once found another submission live, now that none is.
UPDATE dagster_idempotent.submissions SET late = false, settled_at = clock_timestamp(),
    state = CASE WHEN response_sha256 IS NULL THEN 'accepted' ELSE 'succeeded' END
WHERE pipeline = %(pipeline)s AND task_id = %(task_id)s AND call_key = %(call_key)s
  AND submission = %(submission)s AND late
RETURNING submission

-- name: end_job
SELECT submission FROM dagster_idempotent.end_job_v1(
    %(pipeline)s, %(task_id)s, %(call_key)s, %(submission)s, %(error)s, %(cost)s, %(currency)s)

-- name: record_refusal
SELECT submission, state FROM dagster_idempotent.record_refusal_v1(
    %(pipeline)s, %(task_id)s, %(call_key)s, %(submission)s, %(state)s, %(error)s, %(sender)s, %(seen_sends)s,
    %(remote_ref)s)

-- name: record_doubt
-- By its own sender, who gave up waiting.
UPDATE dagster_idempotent.submissions SET state = 'in_doubt', error = %(error)s,
    remote_ref = coalesce(%(remote_ref)s, remote_ref)
WHERE pipeline = %(pipeline)s AND task_id = %(task_id)s AND call_key = %(call_key)s AND submission = %(submission)s
  AND sender = %(sender)s AND state = 'intended'
RETURNING submission

-- name: mark_in_doubt
-- By a finder, once the sender's lease is over.
UPDATE dagster_idempotent.submissions SET state = 'in_doubt',
    error = 'the sender stopped renewing its lease before it wrote an outcome'
WHERE pipeline = %(pipeline)s AND task_id = %(task_id)s AND call_key = %(call_key)s AND submission = %(submission)s
  AND state = 'intended' AND sender_expires_at <= clock_timestamp()
RETURNING submission

-- name: claim_resend
SELECT verdict FROM dagster_idempotent.claim_resend_v1(
    %(pipeline)s, %(task_id)s, %(call_key)s, %(submission)s, %(fingerprint)s, %(seen_sends)s, %(sender)s, %(owner)s,
    %(token)s)

-- name: renew_senders
-- One statement for all sends of a process, whatever lease and task status have become.
UPDATE dagster_idempotent.submissions s SET sender_expires_at = clock_timestamp() + p.sender_lease
FROM dagster_idempotent.pipelines p
WHERE s.sender = ANY(%(senders)s) AND p.pipeline = s.pipeline
  AND (s.state = 'intended' OR s.state = 'in_doubt' AND s.sends > 1)
RETURNING s.sender
