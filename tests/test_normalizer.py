"""The one place that scales: by hand, there and back, and refused where it would be meaningless."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import random_arrays

from rcdt_agent.action_spaces import check_action_space
from rcdt_agent.data import TrajectoryDataset, WindowSampler
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.normalizer import Normalizer, data_action_space

SPACE = gym.spaces.Box(np.array([-2, 0], np.float32), np.array([2, 4], np.float32))


def by_hand(ctg_shape="linear", episode_length=None):
    normalizer = Normalizer(3, 2, ctg_shape, episode_length)
    values = {
        "obs_mean": [1.0, 2.0, 3.0], "obs_std": [0.5, 2.0, 4.0], "action_low": [-2.0, 0.0],
        "action_high": [2.0, 4.0], "rtg_scale": 10.0, "ctg_scale": 4.0,
        "rtg_rate": 0.5,
    }  # fmt: skip
    normalizer.load_state_dict({name: torch.tensor(value) for name, value in values.items()})
    return normalizer


def test_scales_by_hand():
    normalizer = by_hand()
    assert normalizer.obs(torch.tensor([2.0, 2.0, -5.0])).tolist() == [2.0, 0.0, -2.0]
    assert normalizer.actions(torch.tensor([-2.0, 3.0])).tolist() == [-1.0, 0.5]
    assert normalizer.unscale_actions(torch.tensor([-1.0, 0.5])).tolist() == [-2.0, 3.0]
    assert normalizer.unscale_actions(torch.tensor([-9.0, 9.0])).tolist() == [-2.0, 4.0]  # clipped
    step = torch.tensor(80)
    assert normalizer.rtg(torch.tensor(25.0), step).tolist() == [2.5]
    assert normalizer.ctg(torch.tensor(6.0), step).tolist() == [1.5]
    shaped = by_hand("asinh").ctg(torch.tensor(6.0), step).item()
    assert shaped == pytest.approx(np.arcsinh(1.5))


def test_rates_by_hand():
    """At step 80 of 100, 20 are left: 25 to earn are 1.25 a step, in units of 0.5."""
    normalizer, step = by_hand(episode_length=100), torch.tensor(80)
    assert normalizer.token_features == 2
    assert normalizer.rtg(torch.tensor(25.0), step).tolist() == [2.5, 2.5]
    # 6 to spend in 20 steps is the pace of 30 in an episode, in units of 4.
    assert normalizer.ctg(torch.tensor(6.0), step).tolist() == pytest.approx([1.5, 7.5])
    shaped = by_hand("asinh", 100).ctg(torch.tensor(6.0), step)
    torch.testing.assert_close(shaped, torch.asinh(torch.tensor([1.5, 7.5])))
    # Beyond the longest episode one step is left.
    assert normalizer.rtg(torch.tensor(25.0), torch.tensor(300)).tolist() == [2.5, 50.0]


def test_a_window_is_scaled_throughout(dataset):
    sampler = WindowSampler(
        dataset, context_length=4, batch_size=8, generator=torch.Generator().manual_seed(0)
    )
    batch, normalizer = sampler.sample(), by_hand()
    window = normalizer.window(batch)
    torch.testing.assert_close(window.obs, (batch.obs - normalizer.obs_mean) / normalizer.obs_std)
    torch.testing.assert_close(window.actions, normalizer.actions(batch.actions))
    torch.testing.assert_close(window.rtg, batch.rtg[..., None] / 10)
    torch.testing.assert_close(window.ctg, batch.ctg[..., None] / 4)
    assert window.timesteps is batch.timesteps and window.mask is batch.mask


def test_fit_takes_the_datas_statistics(monkeypatch):
    arrays = random_arrays([50] * 8)
    arrays["observations"] = arrays["observations"] * [0.1, 20.0, 0.0] + [5.0, -3.0, 7.0]
    del arrays["next_observations"]
    data = TrajectoryDataset.from_arrays(**arrays)
    monkeypatch.setattr("rcdt_agent.data.sums._CHUNK", 33)  # statistics in chunks
    normalizer = Normalizer.fit(data, SPACE, rtg_scale=3.0, ctg_scale=2.0)
    np.testing.assert_allclose(normalizer.obs_mean, data.observations.mean(0), rtol=1e-5)
    np.testing.assert_allclose(normalizer.obs_std[:2], data.observations.std(0)[:2], rtol=1e-5)
    assert normalizer.obs_std[2] == 1.0  # a constant is shifted, not divided by nothing
    assert normalizer.action_high.tolist() == [2.0, 4.0]
    assert (normalizer.rtg_scale.item(), normalizer.ctg_scale.item()) == (3.0, 2.0)
    plain = Normalizer.fit(data, SPACE, normalize_observations=False)
    assert plain.obs_mean.tolist() == [0, 0, 0] and plain.obs_std.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("obs_std", 0.0, "> 0"),
        ("obs_mean", float("nan"), "finite"),
        ("action_high", -9.0, "> action_low"),
        ("rtg_scale", -1.0, "> 0"),
        ("ctg_scale", float("inf"), "> 0"),
    ],
)
def test_meaningless_scales_are_refused(name, value, rule):
    normalizer = by_hand()
    getattr(normalizer, name).fill_(value)
    with pytest.raises(InvalidArgumentError, match=f"`{name}` must be {rule}"):
        normalizer.check()


def test_action_spaces():
    data = TrajectoryDataset.from_arrays(**random_arrays([5]))
    assert data_action_space(data) == gym.spaces.Box(-1.0, 1.0, (2,), dtype=np.float32)
    assert check_action_space(SPACE) is SPACE
    for space in (gym.spaces.Text(3), gym.spaces.Box(0, 5, (2,), dtype=np.int64)):
        with pytest.raises(InvalidArgumentError, match="must be a Box of floating"):
            check_action_space(space)
