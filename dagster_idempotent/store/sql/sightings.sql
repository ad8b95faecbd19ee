-- Statements about what look-ups show beside an answer.

-- name: record_sightings
INSERT INTO dagster_idempotent.sightings (pipeline, task_id, call_key, submission, kind, remote_ref, described)
SELECT %(pipeline)s, %(task_id)s, %(call_key)s, %(submission)s, %(kind)s, x.remote_ref, x.described
FROM unnest(%(references)s::text[], %(described)s::text[]) AS x (remote_ref, described)
ON CONFLICT DO NOTHING

-- name: sightings_of_task
SELECT call_key, submission, kind, remote_ref, described, seen_at FROM dagster_idempotent.sightings
WHERE pipeline = %(pipeline)s AND task_id = %(task_id)s AND kind <> 'confirmed'
ORDER BY call_key, submission, kind, remote_ref

-- name: charged_twice
SELECT pipeline, task_id, call_key, submission, found FROM dagster_idempotent.charged_twice
ORDER BY at DESC, pipeline, task_id, call_key, submission LIMIT %(limit)s
