"""Up to a hub and down again, over HTTP: a stand-in server speaks the hub's interface."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from rcdt_agent import BC, RCDT, load_agent_from_hub
from rcdt_agent.errors import CheckpointError, HubError, InvalidArgumentError

SECRET = "hf_test_token"
COMMIT = "c" * 40
# Of huggingface_hub about its own use of its HTTP client.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


class Hub(ThreadingHTTPServer):
    """Repositories in memory: create, preupload, LFS, commit; HEAD and GET of files."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.blobs, self.requests = {}, {}, []
        self.endpoint = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status=200, body=b"", **headers):
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": len(content), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def body(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def note(self):
        self.server.requests.append((self.command, self.path.split("?")[0]))

    def do_POST(self):
        self.note()
        hub, path, body = self.server, self.path.split("?")[0], self.body()
        if path == "/api/validate-yaml":
            return self.answer(body={"errors": [], "warnings": []})
        if self.headers.get("Authorization") != f"Bearer {SECRET}":
            return self.answer(401, {"error": "who are you?"})
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            if name in hub.files:
                url = f"{hub.endpoint}/{name}"
                return self.answer(409, {"error": "You already created this repo", "url": url})
            hub.files[name] = {}
            return self.answer(body={"url": f"{hub.endpoint}/{name}", "name": name})
        if path.endswith("/preupload/main"):
            modes = [
                {"path": f["path"], "shouldIgnore": False,
                 "uploadMode": "lfs" if f["path"].endswith(".zip") else "regular"}
                for f in json.loads(body)["files"]
            ]  # fmt: skip
            return self.answer(body={"files": modes})
        if path.endswith("/info/lfs/objects/batch"):
            objects = [
                {**each, "actions": {"upload": {"href": f"{hub.endpoint}/lfs/{each['oid']}"}}}
                for each in json.loads(body)["objects"]
            ]
            return self.answer(
                body={"transfer": "basic", "objects": objects},
                Content_Type="application/vnd.git-lfs+json",
            )
        if path.endswith("/commit/main"):
            name = "/".join(path.split("/")[3:5])
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    content = base64.b64decode(value["content"])
                    hub.files[name][value["path"]] = content
                elif line["key"] == "lfsFile":
                    hub.files[name][value["path"]] = hub.blobs[value["oid"]]
            url = f"{hub.endpoint}/{name}/commit/{COMMIT}"
            return self.answer(body={"commitUrl": url, "commitOid": COMMIT, "success": True})
        return self.answer(404, {"error": path})

    def do_PUT(self):
        self.note()
        content = self.body()
        digest = hashlib.sha256(content).hexdigest()
        assert self.path == f"/lfs/{digest}"
        self.server.blobs[digest] = content
        self.answer()

    def do_GET(self):
        self.note()
        parts = self.path.split("?")[0].strip("/").split("/")
        if len(parts) < 5 or parts[2] != "resolve":
            return self.answer(404, {"error": self.path})
        files = self.server.files.get("/".join(parts[:2]))
        if files is None:
            return self.answer(404, {}, X_Error_Code="RepoNotFound", X_Request_Id="1")
        if (content := files.get("/".join(parts[4:]))) is None:
            headers = {"X_Error_Code": "EntryNotFound", "X_Repo_Commit": COMMIT}
            return self.answer(404, {}, **headers)
        etag = f'"{hashlib.sha256(content).hexdigest()}"'
        commit = hashlib.sha1(content).hexdigest()
        return self.answer(body=content, ETag=etag, X_Repo_Commit=commit)

    do_HEAD = do_GET


@pytest.fixture(scope="module", autouse=True)
def alone(tmp_path_factory):
    """No telemetry, no other storage than HTTP, no cache or token outside the tests' folder."""
    home = tmp_path_factory.mktemp("hub_home")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("DISABLE_TELEMETRY", "DISABLE_XET", "DISABLE_PROGRESS_BARS",
                     "DISABLE_IMPLICIT_TOKEN", "DISABLE_UPDATE_CHECK"):  # fmt: skip
            patch.setenv(f"HF_HUB_{name}", "1")
        patch.setenv("HF_HOME", str(home))
        patch.delenv("HF_TOKEN", raising=False)
        constants = pytest.importorskip("huggingface_hub.constants")
        patch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
        patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        patch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
        yield


@pytest.fixture
def hub():
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_an_agent_goes_up_with_its_card_and_comes_down_the_same(agent, drivers, hub, tmp_path):
    agent.set_cost_budget(12)
    url = agent.push_to_hub("me/driver", token=SECRET, endpoint=hub.endpoint)
    assert url == f"{hub.endpoint}/me/driver/commit/{COMMIT}"
    files = hub.files["me/driver"]
    assert set(files) == {"agent.zip", "README.md"}
    card = files["README.md"].decode()
    assert card.startswith("---\nlibrary_name: rcdt_agent\n")
    assert 'agent = load_agent_from_hub("me/driver")' in card
    assert not any(SECRET.encode() in content for content in files.values())
    options = {"endpoint": hub.endpoint, "cache_dir": tmp_path / "cache"}
    for load in (RCDT.from_hub, load_agent_from_hub):
        loaded = load("me/driver", **options)
        assert type(loaded) is RCDT and loaded.cost_budget == 12
        for row in drivers.observations[:5]:
            expected, _ = agent.predict(row, agent.begin())
            np.testing.assert_array_equal(loaded.predict(row, loaded.begin())[0], expected)
    gets = [path for verb, path in hub.requests if verb == "GET"]
    assert gets == ["/me/driver/resolve/main/agent.zip"]  # the second came from the cache


def test_a_second_push_replaces_the_file_and_training_goes_along_if_asked(
    agent, drivers, hub, tmp_path
):
    agent.push_to_hub("me/driver", token=SECRET, endpoint=hub.endpoint)
    without = len(hub.files["me/driver"]["agent.zip"])
    agent.push_to_hub("me/driver", token=SECRET, endpoint=hub.endpoint, training=True)
    assert len(hub.files["me/driver"]["agent.zip"]) > 1.5 * without
    loaded = RCDT.from_hub("me/driver", endpoint=hub.endpoint, cache_dir=tmp_path)
    for each in (loaded, agent):
        each.learn(drivers, total_steps=2)
    for name, value in agent.policy.state_dict().items():
        np.testing.assert_array_equal(loaded.policy.state_dict()[name], value)


def test_offline_the_cache_serves_and_nothing_is_asked(agent, hub, tmp_path):
    agent.push_to_hub("me/driver", token=SECRET, endpoint=hub.endpoint)
    options = {"endpoint": hub.endpoint, "cache_dir": tmp_path}
    with pytest.raises(HubError, match="me/driver: "):
        RCDT.from_hub("me/driver", **options, local_files_only=True)
    RCDT.from_hub("me/driver", **options)
    hub.requests.clear()
    RCDT.from_hub("me/driver", **options, local_files_only=True)
    assert hub.requests == []


def test_what_is_on_the_hub_is_read_as_any_file(agent, drivers, hub, tmp_path):
    import pickle

    class Trap:
        def __reduce__(self):
            return (tmp_path / "escaped").touch, ()

    agent.push_to_hub("me/driver", token=SECRET, endpoint=hub.endpoint)
    options = {"endpoint": hub.endpoint, "cache_dir": tmp_path / "cache"}
    with pytest.raises(CheckpointError, match="holds a RCDT, not a BC"):
        BC.from_hub("me/driver", **options)
    sound = hub.files["me/driver"]["agent.zip"]
    for bad in (pickle.dumps(Trap()), sound[:-100], b""):
        hub.files["me/driver"]["agent.zip"] = bad
        for load in (RCDT.from_hub, load_agent_from_hub):
            with pytest.raises(CheckpointError, match="agent.zip: "):
                load("me/driver", **options)
    assert not (tmp_path / "escaped").exists()


def test_what_the_hub_refuses_is_our_error_with_the_repository(agent, hub, tmp_path):
    options = {"endpoint": hub.endpoint, "cache_dir": tmp_path}
    with pytest.raises(HubError, match="me/driver: .*401"):
        agent.push_to_hub("me/driver", token="wrong", endpoint=hub.endpoint)
    with pytest.raises(HubError, match="me/nothing: RepositoryNotFoundError"):
        RCDT.from_hub("me/nothing", **options)
    hub.files["me/empty"] = {}
    with pytest.raises(HubError, match="me/empty: .*EntryNotFound"):
        load_agent_from_hub("me/empty", **options)


def test_arguments_are_refused_before_anything_is_sent(agent, hub):
    for bad in (None, 3, "", "a/b/c", "bad name!", "../x"):
        for entry in (
            lambda bad=bad: agent.push_to_hub(bad, token=SECRET, endpoint=hub.endpoint),
            lambda bad=bad: RCDT.from_hub(bad, endpoint=hub.endpoint),
            lambda bad=bad: load_agent_from_hub(bad, endpoint=hub.endpoint),
        ):
            with pytest.raises(InvalidArgumentError, match="`repo_id` must be 'user/name', got"):
                entry()
    for bad in (None, "", "../x.zip"):
        with pytest.raises(InvalidArgumentError, match="`filename` must be"):
            RCDT.from_hub("me/x", filename=bad)
    with pytest.raises(InvalidArgumentError, match="has not been trained"):
        RCDT(preset="tiny").push_to_hub("me/driver", token=SECRET, endpoint=hub.endpoint)
    assert hub.requests == []


def test_without_the_package_it_says_what_to_install(agent, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for entry in (
        lambda: agent.push_to_hub("me/x"),
        lambda: RCDT.from_hub("me/x"),
        lambda: load_agent_from_hub("me/x"),
    ):
        with pytest.raises(InvalidArgumentError, match=r"pip install 'rcdt_agent\[hub\]'"):
            entry()


def test_the_hubs_own_reader_takes_the_card(agent):
    from huggingface_hub import ModelCard

    from rcdt_agent.model_card import model_card
    from rcdt_agent.tasks.speed_limit import ENV_ID

    report = agent.evaluate(ENV_ID, [5], n_episodes=1)
    data = ModelCard(model_card(agent, 'load_agent("a.zip")')).data
    assert data.library_name == "rcdt_agent" and "rcdt" in data.tags
    assert data.eval_results[0].metric_value == round(report.results[0].mean_return, 4)
