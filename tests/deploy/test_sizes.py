"""Memory of scheduler and driver with many tasks in a layer, compared with their pods."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from images import IMAGE, this_image
from kubelet import MIB, Cluster, render, wait_until

from rescnet_dist.deploy.sizes import (
    DRIVER_BASE_BYTES,
    DRIVER_TRAFFIC_RATIO,
    SCHEDULER_BASE_BYTES,
    SCHEDULER_BYTES_PER_TASK,
)
from rescnet_dist.planning import Plan
from rescnet_dist.planning.requirements import pass_driver_bytes

MIN_MARGIN_RATIO = 1.5


@pytest.mark.slow
@pytest.mark.parametrize(("accumulators", "passes"), [(10, 3), (1000, 3), (10_000, 1)])
def test_scheduler_and_driver_take_less_than_their_pods(
    deploy: Callable[..., Cluster], accumulators: int, passes: int
) -> None:
    """With 20, 2,000 and 20,000 tasks in a layer."""
    rendered = render("--data", "digits", "--store", "s3://runs/run", "--workers", "2")
    image = this_image()
    image["PYTHONPATH"] += f"{os.pathsep}{Path(__file__).parent}"
    cluster = deploy(rendered, images={IMAGE: image}, backoff=600)
    (container,) = cluster.document["spec"]["job"]["spec"]["containers"]
    arguments = ["-m", "many_tasks", str(accumulators), str(passes)]
    container.update(command=["python"], args=arguments)
    scheduler = cluster.start_scheduler()
    cluster.start_workers()
    driver = cluster.start_driver()
    wait_until(lambda: driver.exits, cluster, 500)
    assert driver.exits == [0], driver.log
    tasks = 2 * accumulators
    scheduler_bytes = SCHEDULER_BASE_BYTES + tasks * SCHEDULER_BYTES_PER_TASK
    plan = Plan(accumulators, 1, accumulators, split_every=2, solve_threads=1)
    driver_bytes = DRIVER_BASE_BYTES + DRIVER_TRAFFIC_RATIO * pass_driver_bytes(plan)
    for pod, size in ((scheduler, scheduler_bytes), (driver, driver_bytes)):
        print(f"{tasks:,} tasks: {pod.name} {pod.peak / MIB:.0f} MiB of {size / MIB:.0f} MiB")
        assert MIN_MARGIN_RATIO * pod.peak < size
