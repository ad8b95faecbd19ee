-- Statements of what operators decide. Each is one function that locks, decides, writes and audits, or writes nothing.

-- name: resolve_call
SELECT verdict, before, after FROM dagster_idempotent.resolve_v1(
    %(answer)s, %(body)s, %(seen_sends)s, %(evidence)s, %(actor)s, %(reason)s)

-- name: abandon_call
SELECT verdict, before, after FROM dagster_idempotent.abandon_v1(
    %(pipeline)s, %(task_id)s, %(call_key)s, %(submission)s, %(seen_sends)s, %(resend)s, %(amount)s, %(currency)s,
    %(actor)s, %(reason)s)

-- name: acknowledge_charges
SELECT verdict, before, after FROM dagster_idempotent.acknowledge_charges_v1(
    %(pipeline)s, %(task_id)s, %(call_key)s, %(actor)s, %(reason)s)

-- name: cancel_job
SELECT verdict, before, after FROM dagster_idempotent.cancel_job_v1(
    %(pipeline)s, %(task_id)s, %(call_key)s, %(submission)s, %(ended)s, %(said)s, %(cost)s, %(currency)s,
    %(actor)s, %(reason)s)

-- name: move_task
SELECT verdict, before, after FROM dagster_idempotent.move_task_v1(
    %(pipeline)s, %(task_id)s, %(action)s, %(actor)s, %(reason)s)

-- name: approve
SELECT verdict, before, after FROM dagster_idempotent.approve_v1(
    %(pipeline)s, %(task_id)s, %(shown)s, %(amount)s, %(currency)s, %(actor)s, %(reason)s)

-- name: revoke
SELECT verdict, before, after FROM dagster_idempotent.revoke_v1(%(id)s, %(actor)s, %(reason)s)

-- name: freeze
SELECT verdict, before, after FROM dagster_idempotent.freeze_v1(%(pipeline)s, %(why)s, %(actor)s, %(reason)s)

-- name: wait_for_intents
-- Once a freeze is committed: an intent that had read "not frozen" holds its task FOR SHARE until it commits.
SELECT FROM dagster_idempotent.tasks
WHERE pipeline = %(pipeline)s AND status IN ('running', 'failed') ORDER BY task_id FOR NO KEY UPDATE

-- name: wait_for_delivery_intents
-- Likewise a relay's, whose message stands in place of the lease.
SELECT FROM dagster_idempotent.outbox
WHERE pipeline = %(pipeline)s AND state = 'sending' ORDER BY task_id, channel FOR NO KEY UPDATE

-- name: set_limit
SELECT verdict, before, after FROM dagster_idempotent.set_limit_v1(
    %(pipeline)s, %(scope)s, %(currency)s, %(limit)s, %(actor)s, %(reason)s)

-- name: resolve_message
SELECT verdict, before, after FROM dagster_idempotent.resolve_message_v1(
    %(pipeline)s, %(task_id)s, %(channel)s, %(state)s, %(evidence)s, %(actor)s, %(reason)s)

-- name: prune
SELECT seen, tasks, bodies, bytes, last_at, last_task FROM dagster_idempotent.prune_v1(
    %(pipeline)s, %(before)s, %(after_at)s, %(after_task)s, %(limit)s, %(actor)s, %(reason)s)
