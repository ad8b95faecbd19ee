-- How long the provider of a submission said that a job takes once it is accepted; kept with the intent, since whoever
-- looks later may run other code. It alerts people and decides nothing.
ALTER TABLE dagster_idempotent.submissions
    ADD COLUMN expected_within interval CHECK (expected_within >= interval '0');
CREATE TRIGGER expectation_is_fixed BEFORE UPDATE ON dagster_idempotent.submissions FOR EACH ROW
    WHEN (new.expected_within IS DISTINCT FROM old.expected_within)
    EXECUTE FUNCTION dagster_idempotent.refuse('what was expected of a job is fixed with its intent');

-- When an accepted submission should have had its answer: after a day, where nobody said (an imported record).
CREATE FUNCTION dagster_idempotent.expected_by_v1(s dagster_idempotent.submissions)
RETURNS timestamptz LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN s.state = 'accepted'
        THEN coalesce(s.settled_at, s.intended_at) + coalesce(s.expected_within, interval '24 hours') END
$$;
CREATE VIEW dagster_idempotent.overdue_jobs AS
    SELECT s.pipeline, s.task_id, s.call_key, s.submission, s.provider, s.remote_ref, s.settled_at AS accepted_at,
        dagster_idempotent.expected_by_v1(s) AS expected_by
    FROM dagster_idempotent.submissions s
    WHERE s.state = 'accepted' AND dagster_idempotent.expected_by_v1(s) <= clock_timestamp();
