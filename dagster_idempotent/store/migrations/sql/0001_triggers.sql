-- The moves that no CHECK can state, refused whoever asks: a second path must meet the same wall.

CREATE FUNCTION dagster_idempotent.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% of % is refused: %', TG_OP, TG_TABLE_NAME, TG_ARGV[0] USING ERRCODE = 'restrict_violation';
END $$;

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON dagster_idempotent.costs
    FOR EACH ROW EXECUTE FUNCTION dagster_idempotent.refuse('costs are append-only');
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON dagster_idempotent.audit
    FOR EACH ROW EXECUTE FUNCTION dagster_idempotent.refuse('the audit trail is append-only');
CREATE TRIGGER for_ever BEFORE UPDATE OR DELETE ON dagster_idempotent.ledger
    FOR EACH ROW EXECUTE FUNCTION dagster_idempotent.refuse('the ledger id is part of every idempotency key');
CREATE TRIGGER for_ever BEFORE DELETE ON dagster_idempotent.pipelines
    FOR EACH ROW EXECUTE FUNCTION dagster_idempotent.refuse('identities are kept for ever');
CREATE TRIGGER for_ever BEFORE DELETE ON dagster_idempotent.tasks
    FOR EACH ROW EXECUTE FUNCTION dagster_idempotent.refuse('identities are kept for ever');
CREATE TRIGGER for_ever BEFORE DELETE ON dagster_idempotent.submissions
    FOR EACH ROW EXECUTE FUNCTION dagster_idempotent.refuse('submissions are the record of what was paid');
CREATE TRIGGER for_ever BEFORE DELETE ON dagster_idempotent.artifacts
    FOR EACH ROW EXECUTE FUNCTION dagster_idempotent.refuse('pruning keeps the row and drops the body');
CREATE TRIGGER for_ever BEFORE DELETE ON dagster_idempotent.budgets
    FOR EACH ROW EXECUTE FUNCTION dagster_idempotent.refuse('a counter that is gone would start again at nothing');
CREATE TRIGGER for_ever BEFORE DELETE ON dagster_idempotent.approvals
    FOR EACH ROW EXECUTE FUNCTION dagster_idempotent.refuse('an approval is revoked, never forgotten');
CREATE TRIGGER for_ever BEFORE DELETE ON dagster_idempotent.outbox
    FOR EACH ROW EXECUTE FUNCTION dagster_idempotent.refuse('messages are kept with their acknowledgement');

-- TRUNCATE fires no row triggers; one statement could otherwise forget everything.
DO $$ DECLARE name text; BEGIN
    FOREACH name IN ARRAY ARRAY['ledger', 'pipelines', 'tasks', 'artifacts', 'submissions', 'costs', 'budgets',
                                'approvals', 'outbox', 'audit'] LOOP
        EXECUTE format('CREATE TRIGGER no_truncate BEFORE TRUNCATE ON dagster_idempotent.%I
            FOR EACH STATEMENT EXECUTE FUNCTION dagster_idempotent.refuse(%L)', name, 'the ledger forgets nothing');
    END LOOP;
END $$;

CREATE FUNCTION dagster_idempotent.guard_pipeline() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF new.pipeline <> old.pipeline THEN
        RAISE EXCEPTION 'pipeline % cannot be renamed: its name is in every key', old.pipeline
            USING ERRCODE = 'restrict_violation';
    END IF;
    IF EXISTS (SELECT FROM dagster_idempotent.tasks WHERE pipeline = old.pipeline) THEN
        RAISE EXCEPTION 'pipeline % has tasks: its period kind (%) and timezone (%) are fixed',
            old.pipeline, old.period_kind, old.timezone USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN new;
END $$;
CREATE TRIGGER fixed BEFORE UPDATE ON dagster_idempotent.pipelines FOR EACH ROW
    WHEN (new.pipeline <> old.pipeline OR new.period_kind <> old.period_kind OR new.timezone <> old.timezone)
    EXECUTE FUNCTION dagster_idempotent.guard_pipeline();

CREATE FUNCTION dagster_idempotent.guard_task() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (new.pipeline, new.task_id, new.period_id, new.sequence, new.subject_id, new.version, new.origin, new.created_at)
            IS DISTINCT FROM
       (old.pipeline, old.task_id, old.period_id, old.sequence, old.subject_id, old.version, old.origin, old.created_at)
       AND NOT (old.origin = 'imported' AND old.allocation_key IS NULL
                AND (new.pipeline, new.task_id, new.period_id, new.sequence) = (old.pipeline, old.task_id, old.period_id, old.sequence))
       OR old.allocation_key IS NOT NULL
          AND (new.allocation_key, new.run_id, new.scheduled_at) IS DISTINCT FROM (old.allocation_key, old.run_id, old.scheduled_at)
    THEN
        RAISE EXCEPTION 'the identity of task % is fixed', old.task_id USING ERRCODE = 'restrict_violation';
    END IF;
    IF new.status <> old.status AND (old.status, new.status) NOT IN (
        ('pending', 'running'), ('failed', 'running'), ('running', 'failed'),
        ('running', 'pending'), ('failed', 'pending'),                         -- release of the lease
        ('running', 'completed'), ('failed', 'completed'),
        ('running', 'held'), ('failed', 'held'), ('held', 'pending'), ('held', 'discarded'),
        ('pending', 'dead'), ('running', 'dead'), ('failed', 'dead'), ('dead', 'pending'), ('dead', 'discarded'))
    THEN
        RAISE EXCEPTION 'task % cannot go from % to %', old.task_id, old.status, new.status
            USING ERRCODE = 'restrict_violation';
    END IF;
    IF old.status = 'completed' AND (new.output_sha256, new.completed_at, new.completed_by)
            IS DISTINCT FROM (old.output_sha256, old.completed_at, old.completed_by)
       OR old.status = 'completed' AND new.output::text IS DISTINCT FROM old.output::text AND new.pruned_at IS NULL THEN
        RAISE EXCEPTION 'task % is completed: its output is final', old.task_id USING ERRCODE = 'restrict_violation';
    END IF;
    IF new.fencing_token < old.fencing_token
       OR new.owner IS DISTINCT FROM old.owner AND new.fencing_token = old.fencing_token THEN
        RAISE EXCEPTION 'a new owner of task % needs a higher fencing token', old.task_id
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN new;
END $$;
CREATE TRIGGER moves BEFORE UPDATE ON dagster_idempotent.tasks
    FOR EACH ROW EXECUTE FUNCTION dagster_idempotent.guard_task();

CREATE FUNCTION dagster_idempotent.guard_submission() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF new.state <> 'intended' OR new.sends <> 1 THEN
            RAISE EXCEPTION 'a submission starts as intended' USING ERRCODE = 'restrict_violation';
        END IF;
        -- The partial unique index makes every earlier one void; this keeps the numbers without gaps.
        IF new.submission > 1 AND NOT EXISTS (SELECT FROM dagster_idempotent.submissions s
                WHERE (s.pipeline, s.task_id, s.call_key, s.submission)
                    = (new.pipeline, new.task_id, new.call_key, new.submission - 1)) THEN
            RAISE EXCEPTION 'submission % of call % has no predecessor', new.submission, new.call_key
                USING ERRCODE = 'restrict_violation';
        END IF;
        RETURN new;
    END IF;
    IF (new.pipeline, new.task_id, new.call_key, new.submission, new.provider, new.fingerprint,
        new.fingerprint_version, new.fingerprint_fields, new.idempotency_key, new.key_no, new.lookup,
        new.settle_delay, new.key_window, new.intended_at)
            IS DISTINCT FROM
       (old.pipeline, old.task_id, old.call_key, old.submission, old.provider, old.fingerprint,
        old.fingerprint_version, old.fingerprint_fields, old.idempotency_key, old.key_no, old.lookup,
        old.settle_delay, old.key_window, old.intended_at) THEN
        RAISE EXCEPTION 'what submission % of call % sent is fixed', old.submission, old.call_key
            USING ERRCODE = 'restrict_violation';
    END IF;
    IF new.state <> old.state AND (old.state, new.state) NOT IN (
        ('intended', 'not_sent'), ('intended', 'rejected'), ('intended', 'accepted'), ('intended', 'succeeded'),
        ('intended', 'in_doubt'),
        ('in_doubt', 'accepted'), ('in_doubt', 'succeeded'), ('in_doubt', 'not_sent'), ('in_doubt', 'rejected'),
        ('in_doubt', 'abandoned'),
        ('accepted', 'succeeded'), ('accepted', 'failed'),
        ('not_sent', 'accepted'), ('not_sent', 'succeeded'), ('rejected', 'accepted'), ('rejected', 'succeeded'),
        ('abandoned', 'accepted'), ('abandoned', 'succeeded'))
    THEN
        RAISE EXCEPTION 'submission % of call % cannot go from % to %', old.submission, old.call_key, old.state, new.state
            USING ERRCODE = 'restrict_violation';
    END IF;
    -- A new sender only by a resend claim, which counts, and only while the outcome is in doubt.
    IF new.sends < old.sends OR new.sends > old.sends + 1 OR (new.sender <> old.sender) <> (new.sends > old.sends)
       OR new.sends > old.sends AND (old.state, new.state) <> ('in_doubt', 'in_doubt') THEN
        RAISE EXCEPTION 'the sender of submission % of call % changes only with a counted resend', old.submission,
            old.call_key USING ERRCODE = 'restrict_violation';
    END IF;
    IF old.response_sha256 IS NOT NULL AND (new.response_sha256 IS DISTINCT FROM old.response_sha256
       OR new.response_body IS DISTINCT FROM old.response_body
          AND (new.response_body IS NOT NULL OR new.pruned_at IS NULL)) THEN
        RAISE EXCEPTION 'the answer of submission % of call % is final', old.submission, old.call_key
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN new;
END $$;
CREATE TRIGGER moves BEFORE INSERT OR UPDATE ON dagster_idempotent.submissions
    FOR EACH ROW EXECUTE FUNCTION dagster_idempotent.guard_submission();

CREATE FUNCTION dagster_idempotent.guard_artifact() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (new.pipeline, new.task_id, new.name, new.sha256, new.size, new.media_type, new.uri)
            IS DISTINCT FROM (old.pipeline, old.task_id, old.name, old.sha256, old.size, old.media_type, old.uri)
       OR new.body IS NOT NULL AND new.body IS DISTINCT FROM old.body
       OR new.body IS NULL AND new.pruned_at IS NULL AND new.uri IS NULL THEN
        RAISE EXCEPTION 'artifact % of task % is fixed: the first writer wins', old.name, old.task_id
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN new;
END $$;
CREATE TRIGGER fixed BEFORE UPDATE ON dagster_idempotent.artifacts
    FOR EACH ROW EXECUTE FUNCTION dagster_idempotent.guard_artifact();

CREATE FUNCTION dagster_idempotent.guard_message() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (new.pipeline, new.task_id, new.channel, new.payload::text, new.deduplicates)
            IS DISTINCT FROM (old.pipeline, old.task_id, old.channel, old.payload::text, old.deduplicates) THEN
        RAISE EXCEPTION 'message % of task % is fixed', old.channel, old.task_id USING ERRCODE = 'restrict_violation';
    END IF;
    IF new.state <> old.state AND (old.state, new.state) NOT IN (
        ('waiting', 'ready'), ('ready', 'sending'), ('sending', 'delivered'), ('sending', 'ready'),
        ('sending', 'in_doubt'), ('sending', 'dead'), ('in_doubt', 'delivered'), ('in_doubt', 'ready'),
        ('in_doubt', 'dead'), ('ready', 'dead'), ('dead', 'ready')) THEN
        RAISE EXCEPTION 'message % of task % cannot go from % to %', old.channel, old.task_id, old.state, new.state
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN new;
END $$;
CREATE TRIGGER moves BEFORE UPDATE ON dagster_idempotent.outbox
    FOR EACH ROW EXECUTE FUNCTION dagster_idempotent.guard_message();
