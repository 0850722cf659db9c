"""Division of a machine's cores between workers."""

from __future__ import annotations

import pytest

from rescnet_dist.planning import Problem
from rescnet_dist.planning.division import LARGE_ACCUMULATOR_BYTES, MAX_THREADS, divide_cores
from rescnet_dist.planning.plan import Plan
from rescnet_dist.planning.requirements import accumulator_bytes
from rescnet_dist.spec import NetworkSpec

SHAPE = (32, 32, 3)
SPEC = NetworkSpec.preset("cifar10").replace(stride=4)
FEW, MANY = SPEC.replace(filters=12), SPEC.replace(filters=50)


@pytest.mark.parametrize("spec", [FEW, MANY])
@pytest.mark.parametrize("cores", [1, 2, 4, 6, 7, 12, 16, 96])
def test_all_cores_are_used(spec: NetworkSpec, cores: int) -> None:
    """Each core has one thread, whatever their number."""
    workers, threads = divide_cores(Problem(50_000, SHAPE, 10), spec, cores=cores)
    assert workers * threads == cores


def test_large_accumulators_are_merged_in_one_process() -> None:
    """There is one worker for each NUMA node; several if accumulators are small."""
    problem = Problem(50_000, SHAPE, 10)
    assert 4 * problem.features(FEW) ** 2 < LARGE_ACCUMULATOR_BYTES
    assert 4 * problem.features(MANY) ** 2 > LARGE_ACCUMULATOR_BYTES
    assert divide_cores(problem, MANY, cores=16) == (1, 16)
    assert divide_cores(problem, MANY, cores=16, numa_nodes=2) == (2, 8)
    assert divide_cores(problem, MANY, cores=15, numa_nodes=2) == (1, 15)
    assert divide_cores(problem, FEW, cores=16) == (4, MAX_THREADS)
    assert divide_cores(problem, FEW, cores=6) == (2, 3)
    assert divide_cores(problem, FEW, cores=7) == (7, 1)


def test_what_is_merged_depends_on_the_head() -> None:
    """Conjugate gradients merge a few vectors, kernels the features of all images."""
    iterative = MANY.replace(head=MANY.head.replace(solver="cg"))
    assert divide_cores(Problem(50_000, SHAPE, 10), iterative, cores=16) == (4, 4)
    kernel = FEW.replace(head="kernel-ridge")
    assert divide_cores(Problem(50_000, SHAPE, 10), kernel, cores=16) == (1, 16)
    assert divide_cores(Problem(500, SHAPE, 10), kernel, cores=16) == (4, 4)


@pytest.mark.parametrize("head", ["classify", "kernel-ridge"])
def test_accumulators_are_those_of_the_plan(head: str) -> None:
    """The division is made before the plan, for a single accumulator of all images."""
    problem, spec = Problem(50_000, SHAPE, 10), FEW.replace(head=head)
    plan = Plan(problem.images, 1000, 1, 2, 1)
    assert accumulator_bytes(problem, spec) == accumulator_bytes(problem, spec, plan)
