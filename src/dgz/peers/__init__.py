"""Rival methods and baselines, each with the same ``fit`` and ``predict`` as DGZ."""

from dgz.peers.ce_gzsl import CEGZSL
from dgz.peers.center_ridge import CenterRidge
from dgz.peers.f_clswgan import FCLSWGAN

__all__ = ["CEGZSL", "FCLSWGAN", "CenterRidge"]
