"""What tests of the server share: a data set, a backbone whose features are pixels, and a running server."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from dgz import GZSLData, load_numbers
from dgz.images import Backbone, Preparation


@pytest.fixture(scope="module")
def data() -> GZSLData:
    return load_numbers(0, n_train=5)


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    """Each pixel of an 8 × 16 picture in grey is a feature, as the numbers' pixels are."""
    nodes = [
        helper.make_node("ReduceMean", ["x", "axes"], ["grey"], keepdims=0),
        helper.make_node("Flatten", ["grey"], ["f"]),
    ]
    graph = helper.make_graph(
        nodes,
        "pixels",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 16])],
        [helper.make_tensor_value_info("f", TensorProto.FLOAT, ["n", 128])],
        [numpy_helper.from_array(np.array([1]), "axes")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    proto.ir_version = 9
    preparation = Preparation(size=(8, 16), crop=1.0, fit="squash", mean=(0, 0, 0), std=(15.9375,) * 3)  # 255 / 16
    return Backbone(proto.SerializeToString(), preparation, "pixels")


class Server(Protocol):
    def __call__(self, run: Path, *options: str) -> AbstractContextManager[int]: ...


@pytest.fixture(scope="session")
def server() -> Server:
    """What serves a run on loopback, and gives the port."""
    return _server


@contextmanager
def _server(run: Path, *options: str) -> Iterator[int]:
    """The port of a server, which ends with the block."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "NO_COLOR": "1"}
    command = [sys.executable, "-m", "dgz", "serve", str(run), "--port", "0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        found = re.fullmatch(r"Serving (\d+) classes at http://127\.0\.0\.1:(\d+)/ \(Ctrl-C stops\)\.\n", line)
        assert found, line + process.stderr.read()
        yield int(found[2])
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert process.stderr.read() == ""  # nothing was complained about
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
