"""The driver: asks what comes next, runs it as one graph, commits it; until the run is done."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
from distributed import Client

from rescnet_dist.cluster import Workers, check_versions, list_workers, worker_identities
from rescnet_dist.errors import DataError, StoreError, mask_secrets
from rescnet_dist.kernels import Tally
from rescnet_dist.planning import NO_WORKERS, Problem, check_fits, choose_tier, group_cache_bytes
from rescnet_dist.reduce import fold_name
from rescnet_dist.store import Claim, RunStore, has_saved_maps, last_saved
from rescnet_dist.train import passes, tiled
from rescnet_dist.train.cache import CacheSet
from rescnet_dist.train.decide import (
    Accuracy,
    Done,
    Grow,
    History,
    Score,
    Survey,
    chosen_depth,
    next_action,
)
from rescnet_dist.train.events import (
    EventBus,
    Listener,
    MapsPlaced,
    PassDone,
    PassRetried,
    PassStarted,
    RunDone,
    RunStarted,
    RunStopped,
)
from rescnet_dist.train.executor import run_pass
from rescnet_dist.train.metrics import PassMetrics
from rescnet_dist.train.passes import Pass
from rescnet_dist.train.state import RunState, Task

# what a commit record says of its pass, for those who watch
RECORDED = ("accuracy", "residual", "seconds", "observed", "finished")


def train(claim: Claim, client: Client, listeners: Sequence[Listener] = ()) -> Done:
    """Grow the network of the run that is claimed until it is done, on the client's cluster.

    Everything needed is in the run store, so this starts a run, resumes one, and leaves a
    finished one as it is.
    """
    with (
        EventBus(listeners) as tell,
        _telling_of_a_stop(tell, str(claim.location)),
        closing(_Driver(claim, client, tell)) as driver,
    ):
        driver.started()
        while True:
            match next_action(driver.history(), driver.state.spec):
                case Survey():
                    driver.survey()
                case Grow(layer):
                    driver.grow(layer)
                case Score(layer):
                    driver.score(layer)
                case Done() as done:
                    driver.done(done)
                    return done


@contextmanager
def _telling_of_a_stop(tell: EventBus, url: str) -> Iterator[None]:
    """Tell those who watch where a run is cut short, and why."""
    try:
        yield
    except BaseException as error:
        interrupted = isinstance(error, KeyboardInterrupt)
        reason = "interrupted" if interrupted else mask_secrets(str(error) or type(error).__name__)
        tell.later(RunStopped(url, reason))
        raise


class _Driver:
    """Runs the passes of one run on a cluster and commits them; holds nothing of size N."""

    def __init__(self, claim: Claim, client: Client, tell: EventBus) -> None:
        self.name = uuid.uuid4().hex
        self.claim = claim
        self.run = RunStore(claim.location)
        self.client = client
        self.tell = tell
        self.state = RunState.of(self.run)
        self.counts = np.zeros((len(self.state.plan.groups()), 0), np.int64)
        self.problem: Problem | None = None  # once it is asked for
        self.gpu_memory: int | None = None
        self.looked_at: set[tuple[str, str]] = set()  # workers that have been asked what they are
        self.stored = 0  # the last layer whose maps are in the store
        self.tier = NO_WORKERS
        self.told_of: tuple[bool, bool] | None = None  # of the tier, by the last event
        self.shelves = CacheSet(client, [fold_name(what.name) for what in passes.CACHED_PASSES])
        self.finished = False  # whether the run was done, and nothing has been grown since
        self.accuracies: list[dict[str, Any]] = []  # of the steps that are committed

    def close(self) -> None:
        """Free what workers keep for this driver, which a traceback may outlive."""
        self.shelves.release()

    def history(self) -> History:
        """What is committed: read once, as nobody else writes to the run."""
        return History.of(self.accuracies, self.run.result())

    def started(self) -> None:
        """Announce the run, and take it up where it was left."""
        commits, plan = self.run.commits(), self.state.plan
        self.accuracies = [{"accuracy": record.get("accuracy")} for record in commits]
        self.stored = last_saved(commits)
        if not (self.state.run_spec.maps_stay or self.run.has_maps(self.stored)):
            self.stored = 0  # they were removed as the run was done
        history, result = self.history(), self.run.result()
        judged = len(result["accuracies"]) if result and result.get("reason") else 0
        self.finished = bool(judged) and judged >= history.layers - 1
        self.tell(
            RunStarted(
                str(self.run), plan.images, self.state.spec.max_layers, history.layers,
                history.accuracies, self.state.augment.copies,
            )
        )  # fmt: skip
        self.drop_commits_behind(len(commits))
        if history.surveyed:
            self.counts = np.array(commits[0]["counts"], np.int64)
            self.tidy()  # a driver that died may not have got to it

    def drop_commits_behind(self, counted: int) -> None:
        """Remove, and tell of, the records of steps that do not count as one before is missing."""
        if behind := self.run.commits_from(counted):
            self.claim.check()
            lost = f"commits/{counted:04d}.json is missing"
            reason = f"{lost}, so that {len(behind)} steps behind it are made again"
            self.tell(PassRetried("grow" if counted else "survey", counted, reason))
            self.run.remove_commits(behind)

    def survey(self) -> None:
        """Count and survey the data; commits step 0."""
        self.check_cluster()
        began = time.perf_counter()
        self.tell(PassStarted("survey", 0))
        self.counts, _ = self.compute(passes.COUNT, self.task(0))
        surveyed, observed = self.compute(passes.SURVEY, self.task(0))
        checksums = surveyed.chunks | dict(self.state.rows.checksums)
        record = {"counts": self.counts.tolist(), "checksums": checksums}
        self.commit(0, record, PassDone("survey", 0, _since(began), None, observed=observed))

    def grow(self, layer: int) -> None:
        """Add a layer; commits step `layer`."""
        self.check_cluster()
        self.tell_where_maps_are(layer)
        state, plan, began = self.state, self.state.plan, time.perf_counter()
        self.tell(PassStarted("grow", layer))
        self.claim.check()
        task = self.task(layer)
        self.find_maps_of(layer - 1)
        if task.save:
            self.make_room_for(layer)
        how = passes.GROW
        if plan.tile_features:
            how = tiled.GROW_IN_TILES
            features = (plan.images, state.features)
            self.run.create_work(*features, plan.chunk_images, plan.tile_features)
        self.finished = False
        (tally, checksums), observed = self.compute(how, task)
        _check_scores(tally)
        if not task.keep:
            self.shelves.release()  # what was on them has been read
        accuracy = _accuracy(layer - 1, tally) if layer > 1 else None
        done = PassDone("grow", layer, _since(began), accuracy, tally.residual, observed)
        self.commit(layer, {"checksums": checksums.chunks}, done)

    def task(self, layer: int) -> Task:
        """What all tasks of the pass of a layer know; the store gets its maps unless they stay in
        memory, and every so many layers even then, and at the end if they are to stay there."""
        every, at_end = self.state.run_spec.checkpoint_every, self.state.spec.max_layers
        keep, features = self.tier.in_memory, self.tier.features
        stays = self.state.run_spec.maps_stay
        save = not keep or (stays if layer == at_end else layer % every == 0)
        return Task(self.run, layer, self.stored, keep, save, features, self.name)

    def tidy(self) -> None:
        """Remove what is not needed any more once a layer is committed."""
        if self.state.plan.tile_features:
            self.run.remove_work()
        if self.state.run_spec.keep_maps != "all":
            self.run.remove_maps_except(self.stored)

    def score(self, layer: int) -> None:
        """Find the accuracy after the last layer, and note it in the result."""
        self.check_cluster()
        began = time.perf_counter()
        self.tell(PassStarted("score", layer))
        self.find_maps_of(layer)
        tally, observed = self.compute(passes.SCORE, self.task(layer))
        _check_scores(tally)
        accuracy = _accuracy(layer, tally)
        self.write_result((*self.history().accuracies, accuracy), reason=None)
        self.tell(PassDone("score", layer, _since(began), accuracy, tally.residual, observed))

    def done(self, done: Done) -> None:
        """Note the chosen depth; the maps that are in memory only are stored before, if they are to
        stay."""
        last = len(self.accuracies) - 1
        if self.stored < last and self.state.run_spec.maps_stay and not self.finished:
            self.check_cluster()
            self.save(last)
        self.write_result(self.history().accuracies, done.reason)
        if not self.state.run_spec.maps_stay:
            self.run.remove_maps_except()
        self.tell(RunDone(str(self.run), done.depth, done.reason))

    def save(self, layer: int) -> None:
        """Store the maps of the last layer, which its pass has left in memory."""
        began = time.perf_counter()
        self.tell(PassStarted("save", layer))
        self.claim.check()
        self.make_room_for(layer)
        checksums, observed = self.compute(passes.SAVE, self.task(layer))
        record = self.run.commits()[layer]
        self.claim.check()
        self.run.commit(layer, record | {"checksums": checksums.chunks})
        self.stored = layer
        self.tidy()
        self.tell(PassDone("save", layer, _since(began), None, observed=observed))

    def write_result(self, accuracies: tuple[Accuracy, ...], reason: str | None) -> None:
        """Write what is known of the run's outcome."""
        known = accuracies[: self.state.spec.max_layers]
        self.claim.check()
        self.run.write_result(
            {
                "depth": chosen_depth(known),
                "reason": reason,
                "accuracies": [asdict(a) for a in accuracies],
            }
        )

    def compute(self, what: Pass, task: Task) -> tuple[Any, PassMetrics]:
        """Run one pass, passing its progress on to the listeners; what came of it, and what it
        took."""
        self.claim.check()
        try:
            return run_pass(
                what, task, self.counts, self.state.plan, self.client, self.tell,
                self.shelves.futures(),
            )  # fmt: skip
        except StoreError:
            self.claim.check()  # what another driver has removed by now is not there
            raise

    def check_cluster(self) -> None:
        """Refuse other software, and workers that are too small for the plan, before anything is
        written: others than it was made for may be there by now. Those that stay are asked once."""
        state, found = self.state, list_workers(self.client)
        if self.problem is None:
            self.problem = state.problem(self.run.images()[0].dtype.itemsize)
        if (new := worker_identities(found) - self.looked_at) and state.backend.on_gpu:
            self.gpu_memory = Workers.of(self.client, state.backend).gpu_memory
            found = list_workers(self.client)
        elif new or not found:
            check_versions(self.client)
        self.looked_at = worker_identities(found)
        if not (present := Workers.among(found)):
            return
        workers = replace(present, gpu_memory=self.gpu_memory)
        check_fits(state.plan, self.problem, state.spec, workers)
        self.tier = choose_tier(self.problem, state.spec, state.run_spec, state.plan, workers)
        if self.tier.in_memory:
            size = partial(group_cache_bytes, self.problem, state.spec, features=self.tier.features)
            sizes = [0 if state.backend.on_gpu else size(group) for group in state.plan.groups()]
            self.shelves.spread(sizes, stored=self.stored == len(self.accuracies) - 1)

    def tell_where_maps_are(self, layer: int) -> None:
        """Tell where those of a layer go, unless they go where those before went."""
        where = self.tier.in_memory, self.tier.features
        if where != self.told_of:
            self.tell(MapsPlaced(layer, *where, self.tier.reason))
        self.told_of = where

    def commit(self, step: int, record: dict[str, Any], done: PassDone) -> None:
        """Make a step count, unless somebody else writes to the run by now, tidy up behind it, and
        tell of it."""
        facts = asdict(done) | {"finished": time.time()}
        record |= {name: facts[name] for name in RECORDED}
        self.claim.check()
        self.run.commit(step, record)
        self.accuracies.append({"accuracy": record["accuracy"]})
        if has_saved_maps(step, record):
            self.stored = step
            self.tidy()
        self.tell(done)

    def make_room_for(self, layer: int) -> None:
        """Make the empty arrays of a layer's maps and scores, in place of any."""
        images, (height, width, _) = self.state.plan.images, self.state.image_shape
        self.run.create_layer(
            layer, (images, height, width, self.state.spec.filters), (images, self.state.classes),
            self.state.plan.chunk_images, dtype=self.state.spec.store_dtype,
            compress=self.state.run_spec.codec != "none",
        )  # fmt: skip

    def find_maps_of(self, layer: int) -> None:
        """Where the maps of a committed layer have been removed, make room: those who read them
        rebuild them chunk by chunk."""
        if 0 < layer == self.stored and not self.run.has_maps(layer):
            self.claim.check()
            self.make_room_for(layer)


def _since(began: float) -> float:
    """Seconds since then."""
    return time.perf_counter() - began


def _accuracy(layer: int, tally: Tally) -> Accuracy:
    return Accuracy(layer, tally.accuracy(0) or 0.0, tally.accuracy(1))


def _check_scores(tally: Tally) -> None:
    """Refuse images whose scores are no numbers any more: all would pass for the first class."""
    if tally.nonfinite.any():
        trained, held_out = tally.nonfinite.tolist()
        raise DataError(
            f"{trained} images to train on and {held_out} that are held out have values too far "
            "from the others for single precision: give all images on the same scale"
        )
