"""Writer of runs for MLflow: one MLflow run for each run, continued when the run is resumed."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rescnet_dist.dashboard.mlflow_models import log_mlflow_models
from rescnet_dist.dashboard.writers import RunWriter, spec_parameters
from rescnet_dist.errors import RescnetError, mask_secrets
from rescnet_dist.events import RunDone
from rescnet_dist.export import import_onnx
from rescnet_dist.formatting import url_name
from rescnet_dist.network import Network

MAX_BATCH_PARAMS = 100  # in one request to MLflow
IDENTITY_TAG = "rescnet.run"  # by which the MLflow run of a run is found

logger = logging.getLogger(__name__)


class MLflowWriter(RunWriter):
    """A callback that logs a run to MLflow: scalars by layer, specs as params, and the outcome.

    A resumed run is logged to the same MLflow run of the experiment, which is found by a tag made
    of the run's URL and the time it was created. MLflow params cannot be changed, so the max_layers
    of a resumed run is in the tag rescnet.max_layers. While the server is unreachable, MLflow
    retries by its own rules, and the run waits: see MLFLOW_HTTP_REQUEST_MAX_RETRIES. Needs
    `pip install 'rescnet-dist[mlflow]'`.

    Parameters
    ----------
    experiment : str, default="rescnet"
        Experiment. It is created if it does not exist.
    tracking_uri : str, optional
        Such as http://host:5000 or sqlite:///mlflow.db. By default, MLflow's own setting.
    run_name : str, optional
        Name of a new MLflow run. By default, the last part of the run's URL.
    log_models : bool, default=False
        Log the network at the end of a run, as the models "network", a pyfunc over its Zarr file,
        and "network-onnx"; both have a signature, an example and no pickle. Needs the extra `onnx`
        too.

    Raises
    ------
    RescnetError
        If MLflow is not installed, or cannot be used at the URI.

    Examples
    --------
    >>> with MLflowWriter(tracking_uri="sqlite:///mlflow.db") as writer:  # doctest: +SKIP
    ...     ResCNetClassifier(spec, store="runs/first", listeners=[writer]).fit(X, y)
    """

    def __init__(
        self,
        experiment: str = "rescnet",
        *,
        tracking_uri: str | None = None,
        run_name: str | None = None,
        log_models: bool = False,
    ) -> None:
        super().__init__()
        self.run_name = run_name
        self.log_models = log_models
        self._url = ""  # of the active run
        if log_models:
            import_onnx()  # raises before the run, not at its end
        self._run: str | None = None  # id of the active MLflow run
        with _translate_errors(tracking_uri):
            from mlflow.tracking import MlflowClient

            self._client = MlflowClient(tracking_uri=tracking_uri)
            found = self._client.get_experiment_by_name(experiment)
            self._experiment: str = (
                found.experiment_id if found else self._client.create_experiment(experiment)
            )

    def close(self, error: BaseException | None = None) -> None:
        """Mark a run that has not ended as failed, or as killed if the user interrupted it.

        Parameters
        ----------
        error : BaseException, optional
            What interrupted the run.
        """
        if self._run is None:
            return
        status = "KILLED" if error is None or isinstance(error, KeyboardInterrupt) else "FAILED"
        try:
            self._client.set_terminated(self._run, status=status)
        except Exception as problem:  # must not hide what ended the run
            logger.warning("The MLflow run %s could not be ended: %s", self._run, problem)
        self._run = None

    def _begin(self, url: str, description: dict[str, Any]) -> None:
        self._url = url
        created = str(description.get("provenance", {}).get("created", ""))
        identity = hashlib.sha256(f"{url} {created}".encode()).hexdigest()[:32]
        found = self._client.search_runs(
            [self._experiment], f"tags.`{IDENTITY_TAG}` = '{identity}'", max_results=1
        )
        if found:
            self._run = found[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            for name in found[0].data.metrics:
                history = self._client.get_metric_history(self._run, name)
                self._written |= {(name, metric.step) for metric in history}
        else:
            tags = {IDENTITY_TAG: identity, "rescnet.url": url}
            created_run = self._client.create_run(
                self._experiment, tags=tags, run_name=self.run_name or url_name(url)
            )
            self._run = created_run.info.run_id
            self._log_parameters(description)
        if description:
            max_layers = description["network"]["max_layers"]
            self._client.set_tag(self._run, "rescnet.max_layers", str(max_layers))

    def _log_parameters(self, description: dict[str, Any]) -> None:
        """Log the specs of a run as params, in batches."""
        from mlflow.entities import Param

        parameters = spec_parameters(description) if description else {}
        params = [Param(name, str(value)) for name, value in parameters.items()]
        for first in range(0, len(params), MAX_BATCH_PARAMS):
            self._client.log_batch(self._run, params=params[first : first + MAX_BATCH_PARAMS])

    def _write(self, step: int, values: dict[str, float], when: float) -> None:
        from mlflow.entities import Metric

        metrics = [Metric(name, value, int(1000 * when), step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def _end(self, event: RunDone) -> None:
        if self.log_models:
            self._log_models()
        self._client.set_tag(self._run, "rescnet.reason", event.reason)
        self._client.set_terminated(self._run, status="FINISHED")
        self._run = None

    def _log_models(self) -> None:
        """Log the network of the active run; a problem is a warning, as the run itself is done."""
        assert self._run is not None
        try:
            network = Network.load(self._url)
            log_mlflow_models(self._client, self._experiment, self._run, network)
        except Exception as problem:
            logger.warning("The network of %s is not logged to MLflow: %s", self._url, problem)


@contextmanager
def _translate_errors(uri: str | None) -> Iterator[None]:
    """Raise RescnetError with a remedy instead of MLflow's own errors."""
    try:
        yield
    except ImportError as error:
        raise RescnetError(
            f"MLflow is not installed ({error}). Run pip install 'rescnet-dist[mlflow]'."
        ) from None
    except Exception as error:  # of MLflow, its server or its database
        location = "of its own settings" if uri is None else mask_secrets(uri)
        raise RescnetError(
            f"MLflow cannot be used at the URI {location} ({str(error).strip(' .')}). "
            "Check the URI."
        ) from None
