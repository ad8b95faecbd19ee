-- What operators read. A filter that is NULL is no filter.

-- name: clock
SELECT clock_timestamp() AS now

-- name: list_pipelines
SELECT p.pipeline, p.period_kind, p.timezone, p.gate, p.max_attempts, p.lease, p.sender_lease, p.send_window, p.currency,
    p.task_limit, p.period_limit, p.pipeline_limit, p.frozen_reason,
    coalesce(t.tasks, 0) AS tasks, coalesce(t.open, 0) AS open, coalesce(t.held, 0) AS held, coalesce(t.dead, 0) AS dead
FROM dagster_idempotent.pipelines p
LEFT JOIN (SELECT pipeline, count(*) AS tasks,
        count(*) FILTER (WHERE status IN ('pending', 'running', 'failed')) AS open,
        count(*) FILTER (WHERE status = 'held') AS held, count(*) FILTER (WHERE status = 'dead') AS dead
    FROM dagster_idempotent.tasks GROUP BY pipeline) t USING (pipeline)
ORDER BY p.pipeline

-- name: list_tasks
SELECT t.pipeline, t.task_id, t.period_id, t.subject_id AS subject, t.scheduled_at, t.version, t.status, t.held_for,
    t.owner, t.last_owner, t.lease_expires_at, t.attempts, t.next_attempt_at, t.completed_at, t.pruned_at, t.created_at, t.error,
    (SELECT count(*) FROM dagster_idempotent.submissions s WHERE s.pipeline = t.pipeline AND s.task_id = t.task_id
        AND s.state IN ('intended', 'in_doubt', 'accepted')) AS unsettled
FROM dagster_idempotent.tasks t
WHERE (%(pipeline)s::text IS NULL OR t.pipeline = %(pipeline)s)
  AND (%(period)s::text IS NULL OR t.period_id = %(period)s)
  AND (%(subject)s::text IS NULL OR t.subject_id = %(subject)s)
  AND (%(status)s::text IS NULL OR t.status = %(status)s)
ORDER BY t.pipeline, t.period_id DESC, t.sequence DESC LIMIT %(limit)s

-- name: locate
-- By everything that is indexed by pipeline: task id, allocation key, run id.
SELECT t.pipeline, t.task_id FROM dagster_idempotent.pipelines p
CROSS JOIN LATERAL (
    SELECT x.pipeline, x.task_id FROM dagster_idempotent.tasks x WHERE x.pipeline = p.pipeline AND x.task_id = %(text)s
    UNION SELECT x.pipeline, x.task_id FROM dagster_idempotent.tasks x
        WHERE x.pipeline = p.pipeline AND p.pipeline || '/' || x.task_id = %(text)s
          AND x.task_id = substr(%(text)s, length(p.pipeline) + 2)
    UNION SELECT x.pipeline, x.task_id FROM dagster_idempotent.tasks x
        WHERE x.pipeline = p.pipeline AND x.allocation_key = %(text)s
    UNION SELECT x.pipeline, x.task_id FROM dagster_idempotent.tasks x
        WHERE x.pipeline = p.pipeline AND x.run_id = %(text)s) t
WHERE %(pipeline)s::text IS NULL OR p.pipeline = %(pipeline)s
ORDER BY t.pipeline, t.task_id LIMIT 20

-- name: locate_anywhere
-- By what has no index: the Dagster run that holds, held last or completed a task, a key or a reference at the provider.
SELECT x.pipeline, x.task_id FROM dagster_idempotent.tasks x
    WHERE %(text)s IN (x.owner, x.last_owner, x.completed_by)
      AND (%(pipeline)s::text IS NULL OR x.pipeline = %(pipeline)s)
UNION SELECT s.pipeline, s.task_id FROM dagster_idempotent.submissions s
    WHERE (s.idempotency_key = %(text)s OR s.remote_ref = %(text)s OR s.owner = %(text)s)
      AND (%(pipeline)s::text IS NULL OR s.pipeline = %(pipeline)s)
ORDER BY pipeline, task_id LIMIT 20

-- name: latest_tasks
SELECT pipeline, task_id FROM dagster_idempotent.tasks
WHERE %(pipeline)s::text IS NULL OR pipeline = %(pipeline)s
ORDER BY created_at DESC LIMIT 5

-- name: show_task
SELECT t.pipeline, t.task_id, t.period_id, t.sequence, t.subject_id AS subject, t.scheduled_at, t.version,
    t.allocation_key, t.run_id, t.origin, t.status, t.held_for, t.owner, t.last_owner, t.lease_expires_at,
    t.fencing_token, t.attempts, p.max_attempts, t.final, t.next_attempt_at, t.error, t.output_sha256, t.completed_by, t.completed_at,
    t.pruned_at, t.created_at, t.launch, p.gate, p.frozen_reason, p.currency,
    dagster_idempotent.gate_open_v1(t.pipeline, t.task_id, p.gate) AS gate_open,
    dagster_idempotent.shown_v1(t.pipeline, t.task_id, p.gate) AS shown_sha256,
    clock_timestamp() AS now
FROM dagster_idempotent.tasks t JOIN dagster_idempotent.pipelines p USING (pipeline)
WHERE t.pipeline = %(pipeline)s AND t.task_id = %(task_id)s

-- name: launched_like
-- Tasks of the same pipeline and version, with or without a subject as this one, and how they were launched.
SELECT o.subject_id AS subject, o.scheduled_at, o.launch, p.timezone
FROM dagster_idempotent.tasks t
JOIN dagster_idempotent.tasks o ON o.pipeline = t.pipeline AND o.version = t.version
    AND (o.subject_id = '') = (t.subject_id = '') AND o.scheduled_at IS NOT NULL AND o.launch ->> 'job' IS NOT NULL
JOIN dagster_idempotent.pipelines p ON p.pipeline = t.pipeline
WHERE t.pipeline = %(pipeline)s AND t.task_id = %(task_id)s
ORDER BY o.subject_id = t.subject_id DESC, o.created_at DESC LIMIT 20

-- name: list_artifacts
SELECT name, sha256, size, media_type, uri, pruned_at, created_at FROM dagster_idempotent.artifacts
WHERE pipeline = %(pipeline)s AND task_id = %(task_id)s ORDER BY name

-- name: list_calls
-- In doubt is also what a sender that is gone left intended: its next reader marks it so.
SELECT s.pipeline, s.task_id, t.period_id, s.call_key, s.submission, s.state, s.provider, s.lookup, s.sends, s.owner,
    s.idempotency_key, s.key_no, s.remote_ref, s.cost, s.currency, s.cost_basis, s.late, s.settled_by, s.error,
    s.intended_at, s.settled_at, s.pruned_at, s.sender_expires_at, s.sender_expires_at + s.settle_delay AS settles_at,
    s.sender_expires_at > clock_timestamp() AND (s.state = 'intended' OR s.state = 'in_doubt' AND s.sends > 1) AS sending,
    s.settle_delay, s.key_window, dagster_idempotent.expected_by_v1(s) AS expected_by,
    (SELECT c.amount FROM dagster_idempotent.costs c
        WHERE (c.pipeline, c.task_id, c.call_key, c.submission)
            = (s.pipeline, s.task_id, s.call_key, s.submission) AND c.kind = 'reserved') AS reserved,
    (SELECT c.currency FROM dagster_idempotent.costs c
        WHERE (c.pipeline, c.task_id, c.call_key, c.submission)
            = (s.pipeline, s.task_id, s.call_key, s.submission) AND c.kind = 'reserved') AS reserved_currency,
    r.actor AS resend_allowed_by
FROM dagster_idempotent.submissions s
JOIN dagster_idempotent.tasks t ON t.pipeline = s.pipeline AND t.task_id = s.task_id
LEFT JOIN dagster_idempotent.resends r ON (r.pipeline, r.task_id, r.call_key, r.submission)
    = (s.pipeline, s.task_id, s.call_key, s.submission)
WHERE (%(pipeline)s::text IS NULL OR s.pipeline = %(pipeline)s)
  AND (%(task_id)s::text IS NULL OR s.task_id = %(task_id)s)
  AND (%(period)s::text IS NULL OR t.period_id = %(period)s)
  AND (%(state)s::text IS NULL OR s.state = %(state)s
    OR %(state)s = 'in_doubt' AND s.state = 'intended' AND s.sender_expires_at <= clock_timestamp())
  AND (%(call_key)s::text IS NULL OR s.call_key = %(call_key)s)
  AND (%(min_cost)s::numeric IS NULL OR s.cost >= %(min_cost)s)
  AND (NOT %(unsettled)s OR s.state IN ('intended', 'in_doubt', 'accepted'))
ORDER BY s.pipeline, t.period_id, t.sequence, s.call_key, s.submission LIMIT %(limit)s

-- name: overdue_jobs
SELECT pipeline, task_id, call_key, submission, provider, remote_ref, accepted_at, expected_by
FROM dagster_idempotent.overdue_jobs ORDER BY expected_by, pipeline, task_id, call_key LIMIT %(limit)s

-- name: list_approvals
-- What was approved, and what waits for it: held at the spend gate, or completed with messages that wait.
SELECT a.id, a.pipeline, a.task_id, a.gate, CASE WHEN a.revoked_at IS NULL THEN 'approved' ELSE 'revoked' END AS state,
    a.shown_sha256, a.actor, a.reason, a.amount_cap, a.currency, a.created_at, a.revoked_at
FROM dagster_idempotent.approvals a WHERE %(pipeline)s::text IS NULL OR a.pipeline = %(pipeline)s
UNION ALL
SELECT NULL, t.pipeline, t.task_id, p.gate, 'waiting', dagster_idempotent.shown_v1(t.pipeline, t.task_id, p.gate), NULL,
    NULL, NULL, NULL, NULL, NULL
FROM dagster_idempotent.tasks t JOIN dagster_idempotent.pipelines p USING (pipeline)
WHERE (%(pipeline)s::text IS NULL OR t.pipeline = %(pipeline)s)
  AND (p.gate = 'spend' AND t.status IN ('held', 'pending')
       OR p.gate = 'publish' AND t.status = 'completed' AND EXISTS (SELECT FROM dagster_idempotent.outbox o
            WHERE o.pipeline = t.pipeline AND o.task_id = t.task_id AND o.state = 'waiting'))
  AND NOT dagster_idempotent.gate_open_v1(t.pipeline, t.task_id, p.gate)
ORDER BY 2, 3, 1 NULLS FIRST LIMIT %(limit)s

-- name: list_messages
SELECT o.pipeline, o.task_id, o.channel, o.state, o.deduplicates, o.attempts, o.receipt, o.error, o.created_at,
    o.delivered_at, o.sender_expires_at, o.sender_expires_at > clock_timestamp() AND o.state = 'sending' AS sending
FROM dagster_idempotent.outbox o
WHERE (%(pipeline)s::text IS NULL OR o.pipeline = %(pipeline)s)
  AND (%(task_id)s::text IS NULL OR o.task_id = %(task_id)s)
  AND (%(state)s::text IS NULL OR o.state = %(state)s)
  AND (%(all)s OR o.state <> 'delivered')
ORDER BY o.pipeline, o.task_id, o.channel LIMIT %(limit)s

-- name: costs
-- Reserved is what is still held; resent is what was booked for sends that an operator allowed on top, counted apart;
-- saved is what the replays would have cost if each had been paid for again.
WITH booked AS (
    SELECT CASE %(by)s WHEN 'task' THEN c.pipeline || '/' || c.task_id
                       WHEN 'period' THEN c.pipeline || '/' || t.period_id
                       WHEN 'provider' THEN s.provider ELSE c.pipeline END AS name,
        c.currency, c.kind, c.amount, (c.pipeline, c.task_id, c.call_key, c.submission) AS send,
        EXISTS (SELECT FROM dagster_idempotent.resends r WHERE (r.pipeline, r.task_id, r.call_key, r.submission)
            = (c.pipeline, c.task_id, c.call_key, c.submission - 1)) AS resent
    FROM dagster_idempotent.costs c
    JOIN dagster_idempotent.tasks t ON t.pipeline = c.pipeline AND t.task_id = c.task_id
    JOIN dagster_idempotent.submissions s ON (s.pipeline, s.task_id, s.call_key, s.submission)
        = (c.pipeline, c.task_id, c.call_key, c.submission)
    WHERE (%(pipeline)s::text IS NULL OR c.pipeline = %(pipeline)s)
      AND (%(period)s::text IS NULL OR t.period_id = %(period)s)
), replayed AS (
    SELECT CASE %(by)s WHEN 'task' THEN r.pipeline || '/' || r.task_id
                       WHEN 'period' THEN r.pipeline || '/' || t.period_id
                       WHEN 'provider' THEN s.provider ELSE r.pipeline END AS name,
        s.currency, sum(r.times) AS replays, sum(r.times * s.cost) AS saved
    FROM dagster_idempotent.replays r
    JOIN dagster_idempotent.tasks t ON t.pipeline = r.pipeline AND t.task_id = r.task_id
    JOIN dagster_idempotent.submissions s ON (s.pipeline, s.task_id, s.call_key, s.submission)
        = (r.pipeline, r.task_id, r.call_key, r.submission)
    WHERE (%(pipeline)s::text IS NULL OR r.pipeline = %(pipeline)s)
      AND (%(period)s::text IS NULL OR t.period_id = %(period)s)
    GROUP BY 1, s.currency
)
SELECT b.name, b.currency,
    coalesce(sum(amount) FILTER (WHERE kind IN ('settled', 'adjusted')), 0) AS settled,
    coalesce(sum(CASE kind WHEN 'reserved' THEN amount WHEN 'released' THEN -amount END), 0) AS reserved,
    coalesce(sum(amount) FILTER (WHERE kind = 'adjusted'), 0) AS adjusted,
    coalesce(sum(amount) FILTER (WHERE kind IN ('settled', 'adjusted') AND resent), 0) AS resent,
    count(*) FILTER (WHERE kind = 'settled') AS charges,
    coalesce(max(r.replays), 0)::bigint AS replays, coalesce(max(r.saved), 0) AS saved
FROM booked b LEFT JOIN replayed r USING (name, currency)
GROUP BY b.name, b.currency ORDER BY b.name, b.currency

-- name: unpriced
SELECT count(*) AS calls FROM dagster_idempotent.submissions s
JOIN dagster_idempotent.tasks t ON t.pipeline = s.pipeline AND t.task_id = s.task_id
WHERE s.cost IS NULL AND (s.state = 'succeeded' OR s.late)
  AND (%(pipeline)s::text IS NULL OR s.pipeline = %(pipeline)s)
  AND (%(period)s::text IS NULL OR t.period_id = %(period)s)

-- name: list_budgets
SELECT b.pipeline, b.scope, b.currency, b.reserved, b.settled, b."limit", b."limit" - b.reserved - b.settled AS left
FROM dagster_idempotent.budgets b
WHERE (%(pipeline)s::text IS NULL OR b.pipeline = %(pipeline)s)
  AND (%(scope)s::text IS NULL OR b.scope = %(scope)s)
  AND (%(all)s OR b."limit" IS NOT NULL OR b.scope = 'pipeline')
ORDER BY b.pipeline, b.scope, b.currency LIMIT %(limit)s

-- name: list_audit
SELECT id, at, actor, action, reason, pipeline, task_id, before, after FROM dagster_idempotent.audit
WHERE (%(pipeline)s::text IS NULL OR pipeline = %(pipeline)s)
  AND (%(task_id)s::text IS NULL OR task_id = %(task_id)s)
  AND (%(actor)s::text IS NULL OR actor = %(actor)s)
  AND (%(action)s::text IS NULL OR action = %(action)s)
ORDER BY id DESC LIMIT %(limit)s
