"""Discrete, MultiDiscrete and MultiBinary actions, and boxes without bounds."""

from __future__ import annotations

import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import small_settings

from rcdt_agent import RCDT, TrajectoryDataset, load_agent
from rcdt_agent.action_spaces import check_action_space
from rcdt_agent.actions import Categorical, CategoricalHead, Gaussian
from rcdt_agent.algorithms import ALGORITHMS, get_algorithm
from rcdt_agent.choices import Choices
from rcdt_agent.errors import DatasetError, InvalidArgumentError
from rcdt_agent.normalizer import Normalizer, data_action_space
from rcdt_agent.stored_spaces import space_from_dict, space_to_dict

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
import discrete_actions as cliff

S = gym.spaces
SPACES = {
    "Discrete": S.Discrete(3, start=1),
    "MultiDiscrete": S.MultiDiscrete([2, 3]),
    "MultiBinary": S.MultiBinary(2),
}
HAVE_THEM = {"rcdt", "bc", "bc-safe"}


class Lights(gym.Env):
    """Ten steps; an option's number earns that much, and what is earned costs half."""

    observation_space = S.Box(0, 1, (1,), np.float32)

    def __init__(self, action_space):
        self.action_space = action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.t += 1
        earned = float(np.sum(action))
        obs = np.array([self.t / 10], np.float32)
        return obs, earned, False, self.t == 10, {"cost": earned / 2}


def record(space, n=40, seed=0):
    """Episodes of one random habit each."""
    space.seed(seed)
    columns = {key: [] for key in ("observations", "actions", "rewards", "costs", "timeouts")}
    env = Lights(space)
    for _ in range(n):
        obs, _ = env.reset()
        habit, done = space.sample(), False
        while not done:
            after, reward, _, done, info = env.step(habit)
            row = obs, habit, reward, info["cost"], done
            for key, value in zip(columns, row, strict=True):
                columns[key].append(value)
            obs = after
    return TrajectoryDataset.from_arrays(**columns, name="lights")


@pytest.fixture(scope="module", params=SPACES)
def trained(request):
    space = SPACES[request.param]
    agent = RCDT(env=Lights(space), **small_settings("rcdt"))
    agent.learn(record(space), total_steps=20)
    return agent


# ------------------------------------------------------------ spaces and distributions


def test_one_hot_form_by_hand():
    one = Choices.of(SPACES["Discrete"])
    assert one is not None
    actions = torch.tensor([[1], [3]])
    assert one.encode(actions).tolist() == [[1, 0, 0], [0, 0, 1]]
    assert one.decode(torch.tensor([[0.1, 0.9, 0.2]])).tolist() == [[2]]
    several = Choices.of(SPACES["MultiDiscrete"])
    assert several is not None
    assert several.encode(torch.tensor([[1, 2]])).tolist() == [[0, 1, 0, 0, 1]]
    assert several.decode(torch.tensor([[3.0, 1, 0, 5, 2]])).tolist() == [[0, 1]]
    assert Choices.of(S.Box(-1, 1, (2,))) is None


def test_categorical_by_hand():
    """Probabilities 1/4 and 3/4 of the first choice, a third each of the second."""
    logits = torch.tensor([[0.0, np.log(3.0), 1.0, 1.0, 1.0]])
    policy = Categorical(logits, (2, 3))
    np.testing.assert_allclose(policy.mean[0], [0.25, 0.75, 1 / 3, 1 / 3, 1 / 3], rtol=1e-6)
    taken = torch.tensor([[0.0, 1, 0, 1, 0]])
    assert policy.log_prob(taken).item() == pytest.approx((np.log(0.75) + np.log(1 / 3)) / 2)
    first = -(0.25 * np.log(0.25) + 0.75 * np.log(0.75))
    assert policy.entropy().item() == pytest.approx((first + np.log(3)) / 2, rel=1e-6)
    assert policy.mode()[0, :2].tolist() == [0, 1]
    many = Categorical(logits.expand(20_000, -1), (2, 3)).sample(torch.Generator().manual_seed(0))
    assert many.sum(-1).unique().tolist() == [2]
    np.testing.assert_allclose(many.mean(0), policy.mean[0], atol=0.015)


def test_the_gradient_of_a_critic_reaches_the_logits():
    head = CategoricalHead(4, (3,))
    judged = head(torch.ones(1, 4)).rsample(torch.zeros(1, 3))
    (judged * torch.tensor([1.0, 0.0, 0.0])).sum().backward()
    weight = head.layers[0].weight.grad
    assert weight is not None and weight[0].sum() > 0 > weight[1].sum()


def test_candidates_of_one_choice_are_all_options():
    policy = Categorical(torch.zeros(2, 3), (3,))
    assert policy.candidates(8)[:, 0].tolist() == torch.eye(3).tolist()
    gaussian = Gaussian(torch.zeros(2, 3), torch.zeros(2, 3))
    assert gaussian.candidates(8).shape == (8, 2, 3)


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_spaces_survive_a_file(space):
    assert space_from_dict(space_to_dict(space)) == space


def test_what_is_no_action_space_is_refused():
    for space in (S.Text(3), S.Box(0, 5, (1,), np.int64), S.Dict({"a": S.Discrete(2)})):
        with pytest.raises(InvalidArgumentError, match="`action_space` must be a Box of floating"):
            check_action_space(space)
    with pytest.raises(InvalidArgumentError, match="1 to 1000000 options"):
        check_action_space(S.MultiDiscrete([600_000, 600_000]))


def test_a_box_without_bounds_takes_the_scale_of_the_data():
    rng = np.random.default_rng(0)
    actions = np.column_stack([rng.uniform(-40, 60, 50), rng.uniform(0, 3, 50)])
    actions[:2] = [[-40, 0], [60, 3]]
    data = TrajectoryDataset.from_arrays(
        observations=np.zeros((50, 1)), actions=actions, rewards=np.zeros(50), costs=np.zeros(50),
        timeouts=np.arange(50) % 10 == 9,
    )  # fmt: skip
    space = S.Box(np.array([-np.inf, 0.0]), np.array([np.inf, 6.0]), dtype=np.float64)
    scale = Normalizer.fit(data, space)
    ends = scale.unscale_actions(torch.tensor([[-1.0, -1.0], [1.0, 1.0]]))
    assert ends.tolist() == [[-40, 0], [60, 6]]


# ------------------------------------------------------------ data


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_files_keep_whole_numbers(space, tmp_path):
    data = record(space, n=5)
    assert data.discrete_actions and data.actions.dtype == np.int64
    data.to_hdf5(tmp_path / "a.hdf5")
    data.to_npy(tmp_path / "npy")
    for again in (
        TrajectoryDataset.from_hdf5(tmp_path / "a.hdf5"),
        TrajectoryDataset.from_npy(tmp_path / "npy"),
    ):
        assert again.actions.dtype == np.int64
        np.testing.assert_array_equal(again.actions, data.actions)
        again.check_spaces(Lights.observation_space, space)


def test_actions_outside_the_space_are_refused_by_name():
    data = record(S.Discrete(4))
    with pytest.raises(DatasetError, match="actions"):
        RCDT(env=Lights(S.Discrete(2)), preset="tiny").learn(data)
    floats = TrajectoryDataset.from_arrays(
        observations=np.zeros((4, 1)), actions=np.zeros((4, 1)), rewards=np.zeros(4),
        costs=np.zeros(4), timeouts=[0, 0, 0, 1],
    )  # fmt: skip
    with pytest.raises(DatasetError, match="must be whole numbers"):
        RCDT(env=Lights(S.Discrete(2)), preset="tiny").learn(floats)


@pytest.mark.parametrize("actions", [["left"] * 4, [[0], [1, 2], [0], [0]], [None] * 4])
def test_actions_that_are_no_numbers_are_refused_by_name(actions):
    columns = {
        "observations": np.zeros((4, 1)), "rewards": np.zeros(4), "costs": np.zeros(4),
        "actions": actions,
    }  # fmt: skip
    for read in (
        lambda: TrajectoryDataset.from_arrays(**columns, timeouts=[0, 0, 0, 1]),
        lambda: TrajectoryDataset.from_episodes([columns]),
    ):
        with pytest.raises(DatasetError, match="`actions` must "):
            read()


def test_a_bound_holds_where_the_other_side_has_none():
    space = S.Box(np.array([-np.inf, 0.0]), np.array([np.inf, np.inf]), dtype=np.float64)
    columns = {
        "observations": np.zeros((4, 1)), "rewards": np.zeros(4), "costs": np.zeros(4),
        "timeouts": [0, 0, 0, 1],
    }  # fmt: skip
    actions = np.array([[-900.0, 0.0], [7.0, 900.0], [0.0, 3.0], [0.0, 0.0]])
    fine = TrajectoryDataset.from_arrays(**columns, actions=actions)
    fine.check_spaces(Lights.observation_space, space)
    actions[2, 1] = -0.1
    data = TrajectoryDataset.from_arrays(**columns, actions=actions)
    with pytest.raises(DatasetError, match="1 of 4 rows do not, the first is row 2"):
        data.check_spaces(Lights.observation_space, space)


def test_without_an_environment_the_data_say_how_many_options():
    assert data_action_space(record(S.Discrete(4))) == S.Discrete(4)
    assert data_action_space(record(S.MultiDiscrete([2, 3]))) == S.MultiDiscrete([2, 3])


# ------------------------------------------------------------ agents


def test_predict_gives_actions_of_the_space(trained):
    space = trained.action_space
    for deterministic in (True, False):
        action, _ = trained.predict(
            np.zeros(1, np.float32), trained.begin(), deterministic=deterministic
        )
        assert space.contains(action), (action, space)
    several, _ = trained.predict(np.zeros((5, 1), np.float32), trained.begin(5))
    assert several.shape == (5, *space.shape) and several.dtype == space.dtype


def test_an_action_done_instead_must_be_of_the_space_and_nothing_is_lost(trained):
    obs = np.zeros(1, np.float32)
    action, state = trained.predict(obs, trained.begin())
    for wrong in (7, -1, 1.5):
        with pytest.raises(InvalidArgumentError, match="`action` must lie in the action space, wh"):
            state.observe(1.0, 2.0, action=np.full_like(action, wrong, dtype=np.float64))
    assert state.awaiting.all() and state.total_cost.tolist() == [0.0]
    _, state = trained.predict(obs, state.observe(1.0, 2.0, action=np.ones_like(action)))
    assert state.total_cost.tolist() == [2.0]


def test_checkpoints_and_onnx_act_alike(trained, tmp_path):
    from rcdt_agent.onnx_agent import OnnxAgent

    trained.save(tmp_path / "agent")
    loaded = load_agent(tmp_path / "agent.zip")
    assert loaded.action_space == trained.action_space
    trained.export_onnx(tmp_path / "a.onnx")
    exported = OnnxAgent(tmp_path / "a.onnx")
    env = Lights(trained.action_space)
    agents = {agent: None for agent in (trained, loaded, exported)}
    obs, _ = env.reset()
    for agent in agents:
        action, state = agent.predict(obs, agent.begin())
        with pytest.raises(InvalidArgumentError, match="`action` must lie in the action space"):
            state.observe(1.0, 0.0, action=np.full_like(action, 9))
    for _ in range(6):
        actions = []
        for agent, state in agents.items():
            action, agents[agent] = agent.predict(obs, state)
            actions.append(action)
            assert env.action_space.contains(action)
        np.testing.assert_array_equal(actions[0], actions[1])
        np.testing.assert_array_equal(actions[0], actions[2])
        obs, reward, _, _, info = env.step(actions[0])
        agents = {a: s.observe(reward, info["cost"]) for a, s in agents.items()}


@pytest.mark.parametrize("variant", ["rcdt", "rcdt-paper"])
def test_critics_and_shield_take_discrete_actions(variant):
    space = SPACES["MultiDiscrete"]
    agent = RCDT(env=Lights(space), variant=variant, **small_settings("rcdt"))
    agent.learn(record(space), total_steps=12)
    agent.set_deployment(shield_candidates=4)
    action, _ = agent.predict(np.zeros(1, np.float32))
    assert space.contains(action)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_algorithms_have_them_or_refuse_by_name(name):
    space = SPACES["Discrete"]
    algorithm = get_algorithm(name)
    if name in HAVE_THEM:
        agent = algorithm(env=Lights(space), **small_settings(name))
        agent.learn(record(space), total_steps=4)
        action, _ = agent.predict(np.zeros(1, np.float32))
        assert space.contains(action)
    else:
        with pytest.raises(InvalidArgumentError, match=f"{algorithm.__name__} has continuous"):
            algorithm(env=Lights(space), **small_settings(name))
        with pytest.raises(InvalidArgumentError, match="RCDT, BC and BCSafe have discrete ones"):
            algorithm(**small_settings(name)).learn(record(space), total_steps=4)


def test_other_options_than_the_agents_are_refused(trained):
    with pytest.raises(InvalidArgumentError, match="The environment's actions are Discrete"):
        trained.set_env(Lights(S.Discrete(7)))


def test_evaluation_runs_in_vector_environments(trained):
    report = trained.evaluate(Lights(trained.action_space), budgets=[10.0], n_episodes=3, seed=0)
    assert len(report.results[0].returns) == 3


@pytest.mark.slow
def test_cliff_walking_takes_the_row_that_each_budget_allows():
    """The optimum at each: 17, 15 and 13 steps at costs of 3, 8 and 12."""
    assert cliff.main(total_steps=600) == [(-17, 3), (-15, 8), (-13, 12)]


def test_offline_evaluation_of_habits_that_are_all_recorded():
    """Twice the cost is earned; with every habit recorded, both estimates say so."""
    space = S.Discrete(3)
    data = record(space, n=60)
    agent = get_algorithm("bc")(env=Lights(space), **small_settings("bc"))
    agent.learn(data, total_steps=4)
    report = agent.evaluate_offline(data, budgets=[10.0], seed=0)
    result = report.results[0]
    assert result.nearest_return == pytest.approx(2 * result.nearest_cost, rel=1e-5)
    assert result.nearest_return in (0.0, 10.0, 20.0)
