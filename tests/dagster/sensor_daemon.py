"""The sensor daemon of a deployment: one evaluation of one sensor."""

from datetime import UTC, datetime, timedelta

from dagster._core.scheduler.instigation import InstigatorTick
from dagster._core.test_utils import freeze_time
from dagster._daemon.sensor import execute_sensor_iteration
from real_dagster import QUIET, REPOSITORY, Dagster

SET_CURSOR = """
mutation($selector: SensorSelector!, $cursor: String) {
  setSensorCursor(sensorSelector: $selector, cursor: $cursor) { __typename } }
"""


def sense(
    dagster: Dagster, sensor: str, *, location: str = "first", cursor: str | None = None, queue_only: bool = False
) -> InstigatorTick:
    """Turn a sensor on, let the sensor daemon evaluate it once, and return its tick."""
    found = dagster.repository(location).get_sensor(sensor)
    dagster.instance.start_sensor(found)
    if cursor is not None:
        selector = {"repositoryLocationName": location, "repositoryName": REPOSITORY, "sensorName": sensor}
        dagster.graphql(SET_CURSOR, {"selector": selector, "cursor": cursor})
    origin, selected = found.get_remote_origin_id(), found.selector_id
    # Its next tick would be too soon.
    earlier = len(dagster.instance.get_ticks(origin, selected))
    with freeze_time(datetime.now(UTC) + timedelta(hours=earlier)):
        list(execute_sensor_iteration(dagster.workspace, QUIET, None, None))
    dagster.instance.stop_sensor(origin, selected, found)
    if not queue_only:
        dagster.work_off_queue()
    (tick,) = dagster.instance.get_ticks(origin, selected, limit=1)
    return tick
