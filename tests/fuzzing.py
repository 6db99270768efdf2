"""Reads mutated files for a while: `python fuzzing.py READER BASE FOLDER SEED SECONDS`.

Run as a process of its own, so that a crash of a C library, a hang or an endless allocation ends
this process and not the tests. Each finding is one line of JSON; the last line says how much was
done. `FOLDER/now.json` names the mutation under way, for when nothing could be said any more.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import resource
import signal
import struct
import sys
import time
import warnings
import zipfile
from collections import Counter
from pathlib import Path

import h5py
import numpy as np
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from rcdt_agent import BC, RCDT, OfflineAlgorithm, TrajectoryDataset
from rcdt_agent.checkpoint import META, TENSORS
from rcdt_agent.errors import CheckpointError, DatasetError, InvalidArgumentError

SECONDS_A_FILE = 10
MEGABYTES_A_FILE = 1000
FORBIDDEN = (
    "compile", "ctypes.dlopen", "exec", "import", "marshal.loads", "os.exec", "os.fork",
    "os.posix_spawn", "os.remove", "os.rename", "os.system", "pickle.find_class", "shutil.",
    "socket.", "subprocess.Popen", "tempfile.", "urllib.Request",
)  # fmt: skip
SPOOKY = (
    None, True, -1, 0, 1, 2**31, 2**63, 10**30, 0.5, -0.0, 1e-320, 1e38, 1e308, float("nan"),
    float("inf"), "", "float32", "object", "O", "S99999999", "../../etc/passwd", "\0", [], {}, [[]],
    [1e308] * 3, {"tensor": "policy"}, {"dict": []}, {"list": [{"value": 1}]}, {"value": None},
)  # fmt: skip


# ------------------------------------------------------------------ bytes


def mutate_bytes(data: bytes, rng: np.random.Generator) -> bytes:
    """Flip, cut, repeat, blank or lengthen; favours the ends, where formats keep their tables."""
    out = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        if not out:
            break
        near_an_end = rng.random() < 0.5
        span = min(len(out), 4096) if near_an_end else len(out)
        at = int(rng.integers(span))
        at = len(out) - 1 - at if near_an_end and rng.random() < 0.5 else at
        size = int(rng.integers(1, 64))
        match int(rng.integers(7)):
            case 0:
                out[at] ^= 1 << int(rng.integers(8))
            case 1:
                out[at : at + 8] = _word(rng, 0, 1, 2**31, 2**63, 2**64 - 1)
            case 2:
                out[at : at + size] = rng.bytes(size)
            case 3:
                del out[at:]
            case 4:
                del out[at : at + size]
            case 5:
                out[at:at] = out[at : at + size]
            case 6:
                out[at : at + size] = bytes([int(rng.choice([0, 255]))]) * size
    return bytes(out)


def _word(rng: np.random.Generator, *values: int) -> bytes:
    return struct.pack("<Q", values[int(rng.integers(len(values)))])


# ------------------------------------------------------------------ checkpoints


def members_of(base: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(base)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zipped(members, compression=zipfile.ZIP_STORED) -> bytes:
    """A sound archive of (name, content) pairs: its checksums are right."""
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", compression) as archive:
        warnings.simplefilter("ignore")  # names that repeat
        for name, content in members:
            archive.writestr(name, content)
    return buffer.getvalue()


def place(tree, rng: np.random.Generator):
    """A node of a JSON tree as (container, key), found by walking down: each branch alike."""
    while True:
        keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
        key = keys[int(rng.integers(len(keys)))]
        below = tree[key]
        if not isinstance(below, dict | list) or not below or rng.random() < 0.15:
            return tree, key
        tree = below


def mutate_json(text: bytes, rng: np.random.Generator) -> bytes:
    """Replace, delete, copy or multiply values."""
    tree = json.loads(text)
    for _ in range(int(rng.integers(1, 3))):
        container, key = place(tree, rng)
        match int(rng.integers(5)):
            case 0 | 1:
                container[key] = copy.deepcopy(SPOOKY[int(rng.integers(len(SPOOKY)))])
            case 2:
                del container[key]
                break
            case 3:
                other, name = place(tree, rng)
                container[key] = copy.deepcopy(other[name])
            case 4:
                value = container[key]
                if isinstance(value, list):
                    container[key] = value * 2
                elif isinstance(value, int | float):
                    container[key] = value * int(rng.choice([-1, 0, 2, 1000, 10**12]))
                else:
                    container[key] = [value]
    return json.dumps(tree).encode()


def mutate_tensors(data: bytes, rng: np.random.Generator) -> bytes:
    """Lies in the header, or sound files of the wrong tensors."""
    length = struct.unpack("<Q", data[:8])[0]
    header, payload = data[8 : 8 + length], data[8 + length :]
    kind = int(rng.integers(6))
    if kind == 0:
        header = mutate_json(header, rng)
        return struct.pack("<Q", len(header)) + header + payload
    if kind == 1:
        return _word(rng, 0, 1, length - 1, length + 1, 2**40, 2**63) + data[8:]
    if kind == 2:
        return data[: 8 + length] + mutate_bytes(payload, rng)
    tensors = load_tensors(data)
    name = str(rng.choice(list(tensors)))
    value = tensors.pop(name)
    if kind == 3:
        tensors[name] = value.to(
            [torch.float64, torch.int8, torch.bfloat16, torch.bool, torch.complex64][
                int(rng.integers(5))
            ]
        )
    elif kind == 4:
        tensors[name] = [value.reshape(-1), value[..., :0] if value.ndim else value.reshape(1),
                         value[None], torch.full_like(value.float(), float("nan"))][
            int(rng.integers(4))
        ].contiguous()  # fmt: skip
    return save_tensors(tensors)


def zip_trick(kind: str, base: bytes) -> bytes:
    """Archives that are more than they seem."""
    members = members_of(base)
    pairs = list(members.items())
    if kind == "twice":
        return zipped([*pairs, (META, b"{}")])
    if kind == "traversal":
        return zipped([*pairs, ("../../../tmp/rcdt_fuzz_escaped", b"x")])
    if kind == "bomb":
        return zipped([(META, members[META]), (TENSORS, bytes(2**26))], zipfile.ZIP_DEFLATED)
    if kind == "json bomb":
        return zipped([(META, b'{"a": "' + b" " * 2**20 + b'"}'), pairs[1]], zipfile.ZIP_LZMA)
    if kind == "deep json":
        return zipped([(META, b"[" * 10**6), (TENSORS, members[TENSORS])])
    if kind == "deep structure":
        meta = json.loads(members[META])
        text = json.dumps({**meta, "structure": 0, "settings": 0})
        deep = '{"list": [' * 5000 + "]}" * 5000
        return zipped(
            [(META, text.replace('"structure": 0', f'"structure": {deep}').encode()), pairs[1]]
        )
    if kind == "long number":
        return zipped([(META, b'{"format": ' + b"9" * 10**6 + b"}"), pairs[1]])
    if kind == "infinite number":
        meta = {**json.loads(members[META]), "num_timesteps": "here"}
        text = json.dumps(meta).replace('"here"', "1e999").encode()
        return zipped([(META, text), (TENSORS, members[TENSORS])])
    if kind in ("huge layers", "huge width", "huge context"):
        meta = json.loads(members[META])
        settings = meta["config"]
        for name in {"huge layers": ["n_layers"], "huge width": ["embedding_size", "width"],
                     "huge context": ["context_length", "batch_size"]}[kind]:  # fmt: skip
            if name in settings:
                settings[name] = 2**34
        return zipped([(META, json.dumps(meta).encode()), (TENSORS, members[TENSORS])])
    if kind == "negative length":
        meta = json.loads(members[META])
        # Where there is a context, it makes up for the missing steps.
        rows = meta["policy"]["episode_length"] + meta["config"].get("context_length", 0)
        if "context_length" in meta["config"]:
            meta["config"]["context_length"] = 2**40
        meta["policy"]["episode_length"] = rows - 2**40
        return zipped([(META, json.dumps(meta).encode()), (TENSORS, members[TENSORS])])
    out = bytearray(base)
    directory = out.index(b"PK\x01\x02")
    if kind == "encrypted":
        out[directory + 8] |= 1
        out[6] |= 1
    if kind == "unknown method":
        out[directory + 10 : directory + 12] = struct.pack("<H", 99)
    if kind == "huge size":
        out[directory + 20 : directory + 28] = struct.pack("<II", 2**32 - 2, 2**32 - 2)
    if kind == "offset":
        out[directory + 42 : directory + 46] = struct.pack("<I", 2**31)
    if kind == "many":
        end = out.index(b"PK\x05\x06")
        out[end + 8 : end + 12] = struct.pack("<HH", 65535, 65535)
    return bytes(out)


ZIP_TRICKS = (
    "as it is", "twice", "traversal", "bomb", "json bomb", "deep json", "deep structure",
    "long number", "infinite number", "huge layers", "huge width", "huge context",
    "negative length", "encrypted", "unknown method", "huge size", "offset", "many",
)  # fmt: skip


def mutated_checkpoint(base: bytes, number: int, rng: np.random.Generator) -> tuple[str, bytes]:
    if number < len(ZIP_TRICKS):
        return ZIP_TRICKS[number], zip_trick(ZIP_TRICKS[number], base)
    kind = ("bytes", "json", "json", "json", "tensors", "tensors")[number % 6]
    if kind == "bytes":
        return kind, mutate_bytes(base, rng)
    members = members_of(base)
    name, mutate = (META, mutate_json) if kind == "json" else (TENSORS, mutate_tensors)
    members[name] = mutate(members[name], rng)
    return kind, zipped(members.items())


# ------------------------------------------------------------------ HDF5


def hdf5_trick(kind: str, base: bytes, rng: np.random.Generator) -> bytes:
    """Sound files with the wrong things in them."""
    buffer = io.BytesIO(base)
    with h5py.File(buffer, "r+") as file:
        key = str(rng.choice(sorted(file)))
        values = np.asarray(file[key])
        n = len(values)

        def put(data=None, **kwargs):
            del file[key]
            file.create_dataset(key, data=data, **kwargs)

        match kind:
            case "removed":
                del file[key]
            case "group":
                del file[key]
                file.create_group(key)
            case "swapped":
                other = str(rng.choice(sorted(file)))
                file.move(key, "spare")
                file[key] = file[other]
            case "soft loop":
                del file[key]
                file[key] = h5py.SoftLink(f"/{key}")
            case "external link":
                del file[key]
                file[key] = h5py.ExternalLink("/etc/passwd", "/x")
            case "indirect link":
                del file[key]
                file["aside"] = h5py.ExternalLink(str(Path(sys.argv[2])), "/")
                file[key] = h5py.SoftLink(f"/aside/{key}")
            case "external storage":
                put(shape=(n,), dtype="u1", external=[("/etc/passwd", 0, n)])
            case "virtual":
                layout = h5py.VirtualLayout(values.shape, values.dtype)
                layout[:] = h5py.VirtualSource(str(Path(sys.argv[2])), key, values.shape)
                del file[key]
                file.create_virtual_dataset(key, layout)
            case "absurd shape":
                put(shape=(10**13, 3), dtype="f4", chunks=(1000, 3))
            case "absurd everything":
                for name in ("observations", "actions", "next_observations"):
                    del file[name]
                    file.create_dataset(name, (10**10, 3), "f4", chunks=(1000, 3))
                for name in ("rewards", "costs", "terminals", "timeouts"):
                    del file[name]
                    file.create_dataset(name, (10**10,), "f4", chunks=(1000,))
            case "absurd chunk":
                put(shape=(n,), maxshape=(None,), dtype="f8", chunks=(2**29 - 1,))
            case "contiguous, never written":
                put(shape=(2**36,), dtype="f8")
            case "scalar":
                put(data=1.0)
            case "empty":
                put(data=h5py.Empty("f4"))
            case "no rows":
                put(data=values[:0])
            case "fewer rows":
                put(data=values[:-1])
            case "rank":
                put(data=values[None, ..., None])
            case "wide":
                put(data=np.ones((n, 40), "f4"))
            case "no columns":
                put(data=np.ones((n, 0), "f4"))
            case "compound":
                put(data=np.zeros(n, [("a", "f4"), ("b", "i4")]))
            case "text":
                put(data=[b"1.0"] * n)
            case "variable length":
                put(data=["1.0"] * n, dtype=h5py.string_dtype())
            case "complex":
                put(data=values.astype("c8"))
            case "half" | "long double" | "int8" | "uint64":
                kinds = {"half": "f2", "long double": "g", "int8": "i1", "uint64": "u8"}
                with np.errstate(all="ignore"):
                    put(data=values.astype(kinds[kind]))
            case "references":
                put(data=np.array([file.ref] * n, dtype=h5py.ref_dtype), dtype=h5py.ref_dtype)
            case "nan" | "inf" | "negative" | "huge values":
                value = {"nan": np.nan, "inf": np.inf, "negative": -1.0, "huge values": 3e38}[kind]
                spoiled = values.astype("f4")
                spoiled[rng.integers(n) :] = value
                put(data=spoiled)
            case "beyond float32":
                put(data=np.full(values.shape, 1e300))
    return buffer.getvalue()


HDF5_TRICKS = (
    "as it is", "removed", "group", "swapped", "soft loop", "external link", "indirect link",
    "external storage", "virtual", "absurd shape", "absurd everything", "absurd chunk",
    "contiguous, never written", "scalar", "empty", "no rows", "fewer rows", "rank", "wide",
    "no columns", "compound", "text", "variable length", "complex", "half", "long double", "int8",
    "uint64", "references", "nan", "inf", "negative", "huge values", "beyond float32",
)  # fmt: skip


def mutated_hdf5(base: bytes, number: int, rng: np.random.Generator) -> tuple[str, bytes]:
    if number < 3 * len(HDF5_TRICKS) and number % 3 == 0:  # between them, bytes
        kind = HDF5_TRICKS[number // 3]
        return kind, hdf5_trick(kind, base, rng)
    return "bytes", mutate_bytes(base, rng)


# ------------------------------------------------------------------ reading


def read_dataset(path: Path) -> None:
    data = TrajectoryDataset.from_hdf5(path)
    assert data.actions.dtype == (np.int64 if data.discrete_actions else np.float32)
    assert np.isfinite(data.actions).all()
    for values in (data.observations, data.rewards, data.final_observations):
        assert values.dtype == np.float32 and np.isfinite(values).all()
    assert (data.costs >= 0).all() and len(data) >= 1
    assert data.offsets[0] == 0 and data.offsets[-1] == len(data.actions) == len(data.costs)
    assert (data.lengths >= 1).all()
    assert np.isfinite(data.episode_returns).all() and np.isfinite(data.episode_costs).all()


def read_agent(path: Path) -> None:
    agent = RCDT.load(path, device="cpu")
    state = acts(agent)
    if state is not None:
        agent.predict(np.ones((2, *agent.observation_space.shape)), state.observe(1.0, 1.0))
    agent.set_cost_budget(3.0)
    agent.save(io.BytesIO())


def read_policy(path: Path) -> None:
    acts(BC.load(path))


def acts(agent: OfflineAlgorithm) -> object:
    """Act in the spaces of the file; an agent of no steps says that it is untrained."""
    obs = np.zeros((2, *agent.observation_space.shape), np.float32)
    if agent.num_timesteps == 0:
        with contextlib.suppress(InvalidArgumentError):
            agent.predict(obs)
            raise AssertionError("an untrained agent acted")
        return None
    action, state = agent.predict(obs)
    assert action.shape == (2, *agent.action_space.shape) and np.isfinite(action).all()
    return state


READERS = {
    "hdf5": (read_dataset, mutated_hdf5, DatasetError, 3 * len(HDF5_TRICKS)),
    "rcdt": (read_agent, mutated_checkpoint, CheckpointError, 3 * len(ZIP_TRICKS)),
    "bc": (read_policy, mutated_checkpoint, CheckpointError, 3 * len(ZIP_TRICKS)),
}
seen: list[str] = []
armed = False


def audit(event: str, arguments: tuple) -> None:
    if armed and event.startswith(FORBIDDEN):
        seen.append(f"{event} {arguments!r}"[:200])


def main(reader: str, base: Path, folder: Path, seed: int, seconds: float) -> None:
    global armed
    read, mutated, own_error, at_least = READERS[reader]
    original = base.read_bytes()
    path = folder / f"mutant.{'hdf5' if reader == 'hdf5' else 'zip'}"
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.Generator().set_state(torch.get_rng_state())
    read(base)  # whatever is imported on first use is imported now
    for broken in (b"", original[: len(original) // 2]):
        path.write_bytes(broken)
        with contextlib.suppress(own_error):
            read(path)
    sys.addaudithook(audit)
    counts: Counter[str] = Counter()
    end = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end or number < at_least:
        kind, content = mutated(original, number, np.random.default_rng([seed, number]))
        path.write_bytes(content)
        (folder / "now.json").write_text(json.dumps({"number": number, "kind": kind}))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        problem, outcome = None, "accepted"
        # Not caught: ends the process even inside a C library. Processor time, because a machine
        # with much else to do is not a hang.
        signal.setitimer(signal.ITIMER_PROF, SECONDS_A_FILE)
        armed = True
        try:
            read(path)
        except own_error as error:
            outcome = "refused"
            if not str(error).startswith(f"{path}: "):
                problem = f"the message does not name the file: {error}"
        except BaseException as error:
            problem = f"{type(error).__name__}: {error}"
        armed = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        if seen:
            problem = f"while reading: {seen}"
            seen.clear()
        if grown > MEGABYTES_A_FILE:
            problem = f"took {grown:.0f} MB"
        if problem:
            print(
                json.dumps({"number": number, "kind": kind, "problem": problem[:500]}), flush=True
            )
        counts[outcome] += 1
        counts[f"{kind}: {outcome}"] += 1
        number += 1
    print(json.dumps({"done": number, **counts}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
