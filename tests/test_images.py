"""Images: uint8 in memory and files, scaled on the device, encoded by a convolutional network."""

from __future__ import annotations

import io
import json
from functools import partial

import gymnasium as gym
import h5py
import numpy as np
import pytest
import torch
from conftest import small_settings
from stable_baselines3.common.vec_env import DummyVecEnv
from test_examples import load

from rcdt_agent import BC, RCDT, ReturnCostTokens, TrajectoryDataset, VectorReturnCostTokens
from rcdt_agent.algorithms import ALGORITHMS, get_algorithm
from rcdt_agent.algorithms.held_out import critic_errors
from rcdt_agent.collect import TrajectoryRecorder
from rcdt_agent.data.mapped import hdf5_to_npy, is_mapped
from rcdt_agent.data.sampler import WindowSampler
from rcdt_agent.encoders import ImageEncoder
from rcdt_agent.errors import CheckpointError, DatasetError, InvalidArgumentError
from rcdt_agent.images import image_shape
from rcdt_agent.observations import ObservationLayout
from rcdt_agent.stored_spaces import space_from_dict, space_to_dict

S = gym.spaces
SHAPE, LAST = (2, 16, 20), (16, 20, 2)
SIZE, LENGTHS = 640, (5, 1, 7, 4, 6, 3)
BUDGET = 3.0
SETTINGS = {
    **small_settings("rcdt"),
    "variant": "rcdt",
    "cost_budget": BUDGET,
    "held_out_fraction": 0.2,
    "image_features": 12,
}


def images(n, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, *SHAPE), dtype=np.uint8)


def last(values):
    """Channels last."""
    return np.moveaxis(values, -3, -1)


def box(shape):
    return S.Box(0, 255, shape, np.uint8)


def arrays(channels_last=False):
    """Each trajectory has its own final observation."""
    rng, n = np.random.default_rng(1), sum(LENGTHS)
    frames = [images(length + 1, seed) for seed, length in enumerate(LENGTHS)]
    form = last if channels_last else (lambda x: x)
    return {
        "observations": form(np.concatenate([f[:-1] for f in frames])),
        "next_observations": form(np.concatenate([f[1:] for f in frames])),
        "actions": rng.uniform(-1, 1, (n, 2)).astype(np.float32),
        "rewards": rng.normal(size=n),
        "costs": rng.integers(0, 2, n),
        "timeouts": np.isin(np.arange(n), np.cumsum(LENGTHS) - 1),
    }


class Camera(gym.Env):
    """Random pictures for five steps; the cost is 1."""

    action_space = S.Box(-1, 1, (2,), np.float32)

    def __init__(self, channels_last=False):
        self.form = last if channels_last else (lambda x: x)
        self.observation_space = box(LAST if channels_last else SHAPE)

    def _see(self):
        return self.form(self.np_random.integers(0, 256, SHAPE, dtype=np.uint8))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.step_number = 0
        return self._see(), {}

    def step(self, action):
        self.step_number += 1
        return self._see(), float(action[0]), False, self.step_number == 5, {"cost": 1.0}


LastCamera = partial(Camera, channels_last=True)


@pytest.fixture(scope="module")
def data():
    return TrajectoryDataset.from_arrays(**arrays(), name="pictures")


@pytest.fixture(scope="module")
def agent(data):
    return RCDT(Camera(), **SETTINGS).learn(data, 6)


def drive(agent, env):
    wrapped = isinstance(env.observation_space, S.Dict)
    obs, _ = env.reset(seed=3)
    state, taken, done = None, [], False
    while not done:
        action, state = agent.predict(obs, state)
        taken.append(action)
        obs, reward, _, done, info = env.step(action)
        state = state if wrapped else state.observe(reward, info["cost"])
    return np.array(taken)


# ------------------------------------------------------------ spaces


@pytest.mark.parametrize(
    ("space", "shape"),
    [
        (box((3, 24, 24)), (3, 24, 24)),
        (box((24, 32, 3)), (3, 24, 32)),
        (box((1, 16, 16)), (1, 16, 16)),
        (box((24, 24)), None),
        (S.Box(0, 1, (3, 24, 24), np.uint8), None),
        (S.Box(0, 255, (3, 24, 24), np.float32), None),
    ],
)
def test_image_spaces_are_those_of_stable_baselines3(space, shape):
    from stable_baselines3.common.preprocessing import is_image_space

    assert image_shape(space) == shape
    assert is_image_space(space) == (shape is not None)


@pytest.mark.parametrize("shape", [(24, 2, 24), (24, 24, 24), (32, 24, 24), (1, 24, 1)])
def test_images_without_a_channel_axis_are_refused(shape):
    with pytest.raises(InvalidArgumentError, match="`observation_space`: an image .* channels"):
        RCDT(observation_space=box(shape))


def test_an_image_beside_other_parts_is_refused():
    space = S.Dict({"camera": box(SHAPE), "speed": S.Box(0, 1, (1,))})
    with pytest.raises(InvalidArgumentError, match="the whole observation.*`camera`"):
        RCDT(observation_space=space)
    given = arrays()
    given["observations"] = {"camera": given.pop("observations"), "speed": given["costs"]}
    del given["next_observations"]
    with pytest.raises(DatasetError, match="the whole observation.*`camera`"):
        TrajectoryDataset.from_arrays(**given)


# ------------------------------------------------------------ data


def test_dataset_and_batches_hold_uint8(data):
    expected = arrays()
    n = sum(LENGTHS)
    assert data.observations.dtype == data.final_observations.dtype == np.uint8
    assert data.observations.nbytes == n * SIZE
    np.testing.assert_array_equal(data.observations.reshape(n, *SHAPE), expected["observations"])
    ends = np.cumsum(LENGTHS) - 1
    np.testing.assert_array_equal(
        data.final_observations.reshape(-1, *SHAPE), expected["next_observations"][ends]
    )
    sampler = WindowSampler(data, context_length=3, batch_size=4, generator=torch.Generator())
    batch = sampler.windows(torch.tensor([0]), torch.tensor([3]))  # two steps, one of padding
    assert batch.obs.dtype == batch.next_obs.dtype == torch.uint8
    frames = torch.from_numpy(images(6)).flatten(1)
    assert torch.equal(batch.obs[0, :2], frames[3:5])
    assert torch.equal(batch.next_obs[0, :2], frames[4:6])
    assert not batch.obs[0, 2].any()


def test_channels_last_become_the_same_rows(data):
    other = TrajectoryDataset.from_arrays(**arrays(channels_last=True))
    np.testing.assert_array_equal(other.observations, data.observations)
    np.testing.assert_array_equal(other.final_observations, data.final_observations)
    assert other.image_shape == data.image_shape == SHAPE
    assert other.layout.space == box(LAST)


@pytest.mark.parametrize("channels_last", [False, True])
def test_files_keep_images(channels_last, tmp_path):
    data = TrajectoryDataset.from_arrays(**arrays(channels_last))
    data.to_hdf5(tmp_path / "d.hdf5")
    data.to_npy(tmp_path / "d.npy")
    hdf5_to_npy(tmp_path / "d.hdf5", tmp_path / "copy.npy")
    with h5py.File(tmp_path / "own.hdf5", "w") as file:  # another program's, in its own shape
        for key, values in arrays(channels_last).items():
            file[key] = values
        file["terminals"] = np.zeros(len(data.rewards))
        assert file["observations"].dtype == np.uint8
    hdf5_to_npy(tmp_path / "own.hdf5", tmp_path / "own.npy")
    for name in ("d.hdf5", "own.hdf5"):
        same(TrajectoryDataset.from_hdf5(tmp_path / name), data)
    for name in ("d.npy", "copy.npy", "own.npy"):
        found = TrajectoryDataset.from_npy(tmp_path / name)
        assert is_mapped(found.observations)
        same(found, data)


def same(a, b):
    assert a.layout == b.layout and a.image_shape == SHAPE
    assert a.fingerprint == b.fingerprint
    for key in ("observations", "final_observations", "actions", "offsets"):
        assert getattr(a, key).dtype == getattr(b, key).dtype
        np.testing.assert_array_equal(getattr(a, key), getattr(b, key))


@pytest.mark.parametrize("shape", [None, SHAPE, LAST])
def test_minari_keeps_images(data, shape, tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    space = None if shape is None else box(shape)
    written = data.to_minari("camera/pictures-v0", observation_space=space)
    assert written.observation_space == box(shape or SHAPE)
    found = TrajectoryDataset.from_minari(written)
    assert found.image_shape == SHAPE and found.observations.dtype == np.uint8
    np.testing.assert_array_equal(found.observations, data.observations)
    np.testing.assert_array_equal(found.final_observations, data.final_observations)


def test_damaged_npy_folder_is_refused(data, tmp_path):
    data.to_npy(tmp_path / "d.npy")
    (tmp_path / "d.npy" / "observation_space.npy").unlink()
    with pytest.raises(DatasetError, match="`observations` must hold float32 .* got uint8"):
        TrajectoryDataset.from_npy(tmp_path / "d.npy")


def test_episodes_lists_and_the_recorder():
    rest = {"actions": np.zeros((3, 1)), "rewards": np.ones(3), "costs": np.zeros(3)}
    frames = images(4)
    for form in (frames, last(frames), list(frames)):
        made = TrajectoryDataset.from_episodes([{"observations": form, **rest}] * 2)
        assert made.observations.dtype == np.uint8
        np.testing.assert_array_equal(made.observations[3:], frames[:3].reshape(3, -1))
        np.testing.assert_array_equal(made.final_observations[1], frames[3].ravel())
    recorder = TrajectoryRecorder(LastCamera())
    first, _ = recorder.reset(seed=0)
    seen = [first, *(recorder.step(np.zeros(2, np.float32))[0] for _ in range(5))]
    recorded = recorder.dataset()
    assert recorded.observations.dtype == np.uint8
    np.testing.assert_array_equal(
        last(recorded.observations.reshape(5, *SHAPE)), np.array(seen[:-1])
    )


def test_data_and_environments_that_differ_are_refused(data, agent):
    floats = arrays()
    floats["observations"] = floats["observations"].reshape(-1, SIZE) / 255
    floats["next_observations"] = floats["next_observations"].reshape(-1, SIZE) / 255
    with pytest.raises(DatasetError, match="are numbers, but the environment's are images"):
        RCDT(Camera(), **SETTINGS).learn(TrajectoryDataset.from_arrays(**floats), 1)
    flat = S.Box(0, 1, (SIZE,), np.float32)
    with pytest.raises(DatasetError, match="are images .*, but the environment's are numbers"):
        RCDT(observation_space=flat, action_space=Camera.action_space, **SETTINGS).learn(data, 1)
    env = Camera()
    env.observation_space = box((2, 20, 16))
    with pytest.raises(InvalidArgumentError, match=r"images \(2, 20, 16\), .*\(2, 16, 20\)"):
        agent.set_env(env)
    with pytest.raises(DatasetError, match="`observation` must be an image of uint8"):
        TrajectoryDataset.from_arrays(**floats, observation_space=box(SHAPE))


# ------------------------------------------------------------ networks


def test_bytes_are_scaled_on_the_device(agent, data):
    normalizer = agent.policy.normalizer
    scaled = normalizer.obs(torch.tensor([0, 51, 255], dtype=torch.uint8))
    torch.testing.assert_close(scaled, torch.tensor([0.0, 0.2, 1.0]))
    assert normalizer.obs_mean.shape == () and normalizer.observation_size == SIZE


@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 24, 24), (4, 96, 84)])
def test_encoder_takes_small_images(shape):
    torch.manual_seed(0)
    encoder = ImageEncoder(shape, 8)
    batch = torch.rand(2, 3, int(np.prod(shape)))
    features = encoder(batch)
    assert features.shape == (2, 3, 8)
    torch.testing.assert_close(features.mean(-1), torch.zeros(2, 3), atol=1e-5, rtol=0)
    torch.testing.assert_close(encoder(batch[1, 2]), features[1, 2])  # alone as among others
    moved = batch.view(2, 3, *shape).roll(shape[-1] // 2, -1).flatten(2)
    assert (encoder(moved) - features).abs().max() > 1e-3  # where something is counts
    assert encoder.linear.in_features <= 64 * 64


def test_gradients_reach_the_encoders_they_should(data):
    agent = RCDT(Camera(), **SETTINGS)
    agent.learn(data, 1)
    policy, critics = agent.online.encoder, agent.policy.critics.encoder
    batch = agent.sampler.sample()
    for module in (policy, critics):
        module.zero_grad()
    before = {name: p.clone() for name, p in critics.named_parameters()}
    agent.policy_step(batch, signals=("reward", "cost"))
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in policy.parameters())
    assert all(p.grad is None for p in critics.parameters())
    agent.critic_step(batch)
    moved = {name: bool((p != before[name]).any()) for name, p in critics.named_parameters()}
    assert all(moved.values()), moved
    grads = torch.cat([p.grad.flatten() for p in critics.parameters()])
    agent.policy.critics.clip_grad_norm_(float(grads.norm()) / 4)
    clipped = torch.cat([p.grad.flatten() for p in critics.parameters()])
    torch.testing.assert_close(clipped, grads / 4, rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_target_encoder_follows_the_critics(data, precision):
    changes = {"critic_start": 0.0, "target_rate": 0.25, "held_out_fraction": 0.0}
    settings = {**SETTINGS, "variant": "rcdt-paper", **changes}
    agent = RCDT(Camera(), **settings, precision=precision)
    agent.set_dataset(data)
    before = agent.policy.critics.encoder.linear.weight.clone()
    agent.learn(total_steps=1)
    now = agent.policy.critics.encoder.linear.weight
    assert (now != before).any()
    target = agent.target_critics.encoder.linear.weight
    torch.testing.assert_close(target, before + 0.25 * (now - before))


def test_held_out_check_is_that_of_all_images_at_once(agent, data, monkeypatch):
    whole = critic_errors(agent.policy, agent.config, data)
    assert sorted(whole) == ["cost", "reward"]
    monkeypatch.setattr("rcdt_agent.algorithms.held_out.IMAGES", 7)
    parts = critic_errors(agent.policy, agent.config, data)
    for signal, errors in whole.items():
        assert parts[signal] == pytest.approx(errors, rel=1e-4)


def test_numbers_have_no_encoder(drivers):
    agent = RCDT(**small_settings("rcdt")).learn(drivers, 1)
    assert agent.policy.transformer.encoder is agent.policy.critics.encoder is None
    assert not any("encoder" in name for name in agent.policy.state_dict())


# ------------------------------------------------------------ acting


def test_channels_first_and_last_act_the_same(agent):
    other = TrajectoryDataset.from_arrays(**arrays(channels_last=True))
    twin = RCDT(LastCamera(), **SETTINGS).learn(other, 6)
    for key, value in agent.policy.state_dict().items():
        assert torch.equal(twin.policy.state_dict()[key], value), key
    assert twin.observation_space == box(LAST)
    np.testing.assert_array_equal(drive(twin, LastCamera()), drive(agent, Camera()))
    np.testing.assert_array_equal(drive(agent, LastCamera()), drive(agent, Camera()))


@pytest.mark.parametrize(
    ("observation", "words"),
    [
        (images(1)[0] / 255, "must be an image of uint8, 0 to 255, got float64"),
        (images(1)[0].astype(np.int64), "uint8.*got int64"),
        (images(1)[0, 0], r"shape \(2, 16, 20\) or \(16, 20, 2\), or N of them, got .*\(16, 20\)"),
        (np.swapaxes(images(1)[0], 1, 2), r"got shape \(2, 20, 16\)"),
        (images(4).reshape(2, 2, *SHAPE), "got shape"),
    ],
)
def test_wrong_images_are_named(agent, observation, words):
    with pytest.raises(InvalidArgumentError, match=words):
        agent.predict(observation)


def test_states_hold_uint8_and_wrappers_hand_images_on(agent):
    _, state = agent.predict(images(3), agent.begin(3))
    assert state.obs.dtype == np.uint8
    np.testing.assert_array_equal(state.obs[:, 0], images(3).reshape(3, -1))
    assert state.restart([True, False, True]).obs.dtype == np.uint8
    plain = drive(agent, Camera())
    np.testing.assert_array_equal(drive(agent, agent.wrap(LastCamera())), plain)


def test_wrapped_environments_are_taken(agent, data):
    agent.set_env(agent.wrap(LastCamera()))
    other = RCDT(ReturnCostTokens(Camera()), **SETTINGS).learn(data, 6)
    assert other.observation_space == box(SHAPE)
    np.testing.assert_array_equal(drive(other, Camera()), drive(agent, Camera()))


@pytest.mark.parametrize("make", [Camera, LastCamera])
def test_vector_environments(agent, make):
    singles = [agent.predict(make().reset(seed=s)[0], agent.begin())[0] for s in (3, 4)]
    env = gym.vector.SyncVectorEnv([make] * 2)
    obs, _ = env.reset(seed=[3, 4])
    facts, _ = VectorReturnCostTokens(env).reset(seed=[3, 4])
    venv = DummyVecEnv([lambda: agent.wrap(make())] * 2)
    venv.seed(3)
    for batch in (obs, facts, venv.reset()):
        actions, _ = agent.predict(batch, agent.begin(2))
        np.testing.assert_allclose(actions, singles, atol=1e-6)


def test_evaluation_wrapped_or_not(agent):
    run = partial(agent.evaluate, budgets=[BUDGET], n_episodes=2, seed=3)
    report = run(LastCamera)
    assert report.results[0].costs == (5.0, 5.0)
    earned = float(drive(agent, Camera())[:, 0].sum())
    assert report.results[0].returns[0] == pytest.approx(earned, abs=1e-5)
    assert run(lambda: agent.wrap(Camera())).results == report.results


def test_shield_judges_images(agent):
    shielded = RCDT.load(saved(agent), shield_candidates=4)
    _, state = shielded.predict(images(3), shielded.begin(3))
    assert state.shielded.shape == (3,)
    assert np.isfinite(drive(shielded, Camera())).all()


# ------------------------------------------------------------ files


def saved(agent):
    buffer = io.BytesIO()
    agent.save(buffer)
    buffer.seek(0)
    return buffer


@pytest.mark.parametrize("make", [Camera, LastCamera])
def test_loaded_agents_act_the_same(data, make):
    agent = RCDT(make(), **SETTINGS).learn(data, 2)
    loaded = RCDT.load(saved(agent), env=make())
    assert loaded.observation_space == make().observation_space
    np.testing.assert_array_equal(drive(loaded, make()), drive(agent, make()))


def test_a_space_of_images_is_stored_without_its_bounds():
    stored = space_to_dict(box(LAST))
    assert stored == {"kind": "Image", "shape": LAST}
    assert space_from_dict(json.loads(json.dumps(stored))) == box(LAST)
    with pytest.raises(InvalidArgumentError, match="at most 4194304 bytes"):
        space_from_dict({"kind": "Image", "shape": [10**9, 10**9, 3]})


def test_a_file_with_another_layout_is_refused(agent, data):
    agent = RCDT.load(saved(agent))
    agent.policy.layout = ObservationLayout(box((2, 20, 16)))
    with pytest.raises(CheckpointError, match="the observation layout is not that"):
        RCDT.load(saved(agent))
    agent.policy.layout = None
    with pytest.raises(CheckpointError, match="the observation layout is not that"):
        RCDT.load(saved(agent))


def test_resume_is_bit_exact(data, agent):
    half = RCDT(Camera(), **SETTINGS)
    half.learn(data, 6, callback=lambda *_: half.num_timesteps < 3)
    again = RCDT.load(saved(half)).learn(data, resume=True)
    assert again.num_timesteps == 6
    for key, value in agent.policy.state_dict().items():
        assert torch.equal(again.policy.state_dict()[key], value), key


# ------------------------------------------------------------ algorithms


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_learns_from_images_or_refuses_by_name(name, data):
    kind, settings = get_algorithm(name), small_settings(name)
    if "cost_budget" in settings:
        settings["cost_budget"] = BUDGET
    if kind.images:
        agent = kind(Camera(), **settings).learn(data, 2)
        loaded = kind.load(saved(agent))
        action, _ = loaded.predict(images(1)[0])
        np.testing.assert_array_equal(action, agent.predict(images(1)[0])[0])
        return
    words = f"`observation_space`: {kind.__name__} does not learn from images"
    with pytest.raises(InvalidArgumentError, match=words):
        kind(Camera(), **settings)
    with pytest.raises(InvalidArgumentError, match=words):
        kind(**settings).learn(data, 1)


def test_bc_moves_its_encoder(data):
    agent = BC(Camera(), preset="tiny", seed=0, image_features=8).learn(data, 1)
    before = agent.policy.encoder.convolutions[0].weight.clone()
    agent.learn(total_steps=2)
    assert (agent.policy.encoder.convolutions[0].weight != before).any()


def test_what_has_no_images_says_so(agent, data, tmp_path):
    with pytest.raises(InvalidArgumentError, match="`evaluate_offline` has no encoder of images"):
        agent.evaluate_offline(data, [BUDGET])
    with pytest.raises(InvalidArgumentError, match="images .* cannot be exported as ONNX"):
        agent.export_onnx(tmp_path / "a.onnx")


def test_example_runs(capsys):
    load("image_observations").main(total_steps=4, n_shifts=12, n_episodes=1)
    assert "budget 15: return" in capsys.readouterr().out


@pytest.mark.slow
def test_cost_follows_the_budget():
    outcomes = load("image_observations").main()
    costs = [cost for _, cost in outcomes]
    assert costs[0] <= 2 and costs[1] <= 6 and costs[2] <= 10 and costs[3] <= 15
    assert costs[0] < costs[1] < costs[2] < costs[3]
    for (earned, _), best in zip(outcomes, (9.2, 11.6, 14.0, 17.0), strict=True):
        assert best - 1.5 < earned < best + 1e-6
