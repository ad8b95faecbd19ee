-- Each statement lists what contradicts a rule of the ledger: `subject` names it, `found` says what is there. They are
-- run in one read-only snapshot and change nothing; on a sound ledger every one of them is empty.

-- name: artifact_hashes
SELECT a.pipeline || '/' || a.task_id || ' artifact ' || a.name AS subject,
    'hash ' || encode(sha256(a.body), 'hex') || ', recorded ' || a.sha256 AS found
FROM dagster_idempotent.artifacts a WHERE a.body IS NOT NULL AND encode(sha256(a.body), 'hex') <> a.sha256
ORDER BY 1

-- name: answer_hashes
SELECT s.pipeline || '/' || s.task_id || ' call ' || s.call_key || ' submission ' || s.submission AS subject,
    'hash ' || encode(sha256(s.response_body), 'hex') || ', recorded ' || s.response_sha256 AS found
FROM dagster_idempotent.submissions s
WHERE s.response_body IS NOT NULL AND encode(sha256(s.response_body), 'hex') IS DISTINCT FROM s.response_sha256
ORDER BY 1

-- name: output_hashes
SELECT t.pipeline || '/' || t.task_id AS subject,
    'hash ' || encode(sha256(convert_to(t.output::text, 'UTF8')), 'hex') || ', recorded ' || t.output_sha256 AS found
FROM dagster_idempotent.tasks t
WHERE t.output IS NOT NULL AND encode(sha256(convert_to(t.output::text, 'UTF8')), 'hex') IS DISTINCT FROM t.output_sha256
ORDER BY 1

-- name: announced_outputs
SELECT o.pipeline || '/' || o.task_id || ' message ' || o.channel AS subject,
    'its payload is not the accepted output' AS found
FROM dagster_idempotent.outbox o
JOIN dagster_idempotent.tasks t ON t.pipeline = o.pipeline AND t.task_id = o.task_id
WHERE t.status <> 'completed' OR (o.payload IS NOT NULL AND t.output IS NOT NULL AND o.payload::text <> t.output::text)
ORDER BY 1

-- name: sequences
SELECT t.pipeline || ' period ' || t.period_id AS subject,
    count(*) || ' tasks, the highest is numbered ' || max(t.sequence) AS found
FROM dagster_idempotent.tasks t GROUP BY t.pipeline, t.period_id
HAVING count(*) <> max(t.sequence) + 1 ORDER BY 1

-- name: live_submissions
SELECT s.pipeline || '/' || s.task_id || ' call ' || s.call_key AS subject,
    count(*) || ' live submissions: ' || string_agg(s.submission || ' ' || s.state, ', ' ORDER BY s.submission) AS found
FROM dagster_idempotent.submissions s WHERE s.state IN ('intended', 'in_doubt', 'accepted', 'succeeded')
GROUP BY s.pipeline, s.task_id, s.call_key HAVING count(*) > 1 ORDER BY 1

-- name: submission_numbers
SELECT s.pipeline || '/' || s.task_id || ' call ' || s.call_key AS subject,
    count(*) || ' submissions, the highest is numbered ' || max(s.submission) AS found
FROM dagster_idempotent.submissions s GROUP BY s.pipeline, s.task_id, s.call_key
HAVING count(*) <> max(s.submission) OR min(s.submission) <> 1 ORDER BY 1

-- name: resends
SELECT s.pipeline || '/' || s.task_id || ' call ' || s.call_key || ' submission ' || s.submission AS subject,
    'it follows an abandoned submission, and nobody allowed it' AS found
FROM dagster_idempotent.submissions s
JOIN dagster_idempotent.submissions b ON (b.pipeline, b.task_id, b.call_key, b.submission)
    = (s.pipeline, s.task_id, s.call_key, s.submission - 1)
WHERE b.state = 'abandoned' AND NOT EXISTS (SELECT FROM dagster_idempotent.resends r
    WHERE (r.pipeline, r.task_id, r.call_key, r.submission) = (b.pipeline, b.task_id, b.call_key, b.submission))
ORDER BY 1

-- name: decided_by_somebody
SELECT x.subject, x.found FROM (
    SELECT t.pipeline || '/' || t.task_id AS subject, 'discarded, and nobody is named for it' AS found
    FROM dagster_idempotent.tasks t WHERE t.status = 'discarded' AND NOT EXISTS (
        SELECT FROM dagster_idempotent.audit a
        WHERE a.pipeline = t.pipeline AND a.task_id = t.task_id AND a.action = 'discard')
    UNION ALL
    SELECT s.pipeline || '/' || s.task_id || ' call ' || s.call_key || ' submission ' || s.submission,
        s.state || ' on an operator''s word, and nobody is named for it'
    FROM dagster_idempotent.submissions s WHERE s.settled_by = 'operator' AND NOT EXISTS (
        SELECT FROM dagster_idempotent.audit a
        WHERE a.pipeline = s.pipeline AND a.task_id = s.task_id AND a.action IN ('resolve', 'abandon')
          AND a.after ->> 'call_key' = s.call_key AND (a.after ->> 'submission')::integer = s.submission)) x
ORDER BY 1

-- name: leases
SELECT t.pipeline || '/' || t.task_id AS subject, t.status || ' with owner ' || coalesce(t.owner, 'nobody') AS found
FROM dagster_idempotent.tasks t
WHERE t.status IN ('running', 'failed') AND t.owner IS NULL OR t.status IN ('pending', 'dead', 'discarded') AND t.owner IS NOT NULL
ORDER BY 1

-- name: bookings
-- What was booked for each send, against what its row says.
WITH booked AS (
    SELECT c.pipeline, c.task_id, c.call_key, c.submission,
        max(c.amount) FILTER (WHERE c.kind = 'reserved') AS reserved,
        max(c.amount) FILTER (WHERE c.kind = 'released') AS released,
        sum(c.amount) FILTER (WHERE c.kind IN ('settled', 'adjusted')) AS paid,
        max(c.currency) FILTER (WHERE c.kind = 'settled') AS currency
    FROM dagster_idempotent.costs c GROUP BY 1, 2, 3, 4
), sends AS (
    SELECT s.pipeline || '/' || s.task_id || ' call ' || s.call_key || ' submission ' || s.submission AS subject,
        s.state, s.late, s.cost, s.currency AS cost_currency, b.reserved, b.released, b.paid, b.currency,
        s.state IN ('intended', 'in_doubt', 'accepted') AND NOT s.late AS open
    FROM dagster_idempotent.submissions s
    LEFT JOIN booked b USING (pipeline, task_id, call_key, submission)
)
SELECT subject, found FROM (
    SELECT subject, 'its reservation of ' || reserved || ' has not ended, it is ' || state AS found FROM sends
        WHERE reserved IS NOT NULL AND released IS NULL AND NOT open
    UNION ALL
    SELECT subject, 'its reservation has ended, it is ' || state FROM sends
        WHERE released IS NOT NULL AND state IN ('intended', 'in_doubt')
    UNION ALL
    SELECT subject, 'released ' || released || ' of ' || coalesce(reserved::text, 'nothing') FROM sends
        WHERE released IS DISTINCT FROM reserved AND released IS NOT NULL
    UNION ALL
    SELECT subject, 'it cost ' || cost || ' ' || cost_currency || ', booked ' || coalesce(paid || ' ' || currency, 'nothing')
        FROM sends WHERE cost IS NOT NULL AND (paid IS DISTINCT FROM cost OR currency IS DISTINCT FROM cost_currency)
    UNION ALL
    SELECT subject, 'booked ' || paid || ', it is ' || state FROM sends
        WHERE paid IS NOT NULL AND state IN ('intended', 'in_doubt', 'not_sent', 'rejected') AND NOT late) x
ORDER BY 1, 2

-- name: counters
WITH booked AS (
    SELECT c.pipeline, x.scope, c.currency,
        sum(CASE c.kind WHEN 'reserved' THEN c.amount WHEN 'released' THEN -c.amount ELSE 0 END) AS reserved,
        sum(CASE WHEN c.kind IN ('settled', 'adjusted') THEN c.amount ELSE 0 END) AS settled
    FROM dagster_idempotent.costs c
    JOIN dagster_idempotent.tasks t ON t.pipeline = c.pipeline AND t.task_id = c.task_id
    CROSS JOIN LATERAL (VALUES ('pipeline'), ('period:' || t.period_id), ('task:' || t.task_id)) x (scope)
    GROUP BY 1, 2, 3
)
SELECT pipeline || ' ' || scope || ' ' || currency AS subject,
    'counters say reserved ' || coalesce(b.reserved, 0) || ', settled ' || coalesce(b.settled, 0) || '; bookings say '
    || coalesce(k.reserved, 0) || ' and ' || coalesce(k.settled, 0) AS found
FROM dagster_idempotent.budgets b FULL JOIN booked k USING (pipeline, scope, currency)
WHERE coalesce(b.reserved, 0) <> coalesce(k.reserved, 0) OR coalesce(b.settled, 0) <> coalesce(k.settled, 0)
ORDER BY 1

-- name: identities
SELECT pipeline, task_id, allocation_key, run_id, subject_id, scheduled_at, version FROM dagster_idempotent.tasks
WHERE allocation_key IS NOT NULL ORDER BY pipeline, task_id

-- name: charged_twice
-- No contradiction, but somebody should know: two answers were paid for, and nobody has seen to it yet.
SELECT pipeline || '/' || task_id || ' call ' || call_key || ' submission ' || submission AS subject, found
FROM dagster_idempotent.charged_twice ORDER BY 1, 2

-- name: totals
SELECT (SELECT ledger_id FROM dagster_idempotent.ledger) AS ledger_id,
    (SELECT coalesce(jsonb_object_agg(status, n), '{}') FROM (SELECT status, count(*) AS n FROM dagster_idempotent.tasks
        GROUP BY status) x) AS tasks,
    (SELECT coalesce(jsonb_object_agg(state, n), '{}') FROM (SELECT state, count(*) AS n
        FROM dagster_idempotent.submissions GROUP BY state) x) AS submissions,
    (SELECT count(*) FROM dagster_idempotent.submissions WHERE remote_ref IS NOT NULL) AS remote_references,
    (SELECT count(*) FROM dagster_idempotent.artifacts) AS artifacts,
    (SELECT coalesce(sum(size), 0) FROM dagster_idempotent.artifacts)::text AS artifact_bytes,
    (SELECT count(*) FROM dagster_idempotent.approvals) AS approvals,
    (SELECT count(*) FROM dagster_idempotent.audit) AS decisions,
    (SELECT coalesce(jsonb_object_agg(currency, n), '{}') FROM (SELECT currency, sum(amount)::text AS n
        FROM dagster_idempotent.costs WHERE kind IN ('settled', 'adjusted') GROUP BY currency) x) AS paid
