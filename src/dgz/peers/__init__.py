"""Rival methods and baselines, each with the same ``fit`` and ``predict`` as DGZ."""

from dgz.peers.center_ridge import CenterRidge

__all__ = ["CenterRidge"]
