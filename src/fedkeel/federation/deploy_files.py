"""Files that run an exported app: containers of a federation on one machine, and systemd units for real ones."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from fedkeel.runs.folder import write_text

PLAIN = {
    "Dockerfile": "Dockerfile",
    "superlink.service": "fedkeel-superlink.service",
    "supernode@.service": "fedkeel-supernode@.service",
    "status.timer": "fedkeel-status.timer",
}
"""Templates that are copied as they are, and what they are called in the app."""

COMPOSE = """\
# A federation of {nodes} nodes on this machine, for a try: all share one folder of keys, which real sites never do.
#   docker compose -f deploy/compose.yaml up --build --exit-code-from run
# Certificates end after 30 days. To renew them, with `docker compose -f deploy/compose.yaml` before each of
#   run --rm keys sh make_keys.sh /keys {nodes} superlink
#   restart superlink node-0    (and the other nodes)
#   up run
x-image: &image
  build: {{context: .., dockerfile: deploy/Dockerfile}}
  image: fedkeel-{name}
  restart: on-failure
  depends_on: {{keys: {{condition: service_completed_successfully}}}}

services:
  keys:
    build: {{context: .., dockerfile: deploy/Dockerfile}}
    image: fedkeel-{name}
    command: sh -c 'test -e /keys/server.crt || sh make_keys.sh /keys {nodes} superlink'
    volumes: ["keys:/keys"]

  superlink:
    <<: *image
    command: sh superlink.sh /keys 0.0.0.0 8000
    volumes: ["keys:/keys", "runs:/home/fedkeel/fedkeel-runs"]
    healthcheck:
      test: ["CMD", "python", "-c", "import socket; socket.create_connection(('localhost', 8000), 5)"]
      interval: 5s
      retries: 60
{services}
  run:
    <<: *image
    restart: "no"
    command:
      - sh
      - -c
      - |
        mkdir -p ~/.flwr
        printf '[superlink.fed]\\naddress = "superlink:8000"\\nroot-certificates = "/keys/ca.crt"\\n' \\
          > ~/.flwr/config.toml
        for i in $$(seq 0 {last}); do flwr supernode register /keys/node-$$i.pub fed; done
        flwr run /app fed --stream
    volumes: ["keys:/keys:ro"]
    depends_on:
      superlink: {{condition: service_healthy}}

volumes: {{keys: {{}}, runs: {{}}{states}}}
"""

NODE = """
  node-{node}:
    <<: *image
    command: ["sh", "supernode.sh", "/keys", "{node}", "superlink:8000", "9094"{settings}]
    volumes: ["keys:/keys:ro", "state-{node}:/home/fedkeel/.fedkeel"{data}]
"""


def write_deploy_files(folder: Path, values: Mapping[str, str], nodes: int, own_folders: bool) -> list[Path]:
    """Write them into the app's folder `deploy`; `own_folders`: each node reads its data-dir."""
    place = folder / "deploy"
    for template, name in PLAIN.items():
        write_text(place / name, read_template(template))
    run = values["out"].removeprefix("~/")
    write_text(place / "fedkeel-status.service", read_template("status.service").format(run=run))
    data = ', "${{SITE_{node}:?the folder of node {node}}}:/data:ro"' if own_folders else ""
    settings = ", 'data-dir=\"/data\"'" if own_folders else ""
    services = "".join(NODE.format(node=i, settings=settings, data=data.format(node=i)) for i in range(nodes))
    states = "".join(f", state-{i}: {{}}" for i in range(nodes))
    text = COMPOSE.format(nodes=nodes, last=nodes - 1, name=values["name"], services=services, states=states)
    write_text(place / "compose.yaml", text)
    return [place / name for name in (*PLAIN.values(), "fedkeel-status.service", "compose.yaml")]


def read_template(name: str) -> str:
    """Read a template of this package."""
    return files("fedkeel.federation").joinpath("templates", f"{name}.template").read_text(encoding="utf-8")
