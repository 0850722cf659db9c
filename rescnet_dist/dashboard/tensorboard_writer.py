"""Writer of runs for TensorBoard, without TensorFlow or PyTorch: event files in a folder."""

from __future__ import annotations

import os
import time
from typing import Any

from rescnet_dist._compat import load_tensorboard
from rescnet_dist.dashboard.writers import RunWriter, spec_parameters
from rescnet_dist.errors import RescnetError
from rescnet_dist.events import RunDone
from rescnet_dist.formatting import url_name


class TensorBoardWriter(RunWriter):
    """A callback that writes a run to `folder`/NAME, for `tensorboard --logdir folder`.

    It writes scalars by layer, the specs as hyperparameters, and the outcome as text. NAME is the
    last part of the run's URL, so runs with the same name need different folders. A resumed run
    writes all its layers again, after a mark that makes TensorBoard drop the earlier ones, so that
    each step is shown once. Needs `pip install 'rescnet-dist[tensorboard]'`.

    Parameters
    ----------
    folder : str or path-like
        Folder on this machine. It is created if it does not exist.

    Raises
    ------
    RescnetError
        If the folder is a URL or cannot be created, or TensorBoard is not installed.

    Examples
    --------
    >>> with TensorBoardWriter("board") as writer:  # doctest: +SKIP
    ...     ResCNetClassifier(spec, store="runs/first", listeners=[writer]).fit(X, y)
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        super().__init__()
        self.folder = os.fspath(folder)
        if "://" in self.folder:
            raise RescnetError(
                f"The TensorBoard folder {self.folder} is a URL. Event files are written to a "
                "folder of this machine; pass a folder, and copy it afterwards."
            )
        load_tensorboard()
        try:
            os.makedirs(self.folder, exist_ok=True)
        except OSError as error:
            raise RescnetError(
                f"The TensorBoard folder {self.folder} cannot be created ({error}). Pass another "
                "folder."
            ) from None
        self._file: Any = None

    def close(self, error: BaseException | None = None) -> None:
        """Close the event file.

        Parameters
        ----------
        error : BaseException, optional
            What interrupted the run. It is not written.
        """
        if self._file is not None:
            self._file.close()
            self._file = None

    def _begin(self, url: str, description: dict[str, Any]) -> None:
        events, writer, hparams, _ = load_tensorboard()
        self.close()
        self._file = writer.EventFileWriter(os.path.join(self.folder, url_name(url)))
        start = events.SessionLog(status=events.SessionLog.START)
        self._add_event(0, session_log=start)  # makes readers drop earlier events from step 0 on
        if description:
            parameters = spec_parameters(description)
            self._add_event(0, summary=hparams.hparams_pb(parameters, trial_id=url))

    def _write(self, step: int, values: dict[str, float], when: float) -> None:
        events = load_tensorboard()[0]
        event = events.Event(wall_time=when, step=step)
        for name, value in values.items():
            event.summary.value.add(tag=name, simple_value=value)
        self._file.add_event(event)

    def _end(self, event: RunDone) -> None:
        text = f"depth {event.depth}: {event.reason}; run {event.url}"
        self._add_event(event.depth, summary=load_tensorboard()[3].text_pb("outcome", text))
        self.close()

    def _flush(self) -> None:
        self._file.flush()

    def _add_event(self, step: int, **fields: Any) -> None:
        """Add an event of a step with the current time."""
        events = load_tensorboard()[0]
        self._file.add_event(events.Event(wall_time=time.time(), step=step, **fields))
