"""Theorem 1 on a tabular CMDP: the conditioned policy, computed exactly, keeps the bound.

The state holds time, place, and what was earned and spent, so that the conditioning function
F(s) = (target return - earned, target cost - spent) is consistent along every transition, as the
tokens are at deployment. A step deviates with probability epsilon: it goes elsewhere, earns nothing
and costs one.
"""

from __future__ import annotations

from functools import cache

import pytest

from rcdt_agent.losses import alignment_bound

HORIZON = 5
TARGET = (3, 1)  # return, cost


def outcome(place, action):
    """Deterministic reward, cost and next place: fast (1) earns, and costs on even places."""
    reward = action
    cost = int(action == 1 and place % 2 == 0)
    return reward, cost, (place + 1 + action) % 3


def solve(epsilon, fast):
    """Coverage alpha_F and the expected return and cost of the conditioned policy."""
    behaviour = {0: 1 - fast, 1: fast}

    def transitions(place, action):
        reward, cost, following = outcome(place, action)
        yield 1 - epsilon, reward, cost, following
        if epsilon:
            yield epsilon, 0, 1, place

    @cache
    def hit(t, place, earned, spent):
        """P_beta(return and cost meet the target | state)."""
        if t == HORIZON:
            return float((earned, spent) == TARGET)
        return sum(behaviour[a] * hit_after(t, place, earned, spent, a) for a in (0, 1))

    @cache
    def hit_after(t, place, earned, spent, action):
        return sum(
            p * hit(t + 1, following, earned + reward, spent + cost)
            for p, reward, cost, following in transitions(place, action)
        )

    @cache
    def value(t, place, earned, spent):
        """Expected final (return, cost) under pi_F = beta P(F | s, a) / P(F | s)."""
        if t == HORIZON:
            return float(earned), float(spent)
        reachable = hit(t, place, earned, spent)
        total_return = total_cost = 0.0
        for action in (0, 1):
            share = behaviour[action]
            if reachable > 0:  # where the target is out of reach, the behaviour policy acts
                share *= hit_after(t, place, earned, spent, action) / reachable
            for p, reward, cost, following in transitions(place, action):
                later = value(t + 1, following, earned + reward, spent + cost)
                total_return += share * p * later[0]
                total_cost += share * p * later[1]
        return total_return, total_cost

    return hit(0, 0, 0, 0), *value(0, 0, 0, 0)


@pytest.mark.parametrize("fast", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("epsilon", [0.0, 1e-4, 1e-3, 1e-2, 5e-2])
def test_gaps_stay_below_the_bound(epsilon, fast):
    coverage, expected_return, expected_cost = solve(epsilon, fast)
    assert coverage > 0
    bound = alignment_bound(epsilon, coverage, HORIZON)
    assert TARGET[0] - expected_return <= bound + 1e-12
    assert TARGET[1] - expected_cost <= bound + 1e-12
    # The other side holds here too, although the theorem does not claim it.
    assert abs(TARGET[0] - expected_return) <= bound + 1e-12
    assert abs(TARGET[1] - expected_cost) <= bound + 1e-12


def test_without_noise_the_target_is_met_exactly():
    coverage, expected_return, expected_cost = solve(0.0, 0.5)
    assert 0 < coverage < 0.5
    assert (expected_return, expected_cost) == pytest.approx(TARGET)


def test_noise_really_moves_the_outcome_and_coverage_matters():
    gaps = [TARGET[0] - solve(epsilon, 0.5)[1] for epsilon in (0.0, 0.01, 0.05)]
    assert gaps[0] == pytest.approx(0) and gaps[0] < gaps[1] < gaps[2]
    scarce, common = solve(0.01, 0.05)[0], solve(0.01, 0.5)[0]
    assert scarce < common
    assert alignment_bound(0.01, scarce, HORIZON) > alignment_bound(0.01, common, HORIZON)
