"""Sends the journal of a run to MLflow from a background thread.

The driver reads the journal (journal.py) in a background thread and sends what is new to MLflow; a
slow or dead server delays only that thread. How far it has come is remembered in `tracking.json`,
and what may have been sent twice after a kill merges, because the journal fixes each point's
timestamp. A checkpoint is an external logged model with its step, folder, digest and, where one was
computed, held-out perplexity; it is removed, files and all, when the checkpoint is pruned. What
MLflow shows as charts and what as tags is decided in metric_names.py.

Only the driver opens a SQLite store, under the run's lock: several processes creating its schema at
once would crash (first use takes some seconds, which is why it happens in this thread too).
"""

import logging
import threading
import uuid
from dataclasses import replace
from typing import Any

from elmwright.jobs.config.sections import RunConfig
from elmwright.jobs.config.toml_file import config_hash, to_dict
from elmwright.jobs.environment.machine_facts import environment
from elmwright.jobs.rundir.journal_lines import damaged_lines, journal_end, read_journal
from elmwright.jobs.rundir.journal_records import (
    CheckpointPruned,
    CheckpointSaved,
    Evaluation,
    FinalEvaluation,
    Record,
    ValuesRecord,
)
from elmwright.jobs.rundir.layout import RunFolder
from elmwright.jobs.rundir.metrics import FINAL, Regime, perplexities, perplexity_metric
from elmwright.jobs.secrets.hiding import for_others, store_all, without_secret
from elmwright.jobs.tracking.metric_names import NAMES, heldout_metric, tagged
from elmwright.jobs.tracking.mlflow_entities import corpus_dataset, record_metrics, run_params
from elmwright.jobs.tracking.store import (
    OWN_STORE,
    artifact_folder,
    connect,
    default_uri,
    elsewhere,
    from_environment,
    has_run,
    is_store,
    relative_uri,
    remove_logged_model,
    with_login,
)
from elmwright.jobs.tracking.tracking_state import TrackingState, read_tracking
from elmwright.pipeline.errors import UserError
from elmwright.pipeline.format.manifest import Manifest
from elmwright.pipeline.records import to_data
from elmwright.pipeline.storage.files import at, join

log = logging.getLogger("elmwright")

POLL_SECONDS = 2.0
RETRY_SECONDS = 10.0
BATCH = 500
"""Metrics in one request; MLflow accepts at most 1,000."""


def tracking_uri(config: RunConfig, folder: RunFolder) -> str:
    """The config's URI, or where the run began, with the login that MLFLOW_TRACKING_URI has for it.
    A new run: that variable's server or database, else a SQLite file in the run's folder."""
    if uri := config.tracking.uri or elsewhere(folder):
        return with_login(uri)
    own = folder.mlflow / "mlflow.db"
    return ("" if own.exists() else from_environment()) or f"sqlite:///{own}"


class Tracker:
    """Feeds one MLflow run from the journal."""

    def __init__(self, config: RunConfig, folder: RunFolder, manifest: Manifest) -> None:
        self._config, self._folder, self._manifest = config, folder, manifest
        self._uri = tracking_uri(config, folder)
        self._state_file = folder.tracking
        name = without_secret(relative_uri(self._uri, folder.root))
        self._state = TrackingState(uri=name)
        saved = read_tracking(self._state_file)
        if saved and is_store(saved.uri, self._uri, folder) and self._is_there(saved.run_id):
            self._state = replace(saved, uri=name)
        self._evaluated: dict[int, int] = {}
        """Step → time of its evaluation, as far as the journal was read."""
        self._known: dict[tuple[str, int], int] = {}
        """With a damaged journal: the time of each (metric, step) that MLflow has."""
        self._tags: dict[str, str] = {}
        self._client: Any = None
        self._closing = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="tracking", daemon=True)

    @property
    def run_id(self) -> str:
        return self._state.run_id

    def _is_there(self, run_id: str) -> bool:
        """Whether the run's own database, if it has one, knows this MLflow run."""
        own = relative_uri(self._uri, self._folder.root) == OWN_STORE
        return not (own and run_id) or has_run(self._folder.mlflow / "mlflow.db", run_id)

    def start(self) -> None:
        self._thread.start()

    def finish(self, status: str, seconds: float = 60.0) -> str | None:
        """Send the rest and close the run; after `seconds`, say what could not be sent."""
        self._closing.set()
        self._thread.join(seconds)
        if self._thread.is_alive() or self._error is not None:
            reason = self._error or f"no answer within {seconds:.0f} s"
            return for_others(
                f"MLflow at {without_secret(self._uri)} has not taken everything ({reason}); the "
                "journal has it, and the next run of the same command sends the rest"
            )
        try:
            self._client.set_terminated(self.run_id, status)
        except Exception as error:
            return for_others(
                f"MLflow at {without_secret(self._uri)} could not close the run ({error})"
            )
        self._note(status=status)
        return None

    def _work(self) -> None:
        while True:
            closing = self._closing.is_set()
            try:
                # Importing MLflow and creating a database take seconds that the start of training
                # needs itself: wait until there is something to send.
                if closing or self._client is not None or journal_end(self._folder.journal):
                    if self._client is None:
                        self._client = self._connect()
                    self._send()
                if self._error is not None:
                    log.warning("tracking: MLflow answers again, and has everything")
                self._error = None
            except Exception as error:
                if self._error is None:  # once per outage
                    log.warning(
                        "tracking: %s; training continues, and MLflow gets everything when it "
                        "answers",
                        for_others(str(error)),
                    )
                self._error = error
            if closing:
                return
            self._closing.wait(RETRY_SECONDS if self._error else POLL_SECONDS)

    def _connect(self) -> Any:
        client = connect(self._uri)
        if self.run_id:
            self._look_for_twin(client)
        if self.run_id:
            self._state = replace(self._state, status="RUNNING")
            client.update_run(self.run_id, status="RUNNING")
            self._describe(client)
            if damaged_lines(self._folder.journal):
                # Positions may have moved: say it all again, and nothing at another time.
                self._state = replace(self._state, cursor=0)
                self._known = self._history(client)
            return client
        name = self._config.tracking.experiment
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            experiment_id = client.create_experiment(
                name, artifact_location=artifact_folder(self._uri)
            )
        else:
            experiment_id = experiment.experiment_id
        key = self._state.key
        if not key:
            key = uuid.uuid4().hex
            self._note(key=key)
        # A run that was created by a command killed before it could note its name.
        found = client.search_runs(
            [experiment_id], f"tags.`elmwright.key` = '{key}'", max_results=1
        )
        tags = {
            "elmwright.key": key,
            "elmwright.run_dir": self._folder.root,
            "elmwright.config_sha256": config_hash(self._config),
            "elmwright.corpus_fingerprint": self._manifest.fingerprint,
        }
        run = (
            found[0]
            if found
            else client.create_run(experiment_id, run_name=self._config.run.name, tags=tags)
        )
        run_id = run.info.run_id
        self._note(run_id=run_id, experiment_id=experiment_id, cursor=0, names=NAMES)
        self._describe(client)
        return client

    def _history(self, client: Any) -> dict[tuple[str, int], int]:
        """What MLflow has of this run."""
        return {
            (key, point.step): point.timestamp
            for key in client.get_run(self.run_id).data.metrics
            for point in client.get_metric_history(self.run_id, key)
        }

    def _look_for_twin(self, client: Any) -> None:
        """A copy of a run gets an MLflow run of its own on a server that knows the other one."""
        was = client.get_run(self.run_id).data.tags.get("elmwright.run_dir", "")
        if was in ("", self._folder.root):
            return
        try:
            other = read_tracking(join(was, "tracking.json"))
        except (OSError, UserError):  # a store that cannot be asked from here
            other = None
        if other and other.run_id == self.run_id:
            self._state = TrackingState(uri=self._state.uri)
        else:
            client.set_tag(self.run_id, "elmwright.run_dir", self._folder.root)

    def _describe(self, client: Any) -> None:
        """Log what the run is, once; saying it again after a kill in between does no harm."""
        if self._state.described:
            return
        config = store_all(to_dict(self._config))
        if not self._state.params:  # they cannot be changed, and the user's may since have
            client.log_batch(self.run_id, params=run_params(config, self._manifest))
            self._note(params=True)
        client.log_inputs(
            self.run_id, datasets=[corpus_dataset(self._folder.corpus, self._manifest)]
        )
        client.log_dict(self.run_id, config, "config.json")
        client.log_dict(self.run_id, to_data(environment()), "environment.json")
        for name in ("MANIFEST.json", "report.html"):
            path = join(self._folder.corpus, name)
            if at(path).exists():
                client.log_text(self.run_id, at(path).read_bytes().decode(), f"corpus/{name}")
        self._note(described=True)

    def _send(self) -> None:
        """Send all complete records behind the cursor, which moves only over what was taken."""
        pending: list[Any] = []
        if self._state.cursor > journal_end(self._folder.journal):
            # A power cut took the end of the journal: send everything again.
            self._state = replace(self._state, cursor=0)
        position = self._state.cursor
        for record, behind in read_journal(self._folder.journal, position):
            if isinstance(record, ValuesRecord):
                pending += [
                    metric
                    for metric in record_metrics(record, self._state.names or 1)
                    if self._known.get((metric.key, metric.step), metric.timestamp)
                    == metric.timestamp  # else its first record is lost, and MLflow has that
                ]
                self._tag(record)
                if isinstance(record, FinalEvaluation):
                    self._flush(pending, position)
                    pending = []
                    self._score_final(record)
            elif isinstance(record, CheckpointSaved | CheckpointPruned):
                self._flush(pending, position)
                pending = []
                self._checkpoint(record)
            position = behind
            if len(pending) >= BATCH:
                self._flush(pending, position)
                pending = []
        self._flush(pending, position)

    def _tag(self, record: ValuesRecord) -> None:
        """Send the tags of a record, each when it is new or has changed."""
        if isinstance(record, Evaluation):
            self._evaluated[record.step] = record.time
        tags = tagged(record.kind, record.step, record.values)
        for key, value in tags.items():
            if self._tags.get(key) != value:
                self._client.set_tag(self.run_id, key, value)
                self._tags[key] = value

    def _flush(self, metrics: list[Any], position: int) -> None:
        for start in range(0, len(metrics), BATCH):
            self._client.log_batch(self.run_id, metrics=metrics[start : start + BATCH])
        if position != self._state.cursor:
            self._note(cursor=position)

    def _checkpoint(self, record: CheckpointSaved | CheckpointPruned) -> None:
        """Create (or, after pruning, delete) the logged model of a checkpoint."""
        import mlflow

        name, known = self._logged(record.step)
        if isinstance(record, CheckpointPruned):
            for model in known:
                remove_logged_model(self._client, self._uri, model)
            return
        stale = [model for model in known if model.tags.get("sha256") != record.sha256]
        for model in stale:  # written again with other bytes
            remove_logged_model(self._client, self._uri, model)
        current = [model for model in known if model not in stale]
        if current:
            model = current[0]
        else:
            with default_uri(self._uri):
                model = mlflow.create_external_model(
                    name=name,
                    source_run_id=self.run_id,
                    experiment_id=self._state.experiment_id,
                    model_type="checkpoint",
                    params={
                        "step": str(record.step),
                        "uri": join(self._folder.checkpoints, record.path.rpartition("/")[2]),
                        "sha256": record.sha256,
                    },
                    tags={"step": str(record.step), "sha256": record.sha256},
                )
        self._score(model, record, record.perplexity, record.perplexity_states)

    def _logged(self, step: int) -> tuple[str, list[Any]]:
        """The name of a checkpoint's logged model, and those of this run that have it."""
        name = f"{self._config.run.name}-step-{step}"
        known = self._client.search_logged_models(
            [self._state.experiment_id], filter_string=f"name = '{name}'"
        )
        return name, [model for model in known if model.source_run_id == self.run_id]

    def _score_final(self, record: FinalEvaluation) -> None:
        """Give the last checkpoint its perplexity: it was written before the last evaluation."""
        values = {key.removeprefix(FINAL): value for key, value in record.values.items()}
        scores, states = perplexities(values)
        for model in self._logged(record.step)[1]:
            if not model.metrics:  # else it is the best of the run, and was scored in passing
                self._score(model, record, scores, states)

    def _score(
        self, model: Any, record: Record, perplexity: dict[str, float], states: Regime
    ) -> None:
        """Attach the very point that the evaluation gave, so that no second chart is drawn."""
        names = self._state.names or 1
        for split, value in perplexity.items():
            name = perplexity_metric(states).of(split)
            if names >= NAMES:
                name = heldout_metric(split, states)
            self._client.log_metric(
                self.run_id,
                name,
                value,
                timestamp=self._known.get((name, record.step)) or self._time_of(record),
                step=record.step,
                model_id=model.model_id,
            )

    def _time_of(self, record: Record) -> int:
        """When the evaluation of a checkpoint was recorded, which may be before we were started."""
        step = record.step
        if step not in self._evaluated:
            for other, _ in read_journal(self._folder.journal, 0):
                if isinstance(other, Evaluation):
                    self._evaluated[other.step] = other.time
        return self._evaluated.get(step) or record.time

    def _note(self, **changes: Any) -> None:
        """Change the state, and save it."""
        self._state = replace(self._state, **changes)
        self._state.save(self._state_file)


def read_run_id(folder: RunFolder) -> str:
    """The MLflow run of this run, or nothing."""
    state = read_tracking(folder.tracking)
    return state.run_id if state else ""


def is_caught_up(config: RunConfig, folder: RunFolder) -> bool:
    """Does MLflow have the whole journal, and know that the run is finished?"""
    state = read_tracking(folder.tracking)
    return (
        state is not None
        and is_store(state.uri, tracking_uri(config, folder), folder)
        and state.status == "FINISHED"
        and 0 < state.cursor <= journal_end(folder.journal)
        and not any(read_journal(folder.journal, state.cursor))
    )
