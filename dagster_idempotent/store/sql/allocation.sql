-- Statements of identity and allocation. One name, one statement, one round trip.

-- name: register_pipeline
SELECT * FROM dagster_idempotent.register_pipeline_v1(%(settings)s, %(actor)s)

-- name: get_pipeline
SELECT * FROM dagster_idempotent.pipelines WHERE pipeline = %(pipeline)s

-- name: find_tasks
SELECT * FROM dagster_idempotent.find_tasks_v1(
    %(pipeline)s, %(allocation_key)s, %(run_id)s, %(subject)s, %(scheduled_at)s, %(version)s)

-- name: allocate
SELECT verdict, (task).* FROM dagster_idempotent.allocate_v1(
    %(pipeline)s, %(allocation_key)s, %(run_id)s, %(subject)s, %(scheduled_at)s, %(version)s, %(period_id)s, %(launch)s)

-- name: get_task
SELECT * FROM dagster_idempotent.tasks WHERE pipeline = %(pipeline)s AND task_id = %(task_id)s
