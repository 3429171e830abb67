"""Models: one file each, written as the paper's equation."""

from sarlite.models.gat import GAT, GATConv
from sarlite.models.gatv2 import GATv2Conv
from sarlite.models.gcn import GCN, GCNConv
from sarlite.models.sage import SAGE, SAGEConv

MODELS = {"gcn": GCN, "sage": SAGE, "gat": GAT}

__all__ = ["GAT", "GATConv", "GATv2Conv", "GCN", "GCNConv", "MODELS", "SAGE", "SAGEConv"]
