-- Retention reaches the results of effects: the record that something happened stays, with the hash of its result.
ALTER TABLE dagster_idempotent.effects
    ADD COLUMN result_sha256 text CHECK (result_sha256 ~ '^[0-9a-f]{64}$'),
    ADD COLUMN pruned_at timestamptz,
    DROP CONSTRAINT finished_has_a_result,
    ADD CONSTRAINT finished_has_a_result
        CHECK ((finished_at IS NULL) = (result IS NULL AND pruned_at IS NULL)),
    ADD CONSTRAINT pruned_keeps_the_hash
        CHECK (pruned_at IS NULL OR (result IS NULL AND result_sha256 IS NOT NULL));
