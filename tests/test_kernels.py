"""The compiled programs against the textbook in double precision, at every instruction set."""

from __future__ import annotations

import copy
import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import random_arrays
from test_networks import plain_block

from rcdt_agent import kernels
from rcdt_agent.data import TrajectoryDataset, WindowSampler
from rcdt_agent.doctor import check_kernels
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.kernels import library
from rcdt_agent.networks import PolicyTransformer
from rcdt_agent.networks.block import Block
from rcdt_agent.networks.dropout import Masks

# The module, which the function of its name hides in the package.
kernels_block = sys.modules["rcdt_agent.kernels.block"]
CPU = torch.device("cpu")
BEST = kernels.LEVELS.index(kernels.instruction_set() or kernels.LEVELS[0])


@pytest.fixture(params=range(BEST + 1), ids=lambda level: kernels.LEVELS[level])
def level(request, monkeypatch):
    """Each instruction set that this machine has."""
    found = library.library()
    assert found is not None, "the compiled part was not built"
    chosen = library.Library(found.functions, request.param, found.team)
    monkeypatch.setattr(library, "library", lambda: chosen)
    monkeypatch.delenv(kernels.VARIABLE, raising=False)
    return request.param


def counted(monkeypatch, module, name):
    """How often a function ran, in a list that grows."""
    calls, real = [], getattr(module, name)

    def count(*args, **kwargs):
        calls.append(name)
        return real(*args, **kwargs)

    monkeypatch.setattr(module, name, count)
    return calls


# Windows, tokens, width, heads, first, every: the paper's, heads narrower and wider than a vector,
# one token, several tiles with a rest, widths that are no multiple of a patch.
SHAPES = [
    (5, 39, 128, 8, 0, 1),
    (20, 39, 128, 8, 2, 4),
    (3, 7, 64, 8, 2, 4),
    (2, 100, 32, 1, 0, 1),
    (4, 8, 48, 4, 1, 3),
    (1, 1, 16, 2, 0, 1),
    (9, 41, 96, 4, 0, 1),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rates", [(0.0, 0.0), (0.2, 0.3), (0.2, 0.0), (0.0, 0.3)], ids=str)
def test_a_block_is_the_plain_one(level, shape, rates, monkeypatch):
    size_b, length, width, n_heads, first, every = shape
    if every > 1 and any(rates):
        rates = (0.0, 0.0)  # the plain block draws masks for every position
    torch.manual_seed(0)
    block = Block(width, n_heads, rates[1], rates[0])
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    exact = copy.deepcopy(block).double()
    x = torch.randn(size_b, length, width, requires_grad=True)
    wide = x.detach().double().requires_grad_()
    calls = counted(monkeypatch, kernels_block, "backward")

    def masks():
        return Masks(7, CPU) if any(rates) else None

    fast = block(x, first=first, every=every, masks=masks())
    plain = plain_block(exact, wide, masks())[:, first::every]
    torch.testing.assert_close(fast.double(), plain, rtol=1e-5, atol=1e-5)
    slope = torch.randn_like(fast)
    ours = torch.autograd.grad(fast, [x, *block.parameters()], slope)
    theirs = torch.autograd.grad(plain, [wide, *exact.parameters()], slope.double())
    assert calls == ["backward"]
    for one, two in zip(ours, theirs, strict=True):
        scale = two.abs().max().item() + 1.0
        torch.testing.assert_close(one.double() / scale, two / scale, rtol=0, atol=3e-6)
    with torch.no_grad():
        again = block(x, first=first, every=every, masks=masks())
    assert torch.equal(again, fast)


def test_dropout_of_the_last_block(level, monkeypatch):
    """The compiled block and torch's own, with the same masks, where only states answer."""
    block = Block(32, 4, 0.3, 0.2)
    x = torch.randn(6, 11, 32, requires_grad=True)
    wanted = [x, *block.parameters()]
    found = []
    for switch in ("1", "0"):
        monkeypatch.setenv(kernels.VARIABLE, switch)
        y = block(x, first=2, every=4, masks=Masks(3, CPU))
        found.append((y, *torch.autograd.grad(y.square().sum(), wanted)))
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


def make_policy(**settings):
    torch.manual_seed(1)
    policy = PolicyTransformer(
        5, 3, n_timesteps=20, **{"n_layers": 3, "n_heads": 4, "width": 32, **settings}
    )
    for parameter in policy.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return policy.eval()


def make_inputs(size_b, size_t):
    return {
        "obs": torch.randn(size_b, size_t, 5),
        "actions": torch.randn(size_b, size_t, 3),
        "rtg": torch.randn(size_b, size_t),
        "ctg": torch.randn(size_b, size_t),
        "timesteps": torch.randint(0, 25, (size_b, size_t)),  # beyond the table, too
    }


@pytest.mark.parametrize("cost_token", [True, False])
@pytest.mark.parametrize("train", [True, False])
def test_a_policy_is_the_same_with_and_without(level, cost_token, train, monkeypatch):
    policy, inputs = make_policy(cost_token=cost_token), make_inputs(9, 6)
    policy.train(train)
    calls = counted(monkeypatch, kernels, "tokens")
    found = []
    for switch in ("1", "0"):
        monkeypatch.setenv(kernels.VARIABLE, switch)
        features = policy.features(**inputs, dropout_seed=4)
        slope = torch.linspace(-1, 1, features.numel()).view_as(features)
        wanted = [
            p for n, p in policy.named_parameters() if n.split(".")[0][:4] in ("embe", "norm")
        ]
        found.append((features, *torch.autograd.grad(features, wanted, slope)))
    assert calls == ["tokens"]
    for one, two in zip(*found, strict=True):
        scale = two.detach().abs().max().item() + 1.0
        torch.testing.assert_close(one / scale, two / scale, rtol=0, atol=1e-5)


@pytest.mark.parametrize("cost_token", [True, False])
@pytest.mark.parametrize("size", [(1, 1), (1, 10), (2, 10), (3, 7), (37, 10)], ids=str)
def test_acting_is_the_last_of_all_states(level, cost_token, size):
    policy, inputs = make_policy(cost_token=cost_token), make_inputs(*size)
    exact = copy.deepcopy(policy).double()
    wide = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
    with torch.no_grad():
        torch.testing.assert_close(
            policy.last_features(**inputs).double(),
            exact.features(**wide)[:, -1],
            rtol=1e-4,
            atol=1e-5,
        )


def test_each_environment_acts_as_alone(level):
    """However many there are beside it, and on however many threads."""
    policy, inputs = make_policy(), make_inputs(21, 10)
    threads = torch.get_num_threads()
    with torch.no_grad():
        together = policy.last_features(**inputs)
        for row in (0, 8, 20):
            alone = policy.last_features(**{k: v[row : row + 1] for k, v in inputs.items()})
            torch.testing.assert_close(alone[0], together[row], rtol=1e-5, atol=1e-6)
        try:
            torch.set_num_threads(1)
            torch.testing.assert_close(policy.last_features(**inputs), together)
        finally:
            torch.set_num_threads(threads)


def test_other_numbers_and_widths_go_another_way():
    weight = torch.zeros(32, 32)
    assert kernels.usable(torch.zeros(2, 32), weight)
    assert not kernels.usable(torch.zeros(2, 32).double(), weight)
    assert not kernels.usable(torch.zeros(2, 32), weight.double())
    assert not kernels.usable(torch.zeros(2, 20), torch.zeros(20, 20))


def test_what_torch_would_refuse_is_refused():
    """The compiled programs read whatever is there, so sizes are compared before."""
    policy = make_policy()
    good = make_inputs(2, 4)
    for name, bad in (
        ("obs", torch.randn(2, 4, 300)),
        ("obs", torch.randn(2, 4, 3)),
        ("rtg", torch.randn(3, 4)),
        ("timesteps", torch.full((2, 4), -1)),
    ):
        with pytest.raises(ValueError):
            policy.features(**{**good, name: bad})
        with torch.no_grad(), pytest.raises(ValueError):
            policy.last_features(**{**good, name: bad})
    with pytest.raises(ValueError, match="expected 32"):
        policy.blocks[0](torch.randn(2, 5, 48))
    with pytest.raises(ValueError, match="multiple"):
        Block(64, 6, 0.0, 0.0)
    assert policy.last_features(**make_inputs(0, 4)).shape == (0, 32)


def test_weights_in_any_order_of_memory():
    policy, inputs = make_policy(), make_inputs(3, 5)
    with torch.no_grad():
        features, last = policy.features(**inputs), policy.last_features(**inputs)
        for parameter in policy.parameters():
            if parameter.dim() == 2:
                parameter.data = parameter.data.t().contiguous().t()
        torch.testing.assert_close(policy.features(**inputs), features)
        torch.testing.assert_close(policy.last_features(**inputs), last)


def test_acting_notices_weights_that_were_replaced():
    policy, other, inputs = make_policy(), make_policy(), make_inputs(3, 5)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
        before = policy.last_features(**inputs)
        policy.blocks[0].out.bias.data = torch.ones(32)
        between = policy.last_features(**inputs)
        policy.load_state_dict(other.state_dict(), assign=True)
        after = policy.last_features(**inputs)
        torch.testing.assert_close(after, other.last_features(**inputs))
    assert not torch.allclose(before, between)
    assert not torch.allclose(between, after)


def test_scores_that_are_not_numbers_stay_so():
    policy, inputs = make_policy(), make_inputs(2, 4)
    with torch.no_grad():
        policy.blocks[0].query.weight.fill_(torch.nan)
        assert policy.features(**inputs).isnan().all()
        assert policy.last_features(**inputs).isnan().all()


def test_other_defaults_of_torch():
    """Memory is made as the programs need it, whatever the user has set."""
    script = (
        "import torch\n"
        "from rcdt_agent.kernels.library import scratch\n"
        "torch.set_default_dtype(torch.bfloat16)\n"
        "with torch.device('meta'): found = scratch(100)\n"
        "print(found.dtype, found.device.type, len(found))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == ["torch.float32", "cpu", "100"]


def test_gradients_are_not_finite_where_values_are_not():
    """Nothing hides a NaN from the guard that stops training."""
    block = Block(32, 4, 0.0, 0.0)
    x = torch.randn(3, 7, 32)
    x[1, 2, 3] = torch.nan
    y = block(x)
    assert y[0].isfinite().all()
    assert y[1, 2:].isnan().all()
    gradient = torch.autograd.grad(y.sum(), block.widen.weight)[0]
    assert gradient.isnan().all()


def test_the_doctor_knows(monkeypatch):
    check = check_kernels()
    assert (check.name, check.status, check.detail) == (
        "compiled kernels",
        "ok",
        kernels.LEVELS[BEST],
    )
    monkeypatch.setattr(library, "library", lambda: None)
    check = check_kernels()
    assert check.status == "missing" and "C compiler" in check.detail
    monkeypatch.setenv(kernels.VARIABLE, "0")
    assert "RCDT_KERNELS=0" in check_kernels().detail


def test_without_the_compiled_part():
    """An installation without it, as the variable makes it, says so and works."""
    script = (
        "from rcdt_agent import kernels\n"
        "import torch\n"
        "print(kernels.instruction_set(), kernels.usable(torch.zeros(1, 16), torch.zeros(16, 16)))"
    )
    for value, expected in (("0", "None False"), ("1", f"{kernels.LEVELS[BEST]} True")):
        result = subprocess.run(
            [sys.executable, "-c", script],
            env={"PATH": "/usr/bin:/bin", kernels.VARIABLE: value},
            capture_output=True,
            text=True,
            check=True,
        )
        assert result.stdout.strip() == expected


def test_batches_are_the_same_with_and_without(monkeypatch):
    """Windows that end within, at and beyond the end of long and of very short trajectories."""
    data = TrajectoryDataset.from_arrays(**random_arrays([1, 2, 30, 5, 4], seed=3))
    trajectories = torch.tensor([0, 1, 1, 2, 2, 2, 2, 3, 4])
    starts = torch.tensor([0, 0, 1, 0, 25, 26, 29, 1, 0])
    found = []
    for switch in ("1", "0"):
        monkeypatch.setenv(kernels.VARIABLE, switch)
        sampler = WindowSampler(data, context_length=5, batch_size=64, seed=2)
        found.append([*sampler.windows(trajectories, starts).split(99), sampler.sample()])
    for one, two in zip(*found, strict=True):
        for name, values in vars(one).items():
            assert torch.equal(values, getattr(two, name)), name


def test_data_in_any_order_of_memory():
    arrays = random_arrays([6, 9], seed=1)
    table = np.column_stack([arrays["observations"], arrays["actions"], arrays["rewards"]])
    strided = {
        **arrays,
        "observations": np.asfortranarray(arrays["observations"]),
        "actions": table[:, 3:5],
        "rewards": table[:, 5],
    }
    one, two = (
        WindowSampler(TrajectoryDataset.from_arrays(**x), context_length=4, batch_size=16).sample()
        for x in (arrays, strided)
    )
    for name, values in vars(one).items():
        assert torch.equal(values, getattr(two, name)), name
    assert kernels.runs([table.T], [1], np.array([0]), np.array([1])) is None


def test_windows_begin_at_steps_that_exist():
    data = TrajectoryDataset.from_arrays(**random_arrays([6, 9], seed=1))
    sampler = WindowSampler(data, context_length=4, batch_size=16)
    for start in (-1, 6):
        with pytest.raises(InvalidArgumentError, match="steps of their trajectories"):
            sampler.windows(torch.tensor([0]), torch.tensor([start]))


def test_runs_of_rows():
    wide = np.arange(20, dtype=np.float32).reshape(10, 2)
    narrow = np.arange(10, dtype=np.int64)
    first, there = np.array([0, 8, 9]), np.array([10, 2, 1])
    pairs, numbers = kernels.runs([wide, narrow], [3, 2], first, there)
    assert pairs.tolist() == [
        [[0, 1], [2, 3], [4, 5]],
        [[16, 17], [18, 19], [0, 0]],
        [[18, 19], [0, 0], [0, 0]],
    ]
    assert numbers.tolist() == [[0, 1], [8, 9], [9, 0]]
