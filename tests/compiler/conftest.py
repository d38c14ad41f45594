"""One compiler service for all tests of this room, with a cache of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tpulab.compiler import CompileCache, CompilerService


@pytest.fixture(scope="session")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompilerService]:
    cache = CompileCache(tmp_path_factory.mktemp("programs"))
    with CompilerService(workers=1, cache=cache) as service:
        yield service
