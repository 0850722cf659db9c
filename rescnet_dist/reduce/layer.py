"""Layers of a Dask graph that are sent as their description and become tasks on the scheduler."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from functools import cached_property

from dask.highlevelgraph import Layer
from dask.task_spec import Task
from dask.typing import Key


class DescribedLayer(Layer):
    """A layer whose tasks are made on first use, from what its `__reduce__` sends."""

    @abstractmethod
    def get_output_keys(self) -> set[Key]:
        """Return the keys that other layers and clients may use."""

    @abstractmethod
    def make_tasks(self) -> Iterable[Task]:
        """Yield the tasks."""

    @cached_property
    def _tasks(self) -> dict[Key, Task]:
        """The tasks by key."""
        return {task.key: task for task in self.make_tasks()}

    def __getitem__(self, key: Key) -> Task:
        return self._tasks[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)

    def is_materialized(self) -> bool:
        """Return whether the tasks have been made."""
        return "_tasks" in self.__dict__
