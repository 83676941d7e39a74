from collections.abc import Iterator

import pytest
from refserver.config import Speculation
from refserver.engine import Loaded, load
from server_process import REPOSITORY, Server, Servers
from tiny_model import TinyPair, write_pair

from tests.builtin_model import builtin_model_dir

BUILTIN_DRAFTER = REPOSITORY / "files" / "drafters" / "smollm2-135m-dflash-b8-int8"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyPair:
    """A tiny byte-level target and drafter with random weights."""
    return write_pair(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tiny_loaded(tiny: TinyPair) -> Loaded:
    return load(tiny.target, Speculation("DDTREE", str(tiny.drafter), 9), lambda line: None)


@pytest.fixture(scope="session")
def builtin_loaded() -> Loaded:
    """The built-in target and drafter: the real ones."""
    speculation = Speculation("DDTREE", str(BUILTIN_DRAFTER), 17)
    return load(builtin_model_dir(), speculation, lambda line: None)


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    starter = Servers(tmp_path_factory.mktemp("servers"))
    yield starter
    for server in starter.started:
        server.process.kill()
        server.process.wait()


@pytest.fixture(scope="session")
def tree_server(servers: Servers, tiny: TinyPair) -> Server:
    """A DDTREE server of the tiny pair with a budget of 8."""
    return servers.start(
        *("--model-path", str(tiny.target), "--served-model-name", "tiny"),
        *("--speculative-algorithm", "DDTREE", "--speculative-num-draft-tokens", "9"),
        *("--speculative-draft-model-path", str(tiny.drafter)),
    )
