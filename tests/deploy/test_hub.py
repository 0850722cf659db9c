"""Values for daskhub: their content, in a real gateway, and in a real JupyterLab."""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from distributed import LocalCluster
from ports import free_port
from traitlets.config import Config

from rescnet_dist.cli import main
from rescnet_dist.cluster.connect import GATEWAY_REFERENCES
from rescnet_dist.dashboard.plots import PLOTS
from rescnet_dist.dashboard.scheduler import install
from rescnet_dist.deploy import lab_settings, lab_workspace
from rescnet_dist.deploy.hub import LAB_OVERRIDES_PATH
from rescnet_dist.deploy.lab import DASK_PANEL
from tests.cluster.test_connect import is_healthy
from tests.conftest import Processes

FILE = Path(__file__).parents[2] / "deploy/jupyterhub/values.yaml"
EXAMPLE = [  # options of the file, the same as those of the manifests
    *("--preset", "cifar10", "--images", "50000x32x32x3", "--classes", "10"),
    *("--workers", "32", "--threads", "4"),
]


def run_deploy(command: str, *arguments: str) -> str:
    """Return the output of `rescnet deploy`."""
    done = CliRunner().invoke(main, ["deploy", command, *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def values(*arguments: str) -> dict[str, Any]:
    """Return the values for some options."""
    found = yaml.safe_load(run_deploy("hub", *(arguments or EXAMPLE)))
    assert isinstance(found, dict)
    return found


def test_file_is_up_to_date() -> None:
    """It equals the output of the command, with comments."""
    assert FILE.read_text() == run_deploy("hub", *EXAMPLE)


def test_comments_are_above_their_lines() -> None:
    """Each of them, once."""
    lines = FILE.read_text().splitlines()
    for key in ("jupyterhub:", "  proxy:", "  singleuser:", "dask-gateway:", "    extraConfig:"):
        (index,) = (number for number, line in enumerate(lines) if line == key)
        assert lines[index - 1].lstrip().startswith("# ")


def test_sizes_match_the_manifests() -> None:
    """A worker of the gateway has the size of a worker of the rendered job."""
    stored = ("--data", "s3://bucket/data", "--store", "s3://bucket/run")
    documents = yaml.safe_load_all(run_deploy("render", *EXAMPLE, *stored))
    (job,) = (document for document in documents if document["kind"] == "DaskJob")
    cluster = job["spec"]["cluster"]["spec"]
    backend = values()["dask-gateway"]["gateway"]["backend"]
    for part in ("worker", "scheduler"):
        amounts = cluster[part]["spec"]["containers"][0]["resources"]["limits"]
        assert f"{backend[part]['memory']['limit']}i" == amounts["memory"]
        assert str(backend[part]["cores"]["limit"]) == amounts["cpu"]
    (container,) = cluster["worker"]["spec"]["containers"]
    variables = {v["name"]: v.get("value") for v in container["env"]}
    assert backend["environment"].items() <= variables.items()
    assert backend["environment"]["OPENBLAS_NUM_THREADS"] == "1"


def test_values_have_no_secret_and_no_access() -> None:
    """Keys are references; the proxy has no external address; nobody can log in."""
    found = values()["jupyterhub"]
    assert found["proxy"]["service"]["type"] == "ClusterIP"
    assert set(found["hub"]["config"]) == {"KubeSpawner"}
    secret = found["singleuser"]["extraEnv"]["AWS_SECRET_ACCESS_KEY"]
    assert secret["valueFrom"]["secretKeyRef"]["name"] == "rescnet-s3"
    assert found["singleuser"]["uid"] == 10001


def test_internal_store_and_service_account() -> None:
    """The network policy allows the store, which the chart's own policy does not."""
    found = values(*EXAMPLE, "--endpoint", "http://s3.storage:8333", "--service-account", "trainer")
    user = found["jupyterhub"]["singleuser"]
    assert {"ports": [{"protocol": "TCP", "port": 8333}]} in user["networkPolicy"]["egress"]
    assert "egressAllowRules" not in user["networkPolicy"]  # no access to the permissions of a node
    assert user["serviceAccountName"] == "trainer"
    assert user["extraEnv"]["AWS_ENDPOINT_URL"] == "http://s3.storage:8333"
    assert "AWS_SECRET_ACCESS_KEY" not in user["extraEnv"]
    worker = found["dask-gateway"]["gateway"]["backend"]["worker"]
    assert worker["extraPodConfig"]["serviceAccountName"] == "trainer"


def test_image_by_digest() -> None:
    """The charts join name@sha256 and the digest with a colon."""
    found = values(*EXAMPLE, "--image", "rescnet-dist@sha256:" + "0" * 64)
    image = found["jupyterhub"]["singleuser"]["image"]
    assert f"{image['name']}:{image['tag']}" == "rescnet-dist@sha256:" + "0" * 64


# the gateway ------------------------------------------------------------------------------------


def make_config(found: dict[str, Any]) -> Config:
    """Return the gateway's configuration as its chart makes it: backend fields, then the code."""
    gateway, c = found["dask-gateway"]["gateway"], Config()
    backend = gateway["backend"]
    image = backend["image"]
    c.KubeClusterConfig.image = f"{image['name']}:{image['tag']}"
    c.KubeClusterConfig.environment = backend["environment"]
    for part in ("worker", "scheduler"):
        fields = {
            "cores": backend[part]["cores"]["request"],
            "cores_limit": backend[part]["cores"]["limit"],
            "memory": backend[part]["memory"]["request"],
            "memory_limit": backend[part]["memory"]["limit"],
            "extra_pod_config": backend[part]["extraPodConfig"],
            "extra_container_config": backend[part]["extraContainerConfig"],
        }
        for name, value in fields.items():
            setattr(c.KubeClusterConfig, f"{part}_{name}", value)
    c.KubeClusterConfig.worker_threads = backend["worker"]["threads"]
    for code in gateway["extraConfig"].values():
        exec(code, {"c": c})
    return c


class GatewayBackend:
    """A gateway's backend for Kubernetes, without a cluster."""

    def __init__(self, c: Config) -> None:
        from dask_gateway_server.backends.kubernetes.backend import KubeClusterConfig

        self.options, self._config = c.Backend.cluster_options, c
        self._class = KubeClusterConfig

    def cluster(self, user: Any = None, **options: Any) -> Any:
        """Return the configuration of a user's cluster with some options."""
        parsed = self.options.parse_options(options)
        overrides = self.options.get_configuration(parsed, user)
        return self._class(config=self._config, namespace="hub", **overrides)


@pytest.fixture(scope="module")
def backend() -> GatewayBackend:
    """The backend of the example."""
    pytest.importorskip("dask_gateway_server")
    pytest.importorskip("kubernetes_asyncio")
    return GatewayBackend(make_config(values()))


def test_gateway_options_match_the_plan(backend: GatewayBackend) -> None:
    """By default; users may set others within limits."""
    default = backend.cluster()
    assert default.worker_threads == default.worker_cores == default.worker_cores_limit == 4
    assert default.worker_memory == default.worker_memory_limit == 29568 * 2**20
    assert default.image == "rescnet-dist:0.1.0"
    assert default.cluster_max_workers == 32
    assert default.environment["OMP_NUM_THREADS"] == "1"
    small = backend.cluster(
        worker_threads=2, worker_memory=8, image="other:1", environment={"A": "b"}
    )
    assert (small.worker_threads, small.worker_memory) == (2, 8 * 2**30)
    assert small.image == "other:1"
    assert {"A": "b", "OMP_NUM_THREADS": "1"}.items() <= small.environment.items()
    for wrong in ({"worker_threads": 5}, {"worker_memory": 29.0}, {"workers": 3}):
        with pytest.raises(ValueError, match=r"must be <=|Unknown fields"):
            backend.cluster(**wrong)


def test_workers_are_limited_by_the_node() -> None:
    """If its size is given."""
    pytest.importorskip("dask_gateway_server")
    node = ("--node-cpus", "16", "--node-memory", "60GiB")
    larger = GatewayBackend(make_config(values(*EXAMPLE, *node)))
    assert larger.cluster(worker_threads=16, worker_memory=60).worker_threads == 16
    with pytest.raises(ValueError, match="worker_threads must be <= 16"):
        larger.cluster(worker_threads=17)


def test_gateway_pods_are_valid_and_unprivileged(backend: GatewayBackend) -> None:
    """Made by the gateway's own code, validated by Kubernetes' schemas."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    from dask_gateway_server.backends.kubernetes.controller import KubeController

    controller = KubeController(
        config=Config(), api_url="http://api:8000/api", gateway_instance="hub"
    )
    for is_worker in (True, False):
        pod = controller.make_pod("hub", "0123", backend.cluster(), is_worker=is_worker)
        kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)
        (container,) = pod["spec"]["containers"]
        assert container["args"][:2] == ["dask", "worker" if is_worker else "scheduler"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert pod["spec"]["securityContext"]["runAsUser"] == 10001
        assert pod["spec"]["automountServiceAccountToken"] is False
        mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert {"/tmp", "/etc/dask-credentials/"} <= mounts
        named = {variable["name"] for variable in container["env"]}
        assert ("AWS_SECRET_ACCESS_KEY" in named) == is_worker
        volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes


GATEWAY = """
c.DaskGateway.backend_class = "dask_gateway_server.backends.local.UnsafeLocalBackend"
c.DaskGateway.address = "127.0.0.1:{private}"
c.DaskGateway.authenticator_class = "dask_gateway_server.auth.SimpleAuthenticator"
c.Proxy.address = "127.0.0.1:{public}"
c.UnsafeLocalBackend.clusters_directory = "{folder}"
c.KubeClusterConfig.environment = {environment}
{code}
python = ["{python}", "-m"]
c.LocalClusterConfig.scheduler_cmd = python + c.KubeClusterConfig.scheduler_cmd
c.LocalClusterConfig.worker_cmd = python + c.KubeClusterConfig.worker_cmd
original = c.Backend.cluster_options.handler
def local_config(options, user):  # the local backend has no limits and no images
    config = original(options, user)
    return {{name: config[name] for name in ("worker_threads", "worker_memory", "environment")}}
c.Backend.cluster_options.handler = local_config
"""


@pytest.mark.slow
def test_real_gateway_starts_clusters_with_our_plots(started: Processes, tmp_path: Path) -> None:
    """With the commands, the options and the environment of the values, as processes."""
    pytest.importorskip("dask_gateway_server")
    pytest.importorskip("sqlalchemy")
    from dask_gateway import BasicAuth, Gateway

    gateway = values()["dask-gateway"]["gateway"]
    environment = gateway["backend"]["environment"]
    del environment["NUMBA_CACHE_DIR"]  # use the kernels that are already compiled
    public = free_port()
    config = tmp_path / "config.py"
    config.write_text(
        GATEWAY.format(
            private=free_port(),
            public=public,
            folder=tmp_path,
            python=sys.executable,
            environment=environment,
            code=gateway["extraConfig"]["rescnet-options"],
        )
    )
    server = started.start(sys.executable, "-m", "dask_gateway_server", "-f", config)
    url = f"http://127.0.0.1:{public}"
    started.wait_until(lambda: is_healthy(url), server)
    GATEWAY_REFERENCES.append(admin := Gateway(url, auth=BasicAuth()))
    with admin:
        options = admin.cluster_options()
        assert (options.worker_threads, options.worker_memory) == (4, 28.875)
        options.worker_threads, options.worker_memory = 2, 1.5
        with admin.new_cluster(options, shutdown_on_close=True) as cluster:
            GATEWAY_REFERENCES.append(cluster)
            cluster.scale(1)
            with cluster.get_client() as client:
                client.wait_for_workers(1, timeout=120)
                (worker,) = client.scheduler_info(n_workers=-1)["workers"].values()
                assert (worker["nthreads"], worker["memory_limit"]) == (2, 3 * 2**29)
                assert client.submit(os.getenv, "OMP_NUM_THREADS").result() == "1"
                listed = f"{cluster.dashboard_link.removesuffix('/status')}/individual-plots.json"
                with urllib.request.urlopen(listed, timeout=30) as response:
                    plots = json.loads(response.read()).values()
    assert {f"/individual-rescnet-{kind.name}" for kind in PLOTS} <= set(plots)


# JupyterLab -------------------------------------------------------------------------------------


def test_layout_has_all_plots() -> None:
    """Each plot once, in the layout of the panel and in the workspace."""
    names = {f"individual-rescnet-{kind.name}" for kind in PLOTS}
    layout = lab_settings()[DASK_PANEL]["defaultLayout"]
    assert set(layout) == names
    assert len(names) == 6
    data = lab_workspace("a.ipynb")["data"]
    assert {key.split("/")[1] for key in data if key.startswith("dask-")} == names
    shown = str(data["layout-restorer:data"])
    assert all(shown.count(f"/{name}'") == 1 for name in names)


def test_preload_adds_plots_to_the_scheduler() -> None:
    """Before any run, each plot once."""
    preload = {"preload": ["rescnet_dist.dashboard.scheduler"]}
    with LocalCluster(
        n_workers=0, processes=False, dashboard_address="127.0.0.1:0", scheduler_kwargs=preload
    ) as cluster:
        assert install(cluster.scheduler)
        page = f"http://127.0.0.1:{cluster.scheduler.http_server.port}/individual-plots.json"
        with urllib.request.urlopen(page, timeout=30) as response:
            plots = list(json.loads(response.read()).values())
    for kind in PLOTS:
        assert plots.count(f"/individual-rescnet-{kind.name}") == 1


def test_jupyterlab_reads_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the path in the values; they match the panel's schema, and its own plots stay."""
    utils = pytest.importorskip("jupyterlab_server.settings_utils")
    pytest.importorskip("dask_labextension")
    jsonschema = pytest.importorskip("jsonschema")
    (file,) = values()["jupyterhub"]["singleuser"]["extraFiles"].values()
    assert file["mountPath"] == LAB_OVERRIDES_PATH
    location = tmp_path / Path(LAB_OVERRIDES_PATH).relative_to("/etc/jupyter")
    location.parent.mkdir()
    location.write_text(json.dumps(file["data"]))
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", str(tmp_path))
    extensions = [str(Path(sys.prefix) / "share/jupyter/labextensions")]
    found, _ = utils.get_settings(
        str(tmp_path / "app"),
        str(tmp_path / "schemas"),
        str(tmp_path / "user"),
        DASK_PANEL,
        labextensions_path=extensions,
    )
    schema = found["schema"]
    defaults = {name: entry["default"] for name, entry in schema["properties"].items()}
    jsonschema.validate(defaults, schema)
    ours = file["data"][DASK_PANEL]["defaultLayout"]
    assert ours.items() < defaults["defaultLayout"].items()
    for position in defaults["defaultLayout"].values():  # relative to an existing plot
        assert position["ref"] is None or position["ref"] in defaults["defaultLayout"]
