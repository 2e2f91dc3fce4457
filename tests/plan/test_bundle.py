"""The file of a plan: one way to write it, and every other way refused."""

from __future__ import annotations

import hashlib
import io
import struct
import zipfile
import zlib
from pathlib import Path

import msgspec
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.toy_plans import model, stateful, value

from kellet.sdk.authoring import Tensor, write_bundle
from kellet.sdk.errors import DataError, PlanError, UsageError
from kellet.sdk.plan import BUILTIN_PLANS, InputSpec, LabelSpec, Plan
from kellet.sdk.plan.container import pack, unpack

ENTRIES = ["manifest.msgpack", "step.onnx", "eval.onnx", "initial.f32", "selftest.msgpack"]


@pytest.fixture(scope="module")
def toy() -> Plan:
    return stateful()


def entries(plan: Plan) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(plan.raw)) as bundle:
        return {name: bundle.read(name) for name in bundle.namelist()}


def repacked(plan: Plan, **changed: bytes) -> bytes:
    """The plan with entries replaced; ``step_onnx`` stands for step.onnx."""
    whole = entries(plan)
    for name, content in changed.items():
        whole[name.replace("_", ".")] = content
    return pack(whole)


def with_manifest(plan: Plan, change: dict[str, object]) -> bytes:
    manifest = msgspec.msgpack.decode(entries(plan)["manifest.msgpack"])
    return repacked(plan, manifest_msgpack=msgspec.msgpack.encode(manifest | change))


# ---- the good file


def test_a_bundle_is_an_ordinary_zip_with_fixed_times(toy: Plan) -> None:
    with zipfile.ZipFile(io.BytesIO(toy.raw)) as bundle:
        assert bundle.testzip() is None
        assert bundle.namelist() == ENTRIES
        for info in bundle.infolist():
            assert info.date_time == (1980, 1, 1, 0, 0, 0)
            assert info.compress_type == zipfile.ZIP_STORED


def test_the_container_is_as_appnote_says_byte_for_byte() -> None:
    crc = struct.pack("<I", zlib.crc32(b"hi"))
    sizes = struct.pack("<II", 2, 2)
    fixed = bytes.fromhex("14 00 00 00 00 00 00 00 21 00")
    local = b"PK\x03\x04" + fixed + crc + sizes + b"\x01\x00\x00\x00" + b"a" + b"hi"
    central = b"PK\x01\x02\x14\x03" + fixed + crc + sizes + b"\x01\x00" + bytes(8)
    central += struct.pack("<I", 0o100644 << 16) + bytes(4) + b"a"
    end = b"PK\x05\x06" + bytes(4) + b"\x01\x00\x01\x00" + struct.pack("<II", len(central), 33)
    assert pack({"a": b"hi"}) == local + central + end + bytes(2)
    assert bytes(unpack(local + central + end + bytes(2), {"a": 2})["a"]) == b"hi"


def test_the_same_plan_is_the_same_bytes_and_the_id_is_their_sha256(toy: Plan) -> None:
    assert stateful().raw == toy.raw
    assert toy.id == hashlib.sha256(toy.raw).digest()
    assert toy.hex_id == toy.id.hex()
    assert Plan.open(toy.raw) == toy
    assert stateful(w=2.0) != toy


def test_a_plan_opens_from_path_bytes_and_name(toy: Plan, tmp_path: Path) -> None:
    path = tmp_path / "toy.kplan"
    path.write_bytes(toy.raw)
    assert Plan.open(path) == Plan.open(str(path)) == Plan.open(toy.raw) == toy
    assert Plan.open("wisdm").manifest.name == "wisdm"


def test_a_plan_is_immutable(toy: Plan) -> None:
    with pytest.raises(AttributeError, match=r"immutable"):
        toy.raw = b""  # type: ignore[misc]
    with pytest.raises(AttributeError):
        toy.manifest.name = "other"  # type: ignore[misc]


def test_the_right_digest_passes_and_a_wrong_one_is_refused(toy: Plan) -> None:
    assert Plan.open(toy.raw, digest=toy.id) == Plan.open(toy.raw, digest=toy.hex_id)
    with pytest.raises(PlanError, match=r"its SHA-256 is .* - fetch the plan again"):
        Plan.open(toy.raw, digest=bytes(32))
    with pytest.raises(UsageError, match=r"not the digest"):
        Plan.open(toy.raw, digest="abc")


def test_an_unknown_plan_names_the_built_in_ones() -> None:
    with pytest.raises(PlanError, match=r"there is no plan 'wisdn'.*har, wisdm"):
        Plan.open("wisdn")
    assert BUILTIN_PLANS == ("har", "wisdm")


def test_a_folder_is_no_plan(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"cannot be read"):
        Plan.open(tmp_path)


# ---- files that lie


def test_no_byte_of_a_plan_can_change(toy: Plan) -> None:
    for place in range(len(toy.raw)):
        changed = bytearray(toy.raw)
        changed[place] ^= 0x40
        with pytest.raises(PlanError):
            Plan.open(bytes(changed))


def test_a_truncated_plan_says_so(toy: Plan) -> None:
    for size in range(40, len(toy.raw), 17):
        with pytest.raises(PlanError, match=r"truncated.*copy or download it again"):
            Plan.open(toy.raw[:size])
    with pytest.raises(PlanError, match=r"not a plan"):
        Plan.open(b"")


@pytest.mark.parametrize("extra", [b"\0", b"PK\x05\x06", b"x" * 100])
def test_bytes_after_the_end_are_refused(toy: Plan, extra: bytes) -> None:
    with pytest.raises(PlanError, match=r"more than a plan"):
        Plan.open(toy.raw + extra)
    with pytest.raises(PlanError, match=r"does not begin"):
        Plan.open(extra + toy.raw)


def zipped(content: list[tuple[str, bytes]], compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as bundle:
        for name, data in content:
            bundle.writestr(zipfile.ZipInfo(name), data, compression)
    return buffer.getvalue()


def test_a_compressed_bundle_is_refused(toy: Plan) -> None:
    with pytest.raises(PlanError, match=r"not plainly stored"):
        Plan.open(zipped(list(entries(toy).items()), zipfile.ZIP_DEFLATED))


def test_duplicate_names_are_refused(toy: Plan) -> None:
    content = list(entries(toy).items())
    with pytest.warns(UserWarning, match=r"Duplicate"):
        twice = zipped([*content, content[0]])
    with pytest.raises(PlanError):
        Plan.open(twice)
    hidden = pack({"manifest.msgpack": content[0][1]})[: 30 + 16 + len(content[0][1])]
    with pytest.raises(PlanError):
        Plan.open(hidden + toy.raw)


@pytest.mark.parametrize("name", ["../../etc/passwd", "extra", "MANIFEST.msgpack"])
def test_other_entries_are_refused(toy: Plan, name: str) -> None:
    with pytest.raises(PlanError):
        Plan.open(pack(entries(toy) | {name: b"x"}))
    with pytest.raises(PlanError):
        Plan.open(pack({name: b"x"} | entries(toy)))


def test_entries_in_another_order_or_missing_are_refused(toy: Plan) -> None:
    content = entries(toy)
    with pytest.raises(PlanError):
        Plan.open(pack(dict(reversed(content.items()))))
    del content["selftest.msgpack"]
    with pytest.raises(PlanError):
        Plan.open(pack(content))


def test_a_huge_manifest_is_refused_unread(toy: Plan) -> None:
    bomb = b"\xdd\x00\x40\x00\x00" + b"\x80" * (4 << 20)
    with pytest.raises(PlanError, match=r"has 4194309 bytes, and at most 4194304"):
        Plan.open(repacked(toy, manifest_msgpack=bomb))


def test_a_size_beyond_the_file_costs_nothing(toy: Plan) -> None:
    lying = bytearray(toy.raw)
    lying[18:26] = struct.pack("<II", 4 << 20, 4 << 20)
    with pytest.raises(PlanError, match=r"truncated"):
        Plan.open(bytes(lying))


# ---- manifests that lie


@pytest.mark.parametrize(
    "bomb",
    [
        b"\x91" * 10_000 + b"\xc0",
        b"\x81\xa1a" * 10_000 + b"\xc0",
        b"\x81\xa6format" + b"\x91" * 100_000,
        b"",
        b"\xc1",
        b"\xff\xff",
        b"\x81\xa6format\xc7\x00\x01",
        msgspec.msgpack.encode([1, 2, 3]),
    ],
)
def test_nested_and_broken_msgpack_is_refused(toy: Plan, bomb: bytes) -> None:
    with pytest.raises(PlanError, match=r"manifest is wrong"):
        Plan.open(repacked(toy, manifest_msgpack=bomb))


def test_a_repeated_key_is_refused(toy: Plan) -> None:
    raw = entries(toy)["manifest.msgpack"]
    repeated = bytes([raw[0] + 1]) + raw[1:] + b"\xa4name\xa5other"
    with pytest.raises(PlanError, match=r"not encoded the one way"):
        Plan.open(repacked(toy, manifest_msgpack=repeated))
    with pytest.raises(PlanError):
        Plan.open(repacked(toy, manifest_msgpack=raw + b"\xc0"))


def test_a_newer_format_asks_for_an_update(toy: Plan) -> None:
    with pytest.raises(PlanError, match=r"has format 3.*update Kellet"):
        Plan.open(with_manifest(toy, {"format": 3, "new": 1}))


def tensor(name: str, shape: list[int], offset: int, role: str) -> dict[str, object]:
    return {"name": name, "shape": shape, "offset": offset, "role": role, "aggregate": "mean"}


W, M, F = tensor("w", [1], 0, "train"), tensor("m", [1], 1, "buffer"), tensor("f", [1], 2, "frozen")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"tensors": [W, M | {"offset": 2}, F]}, "lies at 2 instead of 1"),
        ({"tensors": [W, M | {"name": "w"}, F]}, "two tensors are called 'w'"),
        ({"tensors": [W, M | {"name": "loss"}, F]}, "is called 'loss'"),
        ({"tensors": [W, M | {"name": "../w"}, F]}, "name"),
        ({"tensors": [W, M | {"role": "frozen"}, F | {"role": "buffer"}]}, "comes too late"),
        ({"tensors": [W | {"role": "buffer"}, M, F]}, "no tensor is trained"),
        ({"tensors": [W | {"shape": [1 << 20, 1 << 20]}, M, F]}, "instead of|more than"),
        ({"tensors": [W | {"shape": [-1]}, M, F]}, "shape"),
        ({"tensors": []}, "tensors"),
        ({"unknown": 1}, "unknown"),
        ({"loss": "cross_entropy"}, "cross-entropy needs"),
        ({"min_onnxruntime": "new"}, "min_onnxruntime"),
        ({"memory": {0: 1}}, "memory"),
    ],
)
def test_a_wrong_manifest_is_refused(toy: Plan, change: dict[str, object], why: str) -> None:
    with pytest.raises(PlanError, match=f"manifest is wrong.*({why})"):
        Plan.open(with_manifest(toy, change))


def test_a_plan_that_cannot_be_described_is_refused() -> None:
    with pytest.raises(PlanError, match=r"cannot be described.*name"):
        bundle_of(encoded({}), name="my plan")


def test_initial_parameters_must_fit_and_be_finite(toy: Plan) -> None:
    with pytest.raises(PlanError, match=r"3 are declared, the file has 8 bytes"):
        Plan.open(repacked(toy, initial_f32=bytes(8)))
    spoilt = np.array([1, np.nan, 1], "<f4").tobytes()
    with pytest.raises(PlanError, match=r"NaN"):
        Plan.open(repacked(toy, initial_f32=spoilt))


# ---- graphs that lie

X, Y, V = value("batch", "b", 1), value("labels", "b", dtype=TensorProto.INT64), value("w", 1)
MEAN = helper.make_node("ReduceMean", ["scores"], ["loss"], keepdims=0)
SCORE = helper.make_node("Mul", ["batch", "w"], ["scores"])
GRAD = helper.make_node("ReduceMean", ["batch", "axis"], ["grad::w"], keepdims=0)
AXIS = {"axis": np.array([0])}
OUT = [value("loss"), value("grad::w", 1)]


def bundle_of(step: bytes, name: str = "lie") -> bytes:
    return write_bundle(
        name=name,
        step=step,
        evaluate=model([SCORE], [X, V], [value("scores", "b", 1)]),
        tensors=[Tensor("w", np.ones(1, np.float32))],
        input=InputSpec(shape=(1,)),
        labels=LabelSpec(),
        loss="custom",
        example_batch=np.ones((2, 1)),
        example_labels=[0, 0],
    )


def encoded(graph_parts: dict[str, object], **options: object) -> bytes:
    graph = helper.make_graph(
        [SCORE, MEAN, GRAD], "lie", [X, Y, V], OUT, [numpy_helper.from_array(AXIS["axis"], "axis")]
    )
    for name, part in graph_parts.items():
        getattr(graph, name).append(part)
    opset = [helper.make_opsetid("", options.pop("opset", 18))]  # type: ignore[arg-type]
    made = helper.make_model(graph, opset_imports=opset, ir_version=options.pop("ir", 8), **options)
    return made.SerializeToString()


def external() -> TensorProto:
    made = numpy_helper.from_array(np.zeros(1, np.float32), "secret")
    made.ClearField("raw_data")
    made.data_location = TensorProto.EXTERNAL
    made.external_data.add(key="location", value="/etc/passwd")
    return made


def test_the_honest_graph_is_taken() -> None:
    plan = Plan.open(bundle_of(encoded({})))
    assert plan.session().step(np.full((2, 1), 3, np.float32), np.zeros(2, np.int64)) == 3.0


@pytest.mark.parametrize(
    ("graph", "why"),
    [
        (encoded({"initializer": external()}), "weights in another file"),
        (
            encoded({"node": helper.make_node("Constant", [], ["c"], value=external())}),
            "weights in another file",
        ),
        (
            encoded(
                {
                    "node": helper.make_node(
                        "Loop", [], ["c"], body=helper.make_graph([], "g", [], [])
                    )
                }
            ),
            "subgraph",
        ),
        (encoded({"node": helper.make_node("Own", [], ["c"], domain="evil")}), "domain 'evil'"),
        (encoded({"node": helper.make_node("RandomNormal", [], ["c"])}), "RandomNormal"),
        (encoded({"output": value("more")}), "output 'more' is not in the manifest"),
        (encoded({"input": value("more")}), "input 'more' is not in the manifest"),
        (model([SCORE, MEAN], [X, Y, V], OUT[:1]), "output 'grad::w' is missing"),
        (model([SCORE, MEAN, GRAD], [X, Y, V], OUT[::-1], AXIS), "outputs are not in the manifest"),
        (encoded({}, opset=99), "opset 99"),
        (encoded({}, ir=99), "IR version 99"),
        (encoded({}, functions=[helper.make_function("d", "f", [], [], [], [])]), "functions"),
        (b"", "0 graphs"),
        (b"\x3a\x05ab", "middle of a field"),
        (b"\xff" * 11, "not in ONNX's encoding"),
        (encoded({}) + encoded({}), "2 graphs"),
    ],
)
def test_a_graph_that_a_plan_has_no_use_for_is_refused(graph: bytes, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        bundle_of(graph)


def test_what_onnxruntime_does_not_take_is_a_plan_error() -> None:
    wrong = helper.make_node("Mul", ["batch", "nowhere"], ["scores"])
    graph = helper.make_graph([wrong, MEAN, GRAD], "g", [X, Y, V], OUT)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    with pytest.raises(PlanError, match=r"does not take the plan's graph"):
        bundle_of(made.SerializeToString())


def test_a_gradient_of_another_size_cannot_write_past_its_place() -> None:
    """The graph lies about its shape; the runtime compares it with the bound memory."""
    wide = helper.make_node("Expand", ["batch", "to"], ["wide"])
    grad = helper.make_node("Reshape", ["wide", "flat"], ["grad::w"])
    constants = {"to": np.array([2, 64]), "flat": np.array([-1])}
    inner = {name: numpy_helper.from_array(v, name) for name, v in constants.items()}
    graph = helper.make_graph(
        [SCORE, MEAN, wide, grad],
        "g",
        [X, Y, V],
        [OUT[0], value("grad::w", "n")],
        list(inner.values()),
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    with pytest.raises(DataError, match=r"does not run on this batch.*invalid dimensions"):
        bundle_of(made.SerializeToString())


def test_an_onnxruntime_that_is_too_old_is_told(toy: Plan) -> None:
    newer = Plan.open(with_manifest(toy, {"min_onnxruntime": "99.1"}))
    for opening in (newer.session, newer.evaluator):
        with pytest.raises(PlanError, match=r'pip install "onnxruntime>=99.1"'):
            opening()


# ---- the self-test


def test_a_self_test_that_is_off_is_told(toy: Plan) -> None:
    assert toy.self_test().gradient_error == 0.0
    stored = msgspec.msgpack.decode(entries(toy)["selftest.msgpack"])
    for change, what in [
        ({"loss": stored["loss"] + 1e-3}, "the loss is off by 0.001"),
        ({"gradient": [stored["gradient"][0] - 0.5]}, "the gradient is off"),
        ({"loss": float("nan")}, "the loss is off by nan"),
    ]:
        off = Plan.open(repacked(toy, selftest_msgpack=msgspec.msgpack.encode(stored | change)))
        with pytest.raises(PlanError, match=what):
            off.self_test()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"gradient_at": [1]}, "beyond the last"),
        ({"gradient_at": [0, 0]}, "differ in number"),
        ({"batch": {"dtype": "float32", "shape": [3, 1], "data": bytes(9)}}, "9 bytes"),
        ({"batch": {"dtype": "float32", "shape": [2, 2], "data": bytes(16)}}, "plan's input"),
        ({"labels": {"dtype": "int64", "shape": [9], "data": bytes(72)}}, "labels do not fit"),
        ({"more": 1}, "more"),
    ],
)
def test_a_self_test_that_does_not_fit_is_refused(
    toy: Plan, change: dict[str, object], why: str
) -> None:
    stored = msgspec.msgpack.decode(entries(toy)["selftest.msgpack"])
    with pytest.raises(PlanError, match=why):
        Plan.open(repacked(toy, selftest_msgpack=msgspec.msgpack.encode(stored | change)))


def test_two_tensors_of_one_name_are_refused() -> None:
    with pytest.raises(PlanError, match=r"same name"):
        write_bundle(
            name="twice",
            step=b"",
            evaluate=b"",
            tensors=[Tensor("w", np.ones(1)), Tensor("w", np.ones(1))],
            input=InputSpec(shape=(1,)),
            labels=LabelSpec(),
            loss="custom",
            example_batch=[[1.0]],
            example_labels=[0],
        )
