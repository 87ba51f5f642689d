"""The kubelet's HTTPS port, as far as `kubectl logs` needs it.

The API server asks here; any caller is answered, since only this cluster's namespace can reach the port.
"""

import asyncio
import ssl
from pathlib import Path

from aiohttp import web

from processcluster.kubelet.container import ContainerRunner
from processcluster.kubelet.manager import PodManager
from processcluster.layout import KUBELET_PORT, Layout

KNOWN_OPTIONS = {"follow", "previous", "tailLines", "limitBytes"}
POLL_S = 0.1


async def serve_logs(manager: PodManager, files: Layout, address: str) -> web.AppRunner:
    """Listens at the node's address; the caller cleans the runner up."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return await _container_logs(manager, request)

    application = web.Application()
    application.router.add_get("/containerLogs/{namespace}/{pod}/{container}", answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificates / "kubelet.crt", files.certificates / "kubelet.key")
    await web.TCPSite(runner, address, KUBELET_PORT, ssl_context=context).start()
    return runner


async def _container_logs(manager: PodManager, request: web.Request) -> web.StreamResponse:
    unknown = set(request.query) - KNOWN_OPTIONS
    if unknown:
        raise web.HTTPBadRequest(text=f"not supported by the process kubelet: {', '.join(sorted(unknown))}\n")
    worker = manager.find(request.match_info["namespace"], request.match_info["pod"])
    runner = worker.runner(request.match_info["container"]) if worker else None
    if runner is None:
        raise web.HTTPNotFound(text="this node has no such container\n")
    run = runner.view.restart_count - (request.query.get("previous") == "true")
    path = runner.log(run)
    if not path.exists():
        raise web.HTTPBadRequest(text=f"container {runner.view.name} has no run {run} yet\n")
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    await response.prepare(request)
    await _send(response, request, path, runner)
    return response


async def _send(response: web.StreamResponse, request: web.Request, path: Path, runner: ContainerRunner) -> None:
    content = path.read_bytes()
    offset = len(content)
    if "tailLines" in request.query:
        num_lines = int(request.query["tailLines"])
        content = b"".join(content.splitlines(keepends=True)[-num_lines:]) if num_lines else b""
    await response.write(content[: int(request.query.get("limitBytes", len(content)))])
    while request.query.get("follow") == "true":
        # Asked before the read: output of the last moment is still sent.
        has_ended = "running" not in runner.view.state
        with path.open("rb") as log:
            log.seek(offset)
            content = log.read()
        offset += len(content)
        await response.write(content)
        if has_ended:
            return
        await asyncio.sleep(POLL_S)
