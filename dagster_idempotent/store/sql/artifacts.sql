-- Statements of the raw artifacts. The first writer wins; everybody reads what it stored.

-- name: store_artifact
INSERT INTO dagster_idempotent.artifacts (pipeline, task_id, name, sha256, size, media_type, body, uri)
VALUES (%(pipeline)s, %(task_id)s, %(name)s, %(sha256)s, %(size)s, %(media_type)s, %(body)s, %(uri)s)
ON CONFLICT DO NOTHING
RETURNING name

-- name: get_artifact
SELECT name, sha256, size, media_type, body, uri, pruned_at FROM dagster_idempotent.artifacts
WHERE pipeline = %(pipeline)s AND task_id = %(task_id)s AND name = %(name)s
