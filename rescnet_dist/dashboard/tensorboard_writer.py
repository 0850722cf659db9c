"""Runs in TensorBoard, without TensorFlow or PyTorch: event files in a folder."""

from __future__ import annotations

import os
import time
from typing import Any

from rescnet_dist.dashboard.writers import RunWriter, parameters
from rescnet_dist.errors import RescnetError
from rescnet_dist.formatting import url_name
from rescnet_dist.train import RunDone


class TensorBoardWriter(RunWriter):
    """A listener that writes a run's scalars, by layer, its specs as hyper-parameters, and its
    outcome to `folder`/NAME for `tensorboard --logdir folder`. NAME is the last part of the run's
    URL: runs of the same name want different folders.

    A run that goes on writes all its layers anew behind a mark that has TensorBoard drop what was
    there before, so that each step is shown once. Needs `pip install 'rescnet-dist[tensorboard]'`.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        super().__init__()
        self.folder = os.fspath(folder)
        if "://" in self.folder:
            raise RescnetError(
                f"TensorBoard's files are written to a folder of this machine, not to "
                f"{self.folder}: give a folder, and copy it"
            )
        _library()
        try:
            os.makedirs(self.folder, exist_ok=True)
        except OSError as error:
            raise RescnetError(
                f"TensorBoard's folder {self.folder} cannot be made ({error}): give another one"
            ) from None
        self._file: Any = None

    def close(self, error: BaseException | None = None) -> None:
        """Close the event file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _begin(self, url: str, found: dict[str, Any]) -> None:
        events, writer, hparams, _ = _library()
        self.close()
        self._file = writer.EventFileWriter(os.path.join(self.folder, url_name(url)))
        start = events.SessionLog(status=events.SessionLog.START)
        self._add(0, session_log=start)  # drops what is there of step 0 and later
        if found:
            self._add(0, summary=hparams.hparams_pb(parameters(found), trial_id=url))

    def _write(self, step: int, values: dict[str, float], when: float) -> None:
        events = _library()[0]
        event = events.Event(wall_time=when, step=step)
        for name, value in values.items():
            event.summary.value.add(tag=name, simple_value=value)
        self._file.add_event(event)

    def _end(self, event: RunDone) -> None:
        text = f"depth {event.depth}: {event.reason}; run {event.url}"
        self._add(event.depth, summary=_library()[3].text_pb("outcome", text))
        self.close()

    def _flush(self) -> None:
        self._file.flush()

    def _add(self, step: int, **what: Any) -> None:
        self._file.add_event(_library()[0].Event(wall_time=time.time(), step=step, **what))


def _library() -> tuple[Any, Any, Any, Any]:
    """The modules of TensorBoard that write its files, which PyTorch's writer uses too."""
    try:
        from tensorboard.compat.proto import event_pb2
        from tensorboard.plugins.hparams import summary_v2 as hparams
        from tensorboard.plugins.text import summary_v2 as text
        from tensorboard.summary.writer import event_file_writer
    except ImportError as error:
        raise RescnetError(
            f"writing for TensorBoard needs it ({error}): pip install 'rescnet-dist[tensorboard]'"
        ) from None
    return event_pb2, event_file_writer, hparams, text
