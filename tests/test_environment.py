"""What a run records of the machine and the code that computed it."""

from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import pytest

from hf_domain import environment
from hf_domain.environment import describe_environment, find_version


def test_what_is_committed_or_installed_meanwhile_computes_nothing_here(monkeypatch):
    """The steps of a comparison name one commit, though somebody commits while they run."""
    before = describe_environment()
    monkeypatch.setattr(environment.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout="0123456"))
    monkeypatch.setattr(environment, "version", lambda package: "0.0")
    assert describe_environment() == before
    environment.find_commit.cache_clear()
    assert describe_environment()["commit"] == "0123456"
    environment.find_commit.cache_clear()


def test_outside_a_checkout_there_is_no_commit(monkeypatch):
    def fail(*_, **__):
        raise FileNotFoundError("git")

    environment.find_commit.cache_clear()
    for run in (lambda *_, **__: SimpleNamespace(stdout=""), fail):
        monkeypatch.setattr(environment.subprocess, "run", run)
        assert describe_environment()["commit"] is None
        environment.find_commit.cache_clear()


def test_a_missing_package_has_no_version():
    with pytest.raises(PackageNotFoundError):
        find_version("no-such-package")
