"""Configuration of the local stack's JupyterHub: one user, one password, loopback only.

JupyterHub reads this file. Settings that change at each start are in a file of the stack, which
only its owner can read.
"""

import json
import os
import sys
from pathlib import Path

settings = json.loads(Path(os.environ["RESCNET_STACK_SETTINGS"]).read_text())
run = Path(settings["run"])

c = get_config()  # type: ignore[name-defined]  # noqa: F821
c.JupyterHub.bind_url = settings["url"]
c.JupyterHub.hub_bind_url = f"http://127.0.0.1:{settings['hub_port']}/"
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{settings['proxy_port']}"
c.ConfigurableHTTPProxy.command = [settings["proxy"]]
c.ConfigurableHTTPProxy.pid_file = str(run / "proxy.pid")
c.JupyterHub.db_url = f"sqlite:///{run / 'hub.sqlite'}"
c.JupyterHub.cookie_secret_file = str(run / "cookie-secret")

c.JupyterHub.authenticator_class = "dummy"  # accepts any user with the password
c.DummyAuthenticator.password = settings["password"]
c.Authenticator.allowed_users = {settings["user"]}

c.JupyterHub.spawner_class = "simple"
c.SimpleLocalProcessSpawner.home_dir_template = settings["home"]
c.Spawner.cmd = [sys.executable, "-m", "jupyterhub.singleuser"]
c.Spawner.args = ["--allow-root"] if os.geteuid() == 0 else []
c.Spawner.ip = "127.0.0.1"
c.Spawner.default_url = "/lab"
c.Spawner.environment = settings["environment"]
