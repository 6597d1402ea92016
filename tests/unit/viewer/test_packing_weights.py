"""Packed weights are what `dequantized` says, and near the originals."""

import base64

import numpy as np

from minigpt.viewer.packing_weights import dequantized, pack_weights, packed_size


def _weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(40, 24)) * 10.0 ** rng.integers(-6, 6, size=(40, 1))
    matrix[3], matrix[4], matrix[5] = 0, 1e-44, 3e38
    return {"matrix": matrix.astype(np.float32), "vector": rng.normal(size=7).astype(np.float32)}


def test_rounded_weights_are_integers_times_the_scale_of_their_row() -> None:
    weights = _weights()
    packed, page = pack_weights(weights), dequantized(weights)
    integers = np.frombuffer(base64.b64decode(packed["matrix"]["data"]), np.int8).reshape(40, 24)
    scale = np.frombuffer(base64.b64decode(packed["matrix"]["scale"]), "<f4")
    assert (integers.astype(np.float32) * scale[:, None] == page["matrix"]).all()
    assert integers.min() == -127
    error = np.abs(page["matrix"].astype(np.float64) - weights["matrix"])
    assert (error <= scale[:, None] * 0.5001 + 1e-44).all()
    assert (page["matrix"][3] == 0).all()
    assert np.isfinite(page["matrix"]).all()


def test_the_size_is_known_before_the_weights_are_packed() -> None:
    weights = _weights()
    parts = pack_weights(weights).values()
    data = [base64.b64decode(part[name]) for part in parts for name in ("data", "scale") if name in part]
    assert packed_size(weights) == sum(map(len, data))


def test_vectors_keep_their_bits() -> None:
    weights = _weights()
    packed = pack_weights(weights)
    assert "scale" not in packed["vector"]
    assert base64.b64decode(packed["vector"]["data"]) == weights["vector"].tobytes()
    assert (dequantized(weights)["vector"] == weights["vector"]).all()
