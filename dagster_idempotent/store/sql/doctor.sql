-- What `doctor` asks the server; nothing here needs the ledger to exist.

-- name: server
SELECT current_setting('server_version') AS version, current_setting('server_version_num')::integer AS number,
    current_database() AS database, current_user AS role, pg_is_in_recovery() AS standby, clock_timestamp() AS now,
    current_setting('transaction_read_only') = 'on' AS read_only, current_setting('server_encoding') AS encoding

-- name: session_defaults
-- What a new session starts with, before this library sets its own.
SELECT name, reset_val AS value FROM pg_settings
WHERE name IN ('default_transaction_isolation', 'synchronous_commit', 'fsync', 'full_page_writes',
    'idle_in_transaction_session_timeout', 'statement_timeout')

-- name: rights
SELECT r.what, r.allowed FROM (
    SELECT 'USAGE on schema dagster_idempotent' AS what,
        has_schema_privilege('dagster_idempotent', 'USAGE') AS allowed
    UNION ALL
    SELECT 'SELECT, INSERT, UPDATE on ' || c.oid::regclass,
        has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
            AND has_table_privilege(c.oid, 'UPDATE')
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'dagster_idempotent' AND c.relkind = 'r' AND c.relname <> 'alembic_version'
    UNION ALL
    SELECT 'EXECUTE on ' || p.oid::regprocedure, has_function_privilege(p.oid, 'EXECUTE')
    FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = 'dagster_idempotent') r
ORDER BY 1

-- name: connections
SELECT current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer AS allowed,
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS used,
    (SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'
        AND state_change < clock_timestamp() - interval '5 minutes') AS idle_in_transaction

-- name: replication
SELECT current_setting('synchronous_standby_names') AS synchronous,
    (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')) AS sync_standbys,
    (SELECT count(*) FROM pg_stat_replication WHERE sync_state NOT IN ('sync', 'quorum')) AS async_standbys
