"""The paper's constraint-variation protocol: many policies, every budget, one set of tables."""

from rcdt_agent.experiments.benchmark.methods import SWITCHES, Switch, parse_method
from rcdt_agent.experiments.benchmark.pool import Failure
from rcdt_agent.experiments.benchmark.protocol import Protocol
from rcdt_agent.experiments.benchmark.published import find_published, published_scores
from rcdt_agent.experiments.benchmark.results import collect_results, dump_results
from rcdt_agent.experiments.benchmark.runner import run_benchmark
from rcdt_agent.experiments.benchmark.tables import fill_page, make_tables, results_tables

__all__ = [
    "SWITCHES",
    "Failure",
    "Protocol",
    "Switch",
    "collect_results",
    "dump_results",
    "fill_page",
    "find_published",
    "make_tables",
    "parse_method",
    "published_scores",
    "results_tables",
    "run_benchmark",
]
