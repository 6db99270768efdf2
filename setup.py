"""The compiled part; everything else stands in pyproject.toml."""

from setuptools import Extension, setup

FOLDER = "rcdt_agent/kernels"

setup(
    ext_modules=[
        Extension(
            "rcdt_agent.kernels._compiled",
            sources=[f"{FOLDER}/kernels.c"],
            depends=[f"{FOLDER}/block.h"],
            extra_compile_args=["-O3", "-fno-math-errno", "-ffp-contract=fast", "-Wno-psabi"],
            optional=True,  # without a compiler, torch's operations do the same
        )
    ]
)
