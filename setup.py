"""Installs the project as pyproject.toml describes it."""

from setuptools import setup

setup()
