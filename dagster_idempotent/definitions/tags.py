"""Tags of this library on Dagster runs: a cross-check of the partition, and what the UI searches for."""

PREFIX = "dagster-idempotent"
ALLOCATION_KEY = f"{PREFIX}/allocation_key"
SCHEDULED_AT = f"{PREFIX}/scheduled_at"
SUBJECT = f"{PREFIX}/subject"
VERSION = f"{PREFIX}/version"
TASK_ID = f"{PREFIX}/task_id"
PERIOD = f"{PREFIX}/period"
PIPELINE = f"{PREFIX}/pipeline"
# Launched by the task sensor: such a claim waits for the backoff.
AUTOMATIC = f"{PREFIX}/automatic"
# "<pipeline>/<task id>:<fencing token>": which attempt the task sensor launched it for.
ATTEMPT = f"{PREFIX}/attempt"
# "<run id>:<value>", while a hold keeps automatic retries from spinning.
KEPT_MAX_RETRIES = f"{PREFIX}/kept_max_retries"

MAX_RETRIES = "dagster/max_retries"
RETRY_NUMBER = "dagster/retry_number"
AUTO_RETRY_RUN_ID = "dagster/auto_retry_run_id"
TICK_TIME = ".dagster/scheduled_execution_time"
RANGE_START = "dagster/asset_partition_range_start"
RANGE_END = "dagster/asset_partition_range_end"
PARTITION = "dagster/partition"
