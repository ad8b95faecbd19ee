-- Every table of the ledger, with every invariant that a constraint can state.
-- protocol.md's words: a live submission is intended, in_doubt, accepted or succeeded; a void one is the rest.

CREATE TABLE dagster_idempotent.ledger (
    singleton   boolean     PRIMARY KEY DEFAULT true CHECK (singleton),
    -- Part of every idempotency key: staging and production never share one at the provider.
    ledger_id   uuid        NOT NULL DEFAULT gen_random_uuid(),
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO dagster_idempotent.ledger DEFAULT VALUES;

CREATE TABLE dagster_idempotent.pipelines (
    pipeline        text        PRIMARY KEY CHECK (pipeline ~ '^[A-Za-z_][A-Za-z0-9_]{0,99}$'),
    period_kind     text        NOT NULL CHECK (period_kind IN ('iso_week', 'day', 'month')),
    timezone        text        NOT NULL CHECK (timezone <> ''),
    lease           interval    NOT NULL CHECK (lease > interval '0'),
    sender_lease    interval    NOT NULL CHECK (sender_lease > interval '0'),
    send_window     interval    NOT NULL CHECK (send_window > interval '0'),
    max_attempts    integer     NOT NULL CHECK (max_attempts >= 1),
    backoff_base    interval    NOT NULL CHECK (backoff_base >= interval '0'),
    backoff_cap     interval    NOT NULL CHECK (backoff_cap >= backoff_base),
    gate            text        NOT NULL CHECK (gate IN ('none', 'spend', 'publish')),
    currency        text        CHECK (currency ~ '^([A-Z]{3,8}|[a-z][a-z0-9_]{0,31})$'),
    task_limit      numeric     CHECK (task_limit >= 0),
    period_limit    numeric     CHECK (period_limit >= 0),
    pipeline_limit  numeric     CHECK (pipeline_limit >= 0),
    frozen_reason   text        CHECK (frozen_reason <> ''),
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- A byte that leaves after the sender's lease could leave after somebody called it "not sent".
    CONSTRAINT send_window_shorter_than_sender_lease CHECK (send_window < sender_lease),
    CONSTRAINT limits_need_a_currency
        CHECK (currency IS NOT NULL OR (task_limit IS NULL AND period_limit IS NULL AND pipeline_limit IS NULL))
);

CREATE TABLE dagster_idempotent.tasks (
    pipeline          text        NOT NULL REFERENCES dagster_idempotent.pipelines,
    task_id           text        NOT NULL,
    period_id         text        NOT NULL CHECK (period_id <> ''),
    sequence          integer     NOT NULL CHECK (sequence >= 0),
    subject_id        text        NOT NULL DEFAULT '',
    scheduled_at      timestamptz,
    version           text        NOT NULL DEFAULT '',
    allocation_key    text        CHECK (allocation_key <> ''),
    run_id            text        CHECK (run_id ~ '^[0-9a-f]{64}$'),
    -- `unrelated`: imported, and somebody said that no schedule will ever ask for it again.
    origin            text        NOT NULL DEFAULT 'allocated' CHECK (origin IN ('allocated', 'imported', 'unrelated')),
    import_metadata   jsonb,
    launch            jsonb,
    status            text        NOT NULL DEFAULT 'pending'
        CHECK (status IN ('pending', 'running', 'failed', 'held', 'completed', 'dead', 'discarded')),
    owner             text        CHECK (owner <> ''),
    lease_expires_at  timestamptz,
    fencing_token     bigint      NOT NULL DEFAULT 0 CHECK (fencing_token >= 0),
    attempts          integer     NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    next_attempt_at   timestamptz,
    final             boolean     NOT NULL DEFAULT false,
    held_for          text        CHECK (held_for IN ('in_doubt', 'gate', 'budget')),
    error             text,
    -- json, not jsonb: the accepted text is kept to the letter.
    output            json,
    output_sha256     text        CHECK (output_sha256 ~ '^[0-9a-f]{64}$'),
    completed_by      text,
    completed_at      timestamptz,
    pruned_at         timestamptz,
    created_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (pipeline, task_id),
    UNIQUE (pipeline, period_id, sequence),
    UNIQUE (pipeline, allocation_key),
    UNIQUE (pipeline, run_id),
    CONSTRAINT task_id_is_period_and_sequence CHECK (task_id = period_id || '-' || sequence),
    CONSTRAINT allocated_tasks_have_an_identity
        CHECK (origin <> 'allocated' OR (allocation_key IS NOT NULL AND run_id IS NOT NULL)),
    CONSTRAINT key_and_run_id_come_together CHECK ((allocation_key IS NULL) = (run_id IS NULL)),
    CONSTRAINT completed_has_an_output
        CHECK ((status = 'completed') = (output_sha256 IS NOT NULL AND completed_at IS NOT NULL)),
    CONSTRAINT body_present_unless_pruned CHECK (status <> 'completed' OR (output IS NULL) = (pruned_at IS NOT NULL)),
    CONSTRAINT running_has_an_owner CHECK (status NOT IN ('running', 'failed') OR owner IS NOT NULL),
    CONSTRAINT ended_has_no_lease CHECK (status NOT IN ('pending', 'dead', 'discarded') OR owner IS NULL),
    CONSTRAINT held_says_for_what CHECK ((status = 'held') = (held_for IS NOT NULL))
);
CREATE UNIQUE INDEX tasks_identity ON dagster_idempotent.tasks (pipeline, subject_id, scheduled_at, version)
    WHERE scheduled_at IS NOT NULL;
-- What sensors and people look for: everything that is not at its end.
CREATE INDEX tasks_open ON dagster_idempotent.tasks (pipeline, status)
    WHERE status IN ('pending', 'running', 'failed', 'held', 'dead');
CREATE INDEX tasks_unmapped ON dagster_idempotent.tasks (pipeline, period_id)
    WHERE origin = 'imported' AND allocation_key IS NULL;

CREATE TABLE dagster_idempotent.artifacts (
    pipeline    text        NOT NULL,
    task_id     text        NOT NULL,
    name        text        NOT NULL CHECK (name <> ''),
    sha256      text        NOT NULL CHECK (sha256 ~ '^[0-9a-f]{64}$'),
    size        bigint      NOT NULL CHECK (size >= 0),
    media_type  text        NOT NULL CHECK (media_type <> ''),
    body        bytea,
    uri         text        CHECK (uri <> ''),
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    pruned_at   timestamptz,
    PRIMARY KEY (pipeline, task_id, name),
    FOREIGN KEY (pipeline, task_id) REFERENCES dagster_idempotent.tasks,
    CONSTRAINT body_or_uri CHECK (pruned_at IS NOT NULL OR (body IS NOT NULL) <> (uri IS NOT NULL)),
    CONSTRAINT size_is_of_the_body CHECK (body IS NULL OR octet_length(body) = size)
);

CREATE TABLE dagster_idempotent.submissions (
    pipeline             text        NOT NULL,
    task_id              text        NOT NULL,
    call_key             text        NOT NULL CHECK (call_key <> '' AND length(call_key) <= 200),
    submission           integer     NOT NULL CHECK (submission >= 1),
    state                text        NOT NULL CHECK (state IN
        ('intended', 'in_doubt', 'accepted', 'succeeded', 'not_sent', 'rejected', 'failed', 'abandoned')),
    sender               uuid        NOT NULL,
    sender_expires_at    timestamptz NOT NULL,
    sends                integer     NOT NULL DEFAULT 1 CHECK (sends >= 1),
    owner                text        NOT NULL,
    fencing_token        bigint      NOT NULL,
    provider             text        NOT NULL CHECK (provider <> ''),
    fingerprint          text        NOT NULL CHECK (fingerprint <> ''),
    fingerprint_version  integer     NOT NULL CHECK (fingerprint_version >= 1),
    -- JSON pointer -> digest of the leaf, so that a different payload is answered with the names that differ.
    fingerprint_fields   jsonb       NOT NULL,
    idempotency_key      text        NOT NULL CHECK (idempotency_key <> ''),
    key_no               integer     NOT NULL CHECK (key_no >= 0),
    lookup               text        NOT NULL CHECK (lookup IN ('exact', 'fuzzy', 'none')),
    settle_delay         interval    NOT NULL CHECK (settle_delay >= interval '0'),
    key_window           interval    CHECK (key_window > interval '0'),
    remote_ref           text        CHECK (remote_ref <> ''),
    response             jsonb,
    response_body        bytea,
    response_sha256      text        CHECK (response_sha256 ~ '^[0-9a-f]{64}$'),
    cost                 numeric     CHECK (cost >= 0),
    currency             text        CHECK (currency ~ '^([A-Z]{3,8}|[a-z][a-z0-9_]{0,31})$'),
    cost_basis           text        CHECK (cost_basis IN ('reported', 'computed', 'estimated')),
    -- A paid answer that came when another submission was live: kept, booked, shown in red.
    late                 boolean     NOT NULL DEFAULT false,
    settled_by           text        CHECK (settled_by IN ('sender', 'look_up', 'operator', 'poll')),
    error                text,
    intended_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    settled_at           timestamptz,
    pruned_at            timestamptz,
    PRIMARY KEY (pipeline, task_id, call_key, submission),
    FOREIGN KEY (pipeline, task_id) REFERENCES dagster_idempotent.tasks,
    CONSTRAINT cost_has_a_currency CHECK ((cost IS NULL) = (currency IS NULL)),
    CONSTRAINT accepted_has_a_reference CHECK (state <> 'accepted' OR remote_ref IS NOT NULL),
    CONSTRAINT succeeded_has_an_answer CHECK (state <> 'succeeded' OR response_sha256 IS NOT NULL),
    CONSTRAINT final_says_by_whom
        CHECK (state IN ('intended', 'in_doubt') OR (settled_by IS NOT NULL AND settled_at IS NOT NULL)),
    CONSTRAINT abandoned_by_operator_only CHECK (state <> 'abandoned' OR settled_by = 'operator'),
    CONSTRAINT late_only_when_void CHECK (NOT late OR state IN ('not_sent', 'rejected', 'abandoned')),
    CONSTRAINT body_present_unless_pruned
        CHECK (response_sha256 IS NULL OR (response_body IS NULL) = (pruned_at IS NOT NULL))
);
-- The strongest rule of the ledger: at most one live submission a call.
CREATE UNIQUE INDEX submissions_one_live ON dagster_idempotent.submissions (pipeline, task_id, call_key)
    WHERE state IN ('intended', 'in_doubt', 'accepted', 'succeeded');
CREATE INDEX submissions_unsettled ON dagster_idempotent.submissions (pipeline, task_id)
    WHERE state IN ('intended', 'in_doubt', 'accepted');
CREATE INDEX submissions_sender ON dagster_idempotent.submissions (sender) WHERE state IN ('intended', 'in_doubt');

CREATE TABLE dagster_idempotent.costs (
    pipeline    text        NOT NULL,
    task_id     text        NOT NULL,
    call_key    text        NOT NULL,
    submission  integer     NOT NULL,
    kind        text        NOT NULL CHECK (kind IN ('reserved', 'settled', 'released', 'adjusted')),
    amount      numeric     NOT NULL,
    currency    text        NOT NULL CHECK (currency ~ '^([A-Z]{3,8}|[a-z][a-z0-9_]{0,31})$'),
    booked_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (pipeline, task_id, call_key, submission, kind),
    FOREIGN KEY (pipeline, task_id, call_key, submission) REFERENCES dagster_idempotent.submissions,
    CONSTRAINT only_adjustments_are_negative CHECK (amount >= 0 OR kind = 'adjusted')
);

CREATE TABLE dagster_idempotent.budgets (
    pipeline  text    NOT NULL REFERENCES dagster_idempotent.pipelines,
    -- 'pipeline', 'period:2026-W32' or 'task:2026-W32-0'; always locked in that order.
    scope     text    NOT NULL CHECK (scope ~ '^(pipeline|period:.+|task:.+)$'),
    currency  text    NOT NULL CHECK (currency ~ '^([A-Z]{3,8}|[a-z][a-z0-9_]{0,31})$'),
    reserved  numeric NOT NULL DEFAULT 0 CHECK (reserved >= 0),
    settled   numeric NOT NULL DEFAULT 0,
    "limit"   numeric CHECK ("limit" >= 0),
    PRIMARY KEY (pipeline, scope, currency)
);

CREATE TABLE dagster_idempotent.approvals (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline    text        NOT NULL,
    task_id     text        NOT NULL,
    gate        text        NOT NULL CHECK (gate IN ('spend', 'publish')),
    actor       text        NOT NULL CHECK (actor <> ''),
    reason      text        NOT NULL CHECK (reason <> ''),
    amount_cap  numeric     CHECK (amount_cap >= 0),
    currency    text        CHECK (currency ~ '^([A-Z]{3,8}|[a-z][a-z0-9_]{0,31})$'),
    shown_sha256 text       NOT NULL CHECK (shown_sha256 ~ '^[0-9a-f]{64}$'),
    revoked_at  timestamptz,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    FOREIGN KEY (pipeline, task_id) REFERENCES dagster_idempotent.tasks
);
CREATE INDEX approvals_task ON dagster_idempotent.approvals (pipeline, task_id, gate);

CREATE TABLE dagster_idempotent.outbox (
    pipeline           text        NOT NULL,
    task_id            text        NOT NULL,
    channel            text        NOT NULL CHECK (channel <> ''),
    payload            json        NOT NULL,
    state              text        NOT NULL
        CHECK (state IN ('waiting', 'ready', 'sending', 'delivered', 'in_doubt', 'dead')),
    -- The channel refuses a repeat of the key `task:channel`, so the message may go again.
    deduplicates       boolean     NOT NULL,
    sender             uuid,
    sender_expires_at  timestamptz,
    attempts           integer     NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    next_attempt_at    timestamptz,
    receipt            text,
    error              text,
    created_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    delivered_at       timestamptz,
    PRIMARY KEY (pipeline, task_id, channel),
    FOREIGN KEY (pipeline, task_id) REFERENCES dagster_idempotent.tasks,
    CONSTRAINT sending_has_a_sender
        CHECK (state <> 'sending' OR (sender IS NOT NULL AND sender_expires_at IS NOT NULL)),
    CONSTRAINT delivered_says_when CHECK ((state = 'delivered') = (delivered_at IS NOT NULL))
);
CREATE INDEX outbox_open ON dagster_idempotent.outbox (pipeline, state) WHERE state <> 'delivered';

CREATE TABLE dagster_idempotent.audit (
    id        bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor     text        NOT NULL CHECK (actor <> ''),
    action    text        NOT NULL CHECK (action <> ''),
    reason    text        NOT NULL CHECK (reason <> ''),
    pipeline  text,
    task_id   text,
    before    jsonb,
    after     jsonb
);
CREATE INDEX audit_task ON dagster_idempotent.audit (pipeline, task_id);
