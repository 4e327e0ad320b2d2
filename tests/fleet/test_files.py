"""Files of a fleet: with one object store, any replica can resume any transfer."""

from __future__ import annotations

import hashlib
import io
import os
import signal

import aiohttp
import pytest

from tests.fleet.conftest import FleetOf
from tests.kit.services.s3 import S3Server

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.service]

MIB = 1024 * 1024


async def test_a_file_begun_at_one_replica_goes_on_at_another(
    fleet_of: FleetOf, s3: S3Server
) -> None:
    data = os.urandom(11 * MIB)
    digest = hashlib.sha256(data).hexdigest()
    timeout = aiohttp.ClientTimeout(total=120)
    async with (
        fleet_of(2, files=s3.place()) as fleet,
        aiohttp.ClientSession(timeout=timeout) as http,
    ):
        one, other = fleet.replicas
        async with http.post(
            f"{one.url}/files", json={"size": len(data), "sha256": digest}
        ) as answer:
            assert answer.status == 201, fleet.logs()
            begun = await answer.json()
        at = 5 * MIB
        async with http.patch(
            begun["uploadUrl"], data=io.BytesIO(data[:at]), headers={"Upload-Offset": "0"}
        ) as answer:
            assert answer.status == 204, fleet.logs()
        await one.end(signal.SIGKILL)
        upload = begun["uploadUrl"].replace(one.url, other.url)
        async with http.head(upload) as answer:
            assert answer.headers["Upload-Offset"] == str(at), fleet.logs()
        async with http.patch(
            upload, data=io.BytesIO(data[at:]), headers={"Upload-Offset": str(at)}
        ) as answer:
            assert answer.status == 204, fleet.logs()
            assert answer.headers["Upload-Complete"] == "?1"
        await one.start()
        for replica in (one, other):
            url = begun["url"].replace(one.url, replica.url)
            async with http.get(url) as answer:
                assert answer.status == 200
                assert hashlib.sha256(await answer.read()).hexdigest() == digest
            async with http.get(url, headers={"Range": f"bytes={4 * MIB - 5}-{8 * MIB}"}) as answer:
                assert (answer.status, await answer.read()) == (
                    206,
                    data[4 * MIB - 5 : 8 * MIB + 1],
                )


async def test_a_fleet_has_no_files_unless_it_is_told_where(fleet_of: FleetOf) -> None:
    async with (
        fleet_of(1) as fleet,
        aiohttp.ClientSession() as http,
        http.post(f"{fleet.url}/files", json={}) as answer,
    ):
        assert answer.status == 404
