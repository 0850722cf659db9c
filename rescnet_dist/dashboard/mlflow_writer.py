"""Runs in MLflow: one MLflow run for each run, found again when it goes on."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rescnet_dist.dashboard.writers import RunWriter, parameters
from rescnet_dist.errors import RescnetError, mask_secrets
from rescnet_dist.formatting import url_name
from rescnet_dist.train import RunDone

PARAMS = 100  # that MLflow takes at once
RUN_TAG = "rescnet.run"  # by which the MLflow run of a run is found

logger = logging.getLogger(__name__)


class MLflowWriter(RunWriter):
    """A listener that logs a run's scalars, with layers as steps, its specs as params, and its
    outcome to MLflow: at tracking_uri, such as http://host:5000 or sqlite:///mlflow.db, or where
    MLflow's own settings say.

    A run that goes on is logged to the same MLflow run of the experiment, which is found by a tag
    made of the run's URL and the time it was created. Params of MLflow cannot be changed: the
    max_layers of a resumed run is in the tag rescnet.max_layers. run_name is the last part of the
    URL if it is not given. A server that is gone is waited for by MLflow's own rules, and the run
    with it: see MLFLOW_HTTP_REQUEST_MAX_RETRIES. Needs `pip install 'rescnet-dist[mlflow]'`.
    """

    def __init__(
        self,
        experiment: str = "rescnet",
        *,
        tracking_uri: str | None = None,
        run_name: str | None = None,
    ) -> None:
        super().__init__()
        self.run_name = run_name
        self._run: str | None = None  # the id of the MLflow run that goes on
        with _naming_problems(tracking_uri):
            from mlflow.tracking import MlflowClient

            self._client = MlflowClient(tracking_uri=tracking_uri)
            found = self._client.get_experiment_by_name(experiment)
            self._experiment: str = (
                found.experiment_id if found else self._client.create_experiment(experiment)
            )

    def close(self, error: BaseException | None = None) -> None:
        """Mark a run that has not ended as failed, or as killed where the user did it."""
        if self._run is None:
            return
        status = "KILLED" if error is None or isinstance(error, KeyboardInterrupt) else "FAILED"
        try:
            self._client.set_terminated(self._run, status=status)
        except Exception as problem:  # nor hide what ended the run
            logger.warning("the MLflow run %s could not be ended: %s", self._run, problem)
        self._run = None

    def _begin(self, url: str, found: dict[str, Any]) -> None:
        created = str(found.get("provenance", {}).get("created", ""))
        identity = hashlib.sha256(f"{url} {created}".encode()).hexdigest()[:32]
        known = self._client.search_runs(
            [self._experiment], f"tags.`{RUN_TAG}` = '{identity}'", max_results=1
        )
        if known:
            self._run = known[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            for name in known[0].data.metrics:
                history = self._client.get_metric_history(self._run, name)
                self._told |= {(name, metric.step) for metric in history}
        else:
            tags = {RUN_TAG: identity, "rescnet.url": url}
            made = self._client.create_run(
                self._experiment, tags=tags, run_name=self.run_name or url_name(url)
            )
            self._run = made.info.run_id
            self._log_parameters(found)
        if found:
            most = found["network"]["max_layers"]
            self._client.set_tag(self._run, "rescnet.max_layers", str(most))

    def _log_parameters(self, found: dict[str, Any]) -> None:
        from mlflow.entities import Param

        params = [Param(k, str(v)) for k, v in parameters(found).items()] if found else []
        for first in range(0, len(params), PARAMS):
            self._client.log_batch(self._run, params=params[first : first + PARAMS])

    def _write(self, step: int, values: dict[str, float], when: float) -> None:
        from mlflow.entities import Metric

        metrics = [Metric(name, value, int(1000 * when), step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def _end(self, event: RunDone) -> None:
        self._client.set_tag(self._run, "rescnet.reason", event.reason)
        self._client.set_terminated(self._run, status="FINISHED")
        self._run = None


@contextmanager
def _naming_problems(uri: str | None) -> Iterator[None]:
    """Name MLflow's own problems, and what to do."""
    try:
        yield
    except ImportError as error:
        raise RescnetError(
            f"writing for MLflow needs it ({error}): pip install 'rescnet-dist[mlflow]'"
        ) from None
    except Exception as error:  # of MLflow, its server or its database
        where = "its own settings name" if uri is None else mask_secrets(uri)
        raise RescnetError(
            f"MLflow cannot be used at the URI {where}: {str(error).strip(' .')}; check the URI"
        ) from None
