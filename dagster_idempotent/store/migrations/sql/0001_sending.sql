-- The submission row guards the money: who may send, and what an answer or a silence proves.

-- Adds to one budget counter; false when its limit refuses. The row is made where allocation did not know the currency.
CREATE FUNCTION dagster_idempotent.reserve_v1(p_pipeline text, p_scope text, p_currency text, p_amount numeric)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO dagster_idempotent.budgets (pipeline, scope, currency) VALUES (p_pipeline, p_scope, p_currency)
        ON CONFLICT DO NOTHING;
    UPDATE dagster_idempotent.budgets SET reserved = reserved + p_amount
        WHERE pipeline = p_pipeline AND scope = p_scope AND currency = p_currency
          AND ("limit" IS NULL OR reserved + settled + p_amount <= "limit");
    RETURN FOUND;
END $$;

-- Ends the reservation of a submission, if it has one, and books what was paid (NULL: not known, or nothing was).
CREATE FUNCTION dagster_idempotent.book_v1(s dagster_idempotent.submissions, p_amount numeric, p_currency text)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    task dagster_idempotent.tasks;
    hold numeric;
    held_currency text;
    scope_name text;
    fresh boolean;
BEGIN
    SELECT c.amount, c.currency INTO hold, held_currency FROM dagster_idempotent.costs c
        WHERE (c.pipeline, c.task_id, c.call_key, c.submission) = (s.pipeline, s.task_id, s.call_key, s.submission)
          AND c.kind = 'reserved'
          AND NOT EXISTS (SELECT FROM dagster_idempotent.costs r
            WHERE (r.pipeline, r.task_id, r.call_key, r.submission, r.kind)
                = (c.pipeline, c.task_id, c.call_key, c.submission, 'released'));
    -- An answer whose cost nobody can tell was not free: the upper bound stands in until somebody adjusts it.
    IF p_amount IS NULL AND s.response_sha256 IS NOT NULL THEN
        SELECT c.amount, c.currency INTO p_amount, p_currency FROM dagster_idempotent.costs c
            WHERE (c.pipeline, c.task_id, c.call_key, c.submission) = (s.pipeline, s.task_id, s.call_key, s.submission)
              AND c.kind = 'reserved';
    END IF;
    fresh := p_amount IS NOT NULL AND NOT EXISTS (SELECT FROM dagster_idempotent.costs c
        WHERE (c.pipeline, c.task_id, c.call_key, c.submission) = (s.pipeline, s.task_id, s.call_key, s.submission)
          AND c.kind = 'settled');
    IF hold IS NULL AND NOT fresh THEN RETURN; END IF;
    SELECT * INTO task FROM dagster_idempotent.tasks t WHERE (t.pipeline, t.task_id) = (s.pipeline, s.task_id);
    FOREACH scope_name IN ARRAY ARRAY['pipeline', 'period:' || task.period_id, 'task:' || task.task_id] LOOP
        IF hold IS NOT NULL THEN
            UPDATE dagster_idempotent.budgets SET reserved = reserved - hold
                WHERE pipeline = s.pipeline AND scope = scope_name AND currency = held_currency;
        END IF;
        IF fresh THEN
            INSERT INTO dagster_idempotent.budgets (pipeline, scope, currency, settled)
                VALUES (s.pipeline, scope_name, p_currency, p_amount)
                ON CONFLICT (pipeline, scope, currency)
                DO UPDATE SET settled = dagster_idempotent.budgets.settled + excluded.settled;
        END IF;
    END LOOP;
    INSERT INTO dagster_idempotent.costs (pipeline, task_id, call_key, submission, kind, amount, currency)
        SELECT s.pipeline, s.task_id, s.call_key, s.submission, 'released', hold, held_currency WHERE hold IS NOT NULL
        UNION ALL
        SELECT s.pipeline, s.task_id, s.call_key, s.submission, 'settled', p_amount, p_currency WHERE fresh;
END $$;

-- Who may pay for a task: the owner of its lease, or, with the outbox row in place of the lease, the relay that is
-- delivering one of its messages ('outbox:<channel>:<sender>', its attempt). That row is read FOR SHARE: another relay
-- that takes the message over waits for the intent, or the intent finds the row gone.
CREATE FUNCTION dagster_idempotent.may_spend_v1(t dagster_idempotent.tasks, p_owner text, p_token bigint)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF p_owner NOT LIKE 'outbox:%' THEN
        RETURN t.owner IS NOT DISTINCT FROM p_owner AND t.fencing_token = p_token AND t.status IN ('running', 'failed');
    END IF;
    PERFORM FROM dagster_idempotent.outbox o
        WHERE o.pipeline = t.pipeline AND o.task_id = t.task_id AND o.state = 'sending'
          AND 'outbox:' || o.channel || ':' || o.sender = p_owner AND o.attempts = p_token FOR SHARE;
    RETURN FOUND;
END $$;

-- The intent: committed before the request leaves (R12). FOR SHARE makes a takeover wait, or this match nothing.
-- Verdicts: intended (also when this very sender finds its own row: a reply to COMMIT was lost), missing, lease_lost,
-- frozen, gate, superseded (somebody else's row: read again), late_answer (adopt it instead), stale (read again).
-- A budget that is full raises DI001, which undoes all of it.
CREATE FUNCTION dagster_idempotent.intend_v1(
    p_intent jsonb, p_send_window interval, p_reserve numeric, p_reserve_currency text)
RETURNS TABLE (verdict text, task dagster_idempotent.tasks, submission dagster_idempotent.submissions)
LANGUAGE plpgsql AS $$
DECLARE
    intent dagster_idempotent.submissions := jsonb_populate_record(NULL::dagster_idempotent.submissions, p_intent);
    t dagster_idempotent.tasks;
    home dagster_idempotent.pipelines;
    s dagster_idempotent.submissions;
    scope_name text;
    mine boolean;
BEGIN
    SELECT * INTO t FROM dagster_idempotent.tasks x
        WHERE x.pipeline = intent.pipeline AND x.task_id = intent.task_id FOR SHARE;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'missing', NULL::dagster_idempotent.tasks, NULL::dagster_idempotent.submissions;
        RETURN;
    END IF;
    SELECT * INTO s FROM dagster_idempotent.submissions x
        WHERE (x.pipeline, x.task_id, x.call_key, x.submission)
            = (intent.pipeline, intent.task_id, intent.call_key, intent.submission);
    IF FOUND THEN
        RETURN QUERY SELECT CASE WHEN s.sender = intent.sender THEN 'intended' ELSE 'superseded' END, t, s;
        RETURN;
    END IF;
    mine := dagster_idempotent.may_spend_v1(t, intent.owner, intent.fencing_token);
    -- A fresh snapshot, after the locks: a freeze that committed while we waited for one of them is seen.
    SELECT * INTO home FROM dagster_idempotent.pipelines p WHERE p.pipeline = intent.pipeline;
    IF NOT mine THEN
        RETURN QUERY SELECT 'lease_lost', t, s;
    ELSIF home.frozen_reason IS NOT NULL THEN
        RETURN QUERY SELECT 'frozen', t, s;
    ELSIF NOT dagster_idempotent.gate_open_v1(intent.pipeline, intent.task_id, 'spend') THEN
        RETURN QUERY SELECT 'gate', t, s;
    ELSIF p_send_window >= home.sender_lease THEN
        RETURN QUERY SELECT 'stale', t, s;
    ELSIF EXISTS (SELECT FROM dagster_idempotent.submissions x
            WHERE (x.pipeline, x.task_id, x.call_key) = (intent.pipeline, intent.task_id, intent.call_key) AND x.late) THEN
        RETURN QUERY SELECT 'late_answer', t, s;
    ELSE
        intent.state := 'intended';
        intent.sends := 1;
        intent.late := false;
        intent.intended_at := clock_timestamp();
        intent.sender_expires_at := intent.intended_at + home.sender_lease;
        -- A rival's uncommitted row is waited for, here, and then it is the live one.
        INSERT INTO dagster_idempotent.submissions SELECT intent.* ON CONFLICT DO NOTHING RETURNING * INTO s;
        IF NOT FOUND THEN
            SELECT * INTO s FROM dagster_idempotent.submissions x
                WHERE (x.pipeline, x.task_id, x.call_key, x.submission)
                    = (intent.pipeline, intent.task_id, intent.call_key, intent.submission);
            RETURN QUERY SELECT CASE WHEN s.sender = intent.sender THEN 'intended' ELSE 'superseded' END, t, s;
            RETURN;
        END IF;
        IF p_reserve IS NOT NULL THEN
            FOREACH scope_name IN ARRAY ARRAY['pipeline', 'period:' || t.period_id, 'task:' || t.task_id] LOOP
                IF NOT dagster_idempotent.reserve_v1(intent.pipeline, scope_name, p_reserve_currency, p_reserve) THEN
                    RAISE EXCEPTION '%', scope_name USING ERRCODE = 'DI001';
                END IF;
            END LOOP;
            INSERT INTO dagster_idempotent.costs (pipeline, task_id, call_key, submission, kind, amount, currency)
                VALUES (intent.pipeline, intent.task_id, intent.call_key, intent.submission, 'reserved', p_reserve,
                    p_reserve_currency);
        END IF;
        RETURN QUERY SELECT 'intended', t, s;
    END IF;
END $$;

-- The claim of a same-key resend: the same row, which stays in doubt, and its conditions are those of an intent, read
-- in the same order. Only while the provider still honours the key: counted from the key's first intent, less the time
-- in which the request may still leave and land. Verdicts: claimed, lease_lost, frozen, gate, refused (another send has
-- begun, or the key may be forgotten).
CREATE FUNCTION dagster_idempotent.claim_resend_v1(
    p_pipeline text, p_task_id text, p_call_key text, p_submission integer, p_fingerprint text, p_seen_sends integer,
    p_sender uuid, p_owner text, p_token bigint)
RETURNS TABLE (verdict text) LANGUAGE plpgsql AS $$
DECLARE
    t dagster_idempotent.tasks;
    home dagster_idempotent.pipelines;
BEGIN
    SELECT * INTO t FROM dagster_idempotent.tasks x
        WHERE x.pipeline = p_pipeline AND x.task_id = p_task_id FOR SHARE;
    IF NOT FOUND OR NOT dagster_idempotent.may_spend_v1(t, p_owner, p_token) THEN
        RETURN QUERY SELECT 'lease_lost';
        RETURN;
    END IF;
    -- A fresh snapshot, after the locks: a freeze that committed while we waited for one of them is seen.
    SELECT * INTO home FROM dagster_idempotent.pipelines p WHERE p.pipeline = p_pipeline;
    IF home.frozen_reason IS NOT NULL THEN
        RETURN QUERY SELECT 'frozen';
    ELSIF NOT dagster_idempotent.gate_open_v1(p_pipeline, p_task_id, 'spend') THEN
        RETURN QUERY SELECT 'gate';
    ELSE
        UPDATE dagster_idempotent.submissions s SET sends = s.sends + 1, sender = p_sender, owner = p_owner,
                fencing_token = p_token, sender_expires_at = clock_timestamp() + home.sender_lease
            WHERE s.pipeline = p_pipeline AND s.task_id = p_task_id AND s.call_key = p_call_key
              AND s.submission = p_submission AND s.state = 'in_doubt' AND s.sends = p_seen_sends
              AND s.fingerprint = p_fingerprint
              AND clock_timestamp() < s.key_window - home.send_window - s.settle_delay + (
                    SELECT min(k.intended_at) FROM dagster_idempotent.submissions k
                    WHERE k.pipeline = s.pipeline AND k.task_id = s.task_id AND k.call_key = s.call_key
                      AND k.idempotency_key = s.idempotency_key);
        RETURN QUERY SELECT CASE WHEN FOUND THEN 'claimed' ELSE 'refused' END;
    END IF;
END $$;

-- A positive answer is written by whoever received it, whatever lease, hold or status have become: a paid answer is
-- never dropped. On a void row it is adopted; if another submission is live, the partial unique index raises and the
-- caller keeps it with keep_late_answer_v1.
CREATE FUNCTION dagster_idempotent.record_answer_v1(p_answer jsonb, p_body bytea)
RETURNS SETOF dagster_idempotent.submissions LANGUAGE plpgsql AS $$
DECLARE
    answer dagster_idempotent.submissions := jsonb_populate_record(NULL::dagster_idempotent.submissions, p_answer);
    s dagster_idempotent.submissions;
BEGIN
    PERFORM dagster_idempotent.store_answer_file_v1(p_answer);
    UPDATE dagster_idempotent.submissions x SET
            state = answer.state, settled_by = answer.settled_by, settled_at = clock_timestamp(),
            remote_ref = coalesce(answer.remote_ref, x.remote_ref),
            response = answer.response, response_body = p_body,
            response_artifact = answer.response_artifact,
            response_sha256 = answer.response_sha256, cost = answer.cost, currency = answer.currency,
            cost_basis = answer.cost_basis, error = NULL, late = false
        WHERE (x.pipeline, x.task_id, x.call_key, x.submission)
            = (answer.pipeline, answer.task_id, answer.call_key, answer.submission)
          AND (x.state IN ('intended', 'in_doubt', 'not_sent', 'rejected', 'abandoned')
               OR x.state = 'accepted' AND answer.state = 'succeeded')
          AND (answer.state <> 'accepted' OR NOT x.late)
        RETURNING * INTO s;
    IF FOUND THEN
        IF s.state = 'succeeded' THEN
            PERFORM dagster_idempotent.book_v1(s, s.cost, s.currency);
        END IF;
        RETURN NEXT s;
    END IF;
END $$;

-- The second statement for an answer that another live submission keeps out: shown in red, its cost booked. The live
-- row is locked first: if it has become void meanwhile, nothing is returned and the caller adopts after all.
CREATE FUNCTION dagster_idempotent.keep_late_answer_v1(p_answer jsonb, p_body bytea)
RETURNS SETOF dagster_idempotent.submissions LANGUAGE plpgsql AS $$
DECLARE
    answer dagster_idempotent.submissions := jsonb_populate_record(NULL::dagster_idempotent.submissions, p_answer);
    s dagster_idempotent.submissions;
BEGIN
    PERFORM FROM dagster_idempotent.submissions x
        WHERE (x.pipeline, x.task_id, x.call_key) = (answer.pipeline, answer.task_id, answer.call_key)
          AND x.state IN ('intended', 'in_doubt', 'accepted', 'succeeded') FOR SHARE;
    IF NOT FOUND THEN RETURN; END IF;
    PERFORM dagster_idempotent.store_answer_file_v1(p_answer);
    UPDATE dagster_idempotent.submissions x SET late = true, remote_ref = coalesce(answer.remote_ref, x.remote_ref),
            response = answer.response, response_body = p_body,
            response_artifact = answer.response_artifact,
            response_sha256 = answer.response_sha256, cost = answer.cost, currency = answer.currency,
            cost_basis = answer.cost_basis
        WHERE (x.pipeline, x.task_id, x.call_key, x.submission)
            = (answer.pipeline, answer.task_id, answer.call_key, answer.submission)
          AND x.state IN ('not_sent', 'rejected', 'abandoned')
        RETURNING * INTO s;
    IF FOUND THEN
        PERFORM dagster_idempotent.book_v1(s, s.cost, s.currency);
        RETURN NEXT s;
    END IF;
END $$;

-- A negative answer proves something only to the one sender of the only send, or to a look-up (or an operator with
-- evidence) begun after the sender expired and the provider's settle delay passed; a rejection ends in the same way.
CREATE FUNCTION dagster_idempotent.record_refusal_v1(
    p_pipeline text, p_task_id text, p_call_key text, p_submission integer, p_state text, p_error text,
    p_sender uuid, p_seen_sends integer, p_remote_ref text DEFAULT NULL)
RETURNS SETOF dagster_idempotent.submissions LANGUAGE plpgsql AS $$
DECLARE
    s dagster_idempotent.submissions;
BEGIN
    UPDATE dagster_idempotent.submissions x SET
            state = p_state, error = p_error, settled_at = clock_timestamp(),
            remote_ref = coalesce(p_remote_ref, x.remote_ref),
            settled_by = CASE WHEN p_sender IS NULL THEN 'look_up' ELSE 'sender' END
        WHERE (x.pipeline, x.task_id, x.call_key, x.submission) = (p_pipeline, p_task_id, p_call_key, p_submission)
          AND CASE WHEN p_sender IS NOT NULL
                THEN x.sender = p_sender AND x.sends = 1 AND x.state IN ('intended', 'in_doubt')
                ELSE x.state = 'in_doubt' AND x.sends = p_seen_sends
                     AND x.sender_expires_at + x.settle_delay <= clock_timestamp() END
        RETURNING * INTO s;
    IF FOUND THEN
        PERFORM dagster_idempotent.book_v1(s, NULL, NULL);
        RETURN NEXT s;
    END IF;
END $$;
