"""Model cards: every figure is the agent's own, and what was not measured is said to be so."""

from __future__ import annotations

import io
import json

import pytest
import yaml
from conftest import QUICK, small_settings

from rcdt_agent import RCDT, TrajectoryDataset, load_agent
from rcdt_agent.algorithms import ALGORITHMS, get_algorithm
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.experiments.evaluate import add_to_report
from rcdt_agent.experiments.runs import Run
from rcdt_agent.model_card import _quoted, model_card, plain, settings_that_differ
from rcdt_agent.tasks.speed_limit import ENV_ID


def parts(text):
    """Front matter, and sections by title."""
    _, head, body = text.split("---\n", 2)
    sections = {s.split("\n", 1)[0]: s.split("\n", 1)[1] for s in body.split("\n## ")[1:]}
    return yaml.safe_load(head), sections


def card_of(agent):
    return parts(model_card(agent, 'load_agent("agent.zip")'))


def test_a_card_is_written_beside_the_agent_and_nothing_without_asking(agent, drivers, tmp_path):
    agent.save(tmp_path / "plain.zip")
    agent.save(tmp_path / "driver", card=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["driver.md", "driver.zip", "plain.zip"]
    head, sections = parts((tmp_path / "driver.md").read_text())
    assert head["library_name"] == "rcdt_agent"
    assert head["pipeline_tag"] == "reinforcement-learning"
    assert {"rcdt", "offline-reinforcement-learning", "safe-reinforcement-learning"} <= set(
        head["tags"]
    )
    assert "model-index" not in head
    data = sections["Training data"]
    assert "| name | drivers |" in data and f"`{drivers.fingerprint}`" in data
    assert f"| trajectories | {len(drivers)} |" in data
    returns, costs = drivers.episode_returns, drivers.episode_costs
    assert f"| returns | {returns.min():g} to {returns.max():g} |" in data
    assert f"| costs | {costs.min():g} to {costs.max():g} |" in data
    assert sections["Budgets measured"].strip().startswith("Not measured.")
    assert f"above {costs.max():g}, the largest cost" in sections["Limits"]
    assert "guarantee" in sections["Limits"] and "last gradient step" in sections["Limits"]
    assert "| variant | rcdt |" in sections["Algorithm"]
    assert "| gradient steps | 40 |" in sections["Algorithm"]
    assert 'agent = load_agent("driver.zip")' in sections["How to load it"]


def test_settings_are_told_by_what_differs_from_the_nearest_preset(agent):
    preset, changed = settings_that_differ(agent)  # loaded: the preset's name is not in the file
    assert preset == "tiny"
    expected = {n: QUICK[n] for n in ("batch_size", "embedding_size", "total_steps")}
    assert {name: here for name, (here, _) in changed.items()} == expected
    assert changed["batch_size"] == (16, 256)
    assert "| `embedding_size` | 16 | 32 |" in card_of(agent)[1]["Algorithm"]
    same = RCDT(preset="cpu")
    assert settings_that_differ(same) == ("cpu", {})


def test_what_was_measured_last_is_on_the_card_until_the_agent_changes(agent, drivers):
    report = agent.evaluate(ENV_ID, [5, 20], n_episodes=2)
    head, sections = card_of(agent)
    metrics = head["model-index"][0]["results"][0]["metrics"]
    assert [m["value"] for m in metrics] == [
        round(value, 4) for r in report.results for value in (r.mean_return, r.mean_cost)
    ]
    first = report.results[0]
    row = f"| 5 | {first.mean_return:.2f} ("
    assert row in sections["Budgets measured"]
    assert (
        f"| {first.mean_cost:.2f} | {'yes' if first.passed else 'no'} |"
        in (sections["Budgets measured"])
    )
    agent.set_cost_budget(7)  # another budget is not another agent
    assert agent.last_evaluation is report
    agent.set_deployment(budget_margin=agent.config.budget_margin)
    assert agent.last_evaluation is report
    agent.set_deployment(budget_margin=0.3)
    assert agent.last_evaluation is None
    agent.evaluate(ENV_ID, [5], n_episodes=1)
    agent.learn(drivers, total_steps=1)
    assert "Not measured" in card_of(agent)[1]["Budgets measured"]


def test_other_weights_are_another_agent(agent):
    loaded = RCDT.load(io.BytesIO(saved(agent)))
    loaded.evaluate(ENV_ID, [5], n_episodes=1)
    halved = {
        name: {key: value / 2 if "transformer" in key else value for key, value in state.items()}
        for name, state in loaded.get_parameters().items()
    }
    loaded.set_parameters(halved)
    assert "Not measured" in card_of(loaded)[1]["Budgets measured"]


def test_addresses_are_no_links_and_yaml_reads_every_character(agent):
    assert plain("see https://evil.example/x or www.evil.example") == (
        "see https ://evil.example/x or www .evil.example"
    )
    assert yaml.safe_load(_quoted("a \U0001f916")) == "a \U0001f916"


def saved(agent):
    file = io.BytesIO()
    agent.save(file)
    return file.getvalue()


def test_the_report_of_a_run_is_on_the_card_of_its_agent_alone(agent, tmp_path):
    run = Run(tmp_path)
    agent.save(run.final)
    add_to_report(run, agent, agent.evaluate(ENV_ID, [11], n_episodes=1))
    loaded = load_agent(tmp_path)
    assert "| 11 | " in card_of(loaded)[1]["Budgets measured"]
    loaded.set_deployment(budget_margin=0.3)
    assert "Not measured" in card_of(loaded)[1]["Budgets measured"]
    found = json.loads(run.report.read_text())
    for damaged in (
        {**found, "agent_sha256": "0" * 64}, {**found, "results": [{}]}, {**found, "results": 3},
        [], {k: v for k, v in found.items() if k != "env"},
    ):  # fmt: skip
        run.report.write_text(json.dumps(damaged))
        assert "Not measured" in card_of(load_agent(tmp_path))[1]["Budgets measured"]
    run.report.write_text("{")
    assert "Not measured" in card_of(load_agent(tmp_path))[1]["Budgets measured"]


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_every_algorithm_has_a_card(name, drivers):
    agent = get_algorithm(name)(**small_settings(name)).learn(drivers, total_steps=1)
    head, sections = card_of(agent)
    assert type(agent).__name__.lower() in head["tags"]
    assert ("serves no other" in sections["Limits"]) == (agent.budgets == "one")
    assert ("told no cost budget" in sections["Limits"]) == (agent.budgets == "none")
    assert ("set_cost_budget" in sections["How to load it"]) == (agent.budgets == "any")


def test_small_budgets_that_the_data_do_not_cover_are_named(drivers):
    costly = drivers.select([i for i, cost in enumerate(drivers.episode_costs) if cost > 10])
    agent = RCDT(preset="tiny", seed=0).learn(costly, total_steps=1)
    fifth = sorted(costly.episode_costs.tolist())[4]
    assert f"below {fifth:g}, which fewer than 5" in card_of(agent)[1]["Limits"]


def test_several_costs_and_names_that_mean_something_to_markdown(drivers, tmp_path):
    arrays = {
        "observations": drivers.observations, "actions": drivers.actions,
        "rewards": drivers.rewards, "timeouts": [i % 60 == 59 for i in range(6000)],
        "costs": {"speeding": drivers.costs, "other": drivers.costs * 2},
    }  # fmt: skip
    name = "a|b\n---\n# <script> [x](y) `z`"
    data = TrajectoryDataset.from_arrays(**arrays, name=name)
    agent = RCDT(preset="tiny", seed=0).learn(data, total_steps=1)
    head, sections = card_of(agent)
    assert "model-index" not in head and len(sections) == 6
    shown = sections["Training data"]
    assert "<script>" not in shown and "| costs, other | 0 to " in shown
    assert "budgets of speeding above" in sections["Limits"]


def test_the_name_of_the_data_is_saved_without_its_folder(drivers, tmp_path):
    path = tmp_path / "private" / "log.hdf5"
    path.parent.mkdir()
    drivers.to_hdf5(path)
    agent = RCDT(**QUICK).learn(path, total_steps=1)
    agent.save(tmp_path / "agent.zip", card=True)
    loaded = RCDT.load(tmp_path / "agent.zip")
    assert loaded.provenance.name == "log.hdf5"
    assert "private" not in (tmp_path / "agent.md").read_text()


def test_a_card_needs_a_path_and_a_trained_agent(agent, tmp_path):
    with pytest.raises(InvalidArgumentError, match="`card` needs a path"):
        agent.save(io.BytesIO(), card=True)
    with pytest.raises(InvalidArgumentError, match="has not been trained"):
        RCDT(preset="tiny").save(tmp_path / "x.zip", card=True)
    assert not list(tmp_path.iterdir())
