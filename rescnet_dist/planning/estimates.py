"""Cost estimate of a run before it starts: memory, tasks, bytes and time."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from distributed import Client

from rescnet_dist.cluster import Workers, translate_errors
from rescnet_dist.errors import ClusterError, SpecError, pluralize
from rescnet_dist.formatting import format_bytes, format_time, html_table
from rescnet_dist.planning.backend import get_backend
from rescnet_dist.planning.cg import SolverCosts
from rescnet_dist.planning.choose import MIN_FAST_CHUNK_IMAGES, make_plan
from rescnet_dist.planning.fastest import choose_fastest
from rescnet_dist.planning.placement import PlacementCause, describe_placement
from rescnet_dist.planning.plan import Plan
from rescnet_dist.planning.requests import Requests, count_requests
from rescnet_dist.planning.requirements import (
    Problem,
    Traffic,
    accumulator_bytes,
    device_memory,
    peak_memory,
    sent_bytes,
    traffic,
)
from rescnet_dist.planning.speed import Speed, calibrate
from rescnet_dist.planning.tier import Tier, check_tier, choose_tier, max_stored_layers
from rescnet_dist.planning.tree import Tree, merge_tree, spread_groups
from rescnet_dist.spec import NetworkSpec, RunSpec
from rescnet_dist.store import Location
from rescnet_dist.store.run import count_feature_chunks

if TYPE_CHECKING:
    from rescnet_dist.data import TrainingSet


@dataclass(frozen=True, slots=True)
class Forecast:
    """A plan, the cluster it is for, and what it needs.

    Attributes
    ----------
    problem : Problem
        Size of the training data.
    spec : NetworkSpec
        The network.
    plan : Plan
        How the run is divided into tasks.
    workers : Workers
        Workers of the cluster.
    features : int
        Features per layer.
    peak_memory : int
        Largest number of resident bytes of a worker.
    traffic : Traffic
        Bytes that are moved and stored, and the number of tasks.
    max_layers : int
        Maximum number of layers.
    tier : Tier
        Where maps are kept until the next layer.
    checkpoint_every : int
        Layers after which maps in memory are stored.
    maps_stay : bool
        Whether the maps of the last layer stay in the store.
    tree : Tree
        The tree that merges the accumulators of a pass.
    requests : Requests
        Requests of a layer to the store, if it is an object store.
    layer_seconds : float or None, default None
        Approximate seconds per layer; None if the speed was not measured.
    free_disk : int or None, default None
        Bytes of free space at the store; None if it is not a local folder.
    """

    problem: Problem
    spec: NetworkSpec
    plan: Plan
    workers: Workers
    features: int
    peak_memory: int
    traffic: Traffic
    max_layers: int
    tier: Tier
    checkpoint_every: int
    maps_stay: bool
    tree: Tree
    requests: Requests
    layer_seconds: float | None = None
    free_disk: int | None = None

    @property
    def seconds(self) -> float | None:
        """Approximate seconds of the run with all its layers; None if not measured."""
        return None if self.layer_seconds is None else self.layer_seconds * self.max_layers

    def to_dict(self) -> dict[str, Any]:
        """Return the forecast as JSON-serializable values, without the network.

        Runs store it, so its keys are part of the format and keep their first names.
        """
        values = asdict(self) | {"seconds": self.seconds}
        del values["spec"]
        tree = values["tree"] | {
            name: getattr(self.tree, name) for name in ("network", "reduce_seconds", "wait_seconds")
        }
        return values | {"tier": self.tier.to_dict(), "tree": tree}

    def __str__(self) -> str:
        return "\n".join(f"{name:<9} {text}" for name, text in self._lines().items())

    def _repr_html_(self) -> str:
        return html_table("Forecast", [(name, text, False) for name, text in self._lines().items()])

    def _describe_maps(self) -> str:
        """Return where maps are kept until the next layer, why, and when they are stored."""
        every = pluralize(self.checkpoint_every, "layer")
        text = describe_placement(self.tier.placement)
        if self.tier.in_memory:
            text += f"; stored every {every}" + (" and at the end" if self.maps_stay else "")
        return text if self.maps_stay else f"{text}; removed at the end"

    def _describe_disk(self) -> str:
        """Return the free space of the store, and whether it is too small; empty if unknown."""
        if self.free_disk is None:
            return ""
        is_short = self.traffic.store > self.free_disk
        return f", of {format_bytes(self.free_disk)} free" + (": too little" if is_short else "")

    def _describe_tree(self) -> str:
        """Return depth and bytes of the tree of merges, and how long the last worker waits."""
        tree = self.tree
        text = (
            f"{pluralize(tree.depth, 'merge')} deep, {tree.remote_depth} between workers, "
            f"{format_bytes(tree.network)} in all"
        )
        if tree.wait_seconds is not None:
            text += (
                f"; the last worker waits about {format_time(tree.reduce_seconds)} for merges and "
                f"{format_time(tree.solve_seconds or 0)} for the solve"
            )
        return text

    def _lines(self) -> dict[str, str]:
        """Return the lines of the text form by their title."""
        plan, moved, workers = self.plan, self.traffic, self.workers
        height, width, channels = self.problem.image_shape
        matrix = "scatter matrix kept whole"
        if plan.tile_features:
            matrix = f"scatter matrix in tiles of {plan.tile_features:,} features"
            if self.tier.placement.cause == PlacementCause.MATRIX_DOES_NOT_FIT:
                matrix += ', too large for the workers; with solver="cg" there is none'
                if plan.accumulators > 1:
                    matrix += ", and fewer accumulators need less memory"
        if self.spec.head.fits_samples:
            size = format_bytes(4 * plan.images**2)
            matrix = f"matrix of all pairs of images kept whole, {size}"
        if solver := self.spec.head.iterative_solver:
            limit = pluralize(solver.iterations, "iteration")
            matrix = f"solved by conjugate gradients, at most {limit}"
        limit, copies, work = "", "", ""
        if costs := SolverCosts.of(self.problem.architecture(self.spec), plan):
            work = f", {format_bytes(costs.work)} of it for features while they are solved"
        if self.problem.copies:
            number = "a copy" if self.problem.copies == 1 else f"{self.problem.copies} copies"
            copies = f", including {number} of each training image"
        if workers.budget is not None and workers.memory is not None:
            limit = (
                f", of {format_bytes(workers.budget)} before Dask spills "
                f"({format_bytes(workers.memory)} limit)"
            )
        threads = pluralize(workers.slots, "thread")
        read, written = format_bytes(moved.read), format_bytes(moved.written)
        per_layer = "layer that is stored" if self.tier.in_memory else "layer"
        lines = {
            "images": f"{plan.images:,} of {height}×{width}×{channels}{copies}, "
            f"{pluralize(self.problem.classes, 'class')}",
            "cluster": f"{pluralize(workers.count, 'worker')}, {threads}",
            "features": f"{self.features:,} per layer; {matrix}",
            "chunks": f"{plan.chunks:,} of {pluralize(plan.chunk_images, 'image')}, folded into "
            f"{pluralize(plan.accumulators, 'accumulator')}",
            "tasks": f"{moved.tasks:,} per layer",
            "memory": f"{format_bytes(self.peak_memory)} per worker at most{limit}",
            "maps": self._describe_maps(),
            "driver": f"{format_bytes(moved.driver)} per layer",
            "traffic": f"{read} read, {written} written per {per_layer}",
            "requests": f"{self.requests.gets:,} reads and {self.requests.puts:,} writes of "
            f"objects per {per_layer}",
            "store": f"{format_bytes(moved.store)} at most{work}" + self._describe_disk(),
        }
        if workers.gpu_memory is not None and workers.gpu_budget is not None:
            lines["gpu"] = (
                f"{format_bytes(device_memory(self.problem, self.spec, plan))} per worker without "
                f"the maps, of {format_bytes(workers.gpu_budget)}"
            )
        if workers.count > 1 and self.tree.depth:
            lines["tree"] = self._describe_tree()
        if workers.count > 1:
            lines["traffic"] += f"; about {format_bytes(moved.network)} between workers"
        if self.layer_seconds is not None and self.seconds is not None:
            lines["time"] = (
                f"about {format_time(self.layer_seconds)} per layer, "
                f"{format_time(self.seconds)} for all {self.max_layers}"
            )
        if plan.chunk_images < min(MIN_FAST_CHUNK_IMAGES, plan.images):
            lines["slow"] = (
                f"chunks of fewer than {MIN_FAST_CHUNK_IMAGES} images are slow, but larger ones do "
                "not fit. Give workers more memory, or use fewer filters."
            )
        return lines


def forecast(
    data: TrainingSet,
    spec: NetworkSpec,
    run_spec: RunSpec,
    client: Client,
    *,
    store: str | None = None,
    measure: bool = True,
) -> Forecast:
    """Return the plan of a run on the client's cluster and its estimated cost.

    Nothing is written, except one object next to `store` while its speed is measured.
    """
    problem = Problem.of(data, run_spec)
    with translate_errors(client, "plan again"):
        workers = Workers.from_client(client, get_backend(run_spec))
        make_plan(problem, spec, run_spec, workers)  # raises before anything is measured
        measure = measure and workers.gpu_memory is None  # only CPUs can be timed
        speed = calibrate(client, problem, spec, workers, store) if measure else None
    free_disk = Location.of(store).free_bytes() if store else None
    return replace(estimate(problem, spec, run_spec, workers, speed), free_disk=free_disk)


def estimate(
    problem: Problem, spec: NetworkSpec, run_spec: RunSpec, workers: Workers, speed: Speed | None
) -> Forecast:
    """Return the plan and its cost by arithmetic; images and workers need not exist."""
    plan = make_plan(problem, spec, run_spec, workers)
    if speed and run_spec.calibrate:
        plan = choose_fastest(plan, problem, spec, run_spec, workers, speed)
    tier = choose_tier(problem, spec, run_spec, plan, workers)

    def fits(others: Workers) -> bool:
        try:
            other = make_plan(problem, spec, run_spec, others)
        except (SpecError, ClusterError):
            return False
        return choose_tier(problem, spec, run_spec, other, others).in_memory

    check_tier(tier, run_spec, workers, fits)
    seconds = solve_seconds = None
    kept = {"in_memory": tier.in_memory, "features_in_memory": tier.features}
    is_whole = not (plan.tile_features or spec.head.iterative_solver)
    if speed:
        speed = speed.with_threads(plan.solve_threads)
        seconds = speed.layer_seconds(problem, spec, plan, workers, **kept)
        solve_seconds = speed.solve_seconds(problem, spec) if is_whole else None
    stored = max_stored_layers(spec, run_spec, tier)
    moved = traffic(problem, spec, plan, **kept, stored=stored)
    iterations = solver.iterations if (solver := spec.head.iterative_solver) else 0
    # The pass over the images leaves features in memory if they fit.
    feature_reads = 0 if tier.features else iterations
    requests = count_requests(
        plan,
        problem.features(spec),
        in_memory=tier.in_memory,
        is_stored=bool(stored),
        iterations=iterations,
        feature_reads=feature_reads,
        feature_chunks=count_feature_chunks(
            plan.chunk_images, problem.features(spec), problem.architecture(spec).feature_dtype
        ),
    )
    placement = spread_groups(plan.accumulators, workers.count, cached=tier.uses_caches)
    sizes = (count(problem, spec, plan) for count in (accumulator_bytes, sent_bytes))
    tree = merge_tree(plan, placement, *sizes)
    tree = replace(tree, solve_seconds=solve_seconds)
    if is_whole:
        moved = replace(moved, network=tree.network)
    return Forecast(
        problem=problem,
        spec=spec,
        plan=plan,
        workers=workers,
        features=problem.features(spec),
        peak_memory=peak_memory(problem, spec, plan, workers) + tier.host_cache_bytes,
        traffic=moved,
        max_layers=spec.max_layers,
        tier=tier,
        checkpoint_every=run_spec.checkpoint_every,
        maps_stay=run_spec.maps_stay,
        tree=tree,
        requests=requests,
        layer_seconds=seconds,
    )
