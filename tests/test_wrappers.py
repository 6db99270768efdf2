"""The wrappers: five and six values, cost from anywhere, both ways of resetting."""

from __future__ import annotations

import gc

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common.vec_env import DummyVecEnv
from vector_envs import MinimalVector

from rcdt_agent import ReturnCostTokens, VectorReturnCostTokens
from rcdt_agent.collect import TrajectoryRecorder
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.eval_envs import SeededEpisodes
from rcdt_agent.tasks.speed_limit import ENV_ID


class Scripted(gym.Env):
    """Rewards 1, 2, 3, ... and costs 0.5 a step; ends after `length` steps."""

    observation_space = gym.spaces.Box(-10, 10, (2,), dtype=np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), dtype=np.float32)

    def __init__(self, length=3, values=5, key="cost", cost=0.5):
        self.length, self.values, self.key, self.cost = length, values, key, cost
        self.t = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        obs = np.full(2, self.t, np.float32)
        done = self.t >= self.length
        if self.values == 6:
            return obs, float(self.t), self.cost, False, done, {}
        return obs, float(self.t), False, done, {self.key: self.cost}


ACTION = np.zeros(1, np.float32)


def facts(obs):
    return tuple(obs[name].item() for name in ("episode_return", "episode_cost", "episode_step"))


@pytest.mark.parametrize("values", [5, 6])
def test_facts_follow_reward_and_cost(values):
    env = ReturnCostTokens(Scripted(values=values))
    obs, _ = env.reset(seed=0)
    assert facts(obs) == (0.0, 0.0, 0.0)
    assert obs["cost_budget"].item() == obs["target_return"].item() == np.inf  # the agent's
    obs, reward, terminated, truncated, info = env.step(ACTION)
    assert facts(obs) == (1.0, 0.5, 1.0)
    assert (reward, terminated, truncated, info["cost"]) == (1.0, False, False, 0.5)
    env.step(ACTION)
    obs, _, _, truncated, info = env.step(ACTION)
    assert truncated
    assert (info["episode_return"], info["episode_cost"]) == (6.0, 1.5)
    assert obs["observation"].tolist() == [3.0, 3.0]
    obs, _ = env.reset()
    assert facts(obs) == (0.0, 0.0, 0.0)


def test_cost_from_another_key_or_a_function():
    env = ReturnCostTokens(Scripted(key="damage"), 10.0, 2.0, cost_key="damage")
    env.reset()
    assert env.step(ACTION)[4]["cost"] == 0.5

    def cost_fn(obs, action, next_obs, info):
        return float(next_obs[0] - obs[0]) + 2 * float(action[0]) + info["damage"]

    env = ReturnCostTokens(Scripted(key="damage"), 10.0, 2.0, cost_fn=cost_fn)
    env.reset()
    assert env.step(np.ones(1, np.float32))[4]["cost"] == 3.5
    # A function also overrides the cost of a six-value step.
    env = ReturnCostTokens(Scripted(values=6), 10.0, 2.0, cost_fn=lambda *_: 7.0)
    env.reset()
    assert env.step(ACTION)[4]["cost"] == 7.0


def test_no_cost_is_an_error_not_a_zero():
    env = ReturnCostTokens(Scripted(key="damage"), 10.0, 2.0)
    env.reset()
    with pytest.raises(
        InvalidArgumentError, match=r"`cost_key` is 'cost', `info` holds \['damage'\]"
    ):
        env.step(ACTION)


@pytest.mark.parametrize("cost", [-1.0, float("nan")])
def test_impossible_costs_are_refused(cost):
    env = ReturnCostTokens(Scripted(cost=cost), 10.0, 2.0)
    env.reset()
    with pytest.raises(InvalidArgumentError, match="must be finite and >= 0"):
        env.step(ACTION)


def test_targets_of_its_own_travel_with_the_observation():
    env = ReturnCostTokens(Scripted(), 10.0, 2.0)
    obs, _ = env.reset()
    assert (obs["target_return"].item(), obs["cost_budget"].item()) == (10.0, 2.0)
    env.set_targets(None, 5.0)
    obs, *_ = env.step(ACTION)
    assert (obs["target_return"].item(), obs["cost_budget"].item()) == (np.inf, 5.0)
    for bad in (-1.0, float("nan")):
        with pytest.raises(InvalidArgumentError, match="`cost_budget` must be >= 0"):
            env.set_targets(None, bad)


@pytest.mark.filterwarnings("ignore::UserWarning")  # advice about wrappers and unbounded tokens
def test_obeys_gymnasium():
    check_env(ReturnCostTokens(gym.make(ENV_ID).unwrapped, 50.0, 5.0), skip_render_check=True)


def test_constructor_arguments_are_recorded():
    env = ReturnCostTokens(gym.make(ENV_ID), target_return=50.0, cost_budget=5.0)
    again = gym.make(env.spec)
    assert isinstance(again, ReturnCostTokens)
    obs, _ = again.reset(seed=0)
    assert (obs["target_return"].item(), obs["cost_budget"].item()) == (50.0, 5.0)


def test_only_numbers_can_be_observed():
    env = Scripted()
    env.observation_space = gym.spaces.Text(4)
    with pytest.raises(InvalidArgumentError, match="must be a Box"):
        ReturnCostTokens(env, 1.0, 1.0)


@pytest.mark.parametrize("cost", [np.array([0.5, 0.5]), "0.5", {"total": 0.5}, None, [1, 2]])
def test_a_cost_that_is_not_one_number_says_what_to_give(cost):
    single = ReturnCostTokens(Scripted(cost=cost))
    six = ReturnCostTokens(Scripted(values=6, cost=cost))
    function = ReturnCostTokens(Scripted(), cost_fn=lambda *_: cost)
    vector = VectorReturnCostTokens(MinimalVector([lambda: Scripted(cost=cost)], "same"))
    for env in (single, six, function, vector):
        env.reset(seed=0)
        message = "cost of a step must be one number, got .*`cost_key`.*`cost_fn`"
        with pytest.raises(InvalidArgumentError, match=message):
            env.step(ACTION[None] if env is vector else ACTION)


@pytest.mark.parametrize("cost", [np.array([0.5]), np.float32(0.5), np.array(0.5), [0.5]])
def test_a_cost_in_an_array_of_one_is_a_number(cost):
    """Without numpy's deprecation warning, which would be an error here."""
    for env in (Scripted(cost=cost), Scripted(values=6, cost=cost)):
        wrapped = ReturnCostTokens(env)
        wrapped.reset()
        assert wrapped.step(ACTION)[4]["cost"] == 0.5
    vector = VectorReturnCostTokens(gym.vector.SyncVectorEnv([lambda: Scripted(cost=cost)] * 2))
    vector.reset(seed=0)
    assert vector.step(np.zeros((2, 1), np.float32))[4]["cost"].tolist() == [0.5, 0.5]


def test_wrappers_say_what_to_use_for_one_and_for_many():
    many = gym.vector.SyncVectorEnv([Scripted] * 2)
    with pytest.raises(InvalidArgumentError, match="got SyncVectorEnv.*VectorReturnCostTokens"):
        ReturnCostTokens(many)
    message = r"must be a Gymnasium vector environment.*agent.wrap"
    for other in (Scripted(), DummyVecEnv([Scripted]), "id"):
        with pytest.raises(InvalidArgumentError, match=message):
            VectorReturnCostTokens(other)


MINIMAL_MODES = ["same", "same-dict", "next", "disabled"]


@pytest.mark.parametrize("mode", MINIMAL_MODES)
def test_facts_of_minimal_vector_environments_in_every_reset_mode(mode):
    """Environments of 2 and 3 steps, whatever gymnasium is installed."""
    inner = MinimalVector([lambda: Scripted(2), lambda: Scripted(3)], mode)
    env = VectorReturnCostTokens(inner)
    env.reset(seed=0)
    seen, episode_costs = [], []
    for _ in range(4):
        obs, _, _, truncated, infos = env.step(np.zeros((2, 1), np.float32))
        if truncated.any():
            episode_costs.append(infos["episode_cost"].tolist())
        if mode == "disabled" and truncated.any():
            obs, _ = env.reset(options={"reset_mask": truncated})
        seen.append([obs[f"episode_{name}"].ravel().tolist() for name in ("cost", "step")])
    if mode == "next":
        assert seen[1:3] == [[[1.0, 1.0], [2, 2]], [[0.0, 1.5], [0, 3]]]
        assert seen[3] == [[0.5, 0.0], [1, 0]]
    else:
        assert seen[1:3] == [[[0.0, 1.0], [0, 2]], [[0.5, 0.0], [1, 0]]]
        assert seen[3] == [[0.0, 0.5], [0, 1]]
    assert episode_costs[:2] == [[1.0, 0.0], [0.0, 1.5]]


def place_cost(obs, action, next_obs, info):
    """Knows which observations it was given: 0 -> 1, 1 -> 2, ... within one episode."""
    assert next_obs[0] == obs[0] + 1, (obs, next_obs)
    return float(next_obs[0]) + 10 * float(action[0]) + info["cost"]


@pytest.mark.parametrize("mode", MINIMAL_MODES)
def test_a_cost_function_of_a_vector_environment(mode):
    """At an end it sees the last observation of that episode, not the next one's first."""
    inner = MinimalVector([lambda: Scripted(2), lambda: Scripted(3)], mode)
    env = VectorReturnCostTokens(inner, cost_fn=place_cost)
    env.reset(seed=0)
    costs = []
    for _ in range(4):
        _, _, _, truncated, infos = env.step(np.array([[0.0], [1.0]], np.float32))
        costs.append(infos["cost"].tolist())
        if mode == "disabled" and truncated.any():
            env.reset(options={"reset_mask": truncated})
    first = [1.5, 2.5, 0.0, 1.5] if mode == "next" else [1.5, 2.5, 1.5, 2.5]
    second = [11.5, 12.5, 13.5, 0.0] if mode == "next" else [11.5, 12.5, 13.5, 11.5]
    assert costs == [list(pair) for pair in zip(first, second, strict=True)]


def test_a_cost_function_of_gymnasiums_own_vector_environment():
    env = VectorReturnCostTokens(
        gym.vector.SyncVectorEnv([lambda: Scripted(2)]), cost_fn=place_cost
    )
    env.reset(seed=0)
    action = np.zeros((1, 1), np.float32)
    assert [env.step(action)[4]["cost"].item() for _ in range(2)] == [1.5, 2.5]


def test_without_a_word_gymnasium_1_resets_at_the_next_step():
    env = MinimalVector([Scripted], "same")
    env.metadata = {}
    expected = "same" if gym.__version__.startswith("0.") else "next"
    assert VectorReturnCostTokens(env)._mode == expected


def modes():
    return getattr(gym.vector, "AutoresetMode", None)  # gymnasium >= 1.1


def vector_modes():
    return [None] if modes() is None else [modes().NEXT_STEP, modes().SAME_STEP]


NEXT_STEP_BY_DEFAULT = not gym.__version__.startswith("0.")


@pytest.mark.parametrize("mode", vector_modes(), ids=str)
def test_vector_twin_in_every_reset_mode(mode):
    """Environments of 2 and 3 steps: facts per environment, none left over after each end."""
    kwargs = {} if mode is None else {"autoreset_mode": mode}
    makers = [lambda: Scripted(2), lambda: Scripted(3)]
    env = VectorReturnCostTokens(gym.vector.SyncVectorEnv(makers, **kwargs), None, [2.0, 3.0])
    obs, _ = env.reset(seed=0)
    assert env.observation_space["episode_cost"].shape == (2, 1)
    assert obs["cost_budget"].ravel().tolist() == [2, 3]
    next_step = NEXT_STEP_BY_DEFAULT if mode is None else mode == modes().NEXT_STEP
    actions = np.zeros((2, 1), np.float32)
    seen, episode_costs = [], []
    for _ in range(4):
        obs, _, _, truncated, infos = env.step(actions)
        seen.append(
            [obs[f"episode_{name}"].ravel().tolist() for name in ("return", "cost", "step")]
        )
        if truncated.any():
            episode_costs.append(infos["episode_cost"].tolist())
    if next_step:
        assert seen == [
            [[1, 1], [0.5, 0.5], [1, 1]],
            [[3, 3], [1.0, 1.0], [2, 2]],  # the first ends here, with its own facts
            [[0, 6], [0.0, 1.5], [0, 3]],  # this step only resets it; the second ends
            [[1, 0], [0.5, 0.0], [1, 0]],
        ]
    else:
        assert seen == [
            [[1, 1], [0.5, 0.5], [1, 1]],
            [[0, 3], [0.0, 1.0], [0, 2]],  # the first ends and begins anew in one step
            [[1, 0], [0.5, 0.0], [1, 0]],
            [[0, 1], [0.0, 0.5], [0, 1]],
        ]
    assert episode_costs[0] == [1.0, 0.0]
    assert episode_costs[1] == [0.0, 1.5]


def test_vector_twin_without_cost_is_an_error():
    env = gym.vector.SyncVectorEnv([lambda: Scripted(9, key="damage")] * 2)
    wrapped = VectorReturnCostTokens(env)
    wrapped.reset(seed=0)
    with pytest.raises(InvalidArgumentError, match="Environment 0 of 2: .* reported no cost"):
        wrapped.step(np.zeros((2, 1), np.float32))


def partial_reset_mode():
    return [modes().DISABLED] if hasattr(modes(), "DISABLED") else []


@pytest.mark.parametrize("mode", [None, *partial_reset_mode()], ids=str)
def test_a_partial_reset_never_refills_another_environments_budget(mode):
    """Where gymnasium knows no mask (before 1.1), it resets all, and so do the facts."""
    kwargs = {} if mode is None else {"autoreset_mode": mode}
    wrapped = VectorReturnCostTokens(gym.vector.SyncVectorEnv([lambda: Scripted(9)] * 2, **kwargs))
    wrapped.reset(seed=0)
    for _ in range(3):
        obs, *_ = wrapped.step(np.zeros((2, 1), np.float32))
    assert obs["episode_cost"].ravel().tolist() == [1.5, 1.5]
    obs, _ = wrapped.reset(options={"reset_mask": np.array([True, False])})
    partial = hasattr(gym.vector, "AutoresetMode")
    assert obs["episode_cost"].ravel().tolist() == [0.0, 1.5 if partial else 0.0]
    assert obs["episode_step"].ravel().tolist() == [0.0, 3.0 if partial else 0.0]


def test_a_refused_vector_wrapper_leaves_its_environments_running():
    envs = gym.vector.SyncVectorEnv([lambda: gym.make(ENV_ID)] * 2)
    with pytest.raises(InvalidArgumentError, match="`cost_budget`"):
        VectorReturnCostTokens(envs, cost_budget="ten")
    gc.collect()
    assert not envs.closed
    assert envs.reset(seed=0)[0].shape[0] == 2
    envs.close()


class Moving(Scripted):
    """Writes into the observation that it returned: one to the right at each step."""

    def reset(self, *, seed=None, options=None):
        self.place = np.zeros(2, np.float32)
        return self.place, super().reset(seed=seed)[1]

    def step(self, action):
        _, *others = super().step(action)
        self.place += 1
        return self.place, *others


def distance(before, action, after, info):
    return float(np.abs(after - before).max())


def test_a_cost_function_sees_the_observation_before_the_step():
    """Also of an environment that goes on writing into its own array."""
    wrapped = ReturnCostTokens(Moving(), cost_fn=distance)
    recorder = TrajectoryRecorder(Moving(), cost_fn=distance)
    evaluated = SeededEpisodes(Moving(), [0], cost_fn=distance)
    for env in (wrapped, recorder, evaluated):
        env.reset(seed=0)
        costs = [env.step(ACTION)[4]["cost"] for _ in range(3)]
        assert costs == [1.0, 1.0, 1.0]
    np.testing.assert_array_equal(recorder.trajectories[0].costs, [1.0, 1.0, 1.0])


@pytest.mark.parametrize("kinds", [(0, 0.9), (False, 7.5), (2, False)])
def test_costs_of_two_kinds_are_refused_in_a_vector(kinds):
    """Gymnasium's array has the first environment's type: 0.9 beside an int 0 is 0 there."""

    class Costs(Scripted):
        def step(self, action):
            *values, _ = super().step(action)
            return *values, {"cost": kinds[(self.t + self.length) % 2]}

    env = VectorReturnCostTokens(gym.vector.SyncVectorEnv([lambda: Costs(9), lambda: Costs(8)]))
    env.reset(seed=0)
    env.step(np.zeros((2, 1), np.float32))
    with pytest.raises(InvalidArgumentError, match=r"fractions.*`float\(cost\)`"):
        env.step(np.zeros((2, 1), np.float32))
    one = VectorReturnCostTokens(gym.vector.SyncVectorEnv([lambda: Costs(9)]))  # nothing is lost
    one.reset(seed=0)
    spent = [one.step(np.zeros((1, 1), np.float32))[4]["cost"].item() for _ in range(4)]
    assert spent == [float(kinds[(t + 9) % 2]) for t in (1, 2, 3, 4)]


@pytest.mark.parametrize("mode", ["same", "same-dict"])
def test_a_wrongly_stated_reset_mode_is_noticed(mode):
    env = MinimalVector([lambda: Scripted(2)], mode)
    env.metadata = {"autoreset_mode": "NextStep"}
    env = VectorReturnCostTokens(env)
    env.reset(seed=0)
    env.step(np.zeros((1, 1), np.float32))
    with pytest.raises(InvalidArgumentError, match="resets at the end itself.*SAME_STEP"):
        env.step(np.zeros((1, 1), np.float32))
