"""tracking.json: how much of a run MLflow has been sent, and where."""

from dataclasses import dataclass

from elmwright.pipeline.records import BadField, from_data, to_data
from elmwright.pipeline.storage.files import at


@dataclass(frozen=True)
class TrackingState:
    """What is known of the MLflow run; the file lacks what was not noted yet."""

    uri: str = ""
    """The store, relative to the run's folder where it is inside, without a password."""
    run_id: str = ""
    """The MLflow run; empty if there is none."""
    cursor: int = 0
    """Bytes of the journal that MLflow has."""
    key: str | None = None
    """Finds a run that was created by a command killed before it could note its id."""
    experiment_id: str | None = None
    names: int | None = None
    """The version of the metrics' names; older runs have none."""
    params: bool | None = None
    """Whether the settings were sent."""
    described: bool | None = None
    """Whether all else that is sent once was sent."""
    status: str | None = None
    """The end of the run as MLflow was told it."""

    def save(self, path: str) -> None:
        known = {name: value for name, value in to_data(self).items() if value is not None}
        at(path).write_json(known)


def read_tracking(path: str) -> TrackingState | None:
    """What tracking.json says; None where there is none or it is damaged."""
    try:
        return from_data(TrackingState, at(path).read_json(), ignore_unknown=True)
    except BadField:
        return None
