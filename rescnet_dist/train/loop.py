"""The training loop: choose the next action, run it as one graph, commit it, until it is done."""

from __future__ import annotations

import time
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
from distributed import Client

from rescnet_dist._compat import sending_promptly
from rescnet_dist.cluster import (
    CheckedWorkers,
    check_versions,
    find_workers,
    passes_span,
)
from rescnet_dist.errors import (
    CorruptDataError,
    DataError,
    StoreError,
    StoreUnreachableError,
    mask_secrets,
)
from rescnet_dist.events.bus import EventBus
from rescnet_dist.events.classes import (
    AccuracyCollapsed,
    Listener,
    MapsPlaced,
    PassDone,
    PassRetried,
    PassStarted,
    RunDone,
    RunStarted,
    RunStopped,
)
from rescnet_dist.events.metrics import Accuracy, PassMetrics
from rescnet_dist.model import Calibration, ConjugateGradients, Tally
from rescnet_dist.model.view import ViewArrays
from rescnet_dist.planning import (
    NO_WORKERS,
    Problem,
    check_fits,
    choose_tier,
    describe_placement,
    group_cache_bytes,
)
from rescnet_dist.reduce import fold_name
from rescnet_dist.runs.history import History, chosen_depth
from rescnet_dist.runs.state import RunState
from rescnet_dist.store import Claim, RunStore, has_saved_maps, last_saved, report_retries
from rescnet_dist.train import cg_tasks, passes, tiled
from rescnet_dist.train.cache_set import CacheSet
from rescnet_dist.train.cg import Solve, make_event
from rescnet_dist.train.cg_tasks import StoredIterate
from rescnet_dist.train.decide import (
    Done,
    Grow,
    Score,
    Survey,
    describe_collapse,
    find_collapse,
    next_action,
)
from rescnet_dist.train.executor import run_pass
from rescnet_dist.train.grown import GrownLayer, get_accuracy
from rescnet_dist.train.monitor import PassMonitor
from rescnet_dist.train.passes import Pass
from rescnet_dist.train.task import GroupParts, Task
from rescnet_dist.train.views import PHASE, view_pass

COMMITTED_FIELDS = ("accuracy", "residual", "seconds", "observed", "finished")  # of each pass


def train(
    claim: Claim,
    state: RunState,
    client: Client,
    listeners: Sequence[Listener] = (),
    checked: CheckedWorkers | None = None,
) -> Done:
    """Grow the network of a claimed run until it is done, on the client's cluster.

    Workers that are already `checked` are not checked again.

    The run store holds everything needed, so this starts a run, resumes one, and leaves a finished
    one unchanged.
    """
    with (
        EventBus(listeners) as bus,
        _publish_stop(bus, str(claim.location)),
        closing(_Driver(claim, state, client, bus, checked)) as driver,
        report_retries(driver.publish_retry),
        passes_span(client),
        sending_promptly(client),
    ):
        driver.start()
        while True:
            match next_action(driver.history(), driver.state.spec):
                case Survey():
                    driver.survey()
                case Grow(layer):
                    driver.grow(layer)
                case Score(layer):
                    driver.score(layer)
                case Done() as done:
                    driver.finish(done)
                    return done


@contextmanager
def _publish_stop(bus: EventBus, url: str) -> Iterator[None]:
    """Publish RunStopped, with the reason, if the body raises."""
    try:
        yield
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        reason = "interrupted" if interrupted else mask_secrets(str(error) or type(error).__name__)
        bus.publish_nowait(RunStopped(url, reason))
        raise


class _Driver:
    """Runs the passes of one run on a cluster and commits them; holds nothing of size N."""

    def __init__(
        self,
        claim: Claim,
        state: RunState,
        client: Client,
        bus: EventBus,
        checked: CheckedWorkers | None,
    ) -> None:
        self.name = uuid.uuid4().hex
        self.claim = claim
        self.run = RunStore(claim.location)
        self.client = client
        self.bus = bus
        self.monitor = PassMonitor(self.run, client, bus)
        self.state = state
        self.counts = np.zeros((len(self.state.plan.groups()), 0), np.int64)
        self.problem: Problem | None = None  # set on first use
        self.gpu_memory = checked.workers.gpu_memory if checked else None
        self.checked_workers = checked.identities if checked else frozenset[int]()
        self.stored_layer = 0  # the last layer whose maps are in the store
        self.created_layers: set[int] | None = None  # that may have arrays; None: not known yet
        self.has_groups = False  # of maps and scores, written by this driver
        self.tier = NO_WORKERS
        self.published_tier: tuple[bool, bool] | None = None  # in the last MapsPlaced event
        cached = (PHASE, cg_tasks.ITERATION, *(pass_.name for pass_ in passes.CACHED_PASSES))
        self.caches = CacheSet(client, [fold_name(name) for name in cached])
        self.was_finished = False  # the run was done before, and no layer has been grown since
        self.was_done = False  # the result in the store says that the run is done
        self.steps: list[dict[str, Any]] = []  # what the history needs of the committed steps

    def close(self) -> None:
        """Free the caches on the workers; a traceback may keep this driver alive."""
        try:
            self.monitor.close()
        finally:
            self.caches.release()

    def history(self) -> History:
        """Return what is committed; the commits are read once, as nobody else writes to the run."""
        return History.of(self.steps, self.run.result())

    def start(self) -> None:
        """Read what is committed, publish the start, and clean up after the previous driver."""
        commits, plan = self.run.commits(), self.state.plan
        self.steps = [_history_fields(record) for record in commits]
        self.stored_layer = last_saved(commits)
        if not (self.state.run_spec.maps_stay or self.run.has_maps(self.stored_layer)):
            self.stored_layer = 0  # the maps were removed when the run was done
        history, result = self.history(), self.run.result()
        self.was_done = bool(result and result.get("reason"))
        has_result = result and self.was_done and result["accuracies"]
        evaluated = result["accuracies"][-1]["layer"] if result and has_result else 0
        self.was_finished = bool(evaluated) and evaluated >= history.layers - 1
        self.bus.publish(
            RunStarted(
                str(self.run),
                plan.images,
                self.state.spec.max_layers,
                history.layers,
                history.accuracies,
                self.state.augment.copies,
                self.state.spec.head.leave_one_out_scores,
            )
        )
        self.remove_commits_after_gap(len(commits))
        if history.surveyed:
            self.counts = np.array(commits[0]["counts"], np.int64)
            self.remove_obsolete_arrays()  # a driver that died may not have done so

    def remove_commits_after_gap(self, missing: int) -> None:
        """Remove the commit records after step `missing`, which do not count without its record."""
        if later := self.run.commits_from(missing):
            self.claim.check()
            reason = (
                f"commits/{missing:04d}.json is missing. {len(later)} later steps are computed "
                "again."
            )
            self.bus.publish(PassRetried("grow" if missing else "survey", missing, reason))
            self.run.remove_commits(later)

    def survey(self) -> None:
        """Fit the views, count and survey the data; commit step 0."""
        self.check_cluster()
        self.fit_views()
        started = time.perf_counter()
        self.bus.publish(PassStarted("survey", 0))
        self.counts, _ = self.compute(passes.COUNT, self.make_task(0))
        surveyed, metrics = self.compute(passes.SURVEY, self.make_task(0))
        checksums = surveyed.chunks | dict(self.state.rows.checksums)
        record = {"counts": self.counts.tolist(), "checksums": checksums}
        done = PassDone("survey", 0, _seconds_since(started), None, observed=metrics)
        self.commit(0, record, done)

    def fit_views(self) -> None:
        """Let views learn from the images; what they learn is committed with the survey."""
        known: dict[str, ViewArrays] = {}
        for stage in range(max(view.passes for view in self.state.spec.views)):
            started = time.perf_counter()
            self.bus.publish(PassStarted(PHASE, 0))
            known, metrics = self.compute(view_pass(stage, known), self.make_task(0))
            seconds = _seconds_since(started)
            self.bus.publish(PassDone(PHASE, 0, seconds, None, observed=metrics))

    def grow(self, layer: int) -> None:
        """Add a layer; commit step `layer`."""
        self.check_cluster()
        self.publish_maps_placed(layer)
        started = time.perf_counter()
        self.bus.publish(PassStarted("grow", layer))
        self.claim.check()
        self.was_finished = False
        task = self.make_task(layer)
        grown = self.find_grown_layer() or self.pass_over_images(task)
        metrics = grown.metrics
        if self.iterative_solver(layer):
            metrics = metrics.plus_solve(self.solve_iteratively(task))
        seconds = _seconds_since(started)
        done = PassDone("grow", layer, seconds, grown.accuracy, grown.residual, metrics)
        record = {"checksums": grown.checksums, "calibration": grown.calibration}
        self.reopen_result()
        self.commit(layer, record, done)
        self.warn_of_collapse(History.of(self.steps, None).accuracies)

    def reopen_result(self) -> None:
        """Write that the run is not done any more, if it was and gets further layers."""
        if self.was_done:
            history = self.history()
            self.write_result(history.accuracies, history.calibrations, reason=None)
        self.was_done = False

    def iterative_solver(self, layer: int) -> ConjugateGradients | None:
        """Return the iterative solver of the head of a layer, if it has one."""
        solver = self.state.spec.head.iterative_solver
        return solver if self.state.architecture.has_head(layer) else None

    def pass_over_images(self, task: Task) -> GrownLayer:
        """Run the pass of a layer; fit its head too, unless that takes passes over its features."""
        state, plan, layer = self.state, self.state.plan, task.layer
        self.recreate_removed_maps(layer - 1)
        if task.save_maps:
            self.create_layer_arrays(layer)
        pass_, network = passes.GROW, state.architecture
        features = network.feature_count(layer)
        solver = self.iterative_solver(layer)
        if solver:
            pass_ = cg_tasks.GROW_FOR_CG
            self.claim.check()
            self.run.remove_work()
            sizes = plan.images, features, network.targets, plan.chunk_images
            self.run.create_cg_work(*sizes, network.feature_dtype)
        elif plan.tile_features and network.has_head(layer):
            pass_ = tiled.GROW_IN_TILES
            shape = (plan.images, features)
            self.claim.check()  # as late as possible: this replaces what another driver may use
            self.run.create_work(*shape, plan.chunk_images, plan.tile_features)
        (tally, checksums), metrics = self.compute(pass_, task)
        _check_scores(tally)
        if not self.tier.uses_caches:
            self.caches.release()  # their contents have been read
        has_scores = layer > state.spec.first_head
        grown = GrownLayer.of(layer, tally, checksums, metrics, has_scores=has_scores)
        if solver:
            self.claim.check()
            self.run.write_work_record("grown", grown.to_dict())
        return grown

    def find_grown_layer(self) -> GrownLayer | None:
        """Return the next layer if its features are in the work area and wait for their solver."""
        if not self.state.spec.head.iterative_solver:
            return None
        record = self.run.read_work_record("grown")
        if not record or record["layer"] != len(self.steps):
            return None
        return GrownLayer.from_dict(record)

    def solve_iteratively(self, task: Task) -> PassMetrics:
        """Fit the head of a layer to the features in the work area; commit each iteration there."""
        solver = self.state.spec.head.iterative_solver
        assert solver is not None

        def save(stored: StoredIterate) -> None:
            self.claim.check()
            self.run.write_work_record("progress", asdict(stored))
            if stored.number:
                self.bus.publish(make_event(stored, task.layer, solver))

        try:
            context = self.run, self.state.plan, solver, task
            solve = Solve(*context, self.compute_parts, self.caches.keys)
            return solve.run_iterations(save)
        except cg_tasks.CorruptWorkError as error:
            self.claim.check()
            self.run.remove_work()
            raise CorruptDataError(
                f"{error} Resume the run, which computes the features of the layer again."
            ) from None

    def make_task(self, layer: int) -> Task:
        """Return the task description of a pass.

        Maps are stored if they do not stay in memory. Those in memory are stored every
        `checkpoint_every` layers, and after the last layer if the run keeps its maps.
        """
        every, last = self.state.run_spec.checkpoint_every, self.state.spec.max_layers
        in_memory, features = self.tier.in_memory, self.tier.features
        maps_stay = self.state.run_spec.maps_stay
        save = not in_memory or (maps_stay if layer == last else layer % every == 0)
        return Task(self.run, layer, self.stored_layer, in_memory, save, features, self.name)

    def remove_obsolete_arrays(self) -> None:
        """Remove the arrays that are not needed once a layer is committed."""
        grown, kept = self.find_grown_layer(), {self.stored_layer}
        if grown:
            kept.add(grown.layer)
        elif self.state.writes_features:
            self.run.remove_work()
        if self.state.run_spec.keep_maps != "all":
            self.run.remove_maps_except(*kept, among=self.created_layers)
            self.created_layers = kept - {0}

    def score(self, layer: int) -> None:
        """Compute the accuracy after the last layer and write it to the result."""
        self.check_cluster()
        started = time.perf_counter()
        self.bus.publish(PassStarted("score", layer))
        self.recreate_removed_maps(layer)
        tally, metrics = self.compute(passes.SCORE, self.make_task(layer))
        _check_scores(tally)
        history, accuracy = self.history(), get_accuracy(layer, tally)
        accuracies = (*history.accuracies, accuracy)
        calibrations = history.calibrations | {layer: Calibration.of(tally)}
        self.write_result(accuracies, calibrations, reason=None)
        seconds = _seconds_since(started)
        self.bus.publish(PassDone("score", layer, seconds, accuracy, tally.residual, metrics))
        self.warn_of_collapse(accuracies)

    def warn_of_collapse(self, accuracies: tuple[Accuracy, ...]) -> None:
        """Publish and warn, once, that the training accuracy has fallen far below its best."""
        collapse = find_collapse(accuracies, self.state.spec)
        if collapse and collapse[0] == accuracies[-1]:
            fallen, best = collapse
            reason = describe_collapse(fallen, best, self.state.spec)
            self.bus.publish(AccuracyCollapsed(fallen.layer, fallen.train, best.train, reason))
            warnings.warn(reason, stacklevel=2)

    def finish(self, done: Done) -> None:
        """Write the chosen depth; first store maps that are in memory only, if they are to stay."""
        last, history = len(self.steps) - 1, self.history()
        maps_stay = self.state.run_spec.maps_stay
        if self.stored_layer < last and maps_stay and not self.was_finished:
            self.check_cluster()
            self.save(last)
        self.write_result(history.accuracies, history.calibrations, done.reason)
        if not maps_stay:
            self.run.remove_maps_except()
        elif not self.was_finished:
            self.created_layers = None  # a late task may have written to any that was removed
            self.remove_obsolete_arrays()
        self.bus.publish(RunDone(str(self.run), done.depth, done.reason))

    def save(self, layer: int) -> None:
        """Store the maps of the last layer, which are in memory only."""
        started = time.perf_counter()
        self.bus.publish(PassStarted("save", layer))
        self.claim.check()
        self.create_layer_arrays(layer)
        checksums, metrics = self.compute(passes.SAVE, self.make_task(layer))
        record = self.run.commits()[layer]
        self.claim.check()
        self.run.commit(layer, record | {"checksums": checksums.chunks})
        self.stored_layer = layer
        self.remove_obsolete_arrays()
        seconds = _seconds_since(started)
        self.bus.publish(PassDone("save", layer, seconds, None, observed=metrics))

    def write_result(
        self,
        accuracies: tuple[Accuracy, ...],
        calibrations: Mapping[int, Calibration],
        reason: str | None,
    ) -> None:
        """Write the chosen depth, and accuracies and calibrations of all evaluated layers.

        reason is None until the run is done.
        """
        self.claim.check()
        found = (calibrations.get(accuracy.layer) for accuracy in accuracies)
        self.run.write_result(
            {
                "depth": chosen_depth(accuracies, self.state.spec.max_layers),
                "reason": reason,
                "accuracies": [asdict(a) for a in accuracies],
                "calibrations": [c and c.to_dict() for c in found],
            }
        )

    def publish_retry(self, reason: str) -> None:
        """Publish that a request of the driver to the store is repeated."""
        layer = len(self.steps)
        self.bus.publish_nowait(PassRetried("grow" if layer else "survey", layer, reason))

    def compute(self, pass_: Pass, task: Task) -> tuple[Any, PassMetrics]:
        """Run one pass and publish its progress; return its result and its metrics."""
        parts = GroupParts(task, self.state.plan, self.counts, self.caches.keys)
        return self.compute_parts(pass_, task, parts)

    def compute_parts(
        self, pass_: Pass, task: Task, parts: Sequence[tuple[Any, ...]]
    ) -> tuple[Any, PassMetrics]:
        """Run one pass as `compute` does, with the arguments of each fold."""
        self.claim.check()
        try:
            return run_pass(pass_, task, parts, self.state.plan, self.monitor)
        except StoreUnreachableError:
            raise
        except StoreError:
            self.claim.check()  # another driver may have removed what is missing
            raise

    def check_cluster(self) -> None:
        """Raise an error if workers have other software or too little memory for the plan.

        It is called before anything is written, as the workers may not be those that the plan was
        made for. Each worker is asked once. Chooses where maps and features are kept, too.
        """
        state = self.state
        if self.problem is None:
            self.problem = state.problem(self.run.images()[0].dtype.itemsize)
        if not self.checked_workers:
            check_versions(self.client)
        present, identities = find_workers(self.client)
        if (new := identities - self.checked_workers) and state.backend.on_gpu:
            checked = CheckedWorkers.from_client(self.client, state.backend)
            self.gpu_memory, identities = checked.workers.gpu_memory, checked.identities
            present, _ = find_workers(self.client)
        elif new and self.checked_workers:
            check_versions(self.client, self.checked_workers)
        self.checked_workers = identities
        if not present:
            return
        workers = replace(present, gpu_memory=self.gpu_memory)
        check_fits(state.plan, self.problem, state.spec, workers)
        self.tier = choose_tier(self.problem, state.spec, state.run_spec, state.plan, workers)
        if self.tier.uses_caches:
            in_memory, features = self.tier.in_memory, self.tier.features
            size = partial(
                group_cache_bytes, self.problem, state.spec, maps=in_memory, features=features
            )
            share = self.tier.host_cache_bytes / self.tier.cached_bytes  # of main memory
            sizes = [int(share * size(group)) for group in state.plan.groups()]
            is_stored = self.stored_layer == len(self.steps) - 1
            self.caches.distribute(sizes, self.tier.device_cache_bytes, is_stored=is_stored)

    def publish_maps_placed(self, layer: int) -> None:
        """Publish where the maps of a layer are kept, unless it is where the last ones were."""
        tier, placement = (self.tier.in_memory, self.tier.features), self.tier.placement
        if tier != self.published_tier:
            self.bus.publish(MapsPlaced(layer, *tier, describe_placement(placement), placement))
        self.published_tier = tier

    def commit(self, step: int, record: dict[str, Any], done: PassDone) -> None:
        """Write the commit record of a step, remove what it replaces, and publish the step.

        Raise ClaimLostError if another driver writes to the run by now.
        """
        values = asdict(done) | {"finished": time.time()}
        record |= {name: values[name] for name in COMMITTED_FIELDS}
        self.claim.check()
        self.run.commit(step, record)
        self.steps.append(_history_fields(record))
        if has_saved_maps(step, record):
            self.stored_layer = step
        if has_saved_maps(step, record) or self.state.spec.head.iterative_solver:
            self.remove_obsolete_arrays()
        self.bus.publish(done)

    def create_layer_arrays(self, layer: int) -> None:
        """Create the empty arrays of a layer's maps and scores, in place of existing ones."""
        if self.created_layers is not None:
            self.created_layers.add(layer)
        images, (height, width, _) = self.state.plan.images, self.state.image_shape
        self.run.create_layer(
            layer,
            (images, height, width, self.state.architecture.map_count(layer)),
            (images, self.state.classes),
            self.state.plan.chunk_images,
            dtype=self.state.spec.store_dtype,
            compress=self.state.run_spec.codec != "none",
            with_groups=not self.has_groups,
        )
        self.has_groups = True

    def recreate_removed_maps(self, layer: int) -> None:
        """Create the arrays of a committed layer if they were removed.

        The tasks that read them rebuild their contents chunk by chunk.
        """
        if 0 < layer == self.stored_layer and not self.run.has_maps(layer):
            self.claim.check()
            self.create_layer_arrays(layer)


def _seconds_since(started: float) -> float:
    """Return the seconds since a reading of the performance counter."""
    return time.perf_counter() - started


def _history_fields(record: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a commit record that `History` reads."""
    return {name: record.get(name) for name in ("accuracy", "calibration")}


def _check_scores(tally: Tally) -> None:
    """Raise DataError if scores are not finite: those images would all count as the first class."""
    if tally.nonfinite.any():
        train, validation = tally.nonfinite.tolist()
        raise DataError(
            f"{train} training images and {validation} validation images have non-finite scores: "
            "their values are too far from the others for single precision. Give all images the "
            "same scale."
        )
