"""TraC: its loss by hand, what its gradient reaches, its two phases, and SpeedLimit."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rcdt_agent import TraC, TrajectoryDataset
from rcdt_agent.errors import DatasetError, InvalidArgumentError
from rcdt_agent.tasks.speed_limit import ENV_ID, record_drivers
from rcdt_agent.weighted_losses import classification_loss, segment_scores

SMALL = {"preset": "tiny", "seed": 1, "width": 16, "batch_size": 8, "contrast_warmup": 0}


def test_segment_scores_by_hand():
    log_prob = torch.tensor([[-1.0, -2.0, -3.0], [-1.0, -5.0, -9.0]])
    reference = torch.tensor([[-2.0, -2.0, -1.0], [-3.0, 0.0, 0.0]])
    mask = torch.tensor([[True, True, True], [True, False, False]])
    scores = segment_scores(log_prob, reference, mask, alpha=0.2, discount=0.5)
    # 0.2 (1 + 0.5 * 0 + 0.25 * -2) and 0.2 * 2
    torch.testing.assert_close(scores, torch.tensor([0.1, 0.4]))


def test_classification_loss_by_hand():
    scores = torch.tensor([0.0, math.log(3.0), math.log(3.0)])
    desirable = torch.tensor([True, True, False])
    weights = torch.tensor([1.0, 0.5, 2.0])
    loss = classification_loss(scores, desirable, weights, eta=0.25)
    # sigmoid: 1/2, 3/4 and 1 - 3/4; the one undesirable weighs 0.25 * 2 / 1
    expected = -(math.log(0.5) + 0.5 * math.log(0.75) + 0.5 * 2.0 * math.log(0.25)) / 3
    assert loss.item() == pytest.approx(expected, abs=1e-6)


def test_floor_cuts_the_gradient_of_hopeless_segments():
    desirable, weights = torch.tensor([True]), torch.ones(1)
    for floor, slope in ((1e-6, 0.0), (None, -1.0)):
        scores = torch.tensor([-30.0], requires_grad=True)
        loss = classification_loss(scores, desirable, weights, eta=1.0, floor=floor)
        loss.backward()
        assert scores.grad.item() == pytest.approx(slope, abs=1e-5)
        assert loss.item() == pytest.approx(30.0 if floor is None else -math.log(1e-6), rel=1e-5)


def test_a_batch_without_undesirable_segments_is_finite():
    loss = classification_loss(torch.zeros(2), torch.ones(2).bool(), torch.ones(2), eta=0.25)
    assert loss.item() == pytest.approx(math.log(2.0))


def test_padding_reaches_neither_score_nor_gradient():
    log_prob = torch.zeros(1, 3, requires_grad=True)
    mask = torch.tensor([[True, True, False]])
    segment_scores(log_prob, torch.zeros(1, 3), mask, alpha=1.0, discount=0.5).sum().backward()
    torch.testing.assert_close(log_prob.grad, torch.tensor([[1.0, 0.5, 0.0]]))


def two_habits() -> TrajectoryDataset:
    """Act +0.5, return 10 to 14 and cost 5; or act -0.5, return 0 to 4 and cost nothing."""
    n, length = 40, 10
    fast = np.arange(n) % 2 == 0
    each = np.repeat(np.where(fast, 1.0, 0.0) + (np.arange(n) % 5) / length, length)
    rng = np.random.default_rng(0)
    return TrajectoryDataset.from_arrays(
        observations=rng.normal(size=(n * length, 3)),
        actions=np.repeat(np.where(fast, 0.5, -0.5), length)[:, None],
        rewards=each,
        costs=np.repeat(np.where(fast, 0.5, 0.0), length),
        terminals=np.zeros(n * length),
        timeouts=np.tile(np.arange(length) == length - 1, n),
    )


def test_phases_reference_and_optimiser():
    agent = TraC(**SMALL, cost_budget=1.0)
    agent.learn(two_habits(), 10)  # three steps of imitation, then the contrast
    assert agent.training.counters == {"imitation_steps": 3}
    after = {n: p.clone() for n, p in agent.reference.network.state_dict().items()}
    agent.learn(total_steps=5)
    for name, value in agent.reference.network.state_dict().items():
        assert torch.equal(value, after[name])  # frozen
        assert not torch.equal(value, agent.policy.network.state_dict()[name])
    state = agent.training.optimizers["policy"].state
    assert {int(entry["step"]) for entry in state.values()} == {12}  # begun anew at step 3
    rate = agent.training.optimizers["policy"].param_groups[0]["lr"]
    assert rate == pytest.approx(0.1 * agent.config.learning_rate)


def test_contrast_moves_away_from_the_unsafe_habit():
    options = {**SMALL, "cost_budget": 1.0, "learning_rate": 3e-3, "dropout": 0.0, "seed": 2}
    obs = np.zeros((1, 3))
    imitator, _ = TraC(**options, imitation_share=0.99).learn(two_habits(), 300).predict(obs)
    contrast, _ = (
        TraC(**options, imitation_share=0.3, contrast_rate=1.0)
        .learn(two_habits(), 600)
        .predict(obs)
    )
    assert abs(imitator.item()) < 0.45  # between both habits: half of its data are unsafe
    assert contrast.item() < imitator.item() - 0.1 and contrast.item() < -0.3


def test_bad_settings_are_refused_by_name():
    for field, value in (
        ("undesirable_share", 0.6), ("desirable_share", 0.0), ("segment_share", 1.5),
        ("imitation_share", 1.0), ("alpha", 0.0), ("eta", -1.0), ("dropout", 1.0),
        ("cost_budget", -1.0), ("least_weight", 2.0), ("discount", 0.0),
    ):  # fmt: skip
        with pytest.raises(InvalidArgumentError, match=f"`{field}` must be"):
            TraC(preset="tiny", **{field: value})
    with pytest.raises(InvalidArgumentError, match="TraC has no variants"):
        TraC(variant="cdt")


def test_data_without_a_safe_trajectory_are_refused_before_training():
    data = two_habits().filter(min_return=9.0)
    with pytest.raises(DatasetError, match="none of 20 costs at most 1"):
        TraC(**SMALL, cost_budget=1.0).set_dataset(data)
    with pytest.warns(UserWarning, match="nothing costs more than the budget 50"):
        TraC(**SMALL, cost_budget=50.0).learn(two_habits(), 2)


def test_as_published_labels_segments_by_their_own_cost():
    arrays = record_drivers(60, seed=3)
    data = TrajectoryDataset.from_arrays(**arrays)
    options = {**SMALL, "cost_budget": 5.0, "segment_share": 0.25}
    paper, code = (TraC(**options, as_published=flag).segments(data) for flag in (False, True))
    assert len(paper) <= 60 and (paper.starts > 1).all()
    assert len(code) > 60 and (code.starts == 1).all() and (code.lengths == 15).all()
    costs = np.array([data.costs[first : first + 15].sum() for first in code.first])
    assert (costs[code.labels == 1] <= 5.0 * 15 / 60 + 1e-4).all()


@pytest.mark.slow
def test_cost_follows_the_budget_it_was_trained_for():
    data = TrajectoryDataset.from_arrays(**record_drivers(300, seed=0))
    costs = []
    for budget in (2.0, 40.0):
        agent = TraC(preset="tiny", seed=0, cost_budget=budget).learn(data, 1_000)
        costs.append(agent.evaluate(ENV_ID, [budget], n_episodes=20, n_envs=20).results[0])
    assert costs[0].passed and costs[1].passed
    assert costs[0].mean_cost < 1.0 < 4.0 < costs[1].mean_cost
    assert costs[0].mean_return < costs[1].mean_return
