"""`rcdt compare`: table, picture and page of a user's own file; resumed, and offline."""

from __future__ import annotations

import json

import numpy as np
import pytest

from rcdt_agent import BC, TrajectoryDataset
from rcdt_agent.algorithms import ALGORITHMS
from rcdt_agent.cli import run_command
from rcdt_agent.errors import InvalidArgumentError
from rcdt_agent.evaluation import evaluate_budgets
from rcdt_agent.experiments.benchmark import collect_results
from rcdt_agent.experiments.benchmark.results import summarize
from rcdt_agent.experiments.compare import DEFAULT_METHODS, choose_budgets, parse_methods
from rcdt_agent.experiments.comparison_page import Table, _number, comparison_table
from rcdt_agent.experiments.offline import imitation_error
from rcdt_agent.tasks.registry import get_task
from rcdt_agent.tasks.speed_limit import ENV_ID

SMALL = ("--preset", "tiny", "--steps", "12", "--episodes", "2")


@pytest.fixture
def file(tmp_path, drivers):
    """SpeedLimit's drivers in a file named after the task."""
    path = tmp_path / "SpeedLimit-mine.hdf5"
    drivers.to_hdf5(path)
    return path


def test_every_algorithm_is_compared_by_default():
    methods = parse_methods(DEFAULT_METHODS)
    assert {method.algorithm for method in methods} == set(ALGORITHMS)
    assert [m.name for m in methods][:2] == ["wcdt", "cdt"]
    each = {m.algorithm for m in methods if m.one_policy_per_budget}
    assert each == {name for name, kind in ALGORITHMS.items() if kind.budgets == "one"}
    (fixed,) = parse_methods(["bc-safe+cost_budget=7"])
    assert not fixed.one_policy_per_budget
    with pytest.raises(InvalidArgumentError, match="`methods` must not be empty"):
        parse_methods([])


def test_budgets_of_task_and_data():
    data = TrajectoryDataset.from_arrays(
        observations=np.zeros((8, 1)),
        actions=np.zeros((8, 1)),
        rewards=np.arange(8.0),
        costs=[0, 0, 0, 10, 20, 30, 40, 50.04],
        terminals=np.ones(8),
    )
    # Quartiles of the costs above zero, to two digits.
    assert choose_budgets(data) == (20.0, 30.0, 40.0)
    assert choose_budgets(data, get_task("BallRun")) == (10.0, 20.0, 40.0)
    assert choose_budgets(data, get_task("SpeedLimit")) == (2.0, 10.0, 40.0)
    harmless = data.filter(max_cost=0.0)
    with pytest.raises(InvalidArgumentError, match="do not suggest three budgets"):
        choose_budgets(harmless)


def test_table_picture_page_and_resumption(file, drivers, tmp_path, capsys):
    arguments = ["compare", str(file), *SMALL, "--output", str(tmp_path / "out")]
    assert run_command([*arguments, "--methods", "bc", "trac", "caps"]) == 0
    text = capsys.readouterr().out
    rows = {line.split()[0]: line for line in text.splitlines() if line}
    assert "none, one model" in rows["bc"] and "one, 3 models" in rows["trac"]
    assert "any, one model" in rows["caps"]
    assert "budget 2 " in rows["method"] and "budget 40" in rows["method"]
    assert "Methods of one budget were trained once for each." in text
    out = tmp_path / "out"
    assert (out / "frontier-SpeedLimit.png").stat().st_size > 10_000
    page = (out / "comparison.html").read_text()
    assert "<svg" in page and "SpeedLimit: methods compared" in page
    assert page.count("<tr>") > 6 and "http://" not in page and "https://" not in page
    # The numbers are those of the library.
    results = collect_results(out)
    cell = next(cell for cell in results["cells"] if cell["method"] == "bc")
    agent = BC.from_dsrl("SpeedLimit", dataset=drivers, preset="tiny", seed=0, device="cpu")
    report = evaluate_budgets(agent.learn(total_steps=12), ENV_ID, (2, 10, 40), n_episodes=2)
    for ours, theirs in zip(cell["evaluation"]["results"], report.results, strict=True):
        np.testing.assert_allclose(ours["returns"], theirs.returns, atol=1e-3)
    first = report.results[0]
    assert f"{first.mean_return:.3g} / {first.mean_cost:.3g}" in rows["bc"]
    assert cell["command"].startswith("rcdt compare ") and "--task SpeedLimit" in cell["command"]
    # Again with one more method: nothing is trained twice.
    before = {path: path.stat().st_mtime_ns for path in out.glob("cells/**/*.zip")}
    assert len(before) == 1 + 3 + 1
    assert run_command([*arguments, "--methods", "bc", "caps", "bc-safe"]) == 0
    after = {path: path.stat().st_mtime_ns for path in out.glob("cells/**/*.zip")}
    assert {path: after[path] for path in before} == before and len(after) == 5 + 3
    assert "bc-safe-each" in capsys.readouterr().out


def test_a_folder_keeps_to_its_budgets(file, tmp_path):
    """Evaluations at other budgets would be averaged with those that are there."""
    arguments = ["compare", str(file), *SMALL, "--output", str(tmp_path), "--methods", "bc"]
    assert run_command([*arguments, "--budgets", "2", "10"]) == 0
    with pytest.raises(InvalidArgumentError, match=r"=\[2.0, 10.0\], now budgets=\(10.0, 40.0\)"):
        run_command([*arguments, "--budgets", "10", "40", "--seeds", "0", "1"])
    results = collect_results(tmp_path)
    assert len(results["cells"]) == 1
    other = json.loads(json.dumps(results["cells"][0]))
    other["evaluation"]["results"][0]["budget"] = 3.0
    results["cells"].append(other)
    with pytest.raises(InvalidArgumentError, match="seeds of bc have different budgets"):
        summarize(results, "SpeedLimit", "bc")


def test_one_seed_has_no_interval_and_no_best(file, tmp_path, capsys):
    arguments = ["compare", str(file), *SMALL, "--output", str(tmp_path), "--methods", "bc"]
    arguments += ["--budgets", "40", "70"]
    assert run_command(arguments) == 0
    (row, second, *_, note) = (
        line
        for line in capsys.readouterr().out.splitlines()
        if line.startswith(("bc", " ", "Mean"))
    )
    results = collect_results(tmp_path)
    (summary,) = (summarize(results, "SpeedLimit", "bc"),)
    assert summary.keeps_all and row.split()[-1] == "2"
    assert second.split() == ["0%", "over", "0%", "over"]
    assert "None is marked as the best" in note and "No method keeps" not in note
    assert "interval" not in note
    assert run_command([*arguments, "--seeds", "0", "1"]) == 0
    text = capsys.readouterr().out
    low, high = summarize(collect_results(tmp_path), "SpeedLimit", "bc").budgets[0].cost_interval
    assert f"[{_number(low)}, {_number(high)}]" in text
    assert "95 % t intervals over seeds" in text and "bc *" in text


def test_an_environment_of_gymnasium(drivers, tmp_path, capsys):
    path = tmp_path / "robot.hdf5"
    drivers.to_hdf5(path)
    arguments = ["compare", str(path), *SMALL, "--methods", "bc", "--output", str(tmp_path / "out")]
    assert run_command([*arguments, "--env", ENV_ID, "--budgets", "3", "30"]) == 0
    assert "budget 3 " in capsys.readouterr().out
    (cell,) = collect_results(tmp_path / "out")["cells"]
    assert f"--env {ENV_ID} --budgets 3 30" in cell["command"]
    run = json.loads(next((tmp_path / "out").glob("cells/**/run.json")).read_text())
    assert run["env"] == ENV_ID and run["dataset"] is None
    for wrong, message in (
        (["--env", "Nowhere-v0"], "`env` must be a task or an environment of Gymnasium"),
        (["--env", ENV_ID, "--task", "SpeedLimit"], "either `task` or `env`"),
        (["--budgets", "0"], "`budgets` must be > 0"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            run_command([*arguments, *wrong])
    with pytest.raises(InvalidArgumentError, match="`file` must be an HDF5 file that exists"):
        run_command(["compare", str(tmp_path / "none.hdf5")])


def test_offline_needs_no_environment(drivers, tmp_path, capsys):
    path = tmp_path / "robot.hdf5"
    drivers.to_hdf5(path)
    arguments = ["compare", str(path), *SMALL, "--output", str(tmp_path / "out")]
    assert run_command([*arguments, "--methods", "bc", "rcdt", "bc-safe"]) == 0
    text = capsys.readouterr().out
    assert "nothing is known of return and cost" in text and "within " in text
    results = collect_results(tmp_path / "out")
    (task,) = results["tasks"].values()
    assert task["offline"] and task["trajectories"] == 80
    assert len(TrajectoryDataset.from_hdf5(task["heldout"])) == 20
    assert all("--offline" in cell["command"] for cell in results["cells"])
    assert len(comparison_table(results).rows) == 3
    assert not list((tmp_path / "out").glob("*.png"))


def constant(value: float, n: int = 12) -> TrajectoryDataset:
    """Two trajectories of six steps: actions +- `value` around 0.1, the second one costly."""
    signs = np.tile([1.0, -1.0], n // 2)
    return TrajectoryDataset.from_arrays(
        observations=np.zeros((n, 2)),
        actions=(0.1 + value * signs)[:, None],
        rewards=np.arange(n, dtype=float),
        costs=np.repeat([0.0, 1.0], n // 2),
        terminals=np.zeros(n),
        timeouts=np.tile(np.arange(6) == 5, 2),
    )


def test_imitation_error_by_hand(monkeypatch):
    agent = BC(preset="tiny", seed=0, width=8).learn(constant(0.5), 2)
    monkeypatch.setattr(
        agent, "predict", lambda obs, state, *_: (np.full((len(obs), 1), 0.3, np.float32), state)
    )
    found = imitation_error(agent, constant(0.5), 0.0, most=5)
    # Within a budget of 0 there is one trajectory: errors 0.3 and -0.7, variance 0.25.
    assert found.errors == pytest.approx([(0.3**2 + 0.7**2) / 2])
    assert found.variance == pytest.approx(0.25)
    assert len(imitation_error(agent, constant(0.5), 6.0, most=5).errors) == 2
    assert len(imitation_error(agent, constant(0.5), 6.0, most=1).errors) == 1
    assert imitation_error(agent, constant(0.5).select([1]), 0.0, most=5).errors == ()


def test_a_table_as_text_markdown_and_page():
    table = Table(head=("a", "bb"), rows=(("x<y", "1"),), note="note")
    assert table.as_text() == "a    bb\nx<y  1\n\nnote"
    assert table.as_markdown() == "| a | bb |\n| --- | --- |\n| x<y | 1 |\n\nnote"
    assert "<td>x&lt;y</td>" in table.as_html()


@pytest.mark.parametrize(
    ("value", "text"), [(1439.4, "1439"), (-99.96, "-100"), (54.42, "54.4"), (0.004, "0")]
)
def test_numbers_of_the_table(value, text):
    assert _number(value) == text
