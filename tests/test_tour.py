"""The notebook `examples/tour.ipynb`: its code runs, and its stored outputs are small."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys

import matplotlib.pyplot as plt
import pytest
from test_examples import ROOT

PATH = ROOT / "examples" / "tour.ipynb"


def sources(kind):
    cells = json.loads(PATH.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == kind]


def shell(command):
    """What `!command` does in a notebook, with this Python."""
    command = re.sub(r"^rcdt ", f"{shlex.quote(sys.executable)} -m rcdt_agent ", command)
    subprocess.run(command, shell=True, check=True, capture_output=True)


@pytest.mark.slow
def test_the_cells_run_in_order(tmp_path, monkeypatch, capsys):
    shown = []
    monkeypatch.chdir(tmp_path)
    plt.switch_backend("agg")
    # A notebook brings IPython; nothing else of it is used.
    names = {"shell": shell, "Image": lambda path, width=None: shown.append(path)}
    for code in sources("code"):
        code = code.replace("from IPython.display import Image\n", "")
        code = re.sub(r"total_steps=[\d_]+", "total_steps=8", code)
        code = code.replace("n_episodes=20", "n_episodes=2")
        code = re.sub(r"--total-steps \d+", "--total-steps 8", code)
        code = re.sub(r"^!(.*)$", lambda line: f"shell({line[1]!r})", code, flags=re.MULTILINE)
        exec(compile(code, PATH.name, "exec"), names)
    assert [path.name for path in shown] == ["data.png", "frontier.png", "drive.gif", "changed.png"]
    assert all((tmp_path / path).stat().st_size > 5_000 for path in shown)
    assert (tmp_path / "build/tour/run/report.html").is_file()
    said = capsys.readouterr().out
    assert re.findall(r"budget +(\d+): cost", said) == ["3", "5", "10", "20", "30"]
    assert "The cost budget 5000 is above 4" in said


def test_stored_outputs_are_small_and_of_one_run():
    assert PATH.stat().st_size < 300_000
    notebook = json.loads(PATH.read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    pictures = [kind for out in outputs for kind in out.get("data", {}) if "image/" in kind]
    assert sorted(pictures) == ["image/gif", "image/png", "image/png", "image/png"]
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    text = "".join("".join(output.get("text", "")) for output in outputs)
    reached = [float(share) for share in re.findall(r"([\d.]+)% of the optimum", text)]
    assert len(reached) == 5 and min(reached) > 95
    assert str(ROOT) not in text and "/tmp" not in text


def test_links_lead_somewhere():
    for text in sources("markdown"):
        for target in re.findall(r"\]\(([^)]+)\)", text):
            assert (PATH.parent / target).exists(), target
