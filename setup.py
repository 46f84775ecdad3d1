"""Installs the project as pyproject.toml describes it: `pip install -e '.[plot]' -c constraints.txt`."""

from setuptools import setup

setup()
