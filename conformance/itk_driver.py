"""Has the integration kit run scenarios; executed by the kit's own Python, in the kit's folder.

Reads ``{"nodes": {name: [command, folder]}, "scenarios": [...]}`` from standard input and writes
``{scenario: passed}`` to the file that the argument names. The kit starts its nodes with uv and
ends them by their ports; here they are started as they are told, and each process is ended itself.
"""

import asyncio
import json
import logging
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, os.getcwd())

import test_suite
import testlib

logging.basicConfig(level=logging.WARNING, stream=sys.stdout)
started: list[subprocess.Popen] = []


def start(words: list[str], folder: str) -> subprocess.Popen:
    process = subprocess.Popen(words, cwd=folder, stdin=subprocess.DEVNULL)
    started.append(process)
    return process


def launcher(words: list[str], folder: str):
    def launch(http_port: int, grpc_port: int) -> subprocess.Popen:
        ports = ["--httpPort", str(http_port), "--grpcPort", str(grpc_port)]
        return start([*words, *ports], folder)

    return launch


async def start_notification_server(port: int, name: str) -> subprocess.Popen:
    app = ["notifications_app:create_notifications_app", "--factory"]
    words = [sys.executable, "-m", "uvicorn", *app, "--port", str(port), "--log-level", "warning"]
    process = start(words, os.getcwd())
    async with testlib.httpx.AsyncClient() as http:
        for _ in range(100):
            try:
                await http.get(f"http://127.0.0.1:{port}/health")
            except testlib.httpx.TransportError:
                await asyncio.sleep(0.1)
            else:
                return process
    raise RuntimeError("the kit's notification server did not start")


async def main() -> dict[str, bool]:
    asked = json.load(sys.stdin)
    testlib._clean_ports = lambda *ports: None
    testlib.start_notification_server = start_notification_server
    for name, (words, folder) in asked["nodes"].items():
        test_suite._AGENT_DEFS[name] = {"launcher": launcher(words, folder)}
    results: dict[str, bool] = {}
    try:
        await testlib.start_itk_cluster(list(asked["nodes"]))
        for scenario in asked["scenarios"]:
            name = scenario.pop("name")
            try:
                answer = await testlib.execute_itk_test(scenario_name=name, **scenario)
                results[name] = answer[name]["passed"]
            except Exception:
                logging.exception("%s", name)
                results[name] = False
    finally:
        for process in started:
            process.terminate()
        for process in started:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
    return results


pathlib.Path(sys.argv[1]).write_text(json.dumps(asyncio.run(main())))
